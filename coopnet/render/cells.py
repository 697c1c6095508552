"""A box cut into cells: the base of grids that keep a value for each cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check, check_int, check_number, ensure, entries, is_int, is_number
from .arguments import Rays

#: Most cells along an axis: their product must fit 32 bits.
MAX_RESOLUTION = 1024


class BoxOfCells:
    """A box of equal cells.

    Cell :math:`(x, y, z)` has the number :math:`x + R_x (y + R_y z)`.

    Args:
        where: opens the messages.
        resolution: cells along each axis, an int or three, at most 1024.
        lower, upper: corners of the box, a number or three each.
    """

    def __init__(self, where: str, resolution: int | Sequence[int], lower: Any, upper: Any):
        three = [resolution] * 3 if is_int(resolution) else _three(where, "resolution", resolution)
        self.resolution = tuple(check_int(where, "resolution", n, 1, MAX_RESOLUTION) for n in three)
        self.lower, self.upper = _corner(where, "lower", lower), _corner(where, "upper", upper)
        ok = all(a < b for a, b in zip(self.lower, self.upper, strict=True))
        ensure(ok, f"{where}: lower is {self.lower} and upper {self.upper}; each of lower must be less.")

    @property
    def _home(self) -> Any:
        """An array of the backend on which the cells are."""
        raise NotImplementedError

    @property
    def cells(self) -> int:
        """Number of cells."""
        return math.prod(self.resolution)

    def interval(self, o: Any, d: Any = None) -> tuple[Any, Any]:
        """``(near, far)``: where rays ``o + t d``, :math:`t >= 0`, enter and leave the box; ``far < near`` for others.

        Raises:
            ValueError, TypeError: as :func:`ray_march`, whose ``o`` and ``d`` these are.

        >>> near, far = grid.interval(o, d)
        """
        rays = Rays(o, d, f"{type(self).__name__}.interval", self._home)
        near, far = 0.0, dr.inf
        for a, b, origin, direction in zip(self.lower, self.upper, rays.o, rays.d, strict=True):
            first, second = (a - origin) / direction, (b - origin) / direction
            parallel, inside = direction == 0, (origin >= a) & (origin <= b)
            near = dr.maximum(near, dr.select(parallel, 0, dr.minimum(first, second)))
            far = dr.minimum(far, dr.select(parallel, dr.select(inside, dr.inf, -1), dr.maximum(first, second)))
        return near, far

    def _scale(self) -> list[float]:
        return [n / (b - a) for n, a, b in zip(self.resolution, self.lower, self.upper, strict=True)]

    def _positions(self, p: list, active: Any) -> tuple[list, Any]:
        """Places in units of cells, and the mask of those in the box; 0 for others."""
        positions = [(v - a) * s for v, a, s in zip(p, self.lower, self._scale(), strict=True)]
        for v, n in zip(positions, self.resolution, strict=True):
            active = active & (v >= 0) & (v < n)
        return [dr.select(active, v, 0) for v in positions], active

    def _cell(self, p: list, active: Any) -> tuple[Any, Any]:
        """The numbers of the cells of places, and the mask of those in the box."""
        positions, inside = self._positions(p, active)
        return self._number(positions), inside

    def _number(self, cell: list) -> Any:
        """The number of a cell from its position, rounded down."""
        x, y, z = (dr.uint32_array_t(type(self._home))(v) for v in cell)
        return dr.fma(dr.fma(z, self.resolution[1], y), self.resolution[0], x)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(resolution={self.resolution}, lower={self.lower}, upper={self.upper})"


def _three(where: str, name: str, value: Any) -> list:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    components = entries(where, name, value) if isinstance(value, (list, tuple)) else []
    check(len(components) == 3, where, name, value, "one number, or three,")
    return components


def _corner(where: str, name: str, value: Any) -> tuple:
    components = [value] * 3 if is_number(value) else _three(where, name, value)
    return tuple(check_number(where, name, v) for v in components)
