"""Emission and absorption along rays, and grids of occupied cells."""

from __future__ import annotations

from typing import Any

import numpy as np

from .random import Array, philox4x32


def march_offsets(steps: int, rays: int, seed: int, index: Any = None, step: Any = 0) -> Array:
    """Places of samples in their bins, ``(steps, rays)``: number i of the last stream of samples, times 2^-24.

    >>> ref.march_offsets(steps=2, rays=1, seed=7).round(3).tolist()
    [[0.564], [0.86]]
    """
    index = np.arange(rays) if index is None else index
    out = np.empty((steps, rays))
    for i in range(steps):
        words = philox4x32((i // 4, np.asarray(index, np.uint32), step, 2**32 - 1), (seed & 0xFFFFFFFF, seed >> 32))
        out[i] = (words[i % 4] >> 8) * 2.0**-24
    return out


def march_distances(near: Array, far: Array, offsets: Array) -> tuple[Array, Array]:
    """(t, length of a bin): distances ``(steps, rays)`` of samples at ``offsets`` of their bins.

    >>> t, length = ref.march_distances(np.zeros(1), np.ones(1), np.full((4, 1), 0.5))
    >>> t.ravel().tolist(), length.tolist()
    ([0.125, 0.375, 0.625, 0.875], [0.25])
    """
    near, far = np.asarray(near, np.float64), np.asarray(far, np.float64)
    length = (far - near) / len(offsets)
    return near + (np.arange(len(offsets))[:, None] + offsets) * length, length


def ray_march(
    sigma: Array, color: Array, t: Array, length: Array, background: Any = 0.0, termination: float = 0.0
) -> tuple[Array, Array, Array]:
    """(color (3, rays), transmittance, depth) of densities (steps, rays), colors (3, steps, rays) and distances.

    Sample by sample: a share 1 - exp(-sigma length) of the light that is left is replaced by the sample's color. A ray
    ends where no more than ``termination`` is left.

    >>> t, length = ref.march_distances(np.zeros(1), np.ones(1), np.full((4, 1), 0.5))
    >>> color, transmittance, depth = ref.ray_march(np.full((4, 1), 2.0), np.ones((3, 4, 1)), t, length)
    >>> transmittance.round(4).tolist()
    [0.1353]
    """
    radiance, depth = np.zeros((3, sigma.shape[1])), np.zeros(sigma.shape[1])
    transmittance = np.ones(sigma.shape[1])
    for i in range(len(sigma)):
        alpha = np.where(transmittance > termination, 1 - np.exp(-sigma[i] * length), 0.0)
        radiance = radiance + transmittance * alpha * color[:, i]
        depth = depth + transmittance * alpha * t[i]
        transmittance = transmittance * (1 - alpha)
    return radiance + transmittance * np.reshape(background, (-1, 1)), transmittance, depth


def ray_march_vjp(
    sigma: Array, color: Array, t: Array, length: Array, dcolor: Array, dtransmittance: Array, ddepth: Array,
    background: Any = 0.0, termination: float = 0.0,
) -> tuple[Array, Array]:  # fmt: skip
    """(dsigma, dcolor) of :func:`ray_march`: back from the end of the ray, sample by sample.

    The light from sample i and from behind it is b_i = a_i c_i + (1 - a_i) b_{i+1}; behind the last sample, b is the
    background. The same holds for depths, with distances for colors and 0 at the end, and for the transmittance, with
    colors 0 and 1 at the end.

    >>> t, length = ref.march_distances(np.zeros(1), np.ones(1), np.full((4, 1), 0.5))
    >>> sigma, color = np.full((4, 1), 2.0), np.ones((3, 4, 1))
    >>> dsigma, dcolor = ref.ray_march_vjp(sigma, color, t, length, np.ones((3, 1)), np.zeros(1), np.zeros(1))
    >>> dsigma.ravel().round(4).tolist()
    [0.1015, 0.1015, 0.1015, 0.1015]
    """
    steps, rays = sigma.shape
    lefts = np.ones((steps + 1, rays))
    for i in range(steps):
        lefts[i + 1] = lefts[i] * np.where(lefts[i] > termination, np.exp(-sigma[i] * length), 1.0)
    behind = (np.reshape(background, (-1, 1)) * dcolor).sum(axis=0) + dtransmittance
    dsigma, dsamples = np.zeros((steps, rays)), np.zeros((3, steps, rays))
    for i in reversed(range(steps)):
        alive = lefts[i] > termination
        alpha = np.where(alive, 1 - np.exp(-sigma[i] * length), 0.0)
        direct = (dcolor * color[:, i]).sum(axis=0) + ddepth * t[i]
        dsigma[i] = np.where(alive, lefts[i] * (1 - alpha) * length * (direct - behind), 0.0)
        dsamples[:, i] = lefts[i] * alpha * dcolor
        behind = alpha * direct + (1 - alpha) * behind
    return dsigma, dsamples


def grid_cells(p: Array, lower: Any, upper: Any, resolution: Any) -> tuple[Array, Array]:
    """(number of the cell, inside?) of points (3, n): x + R_x (y + R_y z).

    >>> cell, inside = ref.grid_cells(np.array([[0.6], [0.1], [0.1]]), [0] * 3, [1] * 3, [2] * 3)
    >>> cell.tolist(), inside.tolist()
    ([1], [True])
    """
    lower, upper, shape = (np.reshape(v, (3, 1)) for v in (lower, upper, resolution))
    position = (np.asarray(p, np.float64) - lower) / (upper - lower) * shape
    inside = ((position >= 0) & (position < shape)).all(axis=0)
    x, y, z = np.where(inside, position, 0).astype(np.int64)
    return x + shape[0] * (y + shape[1] * z), inside


def occupied(bits: Array, p: Array, lower: Any, upper: Any, resolution: Any) -> Array:
    """Mask of the points (3, n) in cells whose bit is set: bit i % 32 of word i // 32.

    >>> ref.occupied(np.array([0b10], np.uint32), np.array([[0.6], [0.1], [0.1]]), [0] * 3, [1] * 3, [2] * 3).tolist()
    [True]
    """
    cell, inside = grid_cells(p, lower, upper, resolution)
    return np.asarray(inside & ((bits[cell // 32] >> (cell % 32).astype(np.uint32)) & 1).astype(bool))


def occupancy_update(
    density: Array, cells: Array, sampled: Array, decay: float, threshold: float
) -> tuple[Array, Array]:
    """(density, occupied?) of all cells: decayed, in ``cells`` at least ``sampled``, and compared with the threshold.

    >>> density, full = ref.occupancy_update(np.ones(2), np.array([1]), np.array([3.0]), 0.5, 1.0)
    >>> density.tolist(), full.tolist()
    ([0.5, 3.0], [False, True])
    """
    density = np.where(np.isfinite(density), density, 0.0) * decay
    density[cells] = np.maximum(density[cells], sampled)
    return density, density > min(threshold, density.mean())


def visits(sigma: Array, p: Array, length: Array, resolution: Any, lower: Any, upper: Any) -> tuple[Array, Array]:
    """(n, transmittances): visits of the cells ``(z, y, x)`` of a box by rays with samples at ``p``, ``(3, steps,
    rays)``.

    The first of a ray's consecutive samples in one cell adds the fourth power of the transmittance in front of it.

    >>> p = np.full((3, 4, 1), 0.5)
    >>> p[:, 1:3] = 2
    >>> n, left = ref.visits(np.full((4, 1), np.log(2)), p, np.ones(1), (1, 1, 1), 0, 1)
    >>> n.ravel().tolist()
    [1.000244140625]
    """
    tau = sigma * length
    left = np.exp(-(np.cumsum(tau, axis=0) - tau))
    cell = np.floor(((p.T - lower) / (np.subtract(upper, lower) / np.asarray(resolution))).T).astype(int)
    enters = np.all((cell >= 0) & (cell < np.reshape(resolution, (3, 1, 1))), axis=0)
    enters[1:] &= (cell[:, 1:] != cell[:, :-1]).any(axis=0)
    n = np.zeros(tuple(resolution)[::-1])
    np.add.at(n, tuple(cell[::-1, enters]), left[enters] ** 4)
    return n, left


def unseen(n: Array, p: Array, lower: Any, upper: Any) -> Array:
    """1 / (1 + n) at places ``(3, ...)``, with ``n`` linear between the middles of cells; 1 outside of the box.

    >>> ref.unseen(np.full((1, 1, 1), 3.0), np.array([[0.5, 2.0], [0.5, 0.5], [0.5, 0.5]]), 0, 1).tolist()
    [0.25, 1.0]
    """
    resolution = np.array(n.shape[::-1])
    position = ((p.T - lower) / (np.subtract(upper, lower) / resolution)).T
    sides = resolution.reshape(3, *[1] * (p.ndim - 1))
    inside = np.all((position >= 0) & (position < sides), axis=0)
    place = np.clip(np.where(inside, position, 0) - 0.5, 0, sides - 1)
    low = np.floor(place).astype(int)
    total = np.zeros(p.shape[1:])
    for corner in np.ndindex(2, 2, 2):
        bits = np.reshape(corner, (3, *[1] * (p.ndim - 1)))
        x, y, z = np.minimum(low + bits, sides - 1)
        total += np.prod(np.where(bits, place - low, 1 - (place - low)), axis=0) * n[z, y, x]
    return np.where(inside, 1 / (1 + total), 1.0)
