"""Where rays cross a box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check, check_number, ensure, entries, is_number
from .arguments import Rays


def box_interval(o: Any, d: Any = None, lower: Any = 0.0, upper: Any = 1.0) -> tuple[Any, Any]:
    """``(near, far)``: where rays ``o + t d``, with ``t`` from 0 on, enter and leave a box.

    Args:
        o, d: as for :func:`sphere_trace`.
        lower, upper: corners of the box, a number or three each, such as ``*field.bounds`` of a field that has some.

    Returns:
        Two ``Float``, in units of the length of ``d``; 0 and -1 for rays that miss the box.

    Raises:
        ValueError: ``lower`` is not below ``upper``; otherwise as :func:`sphere_trace`.
        TypeError: as :func:`sphere_trace`.

    >>> near, far = cn.render.box_interval(o, d, -1, 1)
    >>> hit = cn.render.sphere_trace(sdf, o, d, far, t_min=near, active=near < far)
    """
    rays = Rays(o, d, "render.box_interval")
    return interval(*corners("render.box_interval", lower, upper), rays)


def interval(lower: Sequence[float], upper: Sequence[float], rays: Rays) -> tuple[Any, Any]:
    """:func:`box_interval` of checked arguments."""
    near, far = slab(lower, upper, rays.o, rays.d)
    hit = (near <= far) & (far >= 0)
    return dr.select(hit, dr.maximum(near, 0), 0), dr.select(hit, far, -1)


def slab(lower: Sequence[float], upper: Sequence[float], o: Sequence[Any], d: Sequence[Any]) -> tuple[Any, Any]:
    """Where lines enter and leave a box; ``near > far`` for those that miss it."""
    near, far = -dr.inf, dr.inf
    for a, b, origin, direction in zip(lower, upper, o, d, strict=True):
        first, second = (a - origin) / direction, (b - origin) / direction
        parallel, inside = direction == 0, (origin >= a) & (origin <= b)
        near = dr.maximum(near, dr.select(parallel, dr.select(inside, -dr.inf, dr.inf), dr.minimum(first, second)))
        far = dr.minimum(far, dr.select(parallel, dr.select(inside, dr.inf, -dr.inf), dr.maximum(first, second)))
    return near, far


def corners(where: str, lower: Any, upper: Any) -> tuple[tuple, tuple]:
    """The checked corners of a box, three numbers each."""
    low, high = _corner(where, "lower", lower), _corner(where, "upper", upper)
    ok = all(a < b for a, b in zip(low, high, strict=True))
    ensure(ok, f"{where}: lower is {low} and upper {high}; each of lower must be less.")
    return low, high


def three(where: str, name: str, value: Any) -> list:
    """``value`` as a list of three; raises ``ValueError`` or ``TypeError`` if it has not as many."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    components = entries(where, name, value) if isinstance(value, (list, tuple)) else []
    check(len(components) == 3, where, name, value, "one number, or three,")
    return components


def _corner(where: str, name: str, value: Any) -> tuple:
    components = [value] * 3 if is_number(value) else three(where, name, value)
    return tuple(check_number(where, name, v) for v in components)
