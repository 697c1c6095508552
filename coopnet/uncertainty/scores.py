"""How good an uncertainty is: likelihood, calibration error, and AUROC.

All functions take NumPy or Dr.Jit arrays and compute in double precision on the host.
"""

from __future__ import annotations

import math
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check_int, ensure, shown, shown_typed
from ..sparsification import numbers


def auroc(score: Any, positive: Any) -> float:
    r"""Area under the receiver operating characteristic: how well ``score`` separates ``positive`` samples from others.

    .. math:: P(s_i > s_j) + \tfrac12 P(s_i = s_j) \quad \text{for a positive sample } i \text{ and another } j

    1 if all positive samples have larger scores, 0.5 for a random order, 0 if all have smaller ones. Take a deviation
    as the score, and samples far from all training data as the positive ones: then it measures whether a field is more
    uncertain there.

    Args:
        score: a number for each sample, such as a deviation; a NumPy or Dr.Jit array of any shape.
        positive: a mask of the same shape.

    Raises:
        ValueError: shapes that differ; no sample of either kind; NaN or infinities.
        TypeError: ``score`` is not an array of real numbers, or ``positive`` not a mask.
        RuntimeError: called while Dr.Jit records a function or loop.

    >>> print(cn.auroc(np.array([0.1, 0.4, 0.3, 0.9]), np.array([False, False, True, True])))
    0.75
    """
    where = "auroc"
    s = numbers(where, "score", score)
    kind = f"{where}: positive is {shown_typed(positive)}"
    array = isinstance(positive, (np.ndarray, dr.ArrayBase)) and not isinstance(positive, np.ma.MaskedArray)
    mask = np.asarray(positive.numpy() if isinstance(positive, dr.ArrayBase) else positive) if array else None
    ensure(mask is not None and mask.dtype == bool, f"{kind}; a NumPy or Dr.Jit array of bools is needed.", TypeError)
    assert mask is not None
    _check_shapes(where, score=s, positive=mask)
    count = int(mask.sum())
    both = f"{where}: positive has {count} of {mask.size} samples"
    ensure(0 < count < mask.size, f"{both}; some of either kind are needed.")
    _, group, sizes = np.unique(s.ravel(), return_inverse=True, return_counts=True)
    rank = (np.cumsum(sizes) - (sizes - 1) / 2)[group.ravel()]  # the mean rank of equal scores, from 1 on
    above = rank[mask.ravel()].sum() - count * (count + 1) / 2
    return float(above / (count * (mask.size - count)))


def negative_log_likelihood(mean: Any, deviation: Any, target: Any) -> float:
    r"""Mean negative log likelihood of ``target`` under normal distributions.

    .. math:: \frac1n \sum_i \tfrac12 \log(2 \pi \sigma_i^2) + \frac{(t_i - \mu_i)^2}{2 \sigma_i^2}

    Smaller is better. Deviations that are too small are penalized more than those that are too large. It is in nats,
    and depends on the units of the targets.

    Args:
        mean, deviation, target: NumPy or Dr.Jit arrays of one shape; deviations are positive.

    Raises:
        ValueError: shapes that differ; no samples; NaN or infinities; deviations that are not positive.
        TypeError: arguments that are not arrays of real numbers.
        RuntimeError: called while Dr.Jit records a function or loop.

    >>> print(round(cn.negative_log_likelihood(np.array([0.0]), np.array([1.0]), np.array([1.0])), 3))
    1.419
    """
    m, s, t = _predictions("negative_log_likelihood", mean, deviation, target)
    return float(np.mean(0.5 * math.log(2 * math.pi) + np.log(s) + 0.5 * np.square((t - m) / s)))


def calibration_error(mean: Any, deviation: Any, target: Any, *, levels: int = 99) -> float:
    r"""How far nominal levels of confidence are from the observed ones (Kuleshov et al. 2018), for normal
    distributions.

    .. math:: \frac1L \sum_{j=1}^{L} \Big| \frac1n \#\{i : \Phi\big(\tfrac{t_i - \mu_i}{\sigma_i}\big) \le p_j\} - p_j
        \Big|, \qquad p_j = \frac{j}{L + 1}

    0 if targets fall below every quantile as often as its level says; 0.25 for deviations that are much too large or
    small.

    Args:
        mean, deviation, target: as in :func:`negative_log_likelihood`.
        levels: number :math:`L` of levels, at most a million.

    Raises:
        ValueError, TypeError, RuntimeError: as :func:`negative_log_likelihood`; ``levels`` is out of range.

    >>> t = np.linspace(-3, 3, 1001)
    >>> print(round(cn.calibration_error(0 * t, 1e6 + 0 * t, t), 2))
    0.25
    """
    where = "calibration_error"
    levels = check_int(where, "levels", levels, 1, 10**6)
    m, s, t = _predictions(where, mean, deviation, target)
    p = np.arange(1, levels + 1) / (levels + 1)
    below = np.sort(_normal_cdf((t - m) / s).ravel())
    return float(np.mean(np.abs(np.searchsorted(below, p, side="right") / below.size - p)))


_normal_cdf = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)), otypes=[np.float64])


def _predictions(where: str, mean: Any, deviation: Any, target: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    m, s, t = (numbers(where, n, v) for n, v in (("mean", mean), ("deviation", deviation), ("target", target)))
    _check_shapes(where, mean=m, deviation=s, target=t)
    lowest = float(s.min())
    ensure(lowest > 0, f"{where}: deviation has {lowest:g} in it; positive numbers are needed.")
    return m, s, t


def _check_shapes(where: str, **arrays: np.ndarray) -> None:
    """Raise unless all have one shape, and samples."""
    (first, a), *others = arrays.items()
    for name, b in others:
        differ = f"{where}: {first} has the shape {shown(a.shape)}, and {name} {shown(b.shape)}; equal ones are needed."
        ensure(a.shape == b.shape, differ)
    ensure(a.size, f"{where}: {first} is empty; at least one sample is needed.")
