"""Hash grid encoding."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr
import drjit.nn as drnn

from .. import kinds
from ..engine import grid_tangents
from ..engine.grid import Grid
from ..key import Key
from ..opaque import Opaque
from .encodings import Encoding, check_in_features, nested
from .tangents import rebuilt


class HashGrid(Encoding):
    r"""Multiresolution hash grid (Müller et al. 2022, *Instant NGP*; evaluated by ``drjit.nn.HashGridEncoding``).

    ``n_levels`` grids, the :math:`l`-th with about ``base_resolution * per_level_scale**l`` cells a side, hold
    ``n_features_per_level`` features at their corners and are interpolated linearly; grids too large for
    ``hashmap_size`` entries share them through a hash. Output: ``n_levels * n_features_per_level`` features.
    Coordinates belong in [0, 1].

    Its parameters are single precision on every backend, start uniform in :math:`\pm` ``init_scale``, and are not
    packed with the weights of a network: they are the entry ``"data"`` of the layer's mapping.

    Args:
        in_features: number of coordinates; -1 takes it from ``alloc``.
        n_levels, n_features_per_level, base_resolution, per_level_scale: as above.
        hashmap_size: most entries of one level; a multiple of ``n_features_per_level``.
        init_scale: bound of the initial values.
    """

    _FIELDS = (
        "in_features",
        "n_levels",
        "n_features_per_level",
        "hashmap_size",
        "base_resolution",
        "per_level_scale",
        "init_scale",
    )
    DRJIT_STRUCT = {**dict.fromkeys(_FIELDS, object), "grid": Opaque}

    def __init__(
        self,
        in_features: int = -1,
        n_levels: int = 16,
        n_features_per_level: int = 2,
        hashmap_size: int = 2**19,
        base_resolution: int = 16,
        per_level_scale: float = 2.0,
        init_scale: float = 1e-4,
    ):
        check_in_features("HashGrid", in_features)
        for name, value in (
            ("n_levels", n_levels),
            ("n_features_per_level", n_features_per_level),
            ("hashmap_size", hashmap_size),
            ("base_resolution", base_resolution),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"HashGrid: {name} is {value!r}; a positive int is needed.")
        if hashmap_size % n_features_per_level:
            raise ValueError(
                f"HashGrid: hashmap_size is {hashmap_size}; a multiple of n_features_per_level, "
                f"{n_features_per_level}, is needed."
            )
        if not isinstance(per_level_scale, (int, float)) or not math.isfinite(per_level_scale) or per_level_scale < 1:
            raise ValueError(f"HashGrid: per_level_scale is {per_level_scale!r}; a number of at least 1 is needed.")
        if not isinstance(init_scale, (int, float)) or not math.isfinite(init_scale) or init_scale < 0:
            raise ValueError(f"HashGrid: init_scale is {init_scale!r}; a number of at least 0 is needed.")
        self.in_features, self.n_levels, self.n_features_per_level = in_features, n_levels, n_features_per_level
        self.hashmap_size, self.base_resolution = hashmap_size, base_resolution
        self.per_level_scale, self.init_scale = float(per_level_scale), float(init_scale)
        self.grid = Opaque()

    def width(self, size: int) -> int:
        return self.n_levels * self.n_features_per_level

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        kind = self._check(x)
        parts = list(x) if kind == kinds.TENSOR else kinds.components(x)
        leaf = dr.leaf_t(type(parts[0])) if kind != kinds.TENSOR else dr.array_t(type(x))
        grid = self._grid(leaf)
        single = grid.dtype
        # the fine levels need every bit of the coordinates, so they are looked up in single precision
        coordinates = [single(v.array) if dr.is_tensor_v(v) else single(v) for v in parts]
        features = [leaf(f) for f in grid.features(coordinates)]
        if kind == kinds.COOPVEC:
            return drnn.CoopVec(features)
        if kind == kinds.TENSOR:
            return type(x)(nested(features))
        return features if isinstance(x, (list, tuple)) else nested(features)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        """Exact within a cell; see :mod:`coopnet.engine.grid_tangents`."""
        self._check(x)
        leaf = dr.leaf_t(type(next(iter(x))))
        grid = self._grid(leaf)
        single = grid.dtype
        y, moved = grid_tangents.features(grid, [single(v) for v in x], [[single(v) for v in t] for t in tangents])
        return rebuilt([leaf(v) for v in y], x), [rebuilt([leaf(v) for v in t], x) for t in moved]

    def _grid(self, leaf: type) -> Grid:
        grid = self.grid.value
        if grid is None:
            raise ValueError("HashGrid: the layer has no parameters yet; call net = net.alloc(dtype, size) first.")
        if dr.backend_v(leaf) != dr.backend_v(grid.dtype):
            raise TypeError(
                f"HashGrid: the input lives on the {dr.backend_v(leaf).name} backend and the grid on "
                f"{dr.backend_v(grid.dtype).name}; build the network for the backend of its input."
            )
        return grid

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[HashGrid, int]:  # type: ignore[override]
        size = self._size(size)
        layer = HashGrid(**{name: getattr(self, name) for name in self._FIELDS} | {"in_features": size})
        layer.grid = Opaque(
            Grid(
                dr.float32_array_t(dr.array_t(dtype)),
                size,
                n_levels=self.n_levels,
                n_features_per_level=self.n_features_per_level,
                hashmap_size=self.hashmap_size,
                base_resolution=self.base_resolution,
                per_level_scale=self.per_level_scale,
                init_scale=self.init_scale,
                rng=rng,
            )
        )
        return layer, self.width(size)

    def __repr__(self) -> str:
        return f"HashGrid({', '.join(f'{name}={getattr(self, name)}' for name in self._FIELDS)})"
