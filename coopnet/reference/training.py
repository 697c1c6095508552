"""Losses, Adam, measures, and the mean and deviation of passes under dropout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .random import Array


def l2(a: Array, b: Array) -> float:
    """Mean squared difference.

    >>> float(ref.l2(np.array([1.0, 2.0]), np.array([1.0, 4.0])))
    2.0
    """
    return float(np.mean((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2))


def _luminance(y: Array) -> Array:
    """Luminance of a color, the first 3 rows, or of the sum of two, if there are 6."""
    color = y[:3] + y[3:6] if len(y) >= 6 else y[:3]
    return np.asarray(np.array([[0.299, 0.587, 0.114]]) @ color)


def _gaussian(t: Array, m: Array, s: Array) -> Array:
    return np.asarray((s + (t - m) ** 2 * np.exp(-s)) / 2)


#: name -> loss of every component, shape (components, samples), of prediction y, target t, the prediction ``at`` that
#: is a constant in denominators, and the density p of the samples.
LOSSES: dict[str, Callable[[Array, Array, Array, Array], Array]] = {
    "l2": lambda y, t, at, p: (y - t) ** 2,
    "l1": lambda y, t, at, p: np.abs(y - t),
    "huber": lambda y, t, at, p: np.where(np.abs(y - t) <= 1, (y - t) ** 2 / 2, np.abs(y - t) - 0.5),
    "log_l1": lambda y, t, at, p: np.log1p(np.abs(y - t)),
    "relative_l1": lambda y, t, at, p: np.abs(y - t) / (np.abs(at) + 0.01),
    "relative_l2": lambda y, t, at, p: (y - t) ** 2 / (at**2 + 0.01),
    "relative_l2_luminance": lambda y, t, at, p: (y - t) ** 2 / (_luminance(at) ** 2 + 0.01),
    "mape": lambda y, t, at, p: np.abs(y - t) / (np.abs(t) + 0.01),
    "smape": lambda y, t, at, p: np.abs(y - t) / (0.5 * (np.abs(t) + np.abs(at)) + 0.01),
    "cross_entropy": lambda y, t, at, p: -t * np.log(y),
    "variance": lambda y, t, at, p: t**2 / y - t**2 / p,
    "gaussian_nll": lambda y, t, at, p: _gaussian(t, *np.split(y, 2)),
}


def loss(name: str, y: Array, t: Array, pdf: Any = None, at: Array | None = None) -> Array:
    """Loss of every sample: the mean over components of ``LOSSES[name]`` divided by the density.

    >>> ref.loss("l1", np.array([[1.0, 2.0]]), np.array([[1.5, 0.0]])).tolist()
    [0.5, 2.0]
    """
    y, t = np.asarray(y, np.float64), np.asarray(t, np.float64)
    p = np.broadcast_to(np.asarray(1.0 if pdf is None else pdf, np.float64), t.shape)
    return np.asarray((LOSSES[name](y, t, y if at is None else np.asarray(at, np.float64), p) / p).mean(axis=0))


def adam_step(
    w: Array, m: Array, v: Array, g: Array, t: int, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
    epsilon: float = 1e-8, l2_reg: float = 0.0, relative_decay: float = 0.0, absolute_decay: float = 0.0,
    gradient_limit: float = math.inf, weight_limit: float = math.inf, bounds: tuple[float, float] = (0.0, math.inf),
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Step t = 1, 2, ... of Adam (Kingma and Ba 2015): (weights, first moment, second moment).

    >>> w, m, v = ref.adam_step(np.ones(1), np.zeros(1), np.zeros(1), np.array([0.3]), t=1, lr=0.1)
    >>> w.round(4).tolist()
    [0.9]
    """
    g = np.clip(g + l2_reg * w, -gradient_limit, gradient_limit)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
    rate = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
    kept = (1 - rate * relative_decay) * w - rate * absolute_decay * np.sign(w)
    return np.clip(kept - np.clip(rate / (np.sqrt(v) + epsilon), *bounds) * m, -weight_limit, weight_limit), m, v


def adabound(t: int, beta2: float = 0.999) -> tuple[float, float]:
    """The ``bounds`` of :func:`adam_step` for AdaBound (Luo et al. 2019), with the final rate 0.1.

    >>> low, high = ref.adabound(t=1)
    >>> round(low, 6), round(high, 3)
    (0.0001, 100.1)
    """
    s = (1 - beta2) * t
    return 0.1 - 0.1 / (s + 1), 0.1 + 0.1 / s


