"""Triangles of a level set, such as the surface where a signed distance is zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..bounds import corners
from ..checks import check_int, check_number, check_type, ensure
from ..field import NeuralField
from ..image.evaluate import check_drawable
from .files import Mesh, libigl, trimesh
from .learn import evaluate
from .view import check_box

CHUNK = 1 << 22  #: corners of cells that are evaluated at a time
#: Corners of a cell, in the order of libigl.
CORNERS = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]])


def extract(
    field: NeuralField, resolution: int = 128, *, level: float = 0.0, region: Any = None, like: Mesh | None = None
) -> Mesh:
    """The surface on which ``field`` is equal to ``level``, as triangles, by marching cubes (Lorensen and Cline 1987).

    The box is divided into cells, and the field is evaluated at their corners. Along an edge of a cell, the value is
    taken to be linear. What is thinner than a cell may be missed. The mesh has a hole where the surface leaves the box.

    Args:
        field: a built field of 3 coordinates; its first output is taken.
        resolution: number of cells along the longest side of the box, from 2 to 1024.
        level: 0 for a signed distance.
        region: the box, six numbers: its lowest corner and its highest. ``None`` is the box of the field's bounds, or
            the unit cube.
        like: the mesh that the field has learned. With its ``centre`` and ``scale``, :func:`save` writes coordinates
            like those of its file. ``None`` keeps the field's coordinates.

    Returns:
        A :class:`Mesh` in the field's coordinates. Triangles point to where values are larger than ``level``.

    Raises:
        TypeError, ValueError: a field that is not built or has not 3 coordinates; arguments out of range; values that
            are not finite; no surface in the box.
        ImportError: the packages libigl or trimesh are missing.

    >>> field = cn.NeuralField(None, cn.Linear(3, 1)).build()  # 0 in a plane through the origin
    >>> surface = mesh.extract(field, 32, region=(-1, -1, -1, 1, 1, 1))
    >>> mesh.save("plane.ply", surface)
    """
    where = "mesh.extract"
    check_drawable(where, field, 3)
    resolution = check_int(where, "resolution", resolution, 2, 1024)
    level = check_number(where, "level", level)
    low, high = corners(field.bounds, 3) if region is None else check_box(where, region)
    check_type(where, "like", like, (Mesh, type(None)), "a mesh of coopnet.mesh.load(), or None")
    library, triangles = libigl(), trimesh()
    sides = np.asarray(high - low, float)
    cells = np.maximum(1, np.ceil(sides / sides.max() * resolution - 1e-9)).astype(np.int64)
    axes = [np.linspace(a, b, n + 1) for a, b, n in zip(low, high, cells, strict=True)]
    numbers, values = _crossed(where, field, axes, level)
    corner, first, number = np.unique(numbers, return_index=True, return_inverse=True)
    places = np.unravel_index(corner, [len(axis) for axis in axes])
    points = np.stack([axis[i] for axis, i in zip(axes, places, strict=True)], axis=1)
    vertices, faces, _ = library.marching_cubes(values[first], points, number.reshape(-1, 8), level)
    tight = bool(triangles.Trimesh(vertices, faces, process=False).is_watertight)
    centre, scale = (like.centre, like.scale) if like is not None else ((0.5, 0.5, 0.5), 1.0)
    return Mesh(vertices, faces, tight, centre, scale)


def _crossed(where: str, field: NeuralField, axes: list[np.ndarray], level: float) -> tuple[np.ndarray, np.ndarray]:
    """The corners of all cells that the surface crosses, eight in a row: their numbers, and their values."""
    planes, *shape = (len(axis) for axis in axes)
    at_a_time = max(1, CHUNK // (shape[0] * shape[1]))
    numbers, values, known = [], [], np.empty((0, *shape))
    least, most = np.inf, -np.inf
    for start in range(0, planes, at_a_time):
        points = np.stack(np.meshgrid(axes[0][start : start + at_a_time], *axes[1:], indexing="ij"), axis=-1)
        new = evaluate(field, points.reshape(-1, 3).astype(np.float32)).astype(float).reshape(-1, *shape)
        ensure(np.isfinite(new).all(), f"{where}: the field has values in the box that are not finite.")
        least, most = min(least, new.min()), max(most, new.max())
        block = np.concatenate([known, new])  # the last plane is not evaluated twice, so neighbors agree on it
        inside = block <= level  # as for libigl
        within = sum(inside[_corner(c, block.shape)].astype(np.int8) for c in CORNERS)
        cells = np.argwhere((within > 0) & (within < 8))[:, None] + CORNERS
        values.append(block[tuple(np.moveaxis(cells, -1, 0))].reshape(-1))
        cells[..., 0] += start - len(known)
        numbers.append(np.ravel_multi_index(tuple(np.moveaxis(cells, -1, 0)), (planes, *shape)).reshape(-1))
        known = block[-1:]
    found = np.concatenate(numbers)
    gives = f"the field's values in the box go from {least:.3g} to {most:.3g}"
    ensure(
        len(found), f"{where}: {gives}, and none of its cells has the level {level:g}; pass another level or region."
    )
    return found, np.concatenate(values)


def _corner(corner: np.ndarray, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Where in a block of ``shape`` this corner of all cells is."""
    return tuple(slice(c, n - 1 + c) for c, n in zip(corner, shape, strict=True))
