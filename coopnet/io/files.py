"""Writing files so that a crash, a full disk or Ctrl-C leaves the previous one as it was."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def atomic_write(path: str | os.PathLike[str], write: Callable[[Path], Any]) -> None:
    """Let ``write(temporary)`` make a file, then rename it to ``path`` in one step.

    The temporary file lies in the same directory, keeps the suffix of ``path`` (by which image libraries choose a
    format), exists when ``write`` is called, and is on the disk before it is renamed. A symbolic link stays one: the
    file it points to is replaced. The new file has the permissions of the old one, or those that ``open`` would give.

    Raises:
        OSError: the directory is missing or not writable, or ``path`` is a directory; the message names ``path``.
        Exception: whatever ``write`` raises. ``path`` is untouched then and the temporary file is removed.

    >>> atomic_write("loss.png", figure.savefig)
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    # a name may be 255 bytes long, and the temporary one is longer
    temporary = target.with_name(f".{target.stem[:32]}.{secrets.token_hex(6)}.tmp{target.suffix}")
    try:
        mode = _create(temporary)
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(target.stat().st_mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    try:
        write(temporary)
        _flush(temporary, mode)
        os.replace(temporary, target)
    except BaseException:  # Ctrl-C, too
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _flush_directory(target.parent)


def _create(path: Path) -> int:
    """Create an empty file and return its permissions, which the umask decides."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def _flush(path: Path, mode: int) -> None:
    # opened anew, since write() may have put another file with other permissions in its place
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.chmod(path, mode)


def _flush_directory(path: Path) -> None:
    with suppress(OSError):  # not every system and file system can; the file itself is safe
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
