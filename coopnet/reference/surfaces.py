"""Rays and the zero sets of signed distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .networks import numerical_gradient
from .random import Array

#: A signed distance: points (3, samples) to values (samples,).
Distance = Callable[[Array], Array]


class Traced(NamedTuple):
    """Distances (rays,), hits (rays,), positions and unit normals (3, rays); infinity and zeros for misses.

    >>> ref.sphere_trace(lambda p: np.linalg.norm(p, axis=0) - 1, [[0], [0], [-3]], [[0], [0], [1]], 9.0).hit.tolist()
    [True]
    """

    t: Array
    hit: Array
    position: Array
    normal: Array


def sphere_trace(
    f: Distance, o: Array, d: Array, t_max: Array | float, steps: int = 10000, eps: float = 1e-9,
    t_min: Array | float = 0.0, lipschitz: float = 1.0, active: Array | bool = True,
) -> Traced:  # fmt: skip
    """First zeros of f on the rays o + t d (Hart 1996).

    Steps of ``|f| / (lipschitz |d|)`` until ``|f| < eps`` or its sign changes, then 60 bisections.

    >>> ball = lambda p: np.linalg.norm(p, axis=0) - 1
    >>> ref.sphere_trace(ball, [[0], [0], [-3]], [[0], [0], [1]], 9.0).t.round(6).tolist()
    [2.0]
    """
    o, d = (np.asarray(v, np.float64) for v in (o, d))
    o, d = np.broadcast_arrays(o, d)
    rays = o.shape[1]
    t_min, t_max = (np.broadcast_to(np.asarray(v, np.float64), rays) for v in (t_min, t_max))
    length = np.sqrt((d**2).sum(axis=0))
    alive = active & np.isfinite(o).all(axis=0) & np.isfinite(length) & (length > 0) & (t_min < t_max)
    o, d = np.where(alive, o, 0), np.where(alive, d, [[0], [0], [1]])
    scale = 1 / (lipschitz * np.where(alive, length, 1))
    sign = np.where(f(o + t_min * d) < 0, -1, 1)
    t, hit, low, high = t_min.copy(), np.zeros(rays, bool), t_min.copy(), t_min.copy()
    for _ in range(steps):
        r = sign * f(o + t * d) * scale
        reached = alive & (r < eps * lipschitz * scale)
        low, high = np.where(alive & ~reached, t, low), np.where(reached, t, high)
        hit |= reached
        alive &= ~reached & (t + r <= t_max)
        if not alive.any():
            break
        t = np.where(alive, t + r, t)
    ends = sign * f(o + high * d) < 0  # otherwise within eps
    for _ in range(60):
        middle = (low + high) / 2
        behind = sign * f(o + middle * d) < 0
        low, high = np.where(behind, low, middle), np.where(behind, middle, high)
    t = np.where(ends, high, t)
    p = np.where(hit, o + np.where(hit, t, 0) * d, 0)
    gradient = numerical_gradient(lambda q: f(q)[None], p, 1e-6)
    normal = gradient / np.maximum(np.sqrt((gradient**2).sum(axis=0)), 1e-30)
    return Traced(np.where(hit, t, np.inf), hit, p, np.where(hit, normal, 0))


def hit_tangent(
    gradient: Array, d: Array, t: Array, df: Array, do: Array | float = 0.0, dd: Array | float = 0.0
) -> Array:
    """dt of the hit at t when the distance there changes by df, and the ray by do and dd, all (3, rays) or (rays,):

    f(o + t d) = 0 gives dt = -(df + gradient . (do + t dd)) / (gradient . d) (Niemeyer et al. 2020, section 3.4).

    >>> down = np.array([[0.0], [0.0], [1.0]])
    >>> ref.hit_tangent(-down, down, np.array([2.0]), np.array([0.1])).tolist()
    [0.1]
    """
    return -(df + (gradient * (do + t * dd)).sum(axis=0)) / (gradient * d).sum(axis=0)


def closest_approach(f: Distance, o: Array, d: Array, t_max: float, samples: int = 4096) -> tuple[Array, Array]:
    """(t, f) of the smallest f on the rays: of equidistant samples, refined by 60 golden sections beside the best.

    >>> ball = lambda p: np.linalg.norm(p, axis=0) - 1
    >>> t, f = ref.closest_approach(ball, np.array([[2.0], [0], [-3]]), np.array([[0.0], [0], [1]]), 9.0)
    >>> t.round(3).tolist(), f.round(3).tolist()
    ([3.0], [1.0])
    """
    o, d = np.broadcast_arrays(np.asarray(o, np.float64), np.asarray(d, np.float64))
    ts = np.linspace(0, t_max, samples)
    values = np.stack([f(o + t * d) for t in ts])
    best = values.argmin(axis=0)
    low, high = ts[np.maximum(best - 1, 0)], ts[np.minimum(best + 1, samples - 1)]
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(60):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        left = f(o + a * d) < f(o + b * d)
        low, high = np.where(left, low, a), np.where(left, b, high)
    t = (low + high) / 2
    return t, f(o + t * d)


def soft_visibility(f: Distance, o: Array, d: Array, t_max: float, width: float, samples: int = 4096) -> Array:
    """sigmoid(-min f / width) over the rays (Yariv et al. 2020, eq. 7).

    >>> ball = lambda p: np.linalg.norm(p, axis=0) - 1
    >>> ref.soft_visibility(ball, np.array([[1.0], [0], [-3]]), np.array([[0.0], [0], [1]]), 9.0, 0.1).round(3).tolist()
    [0.5]
    """
    return 1 / (1 + np.exp(np.clip(closest_approach(f, o, d, t_max, samples)[1] / width, -80, 80)))
