"""Grids and lattices of features: layout, hash and interpolation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .random import LOW32, Array

# Multipliers of the spatial hash, one per dimension (Müller et al. 2022, eq. 4, continued by tiny-cuda-nn).
_PRIMES = (1, 2654435761, 805459861, 3674653429, 2097192037, 1434869437, 2165219737)


class GridLevel(NamedTuple):
    """A level of a hash grid: cells per unit length, vertices per axis, first vertex, number of vertices.

    >>> ref.GridLevel(scale=15.0, resolution=16, offset=0, size=256).size
    256
    """

    scale: float
    resolution: int
    offset: int
    size: int


def hash_grid_levels(
    dimension: int, n_levels: int = 16, n_features_per_level: int = 2, hashmap_size: int = 2**19,
    base_resolution: int = 16, per_level_scale: float = 2.0, level_scales: Sequence[float] | None = None,
    storage: str = "hash", multiple: int | None = None,
) -> list[GridLevel]:  # fmt: skip
    r"""Layout of a hash grid as in ``drjit.nn.HashGridEncoding``.

    There are (offset + size of the last level) times ``n_features_per_level`` parameters.

    Level l has scale :math:`s_l = base \cdot b^l - 1`, :math:`N_l = \lceil s_l \rceil + 1` vertices per
    axis, and :math:`\min(N_l^{dimension}, hashmap\_size)` stored vertices (before the minimum, rounded up
    to a multiple of the features per level). Where :math:`s_l` is an integer in exact arithmetic, the last
    bit of a power decides :math:`N_l`; ``level_scales`` therefore takes the scales from elsewhere.
    ``multiple`` is another number to round up to (tiny-cuda-nn: 8); ``"dense"`` storage has no minimum, that of
    ``"tiled"`` storage is taken with :math:`base^{dimension}`.

    >>> [(level.resolution, level.size) for level in ref.hash_grid_levels(2, n_levels=2, base_resolution=4)]
    [(4, 16), (8, 64)]
    """
    multiple = n_features_per_level if multiple is None else multiple
    limit = {"hash": hashmap_size, "tiled": base_resolution**dimension}.get(storage)
    levels, offset = [], 0
    for level in range(n_levels):
        s = base_resolution * per_level_scale**level - 1.0 if level_scales is None else float(level_scales[level])
        resolution = math.ceil(s) + 1
        dense = min(resolution**dimension, (2**32 - 1) // 2)
        size = -(-dense // multiple) * multiple
        size = size if limit is None else min(size, limit)
        levels.append(GridLevel(s, resolution, offset, size))
        offset += size
    return levels


def vertex_slot(vertex: Array, level: GridLevel, storage: str = "hash") -> Array:
    """Where a level stores the vertices with integer coordinates (dimension, samples).

    Row-major with the first axis fastest if every axis fits, else the hash XOR_d(v_d prime_d); in 32-bit
    arithmetic and modulo the size of the level. The test compares N^j with the size after each axis j and
    stops at the first that exceeds it. Because of the modulo, a dense level wraps around: coordinate N is 0
    of the next row. Other storage than ``"hash"`` never hashes.

    >>> level = ref.GridLevel(3.0, 4, 0, 16)
    >>> ref.vertex_slot(np.array([[1], [2]]), level).tolist()
    [9]
    """
    v = vertex.astype(np.uint64) & LOW32
    strides = [1]
    while len(strides) <= len(v) and (strides[-1] <= level.size or storage != "hash"):
        strides.append(strides[-1] * level.resolution)
    slot = np.zeros(v.shape[1], np.uint64)
    if strides[-1] > level.size and storage == "hash":
        for coordinate, prime in zip(v, _PRIMES, strict=False):
            slot ^= (coordinate * np.uint64(prime)) & LOW32
    else:
        for coordinate, stride in zip(v, strides, strict=False):
            slot += coordinate * np.uint64(stride & 0xFFFFFFFF)
    return np.asarray(np.uint64(level.offset) + (slot & LOW32) % np.uint64(level.size)).astype(np.int64)


def _grid_corners(
    x: Array, table: Array, n_levels: int, align_corners: bool = False, storage: str = "hash",
    interpolation: str = "linear", **options: Any,
) -> Iterable[tuple[int, Array, Array, Array]]:  # fmt: skip
    """For each level and corner of the cell: (level, storage slot, weight, gradient of the weight wrt x)."""
    levels = _grid_levels(x, table, n_levels, storage=storage, **options)
    for number, level in enumerate(levels):
        cell, fraction = _cells(x, level, 0.0 if align_corners else 0.5)
        gain: Array = np.full_like(fraction, level.scale)
        if interpolation == "nearest":
            yield number, vertex_slot(cell, level, storage), np.ones(x.shape[1]), np.zeros_like(x)
            continue
        if interpolation == "smoothstep":
            gain = 6 * fraction * (1 - fraction) * level.scale
            fraction = fraction**2 * (3 - 2 * fraction)
        for corner in itertools.product((0, 1), repeat=len(x)):
            upper = np.array(corner)[:, None]
            factor = np.where(upper == 1, fraction, 1 - fraction)
            slope = np.where(upper == 1, gain, -gain)
            others = [np.delete(factor, d, axis=0).prod(axis=0) for d in range(len(x))]
            slot = vertex_slot(cell + upper, level, storage)
            yield number, slot, factor.prod(axis=0), slope * np.stack(others)


def _cells(x: Array, level: GridLevel, offset: float) -> tuple[Array, Array]:
    """The cell of each coordinate, and its position in the cell.

    Positions of :math:`2^{23}` and more are rounded to single precision, which has only integers there. Cells are
    clamped to the range from :math:`-2^{31}` to :math:`2^{31} - 128`.
    """
    position = np.clip(x, -(2.0**64), 2.0**64) * np.float64(np.float32(level.scale)) + offset
    position = np.where(np.abs(position) < 2**23, position, np.float32(position))
    cell = np.floor(position)
    return np.clip(cell, -(2.0**31), 2.0**31 - 128).astype(np.int64), position - cell


def hash_grid(x: Array, params: Array, n_levels: int = 16, n_features_per_level: int = 2, **options: Any) -> Array:
    r"""Multiresolution hash encoding (Müller et al. 2022), as ``drjit.nn.HashGridEncoding`` computes it.

    On each level, x in [0, 1]^d is placed at :math:`s_l x + 1/2` (at :math:`s_l x` with ``align_corners=True``)
    and the features of the 2^d vertices around it are interpolated multilinearly. Row ``l F + f`` of the
    output is feature f of level l; ``params`` is flat, the F features of a vertex side by side. Positions
    below zero are undefined in Dr.Jit, which converts negative floats to ``UInt32``; here cells are numbered from
    :math:`-2^{31}` to :math:`2^{31} - 128`, and positions beyond lie in the first or last cell. Where a coordinate
    is not finite, all features are NaN. ``interpolation`` may be
    ``"smoothstep"``, which puts :math:`t^2 (3 - 2 t)` for the fraction t of a cell, or ``"nearest"``, which takes the
    lowest vertex of the cell; levels above ``max_level`` give zeros. The other options are those of
    :func:`hash_grid_levels`.

    >>> params = np.arange(32.0)
    >>> ref.hash_grid(np.array([[0.5], [0.0]]), params, n_levels=1, base_resolution=4).ravel().tolist()
    [8.0, 9.0]
    """
    return _interpolated(*_walk(_grid_corners, x, params, n_levels, n_features_per_level, **options))


def hash_grid_vjp(
    x: Array, params: Array, dy: Array, n_levels: int = 16, n_features_per_level: int = 2, **options: Any
) -> tuple[Array, Array]:
    """Gradients (dx, dparams) of :func:`hash_grid`; the cell of a sample counts as constant.

    >>> params, x = np.arange(32.0), np.array([[0.5], [0.0]])
    >>> dx, dparams = ref.hash_grid_vjp(x, params, np.ones((2, 1)), n_levels=1, base_resolution=4)
    >>> dx.ravel().tolist(), float(dparams.sum())
    ([12.0, 48.0], 2.0)
    """
    table, corners = _walk(_grid_corners, x, params, n_levels, n_features_per_level, **options)
    d = np.asarray(dy, np.float64).reshape(n_levels, n_features_per_level, -1)
    dx = sum(dweight * (d[number] * table[slot].T).sum(axis=0) for number, slot, _, dweight in corners)
    return np.asarray(dx), _scattered(table, corners, d)


def hash_grid_jvp(
    x: Array, params: Array, dx: Array, n_levels: int = 16, n_features_per_level: int = 2, **options: Any
) -> Array:
    """Derivative of :func:`hash_grid` in direction dx; the cell of a sample counts as constant.

    >>> params, x = np.arange(32.0), np.array([[0.5], [0.0]])
    >>> ref.hash_grid_jvp(x, params, np.ones((2, 1)), n_levels=1, base_resolution=4).ravel().tolist()
    [30.0, 30.0]
    """
    table, corners = _walk(_grid_corners, x, params, n_levels, n_features_per_level, **options)
    dcorners = [(number, slot, (dweight * np.asarray(dx)).sum(axis=0)) for number, slot, _, dweight in corners]
    return _interpolated(table, dcorners)


def permutohedral(x: Array, params: Array, n_levels: int = 16, n_features_per_level: int = 2, **options: Any) -> Array:
    r"""Permutohedral encoding as ``drjit.nn.PermutoEncoding`` computes it, laid out as :func:`hash_grid`.

    The features at the d + 1 vertices of the simplex around :math:`s_l x + 1/2` are interpolated. Its vertices are the
    cell's lowest one and those reached from it by going up along the axes in descending order of the fraction; their
    weights are the differences of successive fractions. Options as :func:`hash_grid_levels`.

    >>> params = np.ones(32)
    >>> ref.permutohedral(np.array([[0.5], [0.0]]), params, n_levels=1, base_resolution=4).round(6).ravel().tolist()
    [1.0, 1.0]
    """
    return _interpolated(*_walk(_simplex_vertices, x, params, n_levels, n_features_per_level, **options))


def permutohedral_vjp(
    x: Array, params: Array, dy: Array, n_levels: int = 16, n_features_per_level: int = 2, **options: Any
) -> Array:
    """Gradient of :func:`permutohedral` with respect to params.

    >>> params, x = np.ones(32), np.array([[0.5], [0.0]])
    >>> float(ref.permutohedral_vjp(x, params, np.ones((2, 1)), n_levels=1, base_resolution=4).sum().round(6))
    2.0
    """
    d = np.asarray(dy, np.float64).reshape(n_levels, n_features_per_level, -1)
    return _scattered(*_walk(_simplex_vertices, x, params, n_levels, n_features_per_level, **options), d)


def _simplex_vertices(x: Array, table: Array, n_levels: int, **options: Any) -> Iterable[tuple[int, Array, Array]]:
    """For each level and vertex of the simplex: (level, storage slot, weight)."""
    for number, level in enumerate(_grid_levels(x, table, n_levels, **options)):
        vertex, fraction = _cells(x, level, 0.5)
        order = np.argsort(-fraction, axis=0, kind="stable")
        falling = np.take_along_axis(fraction, order, 0)
        bounds = np.concatenate([np.ones((1, x.shape[1])), falling, np.zeros_like(x[:1])])
        for step in range(len(x) + 1):
            if step:
                vertex = vertex + (np.arange(len(x))[:, None] == order[step - 1])
            yield number, permuto_slot(vertex, level), bounds[step] - bounds[step + 1]


def permuto_slot(vertex: Array, level: GridLevel) -> Array:
    """:func:`vertex_slot` with the rolling hash h -> (h + v_d) 2531011.

    >>> level = ref.GridLevel(3.0, 4, 0, 16)
    >>> ref.permuto_slot(np.array([[1], [2]]), level).tolist()
    [9]
    """
    if level.resolution ** len(vertex) <= level.size:
        return vertex_slot(vertex, level)
    slot = np.zeros(vertex.shape[1], np.uint64)
    for coordinate in vertex.astype(np.uint64) & LOW32:
        slot = (slot + coordinate) * np.uint64(2531011) & LOW32
    return np.asarray(np.uint64(level.offset) + slot % np.uint64(level.size)).astype(np.int64)


def _walk(
    vertices: Callable, x: Array, params: Array, n_levels: int, features: int, max_level: float = math.inf,
    **options: Any,
) -> tuple[Array, list]:  # fmt: skip
    """The table, a row for each vertex, and the ``vertices`` around samples: (level, slot, weight, ...).

    Vertices of levels above ``max_level`` have the weight 0, and those around coordinates that are not finite NaN.
    """
    table, x = np.asarray(params, np.float64).reshape(-1, features), np.asarray(x, np.float64)
    known = np.isfinite(x).all(axis=0)
    corners = vertices(np.where(known, x, 0), table, n_levels, **options)
    shown = [np.where(known, 1.0 * (level <= np.asarray(max_level)), np.nan) for level in range(n_levels)]
    return table, [(level, slot, *(w * shown[level] for w in rest)) for level, slot, *rest in corners]


def _interpolated(table: Array, vertices: list) -> Array:
    """The sum over vertices of their features times their weights."""
    y = np.zeros((vertices[-1][0] + 1, table.shape[1], vertices[-1][2].size))
    for number, slot, weight, *_ in vertices:
        y[number] += weight * table[slot].T
    return y.reshape(-1, y.shape[-1])


def _scattered(table: Array, vertices: list, d: Array) -> Array:
    """The gradient of :func:`_interpolated` with respect to the table, flat; ``d`` is (level, feature, sample)."""
    dtable = np.zeros_like(table)
    for number, slot, weight, *_ in vertices:
        np.add.at(dtable, slot, (weight * d[number]).T)
    return dtable.ravel()


def _grid_levels(x: Array, table: Array, n_levels: int, **options: Any) -> list[GridLevel]:
    """The levels; raises ``ValueError`` unless they have as many vertices as the table."""
    levels = hash_grid_levels(len(x), n_levels, table.shape[1], **options)
    vertices = levels[-1].offset + levels[-1].size
    if len(table) != vertices:
        raise ValueError(f"hash_grid: these levels store {vertices} vertices, but params hold {len(table)}")
    return levels
