"""Free memory, checked before much is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import drjit as dr

from .messages import shown_bytes

#: From this number of bytes on, free memory is checked.
_LARGE = 1 << 26


class NoRoom(ValueError):
    """There is not enough free memory."""


def check_room(where: str, parts: Mapping[str, Sequence[float]], hint: str) -> None:
    """Raise :class:`NoRoom` if the host has not enough memory for all ``parts`` at a time.

    Args:
        where: opens the message, such as ``"fit: a step"``.
        parts: sizes of arrays in bytes, by a description of what they are for.
        hint: ends the message.
    """
    total = sum(sum(sizes) for sizes in parts.values())
    if (left := scarcest([size for sizes in parts.values() for size in sizes])) is not None:
        each = ", ".join(f"{shown_bytes(int(sum(v)))} for {k}" for k, v in parts.items() if sum(v) >= total / 100)
        raise NoRoom(f"{where} takes {shown_bytes(int(total))} more memory, {each}; but {left} are left. {hint}.")


def scarcest(sizes: Sequence[float]) -> str | None:
    """The free memory, in words, if it is too little for arrays of so many bytes; otherwise ``None``.

    Dr.Jit rounds sizes up to powers of two. The additional bytes take address space, but no memory, since they are not
    written.
    """
    if sum(sizes) < _LARGE:
        return None
    dr.flush_malloc_cache()  # Dr.Jit's cache keeps freed memory
    rounded = sum(1 << max(0, math.ceil(size) - 1).bit_length() for size in sizes)
    short = {k: v for k, v in memory_left().items() if v < (rounded if k == ADDRESSES else sum(sizes))}
    scarcest = min(short, key=short.__getitem__, default="")
    return f"{shown_bytes(int(short[scarcest]))} of {scarcest}" if short else None


#: The limits that :func:`memory_left` reports.
MEMORY, CONTAINER = "memory", "the memory of this container or service"
ADDRESSES = "the address space of this process (ulimit -v)"


def memory_left(root: str | os.PathLike[str] = "/") -> dict[str, int]:
    """Bytes that this process can still allocate, by limit; ``root`` is the root of the system's files."""
    files = Path(root)
    limits = {MEMORY: _free(files), CONTAINER: _container(files), ADDRESSES: _address_space(files)}
    return {what: max(0, left) for what, left in limits.items() if left is not None}


def _free(root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _address_space(root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):  # "unlimited" is not a number
        for line in (root / "proc/self/limits").read_text().splitlines():
            if line.startswith("Max address space"):
                used = int((root / "proc/self/statm").read_text().split()[0])
                return int(line.split()[3]) - used * os.sysconf("SC_PAGE_SIZE")
    return None


def _container(root: Path) -> int | None:
    """Bytes left within the limits of this process' control groups (Linux, version 1 or 2), or ``None``."""
    left = []
    for mount, names in (("sys/fs/cgroup", _CGROUP_2), ("sys/fs/cgroup/memory", _CGROUP_1)):
        for group in _groups(root, names):
            with suppress(OSError, ValueError):  # "max" is not a number: no limit
                left.append(_available(root / mount / group, *names[1:]))
    return min(left, default=None)


#: For versions 2 and 1: the controller in a line of /proc/self/cgroup, and the names of the files for limit and use.
_CGROUP_2 = "", "memory.max", "memory.current"
_CGROUP_1 = "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"


def _groups(root: Path, names: tuple[str, str, str]) -> list[str]:
    """The paths of this process' group and of all groups that contain it, which have their own limits.

    In a container, this path may not exist; the root is then the container's own group.
    """
    path = ""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = (*line.split(":", 2), "", "")[:3]
            if names[0] in controllers.split(","):
                path = group.strip("/")
    steps = path.split("/")
    return ["/".join(steps[:n]) for n in range(len(steps) + 1)]


def _available(folder: Path, limit: str, used: str) -> int:
    maximum, in_use = (int((folder / name).read_text()) for name in (limit, used))
    rows = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
    # in version 1, "total_" includes the groups inside this one
    cached = (rows.get(f"total_{kind}", rows.get(kind, 0)) for kind in ("inactive_file", "active_file"))
    return maximum - in_use + sum(map(int, cached))  # memory that caches files can be freed
