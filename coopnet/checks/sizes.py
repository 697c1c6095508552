"""Limits of networks and arrays, checked before anything is allocated or traced."""

from __future__ import annotations

import math

from . import is_number
from .memory import NoRoom, scarcest
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
    if on_host and (left := scarcest([needed, needed])) is not None:
        raise NoRoom(f"{where}: {numbers} do not fit: twice {shown_bytes(needed)}, but {left} are left.")


def _count(n: int) -> str:
    return str(int(n)) if n <= MAX_ENTRIES else _rough(n)


def _rough(n: int) -> str:
    """A number to two digits, such as 3.6e9."""
    return f"{int(n):.1e}".replace("e+0", "e").replace("e+", "e") if is_number(n) else shown(n)
