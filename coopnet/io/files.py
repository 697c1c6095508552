"""Writing files so that a crash, a full disk or Ctrl-C leaves the previous file as it was, and no temporary files."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..checks import check, ensure

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_KINDS = {
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


def atomic_write(path: str | os.PathLike[str], write: Callable[[Path], Any]) -> None:
    """Let ``write(temporary)`` write a temporary file, then rename it to ``path`` in one step.

    The temporary file is in the same directory, and has the suffix of ``path`` (by which image libraries choose a
    format). It exists when ``write`` is called, which should fill it rather than replace it. It is flushed to the disk
    before it is renamed. A symbolic link stays one: the file to which it points is replaced. Other hard links keep the
    previous contents. The new file has the permissions of the old one, or those that ``open`` would give.

    A process that is killed leaves its temporary file behind; the next writer of the same name removes it. Running
    processes hold a lock (``flock``) on their temporary files, so that these are not removed. If a file system has no
    locks, no temporary files are removed.

    Raises:
        TypeError, ValueError: ``path`` is not a possible name of a file, ``write`` is not a function, or ``path``
            exists and is not a regular file (a device, a FIFO, a socket): renaming would destroy it.
        OSError: the directory is missing or not writable, or ``path`` is a directory; the message names ``path``.
        Exception: whatever ``write`` raises. ``path`` is untouched then and the temporary file is removed.

    >>> atomic_write("loss.png", figure.savefig)
    """
    where = "atomic_write"
    check(callable(write), where, "write", write, "a function of a path", TypeError)
    target = writable(path, where)
    _remove_stale(target)
    start, end = _affixes(target)
    temporary = target.with_name(f"{start}{secrets.token_hex(6)}{end}")
    descriptor = None
    try:
        with naming(path):
            descriptor, mode = _create(temporary)
            with suppress(FileNotFoundError):
                mode = stat.S_IMODE(target.stat().st_mode)
        write(temporary)
        writable(target, where)  # the target may have changed since
        with naming(path):
            _flush(temporary, os.O_RDWR)  # opened again, since write() may have replaced the file
            os.chmod(temporary, mode)
            os.replace(temporary, target)
    except BaseException:  # Ctrl-C, too
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        if descriptor is not None:
            os.close(descriptor)
    with suppress(OSError):  # not all systems can flush a directory; the file itself is safe
        _flush(target.parent, os.O_RDONLY)


@contextmanager
def naming(path: Any) -> Iterator[None]:
    """A ``with`` block in which ``OSError`` names ``path``, not the temporary file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from None


def writable(path: Any, where: str) -> Path:
    """The path of the file to write, with links resolved. It is a regular file or does not exist.

    Raises:
        TypeError, ValueError: ``path`` is not a possible name of a file, or exists and is neither file nor directory.
        OSError: it is a directory, or a directory of the path is missing, inaccessible or a loop of links.
    """
    text = file_name(path, where)
    try:
        regular(text, where)
    except FileNotFoundError:
        parent = os.path.dirname(os.path.realpath(text))
        os.stat(os.path.join(parent, ""))  # raises if something is wrong with the directory
    return Path(os.path.realpath(text))


def regular(path: str, where: str) -> os.stat_result:
    """The status of the regular file ``path``; errors as in :func:`writable`, also if it does not exist."""
    status = os.stat(path)  # its errors name the path
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise ValueError(f"{where}: {path!r}: not a regular file, but {kind}.")
    return status


def file_name(path: Any, where: str, name: str = "path") -> str:
    """The argument ``path`` as a string; raises ``TypeError`` or ``ValueError`` unless it can be a file's name."""
    text: Any = None
    with suppress(Exception):  # __fspath__ may raise anything
        text = os.fspath(path)
    ensure(isinstance(text, str), f"{where}: {name} is a {type(path).__name__}; a string or path is needed.", TypeError)
    text = str.__str__(text)  # a plain one
    valid = False
    with suppress(UnicodeEncodeError):
        valid = text != "" and b"\0" not in os.fsencode(text)
    check(valid, where, name, text, "the name of a file")
    return text


# ---- temporary files ----------------------------------------------------


def _affixes(target: Path) -> tuple[str, str]:
    """Prefix and suffix of the names of temporary files for ``target``."""
    # A name may have 255 bytes, and a character up to four of them. A long suffix does not name a format.
    suffix = target.suffix if len(os.fsencode(target.suffix)) <= 64 else ""
    return f".{target.stem[:32]}.", f".tmp{suffix}"


def _create(path: Path) -> tuple[int | None, int]:
    """Create an empty file; returns its descriptor, which holds a lock while it is open, and its permissions.

    On Windows, the descriptor is ``None``.
    """
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            if fcntl is None:  # Windows cannot rename open files
                os.close(descriptor)
                return None, mode
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, path):  # another writer may have removed it as stale before it was locked
                return descriptor, mode
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _remove_stale(target: Path) -> None:
    """Remove the temporary files of writers of ``target`` that no longer run."""
    if fcntl is None:
        return
    start, end = _affixes(target)
    pattern = re.compile(f"{re.escape(start)}[0-9a-f]{{12}}{re.escape(end)}")
    with suppress(OSError), os.scandir(target.parent) as entries:
        for name in [entry.name for entry in entries if pattern.fullmatch(entry.name)]:
            with suppress(OSError):  # another user's, locked, or already gone
                _remove_unlocked(target.with_name(name))


def _remove_unlocked(path: Path) -> None:
    # O_RDWR, since locks of network file systems need it; O_NONBLOCK, in case it is a FIFO
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its writer holds it
        if _is_at(descriptor, path):
            os.unlink(path)
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Is the open file still the one at ``path``?"""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
