"""Uncertainty of a field: rates of dropout, posteriors, ensembles, and measures of an uncertainty."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np

from .random import Array


def posthoc_dropout(loss: Callable[[float], float], tolerance: float = 0.05) -> float:
    """The largest rate of dropout whose ``loss(rate)`` is at most ``1 + tolerance`` times that at 0 (Sun et al. 2024).

    Bisection of the logarithm between 2^-28 and 2^-0.01, rounded to single precision; 0 if the smallest is too large.

    >>> round(ref.posthoc_dropout(lambda p: 1 + p, 0.1), 3)
    0.1
    """
    limit = (1 + tolerance) * loss(0.0)
    accepted, rejected = -28.0, -0.01
    if loss(2**accepted) > limit:
        return 0.0
    for _ in range(12):
        middle = (accepted + rejected) / 2
        if loss(float(np.float32(2**middle))) <= limit:
            accepted = middle
        else:
            rejected = middle
    return float(np.float32(2**accepted))


def laplace(derivatives: Array, noise: float, prior: float) -> Array:
    r"""Covariance of parameters by the Gauss-Newton approximation, shape ``(parameters, parameters)``: the inverse of
    :math:`\sum_{on} d_{on} d_{on}^T / \mathrm{noise}^2 + I / \mathrm{prior}^2`.

    ``derivatives`` of outputs with respect to parameters have the shape ``(outputs, parameters, samples)``.

    >>> ref.laplace(np.array([[[3.0, 1.0]]]), noise=1.0, prior=1.0).round(3).tolist()
    [[0.091]]
    """
    d = np.asarray(derivatives, np.float64)
    precision = np.einsum("opn,oqn->pq", d, d) / noise**2 + np.eye(d.shape[1]) / prior**2
    return np.asarray(np.linalg.inv(precision))


def linearized_std(derivatives: Array, covariance: Array) -> Array:
    r"""Deviations of outputs, shape ``(outputs, samples)``: :math:`\sqrt{d_{on}^T C d_{on}}`.

    >>> ref.linearized_std(np.array([[[3.0, 1.0]]]), np.array([[4.0]])).tolist()
    [[6.0, 2.0]]
    """
    d = np.asarray(derivatives, np.float64)
    return np.asarray(np.sqrt(np.einsum("opn,pq,oqn->on", d, covariance, d)))


def displacement_weights(x: Array, sides: tuple[int, ...]) -> Array:
    r"""Weights of the vertices of a grid over the unit cube at samples, shape ``(vertices, samples)``.

    ``x`` has the shape ``(coordinates, samples)``; the first of them have ``sides`` vertices, from corner to corner.
    With :math:`M` the largest of those, :math:`(v_0, v_1, \dots)` is number :math:`v_0 + M v_1 + \dots` of
    :math:`M^d` vertices.

    >>> ref.displacement_weights(np.array([[0.25]]), (3,)).ravel().tolist()
    [0.5, 0.5, 0.0]
    """
    longest, samples = max(sides), np.shape(x)[1]
    weights = np.ones((1, samples))
    for side, coordinate in zip(sides, np.asarray(x, np.float64), strict=False):
        position = np.clip(coordinate, 0, 1) * (side - 1)
        hats = np.maximum(1 - np.abs(np.arange(longest)[:, None] - position), 0)
        weights = (hats[:, None, :] * weights).reshape(-1, samples)
    return weights


def displaced(x: Array, displacements: Array, sides: tuple[int, ...]) -> Array:
    """Coordinates ``x`` in the unit cube, moved by the ``displacements`` (vertices, axes) of a grid (Goli et al. 2024).

    >>> ref.displaced(np.array([[0.25]]), np.array([[0.0], [0.2], [0.0]]), (3,)).tolist()
    [[0.35]]
    """
    moved = np.array(x, np.float64)
    moved[: len(sides)] += displacements.T @ displacement_weights(x, sides)
    return moved


def displacement_std(x: Array, deviations: Array, sides: tuple[int, ...]) -> Array:
    """The length of the interpolated ``deviations`` (vertices, axes) of displacements at ``x`` (Goli et al. 2024).

    >>> ref.displacement_std(np.zeros((2, 1)), np.array([[3.0, 4.0]] * 4), (2, 2)).tolist()
    [5.0]
    """
    return np.asarray(np.linalg.norm(deviations.T @ displacement_weights(x, sides), axis=0))


def ensemble(members: Array) -> tuple[Array, Array]:
    """Mean and standard deviation, shape ``(outputs, samples)``, of ``(members, outputs, samples)``.

    >>> mean, deviation = ref.ensemble(np.array([[[1.0]], [[3.0]]]))
    >>> mean.tolist(), deviation.tolist()
    ([[2.0]], [[1.0]])
    """
    values = np.asarray(members, np.float64)
    return np.asarray(values.mean(axis=0)), np.asarray(values.std(axis=0))


def ray_march_mc(color: Array, depth: Array, transmittance: Array) -> dict[str, Array]:
    r"""Moments over passes of color and depth along rays, with the term :math:`\bar T^2` for rays that pass through
    (Sünderhauf et al. 2023), from colors (passes, 3, rays), depths and transmittances (passes, rays).

    >>> found = ref.ray_march_mc(np.array([[[0.0]] * 3, [[0.2]] * 3]), np.ones((2, 1)), np.array([[0.2], [0.4]]))
    >>> found["variance"].round(3).tolist()
    [0.1]
    """
    unmet = np.square(np.mean(transmittance, axis=0))
    return {
        "color": np.mean(color, axis=0), "color_std": np.std(color, axis=0), "depth": np.mean(depth, axis=0),
        "depth_std": np.std(depth, axis=0), "transmittance": np.mean(transmittance, axis=0), "unmet": unmet,
        "variance": np.mean(np.var(color, axis=0), axis=0) + unmet,
    }  # fmt: skip


def auroc(score: Array, positive: Array) -> float:
    """The share of pairs of a positive sample and another in which the positive one has the larger score; ties half.

    >>> ref.auroc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True]))
    0.875
    """
    s, mask = np.ravel(score), np.ravel(positive)
    a, b = s[mask][:, None], s[~mask][None, :]
    return float(np.mean((a > b) + 0.5 * (a == b)))


def negative_log_likelihood(mean: Array, deviation: Array, target: Array) -> float:
    """Mean of minus the logarithm of the normal density.

    >>> round(ref.negative_log_likelihood(np.zeros(1), np.ones(1), np.zeros(1)), 4)
    0.9189
    """
    variance = np.square(deviation)
    density = np.exp(-np.square(target - mean) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    return float(-np.mean(np.log(density)))


def calibration_error(mean: Array, deviation: Array, target: Array, levels: int = 99) -> float:
    """Mean over levels p of how far the share of targets below the p-quantile is from p.

    >>> ref.calibration_error(np.zeros(2), np.ones(2), np.array([-9.0, 9.0]), levels=1)
    0.0
    """
    total = 0.0
    for j in range(1, levels + 1):
        p = j / (levels + 1)
        quantile = mean + deviation * statistics.NormalDist().inv_cdf(p)
        total += abs(float(np.mean(target <= quantile)) - p)
    return total / levels


def calibrate(error: Array, deviation: Array) -> float:
    """The factor of deviations that gives the errors the largest likelihood.

    >>> ref.calibrate(np.array([2.0, -2.0]), np.array([1.0, 1.0]))
    2.0
    """
    return float(np.sqrt(np.mean(np.square(error / deviation))))


def calibrate_noise(error: Array, deviation: Array) -> tuple[float, float]:
    r""":math:`c` and :math:`s` such that the normal distribution with variances :math:`c^2 \sigma^2 + s^2` gives the
    errors the largest likelihood: for many ratios :math:`s / c`, each with the best :math:`c`.

    >>> c, s = ref.calibrate_noise(np.array([1.0, -1.0, 2.0, -2.0]), np.array([1.0, 1.0, 2.0, 2.0]))
    >>> round(c, 2), round(s, 2)
    (1.0, 0.0)
    """
    square, best = np.square(np.asarray(error, np.float64)), (np.inf, 0.0, 0.0)
    for ratio in [0.0, *np.geomspace(1e-4, 1e4, 4001) * np.sqrt(np.mean(np.square(deviation)))]:
        v = np.square(np.asarray(deviation, np.float64)) + ratio**2
        c = float(np.sqrt(np.mean(square / v)))
        best = min(best, (float(np.mean(np.log(c * c * v))), c, float(c * ratio)))
    return best[1:]


def isotonic(x: Array, y: Array) -> Array:
    r"""The non-decreasing fit of ``y`` as a function of ``x``, at each sample: :math:`\max_{a \le i} \min_{b \ge i}` of
    the mean of ``y`` from a to b, in the order of ``x`` (Barlow et al. 1972).

    >>> ref.isotonic(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])).tolist()
    [1.0, 2.5, 2.5]
    """
    order, n = np.argsort(x, kind="stable"), len(x)
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(y, np.float64)[order])])
    means = [[(sums[b + 1] - sums[a]) / (b + 1 - a) if b >= a else np.inf for b in range(n)] for a in range(n)]
    result = np.empty(n)
    for rank, i in enumerate(order):
        result[i] = max(min(means[a][rank:]) for a in range(rank + 1))
    return result
