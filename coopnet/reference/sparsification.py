"""Sparsification: the error of the rest after the most uncertain samples were removed."""

from __future__ import annotations

import numpy as np

from .random import Array


def sparsification(error: Array, uncertainty: Array, norm: str = "mean") -> tuple[Array, Array]:
    """Curves of ``uncertainty`` and of the oracle, shape ``(samples,)`` each (Ilg et al. 2018).

    Entry k is the mean, or root mean square, of the n - k errors of least uncertainty over that of all. Samples that
    are as uncertain as the last removed one remain in part, each with the same share.

    >>> curve, oracle = ref.sparsification(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    >>> curve.round(3).tolist(), oracle.round(3).tolist()
    ([1.0, 1.0, 0.5], [1.0, 0.75, 0.5])
    """
    e, u = np.asarray(error, np.float64).ravel(), np.asarray(uncertainty, np.float64).ravel()
    power = {"mean": 1, "rms": 2}[norm]
    values = e**power

    def curve(by: Array) -> Array:
        left = [_left(values, by, len(e) - k) for k in range(len(e))]
        return np.asarray((np.array(left) / values.mean()) ** (1 / power))

    return curve(u), curve(e)


def _left(values: Array, by: Array, count: int) -> float:
    """Mean of the ``count`` values that are smallest in ``by``."""
    last = np.sort(by)[count - 1]
    inside, tied = values[by < last], values[by == last]
    return float((inside.sum() + (count - len(inside)) * tied.mean()) / count)
