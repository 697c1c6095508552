r"""Gradients of grid parameters that don't depend on the order of threads.

Many samples touch one grid entry, and floating point additions don't commute with rounding, so atomics give another
last bit in every run. Integers do commute: contributions are rounded to multiples of a power of two :math:`1/s`, summed
as 64-bit integers, and divided by :math:`s` at the end. :math:`s` is chosen from the largest incoming gradient so that
no sum can overflow, which leaves about :math:`62 - \log_2(\mathrm{samples} \cdot 2^d)` bits: more than a float has.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import drjit as dr
import drjit.nn as drnn
from drjit.hashgrid import HashEncoding

from ..engine.modes import is_deterministic
from ..jit.half import largest
from ..jit.scopes import symbolic


class Exact(HashEncoding):
    """A ``drjit.nn`` hash encoding whose inner loop can also run backward."""

    # When set, _acc_features() hands (level, weight, index) to it instead of looking features up.
    _visitor: Any = None
    #: How weights depend on the position in a cell.
    interpolation = "linear"
    data: Any

    def __init__(self, *args: Any, **options: Any):
        with warnings.catch_warnings():
            # about half-precision atomics in pairs, but the parameters are single precision
            warnings.filterwarnings("ignore", "The number of features per level", RuntimeWarning)
            super().__init__(*args, **options)

    def _acc_features(self, level_i: int, weight: Any, index: Any, values: list, active: Any) -> None:
        if self._visitor is None:
            super()._acc_features(level_i, weight, index, values, active)
        else:
            self._visitor(level_i, weight, index)

    def features(self, coordinates: list) -> list:
        """The encoded ``coordinates``, differentiably; parameter gradients are reproducible where they can be."""
        if not dr.grad_enabled(self.data) or not is_reproducible(self.dtype):
            return list(self(coordinates))
        attached = self.data
        self.data = dr.detach(attached)
        try:
            values = list(self(coordinates))
        finally:
            self.data = attached
        return dr.custom(_GridOp, _Reference(self), attached, [dr.detach(c) for c in coordinates], values)


class Permutohedral(Exact, drnn.PermutoEncoding):
    """``drjit.nn.PermutoEncoding`` with such gradients."""


class Grid(Exact, drnn.HashGridEncoding):
    """``drjit.nn.HashGridEncoding`` with such gradients, other kinds of storage and other interpolations.

    Args:
        storage: ``"hash"``, ``"dense"`` or ``"tiled"``: how many vertices a level holds and what finds them.
        interpolation: ``"linear"``, ``"smoothstep"`` or ``"nearest"``.
        multiple: to what the number of vertices of a level is rounded up; by default as Dr.Jit does it, hashed.

    Raises:
        ValueError: more parameters than an array can hold.
    """

    def __init__(
        self,
        dtype: type,
        dimension: int,
        *,
        storage: str = "hash",
        interpolation: str = "linear",
        multiple: int | None = None,
        rng: Any = None,
        **options: Any,
    ):
        self._storage, self.interpolation = storage, interpolation
        rng = dr.rng() if rng is None else rng
        super().__init__(dtype, dimension, rng=rng, **options)
        if multiple is None:
            return
        offsets = [0]
        for level in range(self.n_levels):
            size = -(-(self._resolution(self._level_scale(level)) ** dimension) // multiple) * multiple
            if storage != "dense":
                size = min(size, self.hashmap_size if storage == "hash" else self.base_resolution**dimension)
            offsets.append(offsets[-1] + size)
        self._level_offsets = offsets
        self._n_params = offsets[-1] * self.n_features_per_level
        if self._n_params >= 2**32:
            raise ValueError(
                f"Grid: {storage} storage of these {self.n_levels} levels takes {self._n_params} parameters, but an "
                f"array holds fewer than 2^32; use fewer levels, a smaller per_level_scale, or storage='hash'."
            )
        bound = self.init_scale
        self.data = dr.fma(rng.random(self.dtype, self._n_params), 2 * bound, -bound)
        dr.schedule(self.data)

    def indexing_function(self, key: Any, level_i: int) -> Any:
        if self._storage != "tiled":
            return super().indexing_function(key, level_i)
        resolution = self._resolution(self._level_scale(level_i))
        begin, end = self._level_offsets[level_i : level_i + 2]
        index = self.UInt32(key[0])
        for d in range(1, self.dimension):
            index += key[d] * (resolution**d & 0xFFFFFFFF)
        return begin + index % self.UInt32(end - begin)

    def __call__(self, p: Any, active: Any = True) -> Any:
        # Dr.Jit's own takes cells for unsigned numbers, so that linear weights left of 0 are about 2^32
        _, positions = self._position_types(p)
        p = positions(p)
        values = [self.StorageFloat(0)] * self.n_output_features
        for level in range(self.n_levels):
            t = dr.fma(p, self._level_scale(level), 0.5)
            cell = dr.floor(t)
            vertex = self.ArrayXu(self.ArrayXi(cell))
            if self.interpolation == "nearest":
                self._acc_features(level, self.StorageFloat(1), self.indexing_function(vertex, level), values, active)
                continue
            t -= cell
            upper = t if self.interpolation == "linear" else t * t * (3 - 2 * t)
            lower = 1 - upper
            for corner in range(2**self.dimension):
                bits = [corner >> d & 1 for d in range(self.dimension)]
                weight = math.prod((upper if bit else lower)[d] for d, bit in enumerate(bits))
                index = self.indexing_function(vertex + self.ArrayXu(bits), level)
                self._acc_features(level, weight, index, values, active)
        return self.StorageFloatXf(*values) & active


def is_reproducible(dtype: type) -> bool:
    """Are gradients of a grid of this type summed as integers here?"""
    return not symbolic() and (dr.backend_v(dtype) == dr.JitBackend.LLVM or is_deterministic())


class _Reference:
    """Keeps Dr.Jit from taking the grid apart as an argument."""

    def __init__(self, grid: Exact):
        self.grid = grid


class _GridOp(dr.CustomOp):
    """Passes features through and adds the derivative with respect to the grid's parameters."""

    def eval(self, reference: _Reference, data: Any, coordinates: list, values: list) -> list:  # type: ignore[override]
        self.grid, self.coordinates = reference.grid, coordinates
        return values

    def forward(self) -> None:
        grid = self.grid
        held, grid.data = grid.data, self.grad_in("data")
        try:
            tangent = list(grid(self.coordinates))  # features are linear in the parameters
        finally:
            grid.data = held
        self.set_grad_out([t + v for t, v in zip(tangent, self.grad_in("values"), strict=True)])

    def backward(self) -> None:
        grid, dy = self.grid, self.grad_out()
        self.set_grad_in("values", dy)
        single = type(dy[0])
        int64 = dr.int64_array_t(single)
        most = dr.max(largest([dr.abs(v) for v in dy]))
        broken = dr.max(largest([dr.select(dr.isfinite(v), single(0), single(1)) for v in dy]))  # a maximum skips NaN
        terms = single(dr.opaque_width(self.coordinates[0] + dy[0])) * 2**grid.dimension
        # floor() makes s a power of two, so that dividing by it is exact; 120 keeps it finite
        exponent = dr.clip(dr.floor(61 - dr.log2(most) - dr.log2(terms)), -120, 120)
        s = dr.select(most > 0, dr.exp2(exponent), 1)
        dr.eval(s, broken)
        sums = dr.zeros(int64, dr.width(grid.data))
        n = grid.n_features_per_level

        def visit(level: int, weight: Any, index: Any) -> None:
            for k in range(n):
                dr.scatter_reduce(dr.ReduceOp.Add, sums, int64(dr.round(weight * dy[level * n + k] * s)), index * n + k)

        grid._visitor = visit
        try:
            grid(self.coordinates)
        finally:
            grid._visitor = None
        dr.eval(sums)
        # an infinity or NaN anywhere must not vanish: the loss scaler looks for it
        self.set_grad_in("data", dr.select(broken == 0, single(sums) / s, dr.nan))

    def name(self) -> str:
        return "coopnet: grid parameters"
