"""What encodings with trained features at the vertices of grids have in common."""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..engine import grid_tangents
from ..opaque import Opaque
from .encodings import Encoding, check_in_features, check_number, check_positive

INTERPOLATIONS = ("linear", "smoothstep", "nearest")


class Lattice(Encoding):
    """Features at the vertices of ``n_levels`` grids; a subclass says which, in ``_make``."""

    _FIELDS: tuple[str, ...] = (
        "in_features",
        "n_levels",
        "n_features_per_level",
        "hashmap_size",
        "base_resolution",
        "per_level_scale",
        "init_scale",
    )
    DRJIT_STRUCT = {**dict.fromkeys(_FIELDS, object), "grid": Opaque}

    n_levels: int
    n_features_per_level: int
    hashmap_size: int
    base_resolution: int
    per_level_scale: float | None
    init_scale: float

    def _set(self, in_features: int, per_level_scale: float | None, init_scale: float, **counts: int) -> None:
        where = type(self).__name__
        check_in_features(where, in_features)
        for name, value in counts.items():
            setattr(self, name, check_positive(where, name, value))
        if self.hashmap_size % self.n_features_per_level:
            raise ValueError(
                f"{where}: hashmap_size is {self.hashmap_size}; a multiple of n_features_per_level, "
                f"{self.n_features_per_level}, is needed."
            )
        if per_level_scale is not None:
            per_level_scale = check_number(where, "per_level_scale", per_level_scale, 1)
        self.in_features, self.per_level_scale = in_features, per_level_scale
        self.init_scale = check_number(where, "init_scale", init_scale, 0)
        self.grid = Opaque()

    def width(self, size: int) -> int:
        return self.n_levels * self.n_features_per_level

    def _features(self, coordinates: list) -> list:
        grid = self._held(coordinates)
        return grid.features([grid.dtype(v) for v in coordinates])

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        """Exact within a cell; see :mod:`coopnet.engine.grid_tangents`."""
        grid = self._held(coordinates)
        directions = [[grid.dtype(v) for v in t] for t in tangents]
        return grid_tangents.features(grid, [grid.dtype(v) for v in coordinates], directions)

    def _held(self, coordinates: list) -> Any:
        name, grid = type(self).__name__, self.grid.value
        if grid is None:
            raise ValueError(f"{name}: the layer has no parameters yet; call net = net.alloc(dtype, size) first.")
        self._same_backend(type(coordinates[0]), grid.dtype)
        return grid

    def _make(self, leaf: type, size: int, options: dict, rng: Any) -> Any:
        """The engine's grid for ``size`` coordinates with parameters of type ``leaf``."""
        raise NotImplementedError

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:  # type: ignore[override]
        size = self._size(size)
        layer = type(self)(**{name: getattr(self, name) for name in self._FIELDS} | {"in_features": size})
        options = {name: getattr(self, name) for name in Lattice._FIELDS[1:]}
        layer.grid = Opaque(self._make(dr.float32_array_t(dr.array_t(dtype)), size, options, rng))
        return layer, self.width(size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._FIELDS)})"


def check_choice(where: str, name: str, value: Any, accepted: tuple[str, ...]) -> str:
    """``value``; raises ``ValueError`` unless it is one of ``accepted``."""
    if not isinstance(value, str) or value not in accepted:
        raise ValueError(f"{where}: {name} is {value!r}; accepted are {', '.join(map(repr, accepted))}.")
    return value


def check_dimension(where: str, size: int) -> None:
    """Raise ``ValueError`` for more coordinates than the spatial hash has multipliers."""
    if size > 7:
        raise ValueError(
            f"{where}: in_features is {size}; a cell has 2^in_features corners, and at most 7 coordinates are hashed. "
            f"Permutohedral takes more."
        )
