"""Scales the deviations of a field to the size of its errors, measured on held-out data."""

from __future__ import annotations

from typing import Any

import drjit as dr
import numpy as np

from ..checks import check_choice, check_int, check_type, check_unsigned, ensure
from ..checks.warn import warn
from ..field import NeuralField
from ..jit import kinds
from ..jit.owned import from_numpy
from ..random.key import Key
from .data import check_trained, pair
from .ensemble import members_of
from .linearized import is_drawn
from .mc_dropout import check_draws, mc_dropout
from .std import has_std

_WHERE = "calibrate"
METHODS = ("factor", "noise", "isotonic")
#: Above this factor, noise in the values held out is the likely reason.
NOISY = 10
#: Steps to the largest likelihood.
STEPS = 2000
#: Neighbours whose squared errors are averaged before a curve is fitted: a single error may be zero by chance.
NEIGHBOURS = 25


class Calibrated:
    """A field with deviations that :func:`calibrate` has corrected: ``mean, deviation = calibrated(p)``.

    ``factor`` is the factor of the deviations. For the method ``"isotonic"`` it is the ratio of their root mean squares
    after and before. ``noise`` is the deviation of the targets' noise, and 0 unless the method is ``"noise"``. A
    ``Calibrated`` is a Dr.Jit PyTree.
    """

    DRJIT_STRUCT = {
        "field": object, "key": object, "samples": int, "factor": float, "noise": float, "knots": object,
        "values": object,
    }  # fmt: skip

    def __init__(
        self, field: Any = None, key: Any = None, samples: int = 2, factor: float = 1.0, noise: float = 0.0,
        table: Any = None,
    ):  # fmt: skip
        self.field, self.key, self.samples, self.factor, self.noise = field, key, samples, factor, noise
        self.knots: Any = None if table is None else table[0]
        self.values: Any = None if table is None else table[1]

    def __call__(self, p: Any) -> tuple[Any, Any]:
        """Mean and calibrated deviation at ``p``, each in the container that a call of the field returns."""
        mean, deviation = moments(self.field, p, self.key, self.samples)
        kind = kinds.kind(deviation, _WHERE)[0]
        parts = [self._corrected(v) for v in kinds.rows(deviation, kind)]
        return mean, kinds.rebuild(parts, deviation)

    def _corrected(self, deviation: Any) -> Any:
        if self.knots is None:
            scaled = deviation * self.factor
            return dr.sqrt(dr.fma(scaled, scaled, self.noise**2)) if self.noise else scaled
        single, uint32 = dr.float32_array_t(type(deviation)), dr.uint32_array_t(type(deviation))
        x, last = single(deviation), dr.width(self.knots) - 1
        above = dr.binary_search(0, last, lambda i: dr.gather(single, self.knots, uint32(i)) < x)
        upper = dr.clip(uint32(above), 1, last)
        (x0, y0), (x1, y1) = ([dr.gather(single, v, i) for v in (self.knots, self.values)] for i in (upper - 1, upper))
        share = dr.clip((x - x0) / dr.maximum(x1 - x0, 1e-30), 0, 1)
        return type(deviation)(dr.fma(share, y1 - y0, y0))

    def __repr__(self) -> str:
        how = f"factor {self.factor:.4g}" if self.knots is None else f"{dr.width(self.knots)} knots"
        return f"<Calibrated: {how}{f', noise {self.noise:.4g}' if self.noise else ''}>"


