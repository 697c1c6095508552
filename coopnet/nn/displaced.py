"""Coordinates that a key displaces before they are encoded, by draws from a posterior: see :func:`coopnet.laplace`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..checks import check_int, check_type, check_unsigned, ensure
from ..checks.sizes import check_entries
from ..jit import kinds
from ..jit.unpacked import Unpacked
from ..kernels.drawn_grid import DrawnFeatureGrid
from ..kernels.grid import FeatureGrid, Level
from ..random.key import Key
from .activations import Identity
from .drawn import Drawn
from .encoding import Encoding, in_unit
from .module import Module
from .parameters import ParameterArray


class Displaced(Drawn, Encoding):
    r"""An encoding of coordinates that a key displaces, :math:`\mathrm{encoding}(x + D(x))` (Goli et al. 2024, *Bayes'
    Rays*).

    :math:`D` interpolates between the vertices of a grid over the unit cube, from corner to corner, linearly along each
    axis. The displacement of vertex :math:`v` along axis :math:`k` is :math:`\sigma_{vk} z_{vk}`, with :math:`z` number
    :math:`k` of row :math:`v` in the law of :mod:`coopnet.random.normal`. It depends only on the key's seed and step,
    on vertex, axis and ``stream``. Coordinates outside of the cube are displaced like the nearest point in it. Without
    a key the layer is the same as ``encoding``.

    Args:
        encoding: an :class:`Encoding` or :class:`Identity`.
        sides: number of vertices along each of the first coordinates, ints of at least 2; other coordinates are not
            displaced. With :math:`M` the largest, vertex :math:`(v_0, v_1, \dots)` has the number :math:`v_0 + M v_1 +
            M^2 v_2 + \dots` of :math:`M^d`.
        stream: a number that no other draws in the network have; int in [0, 2^30).

    The deviations :math:`\sigma`, of all axes of a vertex side by side, are the parameter ``"data"`` of the layer and
    start at 0.

    >>> layer = cn.nn.displaced.Displaced(cn.HashGrid(3, n_levels=2, hashmap_size=64), (8, 8, 8))
    """

    DRJIT_STRUCT = {"encoding": Module, "sides": tuple, "stream": int, "deviation": Unpacked}

    def __init__(self, encoding: Any = None, sides: Sequence[int] = (), stream: int = 0):
        accepted = (Encoding, Identity, type(None))
        check_type("Displaced", "encoding", encoding, accepted, "a coopnet Encoding or Identity")
        check_type("Displaced", "sides", sides, (list, tuple), "a list or tuple of ints")
        self.encoding: Any = encoding
        self.sides = tuple(check_int("Displaced", f"sides[{i}]", n, 2, 2**20) for i, n in enumerate(sides))
        self.stream = check_unsigned("Displaced", "stream", stream, 30)
        self.deviation = Unpacked()

    @property
    def in_features(self) -> int:  # type: ignore[override]
        return getattr(self.encoding, "in_features", -1)

    @property
    def vertices(self) -> int:
        """Number of the grid's vertices."""
        return max(self.sides) ** len(self.sides)

    def width(self, size: int) -> int:
        return self.encoding.width(size)

    def _in_unit(self, size: int) -> list[int]:
        return sorted({*range(len(self.sides)), *in_unit(self.encoding, size)})

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        self._check_key(key)
        if key is None:
            return self.encoding(x)
        (displaced,) = self._displaced(kinds.tracked_in_all_lanes(kinds.rows(x, self._check(x))), [], key)
        return self.encoding(kinds.contained(displaced, x), key)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        self._check_key(key)
        if key is None:
            return self.encoding.jvp(x, tangents)
        self._check(x)
        x, *tangents = [kinds.contained(v, x) for v in self._displaced(list(x), [list(t) for t in tangents], key)]
        return self.encoding.jvp(x, tangents, key)

    def interpolated(self, values: Any, coordinates: list) -> list:
        """``values`` of the vertices, an array like the deviations, interpolated at coordinates: one for each axis."""
        return self._grid(values).interpolate(values, self._positions(coordinates), [])[0]

    def cell(self, coordinates: list) -> tuple[list, list]:
        """For each axis, the number of the coordinate's cell, and the position within the cell, from 0 to 1."""
        position = [v + 0.5 for v in self._positions(coordinates)]  # as in FeatureGrid
        uint32 = dr.uint32_array_t(type(position[0]))
        lowest = [dr.floor(v) for v in position]
        return [uint32(v) for v in lowest], [v - low for v, low in zip(position, lowest, strict=True)]

    def vertex(self, place: list) -> Any:
        """The number of the vertex at ``place``, a ``UInt32`` for each axis."""
        total = place[0]
        for k, v in enumerate(place[1:], 1):
            total = total + v * max(self.sides) ** k
        return total % self.vertices  # upper vertices beyond the last one of the longest axis have the weight 0

    def _displaced(self, parts: list, tangents: list[list], key: Key) -> list[list]:
        ensure(self.deviation.value is not None, "Displaced: there are no deviations yet; call alloc(dtype, size).")
        leaf, data, n = type(parts[0]), self.deviation.value.data, len(self.sides)
        single = type(data)
        grid = DrawnFeatureGrid(self._grid(dr.zeros(single, dr.width(data))), data, key, self.stream).drawn()
        x = [single(v) for v in parts[:n]]
        directions = [self._directions(x, [single(v) for v in t[:n]]) for t in tangents]
        bundle = grid.interpolate(grid.data, self._positions(x), directions)
        pairs = zip((parts, *tangents), bundle, strict=True)
        return [[*(leaf(v + d) for v, d in zip(p, moved, strict=False)), *p[n:]] for p, moved in pairs]

    def _grid(self, data: Any) -> FeatureGrid:
        n, longest = len(self.sides), max(self.sides)
        return FeatureGrid(data, [Level(1.0, longest, 0, self.vertices)], n, n, hashed=False)

    def _positions(self, coordinates: list) -> list:
        """Coordinates, shifted and scaled so that the vertices of :class:`FeatureGrid` span the cube."""
        # beyond the cube, and on its upper faces, nothing changes along the axis
        fixed = [dr.detach(dr.select(dr.isfinite(v), dr.clip(v, 0, 1), 0)) for v in coordinates]
        inside = [dr.select((v >= 0) & (v < 1), v, f) for v, f in zip(coordinates, fixed, strict=True)]
        return [dr.fma(v, side - 1, -0.5) for v, side in zip(inside, self.sides, strict=False)]

    def _directions(self, coordinates: list, tangent: list) -> list:
        pairs = zip(coordinates, tangent, self.sides, strict=True)
        return [dr.select((v >= 0) & (v < 1), t * (side - 1), 0) for v, t, side in pairs]

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:
        ensure(self.encoding is not None, "Displaced: there is no encoding; call Displaced(encoding, sides).")
        encoding, width = self.encoding._alloc(dtype, size, rng)
        layer, n = Displaced(encoding, self.sides, self.stream), len(self.sides)
        valid = 0 < n <= (size if size > 0 else encoding.in_features)
        ensure(valid, f"Displaced: sides are those of {n} coordinates, but the encoding takes {size}.")
        on_host = dr.backend_v(dtype) == dr.JitBackend.LLVM
        check_entries("Displaced", "displacements", (layer.vertices, n), 4, on_host)
        single = dr.float32_array_t(dr.array_t(dtype))
        layer.deviation = Unpacked(ParameterArray(dr.zeros(single, layer.vertices * n)))
        return layer, width
