"""Sparsification curves and their areas: does an uncertainty predict where errors are large?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import drjit as dr
import numpy as np

from .checks import check, check_choice, ensure, shown, shown_typed
from .jit.scopes import check_outside

_WHERE = "sparsification"
NORMS = ("mean", "rms")


@dataclass(frozen=True)
class Sparsification:
    """The result of :func:`sparsification` for ``n`` samples.

    ``removed`` is the fraction of samples that were removed, 0, 1/n, ..., (n - 1)/n. ``remaining`` is the error of the
    other samples divided by that of all, if the most uncertain ones are removed first. ``oracle`` is the same if those
    of the largest error are removed first, which is the best possible order. All are NumPy arrays of ``n`` doubles.
    ``ause`` is the mean of ``remaining - oracle``, and ``random`` the mean of ``1 - oracle``: the ``ause`` of a random
    order.
    """

    removed: np.ndarray
    remaining: np.ndarray
    oracle: np.ndarray
    ause: float
    random: float

    def __repr__(self) -> str:
        return f"<Sparsification: {len(self.removed)} samples, ause={self.ause:.4g}, random={self.random:.4g}>"


def sparsification(error: Any, uncertainty: Any, *, norm: str = "mean") -> Sparsification:
    r"""Sparsification curve and its area AUSE (Ilg et al. 2018): does ``uncertainty`` predict ``error``?

    Let :math:`e_0, \dots, e_{n-1}` be the errors of the samples in order of decreasing uncertainty, and :math:`q = 1`
    for the norm ``"mean"`` or 2 for ``"rms"``. After the first :math:`k` are removed, the relative error of the rest is

    .. math::
        s_k = \Big(\frac{1}{n-k} \sum_{i \ge k} e_i^q\Big)^{1/q} \Big/ \Big(\frac1n \sum_i e_i^q\Big)^{1/q}, \qquad
        \mathrm{AUSE} = \frac1n \sum_{k<n} (s_k - o_k)

    where :math:`o_k` is :math:`s_k` with the true errors in place of the uncertainty. Samples of equal uncertainty
    have no order: each :math:`e^q` is replaced by their mean, the expectation over all orders. So a constant
    uncertainty has the curve of a random order, :math:`s_k = 1`; an AUSE above ``random`` is worse than that. The range
    of the AUSE depends on the errors, so look at ``ause / random``: 0 for the oracle, 1 for a random order.

    Only the order of the uncertainties matters, not their size (for which see ``docs/uncertainty.md``).

    Args:
        error: error of each sample, of at least 0 and not 0 everywhere; a NumPy or Dr.Jit array of any shape.
        uncertainty: uncertainty of each sample in any unit; an array of the same shape.
        norm: ``"mean"`` or ``"rms"`` (root mean square) of errors.

    Returns:
        A :class:`Sparsification` of NumPy arrays, computed in double precision on the host.

    Raises:
        ValueError: shapes that differ, no samples, NaN or infinities, negative errors or only zeros, another norm.
        TypeError: no arrays of real numbers.
        RuntimeError: called while Dr.Jit records a function or loop.

    >>> found = cn.sparsification(np.array([3.0, 1.0, 2.0, 0.0]), np.array([0.9, 0.5, 0.4, 0.1]))
    >>> print(found.remaining.round(3), found.oracle.round(3))
    [1.    0.667 0.667 0.   ] [1.    0.667 0.333 0.   ]
    >>> print(f"{found.ause:.3f} of {found.random:.3f}")
    0.083 of 0.500
    """
    check_choice(_WHERE, "norm", norm, NORMS)
    e, u = numbers(_WHERE, "error", error), numbers(_WHERE, "uncertainty", uncertainty)
    differ = f"{_WHERE}: error has the shape {shown(e.shape)}, and uncertainty {shown(u.shape)}; equal ones are needed."
    ensure(e.shape == u.shape, differ)
    ensure(e.size, f"{_WHERE}: error is empty; at least one sample is needed.")
    lowest = float(e.min())
    ensure(lowest >= 0, f"{_WHERE}: error has {lowest:g} in it; magnitudes of at least 0 are needed.")
    largest = e.max()
    ensure(largest > 0, f"{_WHERE}: error is 0 everywhere; the curve is undefined.")

    power = 1 if norm == "mean" else 2
    magnitudes = (e.ravel() / largest) ** power  # no overflow; the scale cancels
    remaining, oracle = (_curve(magnitudes, order) ** (1 / power) for order in (u.ravel(), magnitudes))
    removed = np.arange(e.size) / e.size
    return Sparsification(removed, remaining, oracle, float(np.mean(remaining - oracle)), float(np.mean(1 - oracle)))


def _curve(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Mean of the remaining ``values``, divided by that of all, if those with the largest ``order`` are removed."""
    _, group, sizes = np.unique(order, return_inverse=True, return_counts=True)
    means = np.bincount(group.ravel(), values) / sizes
    # Add up from the value that is removed last, so that small sums are not differences of large numbers.
    kept = np.cumsum(np.repeat(means, sizes)) / np.arange(1, len(values) + 1)
    return kept[::-1] / kept[-1]


def numbers(where: str, name: str, value: Any) -> np.ndarray:
    """``value`` as a NumPy array of doubles; raises unless it is an array of finite numbers."""
    masked = isinstance(value, np.ma.MaskedArray)  # masked entries would be used
    if masked or not isinstance(value, (np.ndarray, dr.ArrayBase)):
        raise TypeError(f"{where}: {name} is {shown_typed(value)}; a NumPy or Dr.Jit array is needed.")
    if isinstance(value, dr.ArrayBase):
        check_outside(where)
        value = value.numpy()
    check(value.dtype.kind in "iuf", where, name, value, "an array of real numbers", TypeError)
    value = np.asarray(value, np.float64)
    ensure(np.isfinite(value).all(), f"{where}: {name} has NaN or infinities in it; finite numbers are needed.")
    return value