def calibrate(
    field: NeuralField, held_out: tuple[Any, Any], *, method: str = "factor", samples: int = 64, seed: int = 0
) -> Calibrated:
    r"""Scale the deviations of a field to the size of its errors, measured on held-out data.

    The deviation :math:`\sigma` is ``field.std(p)`` for a posterior of parameters or an ensemble, and that of
    :func:`mc_dropout` for all other fields. With the errors :math:`e_i` of all outputs on the held-out data, it becomes

    ==============  ===============================================================================================
    ``"factor"``    :math:`c\,\sigma` with :math:`c^2 = \frac1n \sum_i e_i^2 / \sigma_i^2`, of largest likelihood
    ``"noise"``     :math:`\sqrt{c^2 \sigma^2 + s^2}`, with :math:`c` and the deviation :math:`s` of the targets' noise
                    of largest likelihood; for targets with noise, which a factor alone would take for errors
    ``"isotonic"``  :math:`\sqrt{g(\sigma)}`: of all non-decreasing functions, :math:`g` is the closest to the means
                    of the :math:`e_i^2` of about 25 neighbours in :math:`\sigma` (Barlow et al. 1972), linear between
                    the means of its steps and constant beyond; for deviations in the right order whose sizes are not
                    all wrong by the same factor
    ==============  ===============================================================================================

    The order of deviations, and so their AUSE, does not change, except for ties that ``"isotonic"`` makes. The held-out
    data say nothing about the size of deviations in regions without such data.

    Args:
        field: a built and trained field that :func:`mc_dropout` takes.
        held_out: the pair ``(coordinates, targets)``, nested arrays or lists of arrays; a few hundred samples at least.
        method: ``"factor"``, ``"noise"`` or ``"isotonic"``.
        samples, seed: arguments of :func:`mc_dropout`, for fields that need it.

    Returns:
        A :class:`~coopnet.uncertainty.calibrate.Calibrated`: called with coordinates, it returns mean and deviation, in
        one kernel. Frozen functions take it as an argument, like a field.

    Raises:
        ValueError: arguments out of range; a field that is not built or draws nothing; data of other sizes; errors or
            deviations that are zero everywhere or not finite.
        TypeError: arguments of another kind.
        RuntimeError: called while Dr.Jit records a function or loop.

    Warns:
        RuntimeWarning: the factor is above 10, for which noise in the values held out is the likely reason.

    >>> calibrated = cn.calibrate(field, ([u, v], [u, v, u]), samples=8)
    >>> mean, deviation = calibrated(p)
    """
    check_trained(field, _WHERE)
    check_choice(_WHERE, "method", method, METHODS)
    samples = check_int(_WHERE, "samples", samples, 2, 2**24)
    seed = check_unsigned(_WHERE, "seed", seed)
    check_type(_WHERE, "held_out", held_out, (tuple, list), "a pair (coordinates, targets)")
    coordinates, targets = pair(held_out, field, _WHERE, "held_out is")
    single = dr.float32_array_t(type(coordinates[0]))
    key = Key(seed, None, 0).traced(dr.uint32_array_t(single))
    if not has_std(field):
        check_draws(_WHERE, field)
    with dr.suspend_grad():
        mean, deviation = moments(field, coordinates, key, samples)
        squares = [dr.square(single(m) - t) for m, t in zip(mean, targets, strict=True)]
        spread = [single(s) for s in deviation]
    dr.eval(squares, spread)
    e = np.concatenate([v.numpy() for v in squares]).astype(np.float64)
    s = np.concatenate([v.numpy() for v in spread]).astype(np.float64)
    usable = np.isfinite(e).all() and np.isfinite(s).all() and e.any() and s.any()
    ensure(usable, f"{_WHERE}: errors or deviations on the data held out are zero everywhere, or not finite.")
    s = np.maximum(s, 1e-6 * s.max())  # not 0 where all draws agree by chance
    if method == "factor":
        factor = float(np.sqrt(np.mean(e / np.square(s))))
        if factor > NOISY:
            noisy = "if the held out values contain noise, method='noise' separates it from the field's deviation"
            warn(f"{_WHERE}: errors are {factor:.3g} times the deviations; {noisy}.")
        return Calibrated(field, key, samples, factor)
    if method == "noise":
        factor, noise = of_largest_likelihood(s, e)
        return Calibrated(field, key, samples, factor, noise)
    knots, values = isotonic(s, e, NEIGHBOURS)
    values = np.sqrt(values)
    factor = float(np.sqrt(np.mean(np.square(np.interp(s, knots, values))) / np.mean(np.square(s))))
    table = [from_numpy(v.astype(np.float32), single) for v in (knots, values)]
    return Calibrated(field, key, samples, factor, table=table)


def moments(field: Any, p: Any, key: Key, samples: int) -> tuple[Any, Any]:
    """Mean and deviation of a field, without draws where that is possible."""
    if members_of(field) is not None or is_drawn(field):
        return field(p), field.std(p)
    return mc_dropout(field, p, key, samples)


def of_largest_likelihood(deviations: np.ndarray, squares: np.ndarray) -> tuple[float, float]:
    r""":math:`c` and :math:`s` that maximize the likelihood of squared errors :math:`e^2`, normal with variances
    :math:`v = c^2 \sigma^2 + s^2`.

    Each step multiplies the coefficient of a term :math:`u` of :math:`v` by the root of :math:`\sum u e^2 / v^2` over
    :math:`\sum u / v`, by which the likelihood cannot fall (Fevotte and Idier 2011, *Algorithms for nonnegative matrix
    factorization with the beta-divergence*, for the divergence of Itakura and Saito).
    """
    terms = np.stack([np.square(deviations), np.ones_like(deviations)])
    terms /= terms.mean(axis=1, keepdims=True)
    coefficients = np.full(2, squares.mean() / 2)
    for _ in range(STEPS):
        v = coefficients @ terms
        coefficients *= np.sqrt((terms @ (squares / v**2)) / (terms @ (1 / v)))
    factor, noise = np.sqrt(coefficients / [np.square(deviations).mean(), 1])
    return float(factor), float(noise)


def isotonic(x: np.ndarray, y: np.ndarray, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The non-decreasing least squares fit of ``y`` as a function of ``x``: mean ``x`` and value of every step.

    It begins with the means of ``least`` neighbours or a few more, and pools those that are out of order. At least two
    steps are returned.
    """
    order = np.argsort(x, kind="stable")
    groups = np.array_split(order, max(len(order) // least, 1))
    steps: list[list[float]] = []  # sum of x, sum of y, count
    for group in groups:
        steps.append([float(x[group].sum()), float(y[group].sum()), float(len(group))])
        while len(steps) > 1 and steps[-2][1] / steps[-2][2] >= steps[-1][1] / steps[-1][2]:
            last = steps.pop()
            steps[-1] = [u + v for u, v in zip(steps[-1], last, strict=True)]
    knots, values = (np.array([step[i] / step[2] for step in steps]) for i in range(2))
    return (knots, values) if len(steps) > 1 else (np.repeat(knots, 2), np.repeat(values, 2))
