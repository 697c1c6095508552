"""Mesh files: reading them into the unit cube, and writing them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import check_type, ensure, shown_path
from ..io.files import atomic_write, file_name

MARGIN = 0.1  #: of the unit cube, on either side of the longest side of a mesh
WRITTEN = (".ply", ".obj", ".stl")  #: suffixes of the formats that are written


@dataclass(frozen=True)
class Mesh:
    """Triangles, in the coordinates of a field.

    Args:
        vertices: float64 array ``(n, 3)``. After :func:`load`, their bounding box has a longest side of 0.8 and the
            centre (1/2, 1/2, 1/2).
        faces: int64 array ``(m, 3)`` of numbers of vertices.
        watertight: do the triangles enclose a solid, without holes? Their corners are then in an order that points
            outwards, whatever that of the file is.
        centre, scale: from the file, whose vertices are ``centre + (vertices - 1/2) * scale``.
    """

    vertices: np.ndarray
    faces: np.ndarray
    watertight: bool
    centre: tuple[float, float, float]
    scale: float


def load(path: str | os.PathLike[str]) -> Mesh:
    """A mesh file (OBJ, PLY, STL and other formats of trimesh) in the unit cube, with all of its parts as one mesh.

    Polygons become triangles; vertices in one place become one; triangles without area are dropped. A point
    :math:`q` of the file's coordinates is :math:`p = (q - centre) / scale + 1/2` in the cube, and distances there are
    in units of ``scale``.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is not a mesh, damaged, or without area.
        ImportError: the package trimesh is missing.

    >>> found = mesh.load("cube.obj")
    >>> found.vertices.shape, found.faces.shape, found.watertight
    ((8, 3), (12, 3), True)
    """
    path = Path(file_name(path, "mesh.load"))
    name = repr(shown_path(path))
    ensure(not path.is_dir(), f"{name} is a directory; a mesh file is needed.", IsADirectoryError)
    ensure(path.exists(), f"there is no file {name}.", FileNotFoundError)
    library = trimesh()
    open(path, "rb").close()  # raises PermissionError, naming the path
    try:
        # nothing but this file is read: no textures, no materials
        whole = library.load(path, force="mesh", process=False, skip_materials=True, file_type=path.suffix[1:].lower())
        vertices, faces = np.asarray(whole.vertices, np.float64), np.asarray(whole.faces, np.int64)
    except Exception as error:  # readers of formats raise all kinds of errors
        said = str(error).rstrip(".!") or type(error).__name__
        raise ValueError(f"{name} is not a valid {path.suffix[1:].upper()} mesh; export it again ({said}).") from None
    needed = "a surface of triangles or polygons is needed"
    ensure(len(faces), f"{name} has no triangles, or is not a valid {path.suffix[1:].upper()} file; {needed}.")
    ensure(faces.min() >= 0 and faces.max() < len(vertices), f"{name} names vertices that it does not have.")
    used = vertices[faces]
    ensure(np.isfinite(used).all(), f"{name} has vertices that are not finite; repair it, or export it again.")
    low, high = used.min(axis=(0, 1)), used.max(axis=(0, 1))
    longest = float((high - low).max())
    ensure(0 < longest < np.inf, f"{name} has no extent that could be drawn.")
    centre, scale = 0.5 * low + 0.5 * high, longest / (1 - 2 * MARGIN)
    whole = library.Trimesh((vertices - centre) / scale + 0.5, faces, process=False)
    whole.merge_vertices(merge_tex=True, merge_norm=True)
    whole.update_faces(whole.nondegenerate_faces())
    whole.remove_unreferenced_vertices()
    ensure(len(whole.faces), f"{name} has no triangle of any area; {needed}.")
    x, y, z = map(float, centre)
    tight = bool(whole.is_watertight)
    corners, faces = np.array(whole.vertices, np.float64), np.array(whole.faces, np.int64)
    if tight:
        faces = _outward(corners, faces)
    return Mesh(corners, np.asarray(faces, np.int64), tight, (x, y, z), scale)


def _outward(corners: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """The triangles of closed surfaces, in an order that points out of the solid: out of a surface, or into it if it is
    a cavity, which an odd number of the others surround.
    """
    library = libigl()
    faces, parts = (np.asarray(v, np.int64) for v in library.bfs_orient(faces))
    surfaces = [faces[parts.ravel() == part] for part in np.unique(parts)]
    low, high = (np.array([end(corners[s], axis=(0, 1)) for s in surfaces]) for end in (np.min, np.max))
    for i, surface in enumerate(surfaces):
        a, b, c = (corners[surface[:, k]] - corners.mean(axis=0) for k in range(3))
        point = np.ascontiguousarray(corners[surface[:1, 0]])
        boxes = ((low < point) & (point < high)).all(axis=1)  # others cannot surround it
        others = [surfaces[j] for j in np.flatnonzero(boxes) if j != i]
        around = sum(abs(library.winding_number(corners, other, point)[0]) > 0.5 for other in others)
        inwards = np.einsum("ij,ij->", a, np.cross(b, c)) < 0
        if inwards != (around % 2 == 1):
            surfaces[i] = surface[:, ::-1]
    return np.concatenate(surfaces)


def save(path: str | os.PathLike[str], mesh: Mesh) -> None:
    r"""Write a mesh as PLY, OBJ or STL, by the suffix of ``path``; an existing file is replaced in one step.

    A vertex :math:`p` is written as :math:`centre + (p - 1/2) \, scale`, as it was in the file that :func:`load` read:
    in OBJ with nine digits of the largest coordinate or more, in PLY and STL in single precision.

    Raises:
        TypeError, ValueError: ``mesh`` is no :class:`Mesh`, or has no triangle; another suffix.
        OSError: the file cannot be written.
        ImportError: the package trimesh is missing.

    >>> mesh.save("copy.ply", mesh.load("cube.obj"))
    """
    where = "mesh.save"
    check_type(where, "mesh", mesh, Mesh, "a mesh of coopnet.mesh.load() or extract()")
    suffix = Path(file_name(path, where)).suffix.lower()
    known = f"{where}: path is {shown_path(os.fspath(path))!r}; its suffix must be one of {', '.join(WRITTEN)}."
    ensure(suffix in WRITTEN, known)
    ensure(len(mesh.faces), f"{where}: the mesh has no triangle.")
    corners = np.add(mesh.centre, (np.asarray(mesh.vertices, float) - 0.5) * mesh.scale)
    whole = trimesh().Trimesh(corners, mesh.faces, process=False)
    decimals = max(8, 9 - math.floor(math.log10(max(np.abs(corners).max(), 1e-290))))
    options = {"digits": decimals} if suffix == ".obj" else {}
    atomic_write(path, lambda temporary: whole.export(temporary, file_type=suffix[1:], **options))


def trimesh() -> Any:
    try:
        import trimesh
    except ImportError:
        raise ImportError("Meshes need the package trimesh; pip install trimesh, or coopnet[mesh].") from None
    return trimesh


def libigl() -> Any:
    try:
        import igl
    except ImportError:
        raise ImportError(
            "Distances to meshes and their surfaces need the package libigl; pip install libigl, or coopnet[mesh]."
        ) from None
    return igl
