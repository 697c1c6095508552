"""Points around a mesh and their signed distances, the data that a field learns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..checks import check_int, check_type, check_unsigned
from ..checks.sizes import MAX_ENTRIES
from .files import Mesh, libigl

#: Shares of the points: on the surface, near it (by standard deviation in units of the cube), and anywhere.
ON, NEAR, SPACE = 0.25, {0.002: 0.25, 0.02: 0.25}, 0.25

#: Points per call of libigl, which Ctrl-C does not interrupt.
CHUNK = 1 << 20


class Samples(NamedTuple):
    """Points ``(n, 3)`` in the unit cube, float32; their distances ``(n,)``, negative inside; which are uniform."""

    points: np.ndarray
    distances: np.ndarray
    uniform: np.ndarray


def draw_samples(mesh: Mesh, count: int, seed: int = 0) -> Samples:
    """``count`` points: a quarter on the surface, half near it, a quarter anywhere in the unit cube.

    Distances are exact, in double precision, by libigl. Their sign is that of the pseudonormal of the closest point
    (Baerentzen and Aanaes 2005) if the mesh is watertight. Otherwise points with a winding number above 1/2 are inside
    (Jacobson et al. 2013, Barill et al. 2018); it is defined for meshes with holes, too.

    Raises:
        TypeError, ValueError: no mesh of :func:`load`; a ``count`` that is not positive; a ``seed`` outside [0, 2^64).
        ImportError: the package libigl is missing.

    >>> samples = mesh.draw_samples(mesh.load("cube.obj"), 1000)
    >>> samples.points.shape, samples.distances.shape, samples.uniform.sum()
    ((1000, 3), (1000,), np.int64(250))
    """
    check_type("mesh.draw_samples", "mesh", mesh, Mesh, "a mesh of coopnet.mesh.load()")
    count = check_int("mesh.draw_samples", "count", count, 1, MAX_ENTRIES)
    seed = check_unsigned("mesh.draw_samples", "seed", seed)
    library = libigl()
    rng = np.random.default_rng(seed)
    on = _on_surface(mesh, count - round(SPACE * count), rng)
    spread = np.zeros(len(on))
    first = round(ON * count)
    for deviation, share in NEAR.items():
        last = min(first + round(share * count), len(on))
        spread[first:last] = deviation
        first = last
    points = np.clip(on + spread[:, None] * rng.standard_normal(on.shape), 0, 1)
    points = np.concatenate([points, rng.random((count - len(on), 3))]).astype(np.float32)
    uniform = np.arange(count) >= len(on)
    return Samples(points, signed_distances(library, mesh, points), uniform)


def signed_distances(library: Any, mesh: Mesh, points: np.ndarray) -> np.ndarray:
    """Distances of ``points`` to ``mesh``, float32, negative inside."""
    parts, surface = [], (mesh.vertices, mesh.faces)
    for start in range(0, len(points), CHUNK):
        part = points[start : start + CHUNK].astype(np.float64)
        if mesh.watertight:
            distances = library.signed_distance(part, *surface, sign_type=library.SIGNED_DISTANCE_TYPE_PSEUDONORMAL)[0]
        else:
            # The signed distances of libigl by winding numbers w are multiplied by 1 - 2 |w|, which is a sign only
            # where w is 0 or 1.
            outside = np.abs(library.fast_winding_number(*surface, part)) <= 0.5
            distances = np.sqrt(library.point_mesh_squared_distance(part, *surface)[0]) * np.where(outside, 1, -1)
        parts.append(np.asarray(distances, np.float32).reshape(-1))
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _on_surface(mesh: Mesh, count: int, rng: np.random.Generator) -> np.ndarray:
    """Points spread evenly over the area, by the square root of Osada et al. 2002, section 3.1."""
    corners = mesh.vertices[mesh.faces]
    areas = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    chosen = corners[rng.choice(len(areas), count, p=areas / areas.sum())]
    u, v = np.sqrt(rng.random(count)), rng.random(count)
    weights = np.stack([1 - u, u * (1 - v), u * v], axis=1)
    return np.einsum("nc,ncd->nd", weights, chosen)
