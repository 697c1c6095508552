"""A box cut into cells: the base of grids that keep a value for each cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..checks import check_int, is_int
from .arguments import Rays
from .box import corners, interval, three

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
        counts = [resolution] * 3 if is_int(resolution) else three(where, "resolution", resolution)
        self.resolution = tuple(check_int(where, "resolution", n, 1, MAX_RESOLUTION) for n in counts)
        self.lower, self.upper = corners(where, lower, upper)

    @property
    def _home(self) -> Any:
        """An array of the backend on which the cells are."""
        raise NotImplementedError

    @property
    def cells(self) -> int:
        """Number of cells."""
        return math.prod(self.resolution)

    def interval(self, o: Any, d: Any = None) -> tuple[Any, Any]:
        """``(near, far)``: where rays enter and leave the box, as :func:`coopnet.render.box_interval` has them.

        Raises:
            ValueError, TypeError: as :func:`ray_march`, whose ``o`` and ``d`` these are.

        >>> near, far = grid.interval(o, d)
        """
        return interval(self.lower, self.upper, Rays(o, d, f"{type(self).__name__}.interval", self._home))

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
