"""Limits of networks and of memory, checked before anything is allocated or traced."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import drjit as dr

from . import is_number
from .messages import shown, shown_bytes

#: Dr.Jit numbers the entries of an array with 32 bits.
MAX_ENTRIES = 2**32 - 1
#: Components of a cooperative vector, and so the width of a layer.
MAX_FEATURES = 2**16 - 1
#: Layers of a network: a kernel holds all of them.
MAX_LAYERS = 2**12
#: Most octaves of waves, since single precision has no higher frequencies.
MAX_OCTAVES = 2**7
#: Largest number of rounds of the generator, ten times as many as useful.
MAX_ROUNDS = 100

#: From this number of bytes on, free memory is checked.
_LARGE = 1 << 26


def check_features(where: str, name: str, value: int, count: int | None = None) -> int:
    """``value``, the argument ``name``; raises ``ValueError`` if it leads to a vector of too many features.

    ``count`` is the number of features; ``None``: it is ``value``.
    """
    return _check(where, name, value, count, "features", "a vector", MAX_FEATURES)


def check_layers(where: str, name: str, value: int, count: int | None = None) -> int:
    """``value``, the argument ``name``; raises ``ValueError`` if it leads to a network of too many layers."""
    return _check(where, name, value, count, "layers", "a network", MAX_LAYERS)


def _check(where: str, name: str, value: int, count: int | None, unit: str, owner: str, most: int) -> int:
    if (value if count is None else count) > most:
        makes = "" if count is None else f", which makes {_count(count)} {unit}"
        raise ValueError(f"{where}: {name} is {_count(value)}{makes}; {owner} has at most {most} {unit}.")
    return value


class NoRoom(ValueError):
    """There is not enough free memory."""


def check_entries(where: str, what: str, shape: tuple[int, ...], itemsize: int = 4, on_host: bool = True) -> None:
    """Raise ``ValueError`` if there is not enough memory for an array of ``shape``.

    ``itemsize`` is in bytes. Parameters are allocated twice: when they are drawn and when they are packed. With
    ``on_host``, they must fit into the memory of the host; for a GPU, Dr.Jit reports missing memory.
    """
    count = math.prod(shape)
    sizes = " x ".join(_count(n) for n in shape)
    numbers = f"{sizes} {what}" + (f", {_rough(count)} numbers," if len(shape) > 1 else "")
    if count > MAX_ENTRIES:
        raise ValueError(f"{where}: {numbers} are more than an array can hold, fewer than 2^32.")
    needed = count * itemsize
    if on_host and (left := _scarcest([needed, needed])) is not None:
        raise NoRoom(f"{where}: {numbers} are more than fit: twice {shown_bytes(needed)}, but {left} are left.")


def check_room(where: str, parts: Mapping[str, Sequence[float]], hint: str) -> None:
    """Raise :class:`NoRoom` if the host has not enough memory for all ``parts`` at a time.

    Args:
        where: opens the message, such as ``"fit: a step"``.
        parts: sizes of arrays in bytes, by a description of what they are for.
        hint: ends the message.
    """
    total = sum(sum(sizes) for sizes in parts.values())
    if (left := _scarcest([size for sizes in parts.values() for size in sizes])) is not None:
        each = ", ".join(f"{shown_bytes(int(sum(v)))} for {k}" for k, v in parts.items() if sum(v) >= total / 100)
        raise NoRoom(f"{where} takes {shown_bytes(int(total))} more memory, {each}; but {left} are left. {hint}.")


def _scarcest(sizes: Sequence[float]) -> str | None:
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
    with suppress(OSError, ValueError, IndexError):  # "unlimited" is no number
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
            with suppress(OSError, ValueError):  # "max" is no number: no limit
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


def _count(n: int) -> str:
    return str(int(n)) if n <= MAX_ENTRIES else _rough(n)


def _rough(n: int) -> str:
    """A number to two digits, such as 3.6e9."""
    return f"{int(n):.1e}".replace("e+0", "e").replace("e+", "e") if is_number(n) else shown(n)
