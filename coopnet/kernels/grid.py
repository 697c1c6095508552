r"""Trained features at the vertices of grids, interpolated, together with their forward derivatives.

A level interpolates between the vertices of a cell: with :math:`w_c(x)` the weight of vertex :math:`c`, its features
are :math:`\sum_c w_c(x) \theta_c`, and their derivative in direction :math:`\dot x` is
:math:`\sum_c (\nabla w_c \cdot \dot x) \theta_c`, exact within the cell. On simplices the derivative is constant, with
multilinear interpolation the one along an axis does not change along that axis, and both jump at the faces of the cell.
With smoothstep it is continuous.

Features and derivatives are linear in the parameters. So the gradient of the parameters is the transposed operation,
another loop over the same vertices. It adds up many samples per entry, with atomics (:mod:`.atomic_sums`) or in fixed
point (:mod:`.fixed_point`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import drjit as dr

from ..jit.kinds import flat, nested_type, split
from ..jit.masks import present
from ..jit.scopes import symbolic
from ..jit.unpacked import Hidden
from . import fixed_point, half_tables
from .atomic_sums import SAMPLES, AtomicSums, copies

#: Multipliers of the spatial hash (Teschner et al. 2003), as in tiny-cuda-nn.
PRIMES = (1, 2654435761, 805459861, 3674653429, 2097192037, 1434869437, 2165219737)
#: Multiplier of the rolling hash for simplices, as in PermutoSDF.
ROLLING = 2531011


#: Numbers of the first and the last cell, in single precision. Coordinates beyond belong to these cells.
CELLS = (-(2.0**31), 2.0**31 - 128)
#: Coordinates are clipped to this distance from 0, since the position of larger ones in a level would overflow.
FAR = 2.0**64


class Level(NamedTuple):
    """One grid: cells per unit length, vertices per axis, and its place in the parameters, counted in vertices."""

    scale: float
    resolution: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        """Offset of the next level."""
        return self.offset + self.size


def scales(n_levels: int, base: int, growth: float, number: Callable[[float], Any] = float) -> list[float]:
    """Cells per unit length: about ``base`` vertices per axis, and ``growth`` times as many on every further level.

    ``number`` is the type to which every step of the arithmetic is rounded. The last bit of a result may decide how
    many vertices a level has.
    """
    rate = number(dr.log2(float(number(growth)))) if n_levels > 1 else number(0)
    powers = (number(dr.exp2(float(number(level) * rate))) for level in range(n_levels))
    return [float(power * number(base) - number(1)) for power in powers]


def levels(dimension: int, scales: Sequence[float], multiple: int, most: float) -> list[Level]:
    """The levels of a grid with these cells per unit length.

    A level holds its vertices, rounded up to a multiple of ``multiple``, or ``most`` of them if that is less.
    """
    result: list[Level] = []
    for scale in scales:
        resolution = math.ceil(scale) + 1
        size = int(min(-(-(resolution**dimension) // multiple) * multiple, most))
        result.append(Level(scale, resolution, result[-1].end if result else 0, size))
    return result


class FeatureGrid:
    """Features at the vertices of grids of cubes, or of cubes that are cut into simplices.

    Args:
        data: the parameters, a 1D array in single or half precision: level by level, the features of a vertex side by
            side. Everything else is in single precision, also sums of the gradient, which are rounded once.
        levels: see :func:`levels`.
        dimension: number of coordinates.
        n_features: features of a vertex.
        hashed: do levels with more vertices than entries use a hash? Otherwise they wrap around.
        interpolation: of cubes: ``"linear"``, ``"smoothstep"`` or ``"nearest"``.
        simplices: interpolate between the ``dimension + 1`` vertices of a simplex, not all of the cube?
        which: the number of the grid to read if several are side by side in ``data``; ``UInt32`` for one per lane.
    """

    DRJIT_STRUCT = {"data": object}

    def __init__(
        self,
        data: Any,
        levels: list[Level],
        dimension: int,
        n_features: int,
        hashed: bool = True,
        interpolation: str = "linear",
        simplices: bool = False,
        which: Any = 0,
    ):
        self.data, self.dtype = data, dr.float32_array_t(type(data))
        self.levels, self.dimension, self.n_features = levels, dimension, n_features
        self.hashed, self.interpolation, self.simplices, self.which = hashed, interpolation, simplices, which

    def of_lanes(self, data: Any, which: Any) -> FeatureGrid:
        """A grid that reads ``data``, several grids like this one side by side; lanes use those numbered ``which``."""
        kind = self.hashed, self.interpolation, self.simplices
        return FeatureGrid(data, self.levels, self.dimension, self.n_features, *kind, which)

    def evaluate(
        self,
        coordinates: list,
        tangents: Sequence[list] = (),
        ordered: bool = False,
        counts: Sequence[int] | None = None,
    ) -> list[list]:
        """``[features, *derivatives]`` at ``coordinates``: features, and their derivatives in directions ``tangents``.

        Args:
            coordinates, tangents: arrays in single precision, one for each axis.
            ordered: sum the gradient of the parameters in fixed point instead of with atomics?
            counts: number of copies of each level to which atomics add; ``None`` for as many as pay.
        """
        if not dr.grad_enabled(self.data):
            return self.interpolate(self.data, coordinates, tangents)
        counts = counts or self.copies(dr.width(flat([coordinates, *tangents])))
        one_copy = max(counts) == 1 and not dr.is_half_v(self.data)
        if not ordered and (symbolic() or one_copy):  # to which the derivative of read() adds
            return self.interpolate(self.data, coordinates, tangents)
        op = _FixedPointOp if ordered else _AtomicsOp
        bundle = self.interpolate(dr.detach(self.data), coordinates, tangents)
        inputs = dr.detach(coordinates), [dr.detach(tangent) for tangent in tangents]
        return split(dr.custom(op, Hidden((self, counts)), self.data, *inputs, flat(bundle)), len(bundle))

    @property
    def grids(self) -> int:
        """Number of grids side by side in the parameters."""
        return dr.width(self.data) // (self.levels[-1].end * self.n_features)

    @property
    def vertices(self) -> int:
        """Number of vertices of a cell between which a level interpolates."""
        cube = 1 if self.interpolation == "nearest" else 2**self.dimension
        return self.dimension + 1 if self.simplices else cube

    def copies(self, samples: int) -> list[int]:
        """The number of copies of each level to which atomics should add, in a batch of so many samples.

        It is 1 in small batches, and on CPUs: their few threads hardly collide, and copies were no faster there.
        """
        if samples < SAMPLES or dr.backend_v(self.dtype) == dr.JitBackend.LLVM:
            return [1] * len(self.levels)
        entry_bytes = self.n_features * dr.itemsize_v(self.dtype)
        return copies([self.grids * level.size for level in self.levels], samples * self.vertices, entry_bytes)

    def interpolate(self, data: Any, coordinates: list, tangents: Sequence[list]) -> list[list]:
        """:meth:`evaluate` for other parameters ``data``; their gradient, if any, is summed with atomics."""
        n = self.n_features
        bundle = [[self.dtype(0)] * (len(self.levels) * n) for _ in range(1 + len(tangents))]
        # for values alone, the order is that of drjit.nn: it determines the last bits
        for level, weights, index in self.walk(coordinates, tangents, 1 if tangents else -1):
            features = self.read(data, index)
            for vector, weight in zip(bundle, weights, strict=True):
                for k in range(n):
                    vector[level * n + k] = dr.fma(features[k], weight, vector[level * n + k])
        return bundle

    def read(self, data: Any, index: Any) -> Any:
        """The features of the entries ``index`` of ``data``, as a nested array in single precision."""
        if dr.is_half_v(data) and dr.grad_enabled(data) and symbolic():
            features = half_tables.read(data, index, True, self.n_features, "grid")
        else:
            features = dr.gather(nested_type(type(data)), data, index, shape=(self.n_features, dr.width(index)))
        return nested_type(self.dtype)(features)

    def walk(
        self, coordinates: list, tangents: Sequence[list] = (), order: int = -1
    ) -> Iterator[tuple[int, list, Any]]:
        """For all levels and vertices around the coordinates: ``(level, [weight, *its tangents], index)``.

        With ``order`` -1, neighbours of a cube along the first axis follow each other; with 1, those along the last.
        """
        uint32, int32 = dr.uint32_array_t(self.dtype), dr.int32_array_t(self.dtype)
        for number, level in enumerate(self.levels):
            position = [dr.fma(x, level.scale, 0.5) for x in coordinates]
            cell = [dr.floor(v) for v in position]
            fraction = [v - c for v, c in zip(position, cell, strict=True)]
            scaled = [[t * level.scale for t in tangent] for tangent in tangents]
            # cells left of 0 have negative numbers, which cannot be converted to unsigned ones directly
            lowest = [uint32(int32(dr.clip(c, *CELLS))) for c in cell]
            for weights, offset in (self._simplex if self.simplices else self._cube)(fraction, scaled, order):
                yield number, weights, self._index(level, [v + o for v, o in zip(lowest, offset, strict=True)])

    def steepest(self, level: int) -> float:
        """Largest derivative of a weight along an axis, in this level."""
        return abs(self.levels[level].scale) * (1.5 if self.interpolation == "smoothstep" else 1.0)

    def _index(self, level: Level, vertex: list) -> Any:
        """The entry of a vertex: by hash in hashed levels with too few entries, otherwise first axis fastest."""
        uint32 = dr.uint32_array_t(self.dtype)
        index = uint32(0)
        if not self.hashed or level.resolution**self.dimension <= level.size:
            for d, v in enumerate(vertex):
                index += v * (level.resolution**d & 0xFFFFFFFF)
        elif self.simplices:
            for v in vertex:
                index = (index + v) * ROLLING
        else:
            for v, prime in zip(vertex, PRIMES, strict=False):
                index ^= v * prime
        return self.which * self.levels[-1].end + level.offset + index % uint32(level.size)

    def _cube(self, fraction: list, tangents: list[list], order: int) -> Iterator[tuple[list, Sequence[Any]]]:
        """Weights with their tangents, and offsets, of the corners of a cell."""
        single = self.dtype
        if self.interpolation == "nearest":
            yield [single(1)] + [single(0)] * len(tangents), [0] * len(fraction)
            return
        upper, slopes = fraction, [single(1)] * len(fraction)
        if self.interpolation == "smoothstep":
            upper = [t * t * (3 - 2 * t) for t in fraction]
            slopes = [6 * t * (1 - t) for t in fraction]
        lower = [1 - v for v in upper]
        for corner in itertools.product((0, 1), repeat=len(fraction)):
            corner = corner[::order]
            factors = [u if bit else v for bit, u, v in zip(corner, upper, lower, strict=True)]
            weights = [math.prod(factors)]
            if tangents:
                gradient = [
                    math.prod(factors[:d] + factors[d + 1 :], start=slopes[d] if bit else -slopes[d])
                    for d, bit in enumerate(corner)
                ]
                weights += [sum((g * t for g, t in zip(gradient, v, strict=True)), single(0)) for v in tangents]
            yield weights, corner

    def _simplex(self, fraction: list, tangents: list[list], order: int) -> Iterator[tuple[list, Sequence[Any]]]:
        """:meth:`_cube` for the corners of the simplex around a point.

        A path along its corners starts at the cell's lowest vertex and follows the axes in descending order of their
        fractions. Weights are the differences of successive fractions.
        """
        single, uint32, n = self.dtype, dr.uint32_array_t(self.dtype), len(fraction)
        # Sort fractions, with their tangents and axes, in descending order. Equal fractions may be in any order: the
        # vertex between them has the weight 0, and its derivative may be that of either side.
        items = [[fraction[d], *(t[d] for t in tangents), uint32(d)] for d in range(n)]
        for i in range(n):
            for j in range(n - 1 - i):
                a, b = items[j : j + 2]
                swap = dr.detach(a[0]) < dr.detach(b[0])
                items[j] = [dr.select(swap, v, u) for u, v in zip(a, b, strict=True)]
                items[j + 1] = [dr.select(swap, u, v) for u, v in zip(a, b, strict=True)]
        bounds = [[single(1)] + [single(0)] * len(tangents), *(item[:-1] for item in items)]
        bounds.append([single(0)] * (1 + len(tangents)))
        offsets: list[list] = [[uint32(0)] * n]
        for *_, axis in items:
            offsets.append([o + dr.select(axis == d, uint32(1), uint32(0)) for d, o in enumerate(offsets[-1])])
        weights = [[u - v for u, v in zip(*pair, strict=True)] for pair in itertools.pairwise(bounds)]
        yield from list(zip(weights, offsets, strict=True))[::order]


class _ParametersOp(dr.CustomOp):
    """Returns a bundle of features and derivatives as it is, and adds its derivative with respect to the parameters."""

    def eval(self, made: Hidden, data: Any, coordinates: list, tangents: list, values: list) -> list:  # type: ignore[override]
        self.grid: FeatureGrid
        self.counts: Sequence[int]
        self.grid, self.counts = made.value
        self.coordinates, self.tangents = coordinates, tangents
        return values

    def forward(self) -> None:
        tangent = self.grid.interpolate(self.grad_in("data"), self.coordinates, self.tangents)
        self.set_grad_out([t + v for t, v in zip(flat(tangent), self.grad_in("values"), strict=True)])

    def terms(self, cotangents: list[list]) -> Iterator[tuple[int, list, Any]]:
        """The terms of the sums: for all levels and vertices ``(level, terms of its features, index)``."""
        n = self.grid.n_features
        for level, weights, index in self.grid.walk(self.coordinates, self.tangents):
            terms = []
            for k in range(level * n, level * n + n):
                term = weights[0] * cotangents[0][k]
                for weight, cotangent in zip(weights[1:], cotangents[1:], strict=True):
                    term = dr.fma(weight, cotangent[k], term)
                terms.append(term)
            yield level, terms, index

    def backward(self) -> None:
        incoming = self.grad_out()
        self.set_grad_in("values", incoming)
        # lanes that have left a loop add nothing, but would still influence the scale of the sums
        incoming = present(incoming, dr.width([*incoming, *self.coordinates]))
        self.set_grad_in("data", type(self.grid.data)(self.sums(split(incoming, 1 + len(self.tangents)))))

    def sums(self, cotangents: list[list]) -> Any:
        """The gradient of the parameters, in single precision."""
        raise NotImplementedError

    def name(self) -> str:
        return "coopnet: grid parameters"


class _AtomicsOp(_ParametersOp):
    """Adds up in copies of levels, which its derivative evaluates: for use outside symbolic scopes."""

    def sums(self, cotangents: list[list]) -> Any:
        result = AtomicSums(self.grid, self.counts)
        result.add(self.terms(cotangents))
        return result.finish()


class _FixedPointOp(_ParametersOp):
    """Adds up in fixed point."""

    def sums(self, cotangents: list[list]) -> Any:
        grid = self.grid
        scales, broken = self._scales(cotangents)
        dr.eval(scales, broken)
        sums = dr.zeros(dr.int64_array_t(grid.dtype), dr.width(grid.data))
        for level, terms, index in self.terms(cotangents):
            fixed_point.add(sums, [term * scales[level] for term in terms], index)
        dr.eval(sums)
        scale = scales[0]
        if self.tangents:  # each level has its own scale
            entry = dr.arange(dr.uint32_array_t(grid.dtype), dr.width(grid.data)) // grid.n_features
            entry %= grid.levels[-1].end  # of any of several grids side by side
            scale = grid.dtype(1)
            for place, s in zip(grid.levels, scales, strict=True):
                scale = dr.select(entry >= place.offset, s, scale)
        return fixed_point.finish(sums, scale, broken)

    def _scales(self, cotangents: list[list]) -> tuple[list, Any]:
        """The scale of the sums of every level, and a number that is not zero if any term is not finite."""
        grid, n, single = self.grid, self.grid.n_features, self.grid.dtype
        lanes = self._lanes(cotangents)
        if not self.tangents:  # weights are at most 1
            bound = fixed_point.bound(cotangents[0])
            dr.eval(bound, lanes)  # in one kernel: reducing either evaluates it, with all that it depends on
            largest_bound = dr.max(bound)
            scale = fixed_point.scale(largest_bound, self._terms(lanes))
            return [scale] * len(grid.levels), fixed_point.broken(largest_bound)
        # derivatives of weights are at most the level's steepest slope times the tangent
        lengths = [sum((dr.abs(v) for v in tangent), single(0)) for tangent in self.tangents]
        bounds = []
        for level in range(len(grid.levels)):
            sizes = [sum((dr.abs(v) for v in c[level * n : level * n + n]), single(0)) for c in cotangents]
            bound = sizes[0]
            for size, length in zip(sizes[1:], lengths, strict=True):
                bound += size * (length * grid.steepest(level))
            bounds.append(fixed_point.bound([bound]))
        dr.eval(bounds, lanes)
        largest_bound, terms = [dr.max(v) for v in bounds], self._terms(lanes)
        broken = sum(map(fixed_point.broken, largest_bound), single(0))
        return [fixed_point.scale(v, terms) for v in largest_bound], broken

    def _lanes(self, cotangents: list[list]) -> Any:
        """An array with an entry for every lane."""
        parts = [*flat(cotangents), *self.coordinates]
        lanes = dr.zeros(self.grid.dtype, dr.width(parts))
        return self.coordinates[0] + cotangents[0][0] + lanes

    def _terms(self, lanes: Any) -> Any:
        """Most terms of a sum."""
        return self.grid.dtype(dr.opaque_width(lanes)) * self.grid.vertices
