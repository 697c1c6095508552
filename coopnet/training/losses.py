r"""Loss functions: a value per sample, to be averaged over samples.

Each takes the prediction ``y`` and the ``target`` as sequences of components (a single array is one component) and
returns the mean over components of

.. math::
    \ell(y_i, t_i) / p_i

where :math:`p_i` is the density that the sample was drawn from, ``pdf``: one array for all components or one for each,
or ``None`` for 1. Their mean over samples then estimates the integral of :math:`\ell` whatever the density (Müller et
al. 2021, *Neural Radiance Caching*, and tiny-cuda-nn's ``data_pdf``).

Components are Dr.Jit arrays with one entry per sample, and so is the result, in their type (single precision, as fields
return it). Other kinds raise ``TypeError``. Unequal numbers of components or samples, a wrong number of densities, and
a density that is a Python number and not positive raise ``ValueError``. Values in arrays are not checked, which would
take an evaluation: a density of 0 or NaN makes the loss infinite or NaN, and a negative one changes its sign.
:func:`coopnet.fit` checks those of its first batch.

*Relative* losses divide by the size of the prediction. They are differentiated as if that denominator were a constant,
as in Lehtinen et al. 2018 (*Noise2Noise*, section 3.3) and tiny-cuda-nn. Otherwise its gradient would favor predictions
that are too large, and a noisy target would no longer be fitted by its mean.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check, check_samples, check_type, ensure, entries, is_flat, shown

#: Added to denominators, so that dark predictions don't dominate the loss; tiny-cuda-nn's value.
EPSILON = 1e-2
#: Weights of red, green and blue in the luminance (ITU-R BT.601), as in tiny-cuda-nn.
LUMINANCE = (0.299, 0.587, 0.114)


def l2(y: Any, target: Any, *, pdf: Any = None) -> Any:
    r""":math:`(y - t)^2`.

    Arguments, result and errors as for all losses, see ``help(coopnet.training.losses)``.

    >>> loss = cn.training.l2(list(field(p)), targets, pdf=density)
    """
    return _loss("l2", lambda a, b: dr.square(a - b), y, target, pdf)


def l1(y: Any, target: Any, *, pdf: Any = None) -> Any:
    r""":math:`|y - t|`.

    Arguments, result and errors as for all losses, see ``help(coopnet.training.losses)``.

    >>> loss = cn.training.l1(list(field(p)), targets)
    """
    return of_size("l1", y, target, pdf)


def huber(y: Any, target: Any, delta: float = 1.0, *, pdf: Any = None) -> Any:
    r""":math:`\tfrac12 e^2` for :math:`|e| \le \delta`, else :math:`\delta(|e| - \tfrac12\delta)`, with
    :math:`e = y - t` (Huber 1964).

    Arguments, result and errors as for all losses, see ``help(coopnet.training.losses)``; also ``ValueError`` unless
    ``delta`` is a positive number.

    >>> loss = cn.training.huber(list(field(p)), targets, delta=0.1)
    """
    check(_positive(delta), "huber", "delta", delta, "a positive number")
    delta = float(delta)

    def one(a: Any, b: Any) -> Any:
        e = a - b
        return dr.select(dr.abs(e) <= delta, 0.5 * dr.square(e), delta * (dr.abs(e) - 0.5 * delta))

    return _loss("huber", one, y, target, pdf)


def log_l1(y: Any, target: Any, *, pdf: Any = None) -> Any:
    r""":math:`\log(1 + |y - t|)`, on which outliers have little influence (instant-ngp's ``"LogL1"``).

    Arguments, result and errors as for all losses, see ``help(coopnet.training.losses)``.

    >>> loss = cn.training.log_l1(list(field(p)), targets)
    """
    return of_size("log_l1", y, target, pdf)


def relative_l1(y: Any, target: Any, *, pdf: Any = None) -> Any:
    r""":math:`|y - t| / (|y| + 0.01)`, the denominator taken as constant.

    Arguments, result and errors as for all losses, see ``help(coopnet.training.losses)``.

    >>> loss = cn.training.relative_l1(list(field(p)), targets)
    """
    return of_size("relative_l1", y, target, pdf)


def relative_l2(y: Any, target: Any, *, pdf: Any = None) -> Any:
    r""":math:`(y - t)^2 / (y^2 + 0.01)`, the denominator taken as constant (Lehtinen et al. 2018, section 3.3).

    Arguments, result and errors as for all losses, see ``help(coopnet.training.losses)``.

    >>> loss = cn.training.relative_l2(list(field(p)), targets)
    """
    return _loss("relative_l2", lambda a, b: _relative(dr.square(a - b), dr.square(a)), y, target, pdf)


def relative_l2_luminance(y: Any, target: Any, *, pdf: Any = None) -> Any:
    r""":math:`(y - t)^2 / (L^2 + 0.01)` with the luminance :math:`L = 0.299 r + 0.587 g + 0.114 b` of the prediction,
    the denominator taken as constant (Müller et al. 2021).

    With 3 to 5 components, the first three are red, green and blue. With 6 or more, the first six are two colors, and
    :math:`L` is the luminance of their sum. All components enter the loss. Raises ``ValueError`` for fewer than 3.

    Arguments, result and errors as for all losses, see ``help(coopnet.training.losses)``.

    >>> loss = cn.training.relative_l2_luminance(list(field(p)), targets)
    """
    y = components(y, "relative_l2_luminance: y")
    n = len(y)
    ensure(n >= 3, f"relative_l2_luminance: y has {n} components; at least 3, red, green and blue, are needed.")
    ys, ts, ps = _arguments("relative_l2_luminance", y, target, pdf)
    colors = ys[:3] if n < 6 else [a + b for a, b in zip(ys[:3], ys[3:6], strict=True)]
    luminance = sum(dr.detach(c) * w for c, w in zip(colors, LUMINANCE, strict=True))
    scale = dr.rcp(dr.square(luminance) + EPSILON)
    return _mean([dr.square(a - b) * scale for a, b in zip(ys, ts, strict=True)], ps)


def mape(y: Any, target: Any, *, pdf: Any = None) -> Any:
    r"""Mean absolute percentage error, as a fraction: :math:`|y - t| / (|t| + 0.01)`.

    Arguments, result and errors as for all losses, see ``help(coopnet.training.losses)``.

    >>> loss = cn.training.mape(list(field(p)), targets)
    """
    return of_size("mape", y, target, pdf)


def smape(y: Any, target: Any, *, pdf: Any = None) -> Any:
    r"""Symmetric mean absolute percentage error: :math:`|y - t| / (\tfrac12(|y| + |t|) + 0.01)`, the denominator taken
    as constant.

    Arguments, result and errors as for all losses, see ``help(coopnet.training.losses)``.

    >>> loss = cn.training.smape(list(field(p)), targets)
    """
    return of_size("smape", y, target, pdf)


def cross_entropy(y: Any, target: Any, *, pdf: Any = None) -> Any:
    r""":math:`-t \log y`, for predictions :math:`y > 0` that are probability densities; with ``pdf``, an estimate of
    the Kullback-Leibler divergence from the target up to a constant (Müller et al. 2019, *Neural Importance Sampling*,
    section 5).

    Arguments, result and errors as for all losses, see ``help(coopnet.training.losses)``.

    >>> loss = cn.training.cross_entropy([dr.exp(v) for v in field(p)], targets)
    """
    return _loss("cross_entropy", lambda a, b: -b * dr.log(a), y, target, pdf)


def variance(y: Any, target: Any, *, pdf: Any = None) -> Any:
    r""":math:`t^2 / y - t^2 / p`. Divided by the density :math:`p`, like all losses, it estimates the variance of
    importance sampling the target with the predicted density :math:`y > 0`, up to a constant: the chi-square
    divergence of Müller et al. 2019, section 5. Its gradient is that of the first term.

    Arguments, result and errors as for all losses, see ``help(coopnet.training.losses)``.

    >>> loss = cn.training.variance([dr.exp(v) for v in field(p)], targets, pdf=density)
    """
    ys, ts, ps = _arguments("variance", y, target, pdf)
    ensure(all(not _real(v) or v for v in ys), "variance: y holds the number 0; positive predictions are needed.")
    second = [dr.detach(dr.square(b)) / p for b, p in zip(ts, ps or [1.0] * len(ts), strict=True)]
    return _mean([dr.square(b) / a - c for a, b, c in zip(ys, ts, second, strict=True)], ps)


def gaussian_nll(y: Any, target: Any, *, pdf: Any = None) -> Any:
    r"""Negative log-likelihood of a normal distribution whose mean and variance are predicted:
    :math:`\tfrac12(s + (t - m)^2 e^{-s})`, without its constant (Nix and Weigend 1994; Kendall and Gal 2017, eq. 8).

    ``y`` is twice as wide as ``target``: first the means :math:`m`, then the logarithms :math:`s` of the variances.

    Arguments, result and errors as for all losses, see ``help(coopnet.training.losses)``.

    >>> loss = cn.training.gaussian_nll([mean, log_variance], [target])
    """
    ys, ts, ps = _arguments("gaussian_nll", y, target, pdf, outputs=2)
    parts = zip(ys[: len(ts)], ys[len(ts) :], ts, strict=True)
    return _mean([0.5 * (s + dr.square(t - m) * dr.exp(-s)) for m, s, t in parts], ps)


def _relative(error: Any, size: Any) -> Any:
    """``error / (size + 0.01)``, the denominator taken as constant."""
    return error / dr.detach(size + EPSILON)


#: Losses by name, as functions of the size e of the error, the prediction a and the target b.
_OF_SIZE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "l1": lambda e, a, b: e,
    "log_l1": lambda e, a, b: dr.log(1 + e),
    "relative_l1": lambda e, a, b: _relative(e, dr.abs(a)),
    "mape": lambda e, a, b: _relative(e, dr.abs(b)),
    "smape": lambda e, a, b: _relative(e, 0.5 * (dr.abs(a) + dr.abs(b))),
}


def of_size(name: str, y: Any, target: Any, pdf: Any, size: Callable[[Any], Any] = dr.abs) -> Any:
    """The loss called ``name``; ``size`` is the absolute value, which may define another derivative at 0."""
    return _loss(name, lambda a, b: _OF_SIZE[name](size(a - b), a, b), y, target, pdf)


def _loss(where: str, one: Callable[[Any, Any], Any], y: Any, target: Any, pdf: Any) -> Any:
    """The loss whose value for a component and its target is ``one``."""
    ys, ts, ps = _arguments(where, y, target, pdf)
    return _mean([one(a, b) for a, b in zip(ys, ts, strict=True)], ps)


def _arguments(where: str, y: Any, target: Any, pdf: Any, outputs: int = 1) -> tuple[list, list, list]:
    """Components of the prediction (``outputs`` for each of the target), those of the target, and densities, if any."""
    ys, ts = components(y, f"{where}: y"), components(target, f"{where}: target")
    n, m = len(ys), len(ts)
    given, needed = f"y has {n} components and target {m}", "equally many are needed"
    if outputs == 2:
        given = f"y has {n} components for {m} of the target"
        needed = "twice as many are needed, means and then logarithms of variances"
    ensure(n == outputs * m > 0, f"{where}: {given}; {needed}.")
    ps = [] if pdf is None else _densities(where, pdf, m)
    _check_entries(where, {"y": ys, "target": ts, "pdf": ps})
    return [_plain(v) for v in ys], [_plain(v) for v in ts], ps


def _mean(parts: list, densities: list) -> Any:
    """The mean over components of ``parts``, divided by their densities, if any."""
    if densities:
        parts = [v / p for v, p in zip(parts, densities, strict=True)]
    return sum(parts[1:], parts[0]) * (1 / len(parts))


def _check_entries(where: str, groups: dict[str, list]) -> None:
    """Raise unless all components are arrays or numbers, and all arrays have as many samples, or 1."""
    sizes = {}
    for name, part in ((name, part) for name, parts in groups.items() for part in parts if not _real(part)):
        right = dr.is_arithmetic_v if name == "target" else dr.is_float_v
        flat = is_flat(part) and dr.is_jit_v(part) and right(part)
        needed = "arrays with one entry per sample are needed"
        ensure(flat, f"{where}: {name} holds {shown(part)}; {needed}.", TypeError)
        ensure(dr.width(part), f"{where}: {name} holds an empty array.")
        if dr.width(part) != 1:
            sizes[f"{dr.width(part)} in {name}"] = dr.width(part)
    same = len(set(sizes.values())) < 2
    ensure(same, f"{where}: got different numbers of samples, {', '.join(sizes)}; all must have one, or 1.")


def _real(value: Any) -> bool:
    """Is ``value`` a number that single precision can represent?"""
    if not isinstance(value, numbers.Real) or isinstance(value, (bool, np.timedelta64)):  # Python's bools are integers
        return False
    size: Any = abs(value)
    return bool(size <= 1e38)


def _plain(value: Any) -> Any:
    """``value``, with numbers as floats: NumPy's numbers would turn Dr.Jit's arrays into NumPy's."""
    return float(value) if isinstance(value, numbers.Real) else value


def _positive(value: Any) -> bool:
    """Is ``value`` a positive finite number?"""
    return _real(value) and bool(0 < value < math.inf)


def _densities(where: str, pdf: Any, n: int) -> list:
    """One density per component."""
    densities = [pdf] if isinstance(pdf, numbers.Real) else components(pdf, f"{where}: pdf")
    for density in densities:
        check(not isinstance(density, numbers.Real) or _positive(density), where, "pdf", density, "a positive number")
    ensure(len(densities) in (1, n), f"{where}: pdf has {len(densities)} components; 1 or {n} are needed.")
    return [_plain(v) for v in densities] * (n if len(densities) == 1 else 1)


def components(value: Any, what: str) -> list:
    """The components of a prediction, target or density: an array is one, a tensor has one per row.

    Raises ``TypeError`` for values without components; ``what`` opens its message.
    """
    if isinstance(value, dr.ArrayBase):
        if dr.is_tensor_v(value):
            return [row.array for row in value] if value.ndim > 1 else [value.array]
        return [value] if dr.depth_v(value) == 1 else list(value)
    where, _, name = what.partition(": ")
    text = isinstance(value, (str, bytes))
    check_type(where, name, value, () if text else Iterable, "an array or a sequence of arrays")
    return entries(where, name, value)


#: Losses by the name that ``fit`` takes.
LOSSES: dict[str, Callable[..., Any]] = {f.__name__: f for f in (
    l2, l1, huber, log_l1, relative_l1, relative_l2, relative_l2_luminance, mape, smape, cross_entropy, variance,
    gaussian_nll,
)}  # fmt: skip


for _function in LOSSES.values():
    _function.samplewise = True  # type: ignore[attr-defined]

#: Other names of losses.
SYNONYMS = {"mse": "l2", "mae": "l1"}


def loss_function(value: Any, where: str) -> Callable[..., Any]:
    """A loss from its name, or a function ``(y, target) -> value per sample`` itself."""
    if callable(value):
        return value
    if isinstance(value, str) and SYNONYMS.get(value, value) in LOSSES:
        return LOSSES[SYNONYMS.get(value, value)]
    accepted = f"a function (y, target) -> array, or one of {sorted([*LOSSES, *SYNONYMS])}"
    raise ValueError(f"{where}: loss is {shown(value)}; accepted are {accepted}.")


def outputs_for(loss: Callable[..., Any], components: int) -> int:
    """Number of outputs a field needs for targets of ``components``."""
    return 2 * components if loss is gaussian_nll else components


def check_densities(value: Any, n: int, samples: int, where: str) -> None:
    """Raise unless ``value`` is a density per sample, or one per component, for one or ``samples`` samples, and all of
    them are positive and finite. Evaluates them: not for frozen code."""
    types = () if isinstance(value, str) else (dr.ArrayBase, Sequence)
    check_type(where, "pdf", value, types, "an array or a sequence of arrays")
    densities = _densities(where, value, n)
    _check_entries(where, {"pdf": densities})
    for density in densities:
        check_samples(where, "pdf", dr.width(density), samples)
    for density in {id(v): v for v in densities if isinstance(v, dr.ArrayBase)}.values():
        fine = (density > 0) & (density < math.inf)
        bad = dr.width(fine) - int(dr.count(fine).numpy()[0])
        if bad:
            first = density.numpy().ravel()[int(np.argmin(fine.numpy()))]
            has = f"pdf has {bad} of {dr.width(fine)} entries that are not positive and finite, such as {first:g}"
            raise ValueError(f"{where}: {has}; the density that a sample was drawn from is needed.")
