"""How large networks may be, and what memory holds: asked before anything is allocated or traced."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

from . import is_number
from .words import shown, shown_bytes

#: Dr.Jit numbers the entries of an array with 32 bits.
MAX_ENTRIES = 2**32 - 1
#: Components of a cooperative vector, and so the width of a layer.
MAX_FEATURES = 2**16 - 1
#: Layers of a network: a kernel holds all of them.
MAX_LAYERS = 2**12
#: Octaves above the lowest that a single-precision frequency can be.
MAX_OCTAVES = 2**7
#: Rounds of the generator, ten times as many as anybody needs.
MAX_ROUNDS = 100

#: Bytes from which on it is asked how much memory there is.
_LARGE = 1 << 26


def check_features(where: str, name: str, value: int, count: int | None = None) -> int:
    """``value``, the argument ``name``; raises ``ValueError`` if it makes a vector of too many features.

    ``count`` is how many it makes, if not as many.
    """
    return _check(where, name, value, count, "features", "a vector", MAX_FEATURES)


def check_layers(where: str, name: str, value: int, count: int | None = None) -> int:
    """``value``, the argument ``name``; raises ``ValueError`` if it makes a network of too many layers."""
    return _check(where, name, value, count, "layers", "a network", MAX_LAYERS)


def _check(where: str, name: str, value: int, count: int | None, unit: str, owner: str, most: int) -> int:
    if (value if count is None else count) > most:
        makes = "" if count is None else f", which makes {_count(count)} {unit}"
        raise ValueError(f"{where}: {name} is {_count(value)}{makes}; {owner} has at most {most} {unit}.")
    return value


def check_entries(where: str, what: str, shape: tuple[int, ...], itemsize: int = 4, on_host: bool = True) -> None:
    """Raise ``ValueError`` if there is no room for an array of ``shape``.

    ``itemsize`` is in bytes. Parameters are allocated twice, as they are drawn and as they are packed, and rounded up
    to powers of two, as Dr.Jit does. With ``on_host``, they must fit the memory of the host; how much a GPU has free is
    for Dr.Jit to say.
    """
    count = math.prod(shape)
    sizes = " x ".join(_count(n) for n in shape)
    numbers = f"{sizes} {what}" + (f", {_rough(count)} numbers," if len(shape) > 1 else "")
    if count > MAX_ENTRIES:
        raise ValueError(f"{where}: {numbers} are more than an array can hold, fewer than 2^32.")
    needed = count * itemsize
    if not on_host or needed < _LARGE:
        return
    left = available_memory()
    if left is not None and 2 * (1 << (needed - 1).bit_length()) > left:
        raise ValueError(
            f"{where}: {numbers} are more than fit: twice {shown_bytes(needed)}, but {shown_bytes(left)} of memory are "
            f"left."
        )


def available_memory() -> int | None:
    """Bytes that this process can still allocate, as far as the system says; ``None`` if it does not."""
    found = [v for v in (_free(), _address_space(), _container()) if v is not None]
    return max(0, min(found)) if found else None


def _free() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _address_space() -> int | None:
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            used = int(Path("/proc/self/statm").read_text().split()[0])
            return limit - used * os.sysconf("SC_PAGE_SIZE")
    return None


def _container() -> int | None:
    """What is left of a container's limit, in either version of Linux's control groups."""
    for folder, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # "max" is no number: no limit
            most, taken = (int(Path(folder, name).read_text()) for name in (limit, used))
            rows = dict(row.split() for row in Path(folder, "memory.stat").read_text().splitlines())
            cached = int(rows.get("inactive_file", 0)) + int(rows.get("active_file", 0))
            return most - taken + cached  # files in memory make room
    return None


def _count(n: int) -> str:
    return str(n) if n <= MAX_ENTRIES else _rough(n)


def _rough(n: int) -> str:
    """A number to two digits: 3.6e9."""
    return f"{n:.1e}".replace("e+0", "e").replace("e+", "e") if is_number(n) else shown(n)
