r"""Hash grids together with their forward derivatives.

A level interpolates multilinearly: with :math:`w_c(x)` the weight of corner :math:`c` of the cell, its features are
:math:`\sum_c w_c(x) \theta_c`, and their derivative in direction :math:`\dot x` is
:math:`\sum_c (\nabla w_c \cdot \dot x) \theta_c`, exact within the cell. It is constant along each axis and jumps
between cells; second derivatives exist across axes only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import drjit as dr

from .grid import Grid, is_reproducible


def corners(grid: Grid, coordinates: list, tangents: list[list]) -> Iterator[tuple[int, Any, list, Any]]:
    """For all levels and corners: ``(level, weight, tangents of the weight, index of the corner's features)``."""
    single, uint32 = grid.StorageFloat, grid.UInt32
    shift = 0.5 if not grid.align_corners or grid.torchngp_compat else 0.0
    for level in range(grid.n_levels):
        scale = grid._level_scale(level)
        position = [dr.fma(x, scale, shift) for x in coordinates]
        cell = [uint32(dr.floor(dr.detach(v))) for v in position]
        upper = [v - single(c) for v, c in zip(position, cell, strict=True)]
        lower = [1 - v for v in upper]
        for corner in itertools.product((0, 1), repeat=len(coordinates)):
            factors = [u if bit else v for bit, u, v in zip(corner, upper, lower, strict=True)]
            slopes = [
                math.prod(factors[:d] + factors[d + 1 :], start=single(scale if bit else -scale))
                for d, bit in enumerate(corner)
            ]
            moved = [sum((s * t for s, t in zip(slopes, tangent, strict=True)), single(0)) for tangent in tangents]
            index = grid.indexing_function([c + bit for c, bit in zip(cell, corner, strict=True)], level)
            yield level, math.prod(factors, start=single(1)), moved, index


def features(grid: Grid, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
    """The encoded ``coordinates`` and their derivatives, differentiably; parameter gradients as ``Grid.features``."""
    attached = grid.data
    exact = dr.grad_enabled(attached) and is_reproducible(grid.dtype)
    values = _look_up(grid, dr.detach(attached) if exact else attached, coordinates, tangents)
    if exact:
        flat = [v for vector in values for v in vector]
        detached = [[dr.detach(v) for v in tangent] for tangent in tangents]
        flat = dr.custom(_TangentsOp, _Reference(grid), attached, [dr.detach(c) for c in coordinates], detached, flat)
        n = len(values[0])
        values = [flat[i : i + n] for i in range(0, len(flat), n)]
    return values[0], values[1:]


def _look_up(grid: Grid, data: Any, coordinates: list, tangents: list[list]) -> list[list]:
    n = grid.n_features_per_level
    values = [[grid.StorageFloat(0)] * grid.n_output_features for _ in range(1 + len(tangents))]
    for level, weight, moved, index in corners(grid, coordinates, tangents):
        corner = dr.gather(grid.StorageFloatXf, data, index, shape=(n, dr.width(index)))
        for vector, w in zip(values, [weight, *moved], strict=True):
            for k in range(n):
                vector[level * n + k] = dr.fma(corner[k], w, vector[level * n + k])
    return values


class _Reference:
    """Keeps Dr.Jit from taking the grid apart as an argument."""

    def __init__(self, grid: Grid):
        self.grid = grid


class _TangentsOp(dr.CustomOp):
    """Passes features and tangents through and adds the derivative with respect to the grid's parameters."""

    def eval(  # type: ignore[override]
        self, reference: _Reference, data: Any, coordinates: list, tangents: list, values: list
    ) -> list:
        self.grid, self.coordinates, self.tangents = reference.grid, coordinates, tangents
        return values

    def forward(self) -> None:
        # features and tangents are linear in the parameters
        moved = _look_up(self.grid, self.grad_in("data"), self.coordinates, self.tangents)
        flat = [v for vector in moved for v in vector]
        self.set_grad_out([t + v for t, v in zip(flat, self.grad_in("values"), strict=True)])

    def backward(self) -> None:
        grid, flat = self.grid, self.grad_out()
        self.set_grad_in("values", flat)
        single, int64, uint32 = grid.StorageFloat, dr.int64_array_t(grid.StorageFloat), grid.UInt32
        n, width = grid.n_features_per_level, grid.n_output_features
        bars = [flat[i : i + width] for i in range(0, len(flat), width)]
        samples = max(dr.width(v) for v in [*flat, *self.coordinates])
        # As in the plain grid's gradient: integers, scaled so that no sum can overflow. Weights are at most 1, their
        # derivatives at most the level's scale times the tangent; each level has a power of two of its own.
        steepness = [sum((dr.abs(v) for v in tangent), single(0)) for tangent in self.tangents]
        terms = single(dr.opaque_width(self.coordinates[0] + flat[0] + dr.zeros(single, samples))) * 2**grid.dimension
        scales, broken = [], single(0)
        for level in range(grid.n_levels):
            of_level = slice(level * n, (level + 1) * n)
            bound = sum((dr.abs(v) for v in bars[0][of_level]), single(0))
            for bar, steep in zip(bars[1:], steepness, strict=True):
                bound += sum((dr.abs(v) for v in bar[of_level]), single(0)) * (steep * grid._level_scale(level))
            broken = broken + dr.max(dr.select(dr.isfinite(bound), single(0), single(1)))  # a maximum alone skips NaN
            largest = dr.max(bound)
            exponent = dr.clip(dr.floor(61 - dr.log2(largest) - dr.log2(terms)), -120, 120)
            scales.append(dr.select(largest > 0, dr.exp2(exponent), single(1)))
        dr.eval(scales, broken)
        sums = dr.zeros(int64, dr.width(grid.data))
        for level, weight, moved, index in corners(grid, self.coordinates, self.tangents):
            for k in range(n):
                term = weight * bars[0][level * n + k]
                for bar, w in zip(bars[1:], moved, strict=True):
                    term = dr.fma(w, bar[level * n + k], term)
                dr.scatter_reduce(dr.ReduceOp.Add, sums, int64(dr.round(term * scales[level])), index * n + k)
        dr.eval(sums)
        entry = dr.arange(uint32, dr.width(grid.data)) // n
        scale = single(1)
        for level, s in enumerate(scales):
            scale = dr.select(entry >= grid.level_offset(level), s, scale)
        # an infinity or NaN anywhere must not vanish: the loss scaler looks for it
        self.set_grad_in("data", dr.select(broken == 0, single(sums) / scale, dr.nan))

    def name(self) -> str:
        return "coopnet: grid parameters, with tangents"