def sparse_adam_step(
    w: Array, m: Array, v: Array, t: Array, g: Array, **options: Any
) -> tuple[Array, Array, Array, Array]:
    """:func:`adam_step` of the entries whose gradient is not zero: (weights, moments, number of steps of each).

    >>> zero, steps = np.zeros(2), np.zeros(2, int)
    >>> w, m, v, steps = ref.sparse_adam_step(np.ones(2), zero, zero, steps, np.array([0.3, 0.0]), lr=0.1)
    >>> w.round(4).tolist(), steps.tolist()
    ([0.9, 1.0], [1, 0])
    """
    w, m, v, t = (np.array(x) for x in (w, m, v, t))
    for i in np.flatnonzero(g):
        t[i] += 1
        w[i], m[i], v[i] = adam_step(w[i], m[i], v[i], g[i], int(t[i]), **options)
    return w, m, v, t


def novograd_step(
    w: Array, m: Array, v: float, g: Array, t: int, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
    epsilon: float = 1e-8, relative_decay: float = 0.0, absolute_decay: float = 0.0,
) -> tuple[Array, Array, float]:  # fmt: skip
    """Step t = 1, 2, ... of Novograd (Ginsburg et al. 2019) on one layer: (weights, first moment, second moment).

    >>> w, m, v = ref.novograd_step(np.ones(2), np.zeros(2), 0.0, np.array([3.0, 4.0]), t=1, lr=0.1)
    >>> w.round(4).tolist()
    [0.94, 0.92]
    """
    beta1, beta2 = (0.0, 0.0) if t == 1 else (beta1, beta2)
    v = beta2 * v + (1 - beta2) * float(np.sum(np.square(g)))
    m = beta1 * m + (1 - beta1) * g / (math.sqrt(v) + epsilon)
    return (1 - lr * relative_decay) * w - lr * absolute_decay * np.sign(w) - lr * m, m, v


def moving_average(values: Iterable[Array], decay: float, start: Array | None = None) -> Array:
    """Exponential moving average of ``values``, beginning at ``start``, which fades; without ``start``, of the values
    only.

    They have weights of 1, d, d^2, ... from the last to the first, divided by their sum (tiny-cuda-nn's ``ema.h``).

    >>> ref.moving_average([np.ones(1), np.zeros(1)], 0.5, start=np.zeros(1)).tolist()
    [0.25]
    >>> ref.moving_average([np.full(1, 3.0), np.zeros(1)], 0.5).tolist()
    [1.0]
    """
    average, total = (0.0, 0.0) if start is None else (np.asarray(start, np.float64), 1.0)
    for value in values:
        average = decay * average + (1 - decay) * np.asarray(value, np.float64)
        total = decay * total + 1 - decay
    return np.asarray(average / total)


def psnr(a: Array, b: Array, peak: float = 1.0) -> float:
    """Peak signal-to-noise ratio 10 log10(peak^2 / l2) in decibels; infinite for equal arrays.

    >>> round(float(ref.psnr(np.zeros(4), np.full(4, 0.1))), 3)
    20.0
    """
    error = l2(a, b)
    return math.inf if error == 0 else 10 * math.log10(peak**2 / error)


def welford(samples: Iterable[Any]) -> tuple[Array, Array]:
    """Mean and population standard deviation along the first axis, in one pass without storing the samples.

    With the k-th sample: d = x - mean, mean += d / k, S += d (x - mean); the variance is S / k (Welford
    1962).

    >>> mean, deviation = ref.welford([1.0, 2.0, 3.0])
    >>> float(mean), round(float(deviation), 4)
    (2.0, 0.8165)
    """
    count, mean, spread = 0, np.zeros(()), np.zeros(())
    for count, sample in enumerate(samples, 1):
        x = np.asarray(sample, np.float64)
        d = x - mean
        mean = mean + d / count
        spread = spread + d * (x - mean)
    if count == 0:
        raise ValueError("welford: there are no samples")
    return mean, np.sqrt(spread / count)


def mc_dropout(field: Callable[[int], Array], samples: int, step: int = 0) -> tuple[Array, Array]:
    """Mean and population standard deviation of ``field(step * samples + i)``, ``i < samples``, steps modulo 2^32.

    ``field`` maps the step of a key to the outputs under its masks (Gal and Ghahramani 2016).

    >>> mean, deviation = ref.mc_dropout(lambda step: np.array([float(step)]), samples=3)
    >>> mean.tolist(), deviation.round(4).tolist()
    ([1.0], [0.8165])
    """
    return welford(field((step * samples + i) % 2**32) for i in range(samples))
