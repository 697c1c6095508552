"""The box in which the coordinates of a field lie, and its map to the unit cube."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import drjit as dr
import numpy as np

from .checks import check, ensure, entries, is_number

#: One number for all coordinates, or one for each.
Side: TypeAlias = "float | tuple[float, ...]"
Bounds: TypeAlias = "tuple[Side, Side]"

#: Smallest and largest extent of a box. Single precision holds them, their reciprocals, and coordinates far outside.
EXTENTS = 1e-30, 1e30
_NEEDED = "a pair (low, high) of finite numbers, or of one for each coordinate,"


def checked(where: str, bounds: Any) -> Bounds | None:
    """``bounds`` as floats, or tuples of them; raises ``TypeError`` or ``ValueError`` unless they are a box."""
    if bounds is None:
        return None
    listed = isinstance(bounds, (Sequence, np.ndarray)) and not isinstance(bounds, (str, bytes))
    check(listed, where, "bounds", bounds, _NEEDED, TypeError)
    pair = entries(where, "bounds", bounds)
    check(len(pair) == 2, where, "bounds", bounds, _NEEDED)
    low, high = (_side(where, name, side) for name, side in zip(("low", "high"), pair, strict=True))
    sizes = {len(side) for side in (low, high) if isinstance(side, tuple)}
    same = f"{where}: bounds have {_count(low)} for low and {_count(high)} for high; equally many are needed."
    ensure(len(sizes) < 2, same)
    for i, (a, b) in enumerate(_pairs((low, high), max(sizes, default=1))):
        which = f"of coordinate {i} " if sizes else ""
        ensure(a < b, f"{where}: bounds {which}are {a:.9g} and {b:.9g} in single precision; low < high is needed.")
        valid = EXTENTS[0] <= b - a <= EXTENTS[1]
        ensure(valid, f"{where}: bounds {which}are {b - a:g} apart; from {EXTENTS[0]:g} to {EXTENTS[1]:g} is needed.")
    return low, high


def check_count(where: str, bounds: Bounds | None, coordinates: int) -> None:
    """Raise ``ValueError`` unless ``bounds`` fit this number of ``coordinates``."""
    for side in bounds or ():
        given = len(side) if isinstance(side, tuple) else coordinates
        takes = f"the field takes {coordinates}; give one number for each, or one for all"
        ensure(given == coordinates, f"{where}: bounds are those of {given} coordinates, but {takes}.")


def unit_map(bounds: Bounds, coordinates: int) -> list[tuple[float, float]]:
    """``(low, scale)`` of every coordinate, in single precision. It is mapped to ``(x - low) * scale``."""
    return [(a, float(np.float32(1 / (b - a)))) for a, b in _pairs(bounds, coordinates)]


def to_unit(parts: list, bounds: Bounds | None) -> list:
    """Coordinates in single precision, mapped to the unit cube."""
    if bounds is None:
        return parts
    # Subtract first: otherwise, coordinates far from the origin would lose digits.
    return [(v - low) * scale for v, (low, scale) in zip(parts, unit_map(bounds, len(parts)), strict=True)]


def slopes(vectors: list[list], bounds: Bounds | None) -> list[list]:
    """Derivatives with respect to original coordinates, from those with respect to mapped ones.

    All of ``vectors[i]``, which belong to coordinate ``i``, are multiplied by its scale.
    """
    if bounds is None:
        return vectors
    scales = [scale for _, scale in unit_map(bounds, len(vectors))]
    return [[v * scale for v in vector] for vector, scale in zip(vectors, scales, strict=True)]


def corners(bounds: Bounds | None, coordinates: int) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest coordinates of the box, or of the unit cube for ``None``."""
    low, high = zip(*_pairs(bounds or (0.0, 1.0), coordinates), strict=True)
    return np.array(low), np.array(high)


def _pairs(bounds: Bounds, coordinates: int) -> Iterator[tuple[float, float]]:
    """Low and high of every coordinate, in single precision."""
    sides = [side if isinstance(side, tuple) else (side,) * coordinates for side in bounds]
    for low, high in zip(*sides, strict=True):
        yield float(np.float32(low)), float(np.float32(high))


def _side(where: str, name: str, side: Any) -> Side:
    named, needed = f"{name} of bounds", "a finite number, or one for each coordinate,"
    if isinstance(side, (int, float, np.generic)):
        number = _number(side)
        check(number is not None, where, named, side, needed)
        return number  # type: ignore[return-value]
    # JIT arrays are refused, since they may have no value yet
    listed = isinstance(side, (Sequence, np.ndarray, dr.ArrayBase)) and not isinstance(side, (str, bytes))
    readable = listed and not (isinstance(side, dr.ArrayBase) and dr.is_jit_v(side))
    check(readable, where, named, side, needed, TypeError)
    numbers = [_number(v) for v in entries(where, named, side)]
    check(numbers and None not in numbers, where, named, side, needed)
    return tuple(numbers)  # type: ignore[arg-type]


def _number(value: Any) -> float | None:
    """``value`` as a float if it is a number, also of NumPy, that single precision can hold; otherwise ``None``."""
    return float(value) if is_number(value) and abs(value) <= 3e38 else None


def _count(side: Side) -> str:
    return f"{len(side)} numbers" if isinstance(side, tuple) else "1 number"
