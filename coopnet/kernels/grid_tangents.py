r"""Encodings by trained features on grids together with their forward derivatives.

A level interpolates between the vertices of a cell: with :math:`w_c(x)` the weight of vertex :math:`c`, its features
are :math:`\sum_c w_c(x) \theta_c`, and their derivative in direction :math:`\dot x` is
:math:`\sum_c (\nabla w_c \cdot \dot x) \theta_c`, exact within the cell. With multilinear interpolation it is constant
along each axis, on simplices constant, and jumps at the faces of the cell; with smoothstep it is continuous.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import drjit as dr

from .grid import Exact, Permutohedral, is_reproducible


def corners(grid: Exact, coordinates: list, tangents: list[list]) -> Iterator[tuple[int, Any, list, Any]]:
    """For all levels and vertices: ``(level, weight, tangents of the weight, index of the vertex's features)``."""
    inside = _simplex if isinstance(grid, Permutohedral) else _cell
    shift = 0.5 if not grid.align_corners or grid.torchngp_compat else 0.0
    for level in range(grid.n_levels):
        scale = grid._level_scale(level)
        position = [dr.fma(x, scale, shift) for x in coordinates]
        whole = [dr.floor(dr.detach(v)) for v in position]
        fraction = [v - c for v, c in zip(position, whole, strict=True)]
        moved = [[t * scale for t in tangent] for tangent in tangents]
        vertex = [grid.UInt32(grid.Int32(c)) for c in whole]
        for weight, dweights, offset in inside(grid, fraction, moved):
            index = grid.indexing_function([v + o for v, o in zip(vertex, offset, strict=True)], level)
            yield level, weight, dweights, index


def count(grid: Exact) -> int:
    """Vertices of a cell."""
    return grid.dimension + 1 if isinstance(grid, Permutohedral) else 2**grid.dimension


def steepest(grid: Exact, level: int) -> float:
    """Largest derivative of a weight along an axis."""
    return grid._level_scale(level) * (1.5 if grid.interpolation == "smoothstep" else 1.0)


def _cell(grid: Exact, fraction: list, tangents: list[list]) -> Iterator[tuple[Any, list, Sequence[Any]]]:
    """Weights, their tangents and offsets of the corners of a cell."""
    single = grid.StorageFloat
    if grid.interpolation == "nearest":
        yield single(1), [single(0)] * len(tangents), [0] * len(fraction)
        return
    upper, slopes = fraction, [single(1)] * len(fraction)
    if grid.interpolation == "smoothstep":
        upper, slopes = [t * t * (3 - 2 * t) for t in fraction], [6 * t * (1 - t) for t in fraction]
    lower = [1 - v for v in upper]
    for corner in itertools.product((0, 1), repeat=len(fraction)):
        factors = [u if bit else v for bit, u, v in zip(corner, upper, lower, strict=True)]
        gradient = [
            math.prod(factors[:d] + factors[d + 1 :], start=slopes[d] if bit else -slopes[d])
            for d, bit in enumerate(corner)
        ]
        moved = [sum((s * t for s, t in zip(gradient, tangent, strict=True)), single(0)) for tangent in tangents]
        yield math.prod(factors, start=single(1)), moved, corner


def _simplex(grid: Exact, fraction: list, tangents: list[list]) -> Iterator[tuple[Any, list, Sequence[Any]]]:
    """The same of the simplex around a point, from the cell's lowest vertex on along its axes in descending order of
    the fraction; weights are the differences of successive fractions."""
    uint32, n = grid.UInt32, len(fraction)
    # sorted descending, fractions with their tangents and axes; equal ones may stand in any order: their vertex in
    # between has no weight, but a derivative, for which either side's is as good
    items = [[fraction[d], *(t[d] for t in tangents), uint32(d)] for d in range(n)]
    for i in range(n):
        for j in range(n - 1 - i):
            a, b = items[j : j + 2]
            swap = dr.detach(a[0]) < dr.detach(b[0])
            items[j] = [dr.select(swap, v, u) for u, v in zip(a, b, strict=True)]
            items[j + 1] = [dr.select(swap, u, v) for u, v in zip(a, b, strict=True)]
    offset: list[Any] = [uint32(0)] * n
    above = [grid.StorageFloat(1), *[grid.StorageFloat(0)] * len(tangents)]
    for item in [*items, None]:
        here = [grid.StorageFloat(0)] * len(above) if item is None else item[:-1]
        weight, *moved = [u - v for u, v in zip(above, here, strict=True)]
        yield weight, moved, offset
        if item is not None:
            offset = [o + dr.select(item[-1] == d, uint32(1), uint32(0)) for d, o in enumerate(offset)]
            above = here


def features(grid: Exact, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
    """The encoded ``coordinates`` and their derivatives, differentiably; parameter gradients as ``Exact.features``."""
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


def _look_up(grid: Exact, data: Any, coordinates: list, tangents: list[list]) -> list[list]:
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

    def __init__(self, grid: Exact):
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
        # derivatives at most the level's steepest slope times the tangent; each level has a power of two of its own.
        steepness = [sum((dr.abs(v) for v in tangent), single(0)) for tangent in self.tangents]
        terms = single(dr.opaque_width(self.coordinates[0] + flat[0] + dr.zeros(single, samples))) * count(grid)
        scales, broken = [], single(0)
        for level in range(grid.n_levels):
            of_level = slice(level * n, (level + 1) * n)
            bound, slope = sum((dr.abs(v) for v in bars[0][of_level]), single(0)), steepest(grid, level)
            for bar, steep in zip(bars[1:], steepness, strict=True):
                bound += sum((dr.abs(v) for v in bar[of_level]), single(0)) * (steep * slope)
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
            scale = dr.select(entry >= grid._level_offsets[level], s, scale)
        # an infinity or NaN anywhere must not vanish: the loss scaler looks for it
        self.set_grad_in("data", dr.select(broken == 0, single(sums) / scale, dr.nan))

    def name(self) -> str:
        return "coopnet: grid parameters, with tangents"
