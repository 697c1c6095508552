"""Base class of encodings with trained features at the vertices of grids."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import drjit as dr

from ..backend.transfer import to
from ..checks import (
    check,
    check_above,
    check_choice,
    check_in_features,
    check_lanes,
    check_number,
    check_positive,
    ensure,
    is_flat,
    shown,
)
from ..checks.sizes import MAX_ENTRIES, check_entries, check_features
from ..engine import stacked
from ..engine.modes import is_deterministic
from ..jit.lanes import only
from ..jit.scopes import symbolic
from ..jit.unpacked import Constant, Unpacked
from ..kernels.grid import FAR, PRIMES, FeatureGrid, Level, levels, scales
from .arguments import fields
from .encoding import Encoding

INTERPOLATIONS = ("linear", "smoothstep", "nearest")


class Lattice(Encoding):
    """Features at the vertices of ``n_levels`` grids, which subclasses define.

    Every finite coordinate has finite features: cells are numbered from -2^31 to 2^31 - 128, and coordinates beyond
    belong to the first or the last cell. On the face between two cells, derivatives are those of the upper one. If a
    coordinate is not finite, features and derivatives are NaN.
    """

    storage = "hash"  #: how vertices find their entries
    interpolation = "linear"
    _SIMPLICES = False  # are cells cut into simplices?
    _MULTIPLE: int | None = None  # sizes of levels are rounded up to multiples of it; None: as in drjit.nn
    _NUMBER: Callable[[float], Any] = float  # precision that scales are computed in

    def __init__(
        self, in_features: int = -1, n_levels: int = 16, n_features_per_level: int = 2, hashmap_size: int = 2**19,
        base_resolution: int = 16, per_level_scale: float | None = 2.0, init_scale: float = 1e-4,
        max_level: float | None = None, precision: str = "single",
    ):  # fmt: skip
        where = type(self).__name__
        self.in_features = check_in_features(where, in_features)
        self.n_levels = check_positive(where, "n_levels", n_levels)
        self.n_features_per_level = check_positive(where, "n_features_per_level", n_features_per_level)
        self.hashmap_size = check_positive(where, "hashmap_size", hashmap_size)
        self.base_resolution = check_positive(where, "base_resolution", base_resolution)
        needed = f"a multiple of n_features_per_level, {shown(self.n_features_per_level)},"
        divisible = self._MULTIPLE is not None or self.hashmap_size % self.n_features_per_level == 0
        check(divisible, where, "hashmap_size", hashmap_size, needed)
        if per_level_scale is not None:
            per_level_scale = check_above(where, "per_level_scale", per_level_scale)
        self.per_level_scale = per_level_scale
        self.init_scale = check_number(where, "init_scale", init_scale, 0)
        check_features(where, "n_levels", n_levels, self.width(1))
        if self.hashmap_size > MAX_ENTRIES:
            raise ValueError(f"{where}: hashmap_size is {shown(hashmap_size)}; fewer than 2^32 are possible.")
        self.precision = check_choice(where, "precision", precision, ("single", "half"))
        self.grid = Unpacked()
        self.max_level = max_level

    # limit: the value of max_level, wrapped, since drjit.nn.pack would pack an array as a weight
    DRJIT_STRUCT = fields(__init__, grid=Unpacked, limit=Constant, max_level=None)

    @property
    def max_level(self) -> Any:
        """The finest level that gives features; levels above give zeros, and get no gradient. ``None`` for all.

        A number, or a Dr.Jit ``Float32`` of width 1 or with one entry for each sample. It may be assigned at any time.
        A layer with parameters turns a number into an array, which kernels read, so that a new value compiles no
        kernel.
        """
        return self.limit.value

    @max_level.setter
    def max_level(self, value: Any) -> None:
        name, grid = type(self).__name__, self.grid.value
        if isinstance(value, dr.ArrayBase):
            flat = is_flat(value) and dr.is_float_v(value) and dr.is_jit_v(value)
            check(flat, name, "max_level", value, "a number, None or a Float32", TypeError)
            ensure(dr.width(value), f"{name}: max_level has no entry; one, or one for each sample, is needed.")
        elif value is not None:
            value = check_number(name, "max_level", value)
            if grid is not None:
                value = dr.opaque(grid.dtype, value)
        self.limit = Constant(value)

    def width(self, size: int) -> int:
        return self.n_levels * self.n_features_per_level

    def _in_unit(self, size: int) -> list[int]:
        return list(range(size))

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        """Exact within a cell, which includes its lower faces; see :mod:`coopnet.kernels.grid`."""
        name, grid = type(self).__name__, self.grid.value
        if grid is None:
            raise ValueError(f"{name}: the layer has no parameters yet; call net = net.alloc(dtype, size) first.")
        self._same_backend(type(coordinates[0]), grid.dtype)
        if (stack := stacked()) is not None:
            grid = grid.of_lanes(stack.of(grid.data), stack.which)
        if isinstance(self.max_level, dr.ArrayBase):
            check_lanes(name, "max_level", self.max_level, dr.width(coordinates))
        inside = [_finite([grid.dtype(v) for v in coordinates])]
        inside += [_finite([grid.dtype(v) for v in t], inside[0][0]) for t in tangents]
        masks, (x, *directions) = zip(*inside, strict=True)
        x = [dr.replace_grad(dr.clip(dr.detach(v), -FAR, FAR), v) for v in x]
        ordered = not symbolic() and (dr.backend_v(grid.dtype) == dr.JitBackend.LLVM or is_deterministic())
        # fixed point has one scale for all sums: large gradients of one field would make those of others less exact
        ordered = ordered and stack is None
        bundle = grid.evaluate(x, directions, ordered)
        features, *dys = [
            [self._up_to_max_level(k, dr.select(m, v, dr.nan)) for k, v in enumerate(y)]
            for m, y in zip(masks, bundle, strict=True)
        ]
        return features, dys

    def _up_to_max_level(self, k: int, feature: Any) -> Any:
        """Feature number ``k``, or zero if its level is above :attr:`max_level`."""
        if self.max_level is None:
            return feature
        return dr.select(k // self.n_features_per_level <= dr.detach(self.max_level), feature, 0)

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:
        layer, width = super()._alloc(dtype, size, rng)
        self._check_dimension(size := layer.in_features)
        levels, n = self._levels(size, dr.backend_v(dtype) == dr.JitBackend.LLVM), self.n_features_per_level
        data = self._draw(dr.float32_array_t(dr.array_t(dtype)), levels[-1].end * n, rng)
        data = dr.float16_array_t(data)(data) if self.precision == "half" else data
        dr.schedule(data)
        hashed = self.storage == "hash"
        layer.grid = Unpacked(FeatureGrid(data, levels, size, n, hashed, self.interpolation, self._SIMPLICES))
        layer.max_level = to(self.max_level, dtype)
        return layer, width

    def _draw(self, leaf: Any, count: int, rng: Any) -> Any:
        """Initial values: the numbers that ``drjit.nn`` draws."""
        return rng.random(leaf, count) * (2 * self.init_scale) + -self.init_scale

    def _check_dimension(self, size: int) -> None:
        """Raise ``ValueError`` if the spatial hash has fewer multipliers than there are coordinates."""
        limit = f"a cell has 2^in_features corners, and at most {len(PRIMES)} coordinates are hashed"
        name = type(self).__name__
        ensure(size <= len(PRIMES), f"{name}: in_features is {size}; {limit}. Permutohedral takes more.")

    def _growth(self) -> float:
        """The ratio of the resolutions of a level and the one before."""
        return 2.0 if self.per_level_scale is None else self.per_level_scale

    def _levels(self, size: int, on_host: bool) -> list[Level]:
        """The levels. Raises ``ValueError`` for cells that are too small to be numbered or too large, and for more
        parameters than fit into memory."""
        name, growth = type(self).__name__, self._growth()
        first = math.log2(self.base_resolution)
        last = first + math.log2(growth) * (self.n_levels - 1)
        if max(first, last) >= 31:
            finest = f"the finest level has about 2^{max(first, last):.0f} cells a side"
            hint = "use fewer levels, a smaller base_resolution or a smaller per_level_scale"
            raise ValueError(f"{name}: {finest}, but fewer than 2^31 can be numbered; {hint}.")
        if last < -20:
            hint = "use fewer levels or a larger per_level_scale"
            raise ValueError(f"{name}: a cell of the last level is about 2^{-last:.0f} units wide; {hint}.")
        limit = {"hash": self.hashmap_size, "tiled": self.base_resolution**size, "dense": math.inf}[self.storage]
        if self._MULTIPLE is None:
            limit = min(limit, 2**31 - 1)  # the limit of drjit.nn
        multiple = self._MULTIPLE or self.n_features_per_level
        layout = levels(size, scales(self.n_levels, self.base_resolution, growth, self._NUMBER), multiple, limit)
        shape = layout[-1].end, self.n_features_per_level
        each = 2 if self.precision == "half" else 4
        check_entries(name, f"features in {self.n_levels} levels", shape, each, on_host)
        return layout


def _finite(vector: list, mask: Any = True) -> tuple[Any, list]:
    """The mask of samples in ``mask`` with finite components only; and the vector, with zeros in other samples.

    A sample with coordinates that are not finite has no cell, so its gradients must not be added to any entry.
    """
    for v in vector:
        mask = dr.isfinite(v) & mask
    return mask, only(mask, vector)
