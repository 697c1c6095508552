"""Inputs of a radiance cache, the ends of its paths, and the power heuristic."""

from __future__ import annotations

import numpy as np

from .random import Array


def radiance_cache_inputs(
    position: Array, direction: Array, normal: Array, roughness: Array, diffuse: Array, specular: Array, box: Array
) -> Array:
    """The 16 inputs, shape (16, samples), of points in ``box``, its corners as columns (3, 2).

    The cube that is mapped to the unit one has the box's center and 1.02 times its longest side.

    >>> p, v = np.zeros((3, 1)), np.array([[0.0], [0.0], [1.0]])
    >>> box = np.array([[-1.0, 1.0]] * 3)
    >>> ref.radiance_cache_inputs(p, v, v, np.ones(1), np.ones((3, 1)), np.ones((3, 1)), box).shape
    (16, 1)
    """
    low, high = box[:, :1], box[:, 1:]
    unit = (position - (low + high) / 2) / (1.02 * np.max(high - low)) + 0.5
    facing = np.where(np.sum(direction * normal, axis=0) < 0, -normal, normal)
    unit, direction, facing = np.clip(unit, 0, 1), (direction + 1) / 2, (facing + 1) / 2
    parts = [unit, direction, facing, 1 - np.exp(-roughness)[None], diffuse, specular]
    return np.concatenate(parts).astype(np.float64)


def path_spread(distance: Array, density: Array, cosine: Array) -> tuple[Array, Array]:
    """Areas of equations 3 and 4 of Müller et al. 2021 for one path of n segments, arrays of shape (n,): that to the
    n-th vertex for every n, 0 for the first, and the area of the camera.

    >>> area, camera = ref.path_spread(np.array([1.0, 2.0]), np.array([1.0, 0.5]), np.ones(2))
    >>> area.round(3).tolist(), round(float(camera), 4)
    ([0.0, 8.0], 0.0796)
    """
    steps = np.sqrt(distance[1:] ** 2 / (density[1:] * np.abs(cosine[1:])))
    area = np.concatenate([[0.0], np.cumsum(steps) ** 2])
    return area, np.asarray(distance[0] ** 2 / (4 * np.pi * np.abs(cosine[0])))


def power_heuristic(a: Array, b: Array) -> Array:
    """Weight of density ``a`` against ``b`` (Veach and Guibas 1995, with exponent 2).

    >>> ref.power_heuristic(np.array([1.0]), np.array([3.0])).tolist()
    [0.1]
    """
    return np.asarray(a**2 / (a**2 + b**2))
