"""Pictures of surfaces: a camera around the box of a field, sphere tracing, and a light beside the camera."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr
import numpy as np

from ..bounds import corners
from ..checks import check, check_choice, check_number, entries, is_number
from ..derivatives import numerical_gradient
from ..field import NeuralField
from ..image.evaluate import arrays, check_drawable, check_size
from ..render import sphere_trace

CHUNK = 1 << 18  #: rays traced at once
SIDE = 2  #: rays along a side of a pixel
STEPS, EPS, LIPSCHITZ = 256, 2e-4, 1.25  #: in longest sides; learned distances are slightly steeper than 1 in places
DIFFERENCE = 4e-3  #: of normals, in longest sides of the box: smooths the facets of a grid's cells
AXES = {"x": (1, 2, 0), "y": (2, 0, 1), "z": (0, 1, 2)}  #: which coordinates are right, back and up
COLOUR, GROUND, GAMMA = (0.74, 0.62, 0.46), (1.0, 1.0, 1.0), 2.2
DISTANCE, ANGLE = 2.4, 0.27  #: of the camera from the centre, and the tangent of half its shorter field of view


def render(
    field: NeuralField, width: int, height: int, azimuth: float = 30.0, elevation: float = 20.0, up: str = "y",
    region: Any = None,
) -> np.ndarray:  # fmt: skip
    """The zero set of ``field`` in a box as a shaded picture, float32 ``(height, width, 3)``, on white.

    Args:
        field: a built field of 3 coordinates whose only output is a signed distance in the units of its coordinates.
        width, height: in pixels; each is the mean of 4 rays.
        azimuth, elevation: of the camera, in degrees.
        up: the axis that points up in the picture, ``"x"``, ``"y"`` or ``"z"``.
        region: the box, six numbers: its lowest corner and its highest. ``None`` is the box of the field's bounds, or
            the unit cube.

    Raises:
        TypeError, ValueError: a field that is not built, or has not 3 coordinates and one output; sizes that are not
            positive; angles that are not numbers, an ``elevation`` outside [-90, 90]; another ``up``; a ``region`` of
            other numbers.

    >>> mesh.render(mesh.make_field(encoding="identity", units=16).build(), width=6, height=4).shape
    (4, 6, 3)
    """
    where = "mesh.render"
    check_drawable(where, field, 3)
    width, height = check_size(where, width, height)
    azimuth = check_number(where, "azimuth", azimuth)
    inside = is_number(elevation) and -90 <= elevation <= 90
    check(inside, where, "elevation", elevation, "a number in [-90, 90]")
    check_choice(where, "up", up, tuple(AXES))
    ns = arrays(field)
    low, high = corners(field.bounds, 3) if region is None else check_box(where, region)
    size = float((high - low).max())
    eye, *directions = _camera(azimuth, elevation, AXES[up])
    basis = [ns.Array3f(*map(float, v)) for v in (0.5 * (low + high) + size * (eye - 0.5), *directions, low, high)]
    basis.append(ns.Float(size))
    dr.make_opaque(basis)
    columns, rows = SIDE * width, SIDE * height
    values = np.empty((columns * rows, 3), np.float32)
    per_piece = max(1, CHUNK // columns) * columns
    for start in range(0, columns * rows, per_piece):
        n = min(per_piece, columns * rows - start)
        index = dr.arange(ns.UInt32, n) + dr.opaque(ns.UInt32, start)
        values[start : start + n] = _shade(ns, field, basis, index, columns, rows).numpy().T
    # averaged before the gamma correction
    return values.reshape(height, SIDE, width, SIDE, 3).mean(axis=(1, 3)) ** (1 / GAMMA)


def check_box(where: str, region: Any) -> tuple[np.ndarray, np.ndarray]:
    """The corners of ``region``; raises ``ValueError`` unless it has six numbers, the last three larger."""
    numbers: list[Any] = entries(where, "region", region) if isinstance(region, (tuple, list, np.ndarray)) else []
    valid = len(numbers) == 6 and all(map(is_number, numbers)) and all(np.subtract(numbers[3:], numbers[:3]) > 0)
    check(valid, where, "region", region, "six numbers, the lowest corner of a box and its highest,")
    return np.array(numbers[:3], float), np.array(numbers[3:], float)


def _camera(azimuth: float, elevation: float, axes: tuple) -> list[np.ndarray]:
    """Place, forward, right and down of a camera that looks at the middle of the unit cube."""
    a, e = math.radians(azimuth), math.radians(elevation)
    order = np.argsort(axes)
    out = np.array([math.cos(a) * math.cos(e), math.sin(a) * math.cos(e), math.sin(e)])
    right = np.array([-math.sin(a), math.cos(a), 0])
    down = np.cross(-out, right)
    return [0.5 + DISTANCE * out[order], -out[order], right[order], down[order]]


def _shade(ns: Any, field: NeuralField, basis: list, index: Any, columns: int, rows: int) -> Any:
    """Colours of the rays ``index`` of a picture."""
    eye, forward, right, down, low, high, size = basis
    opaque_columns, opaque_rows = (dr.opaque(ns.UInt32, v) for v in (columns, rows))
    row = index // opaque_columns
    scale = 2 * ANGLE / ns.Float(dr.minimum(opaque_columns, opaque_rows))
    u = (ns.Float(index - row * opaque_columns) + 0.5 - 0.5 * ns.Float(opaque_columns)) * scale
    v = (ns.Float(row) + 0.5 - 0.5 * ns.Float(opaque_rows)) * scale
    d = dr.normalize(forward + u * right + v * down)
    near, far = _inside(eye, d, low, high)
    crosses = far > near
    near, far = dr.select(crosses, near, 0), dr.select(crosses, far, 1)
    traced = sphere_trace(field, eye, d, far, STEPS, size * EPS, t_min=near, lipschitz=LIPSCHITZ, active=crosses)

    def distance(p: Any) -> Any:
        return field(p)[0]

    normal = dr.normalize(numerical_gradient(distance, traced.position, size * DIFFERENCE))
    light = dr.normalize(0.45 * right - 0.6 * down - forward)
    lit = 0.14 + 0.86 * dr.maximum(dr.dot(normal, light), 0)
    # darker at grazing angles, which shows shapes that the light alone does not
    lit *= 0.75 + 0.25 * dr.abs(dr.dot(normal, d))
    visible = traced.hit & dr.isfinite(lit)
    return dr.select(visible, ns.Array3f(*COLOUR) * lit, ns.Array3f(*GROUND))


def _inside(o: Any, d: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """Where rays enter and leave the box."""
    inverse = dr.rcp(dr.select(dr.abs(d) < 1e-8, 1e-8, d))
    a, b = (low - o) * inverse, (high - o) * inverse
    near = dr.max(dr.minimum(a, b))
    return dr.maximum(near, 0), dr.min(dr.maximum(a, b))
