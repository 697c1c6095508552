"""What a field does not know: rates of dropout, posteriors, ensembles, and how good an uncertainty is."""

from __future__ import annotations

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
    fits, fails = -28.0, -0.01
    if loss(2**fits) > limit:
        return 0.0
    for _ in range(12):
        middle = (fits + fails) / 2
        if loss(float(np.float32(2**middle))) <= limit:
            fits = middle
        else:
            fails = middle
    return float(np.float32(2**fits))


def laplace(derivatives: Array, noise: float, prior: float) -> Array:
    r"""Covariance of parameters by the Gauss-Newton approximation, shape ``(parameters, parameters)``: the inverse of
    :math:`\sum_{on} d_{on} d_{on}^T / \mathrm{noise}^2 + I / \mathrm{prior}^2`.

    ``derivatives`` of each output by each parameter at each sample have the shape ``(outputs, parameters, samples)``.

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
