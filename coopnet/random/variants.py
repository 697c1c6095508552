"""Kinds of dropout by other laws than the mask law, from the same random words."""

from __future__ import annotations

import math
import statistics
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..jit import kinds
from .digits import Law, modulate
from .dropout import Dropout, check_probability, check_schedule, check_stream, drop, is_schedule, schedule_width
from .key import Key


class DropPath(Dropout):
    r"""Drops whole samples (*stochastic depth*, Huang et al. 2016): all features of a sample, or none.

    .. math::
        y = \begin{cases} x \cdot 2^k / (2^k - t) & u_0 \ge t \\ 0 & \text{otherwise} \end{cases}

    with the digit :math:`u_0` that :func:`dropout` would draw for element 0 of the sample, and its threshold :math:`t`.
    At the end of a residual branch it leaves those samples to the shortcut. Without a key it passes its input on.

    Args:
        p: probability that a sample is dropped, a number in [0, 1) or a Dr.Jit ``Float32`` of width 1.
        bits: random bits per sample, 8, 16 or 32.
        stream: as in :class:`Dropout`.

    Raises:
        ValueError, TypeError: arguments that :func:`dropout` refuses, too.

    >>> branch = cn.Sequential(cn.Linear(64, 64), cn.ReLU(), cn.Linear(64, 64), cn.DropPath(0.1))
    """

    DRJIT_STRUCT = Dropout.DRJIT_STRUCT

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        return drop_path(x, self.p, key, self.bits, self.stream or 0, self.identity.value)


def drop_path(x: Any, p: Any, key: Key | None, bits: int, stream: int, identity: Any = None) -> Any:
    """:class:`DropPath` as a function."""
    identity = identity if isinstance(x, drnn.CoopVec) else None
    return drop(x, p, key, stream=stream, bits=bits, identity=identity, shared=True)


class GaussianDropout(Dropout):
    r"""Multiplies every element by normally distributed noise of mean 1 (Srivastava et al. 2014, section 10).

    .. math::
        y_i = x_i \cdot (1 + \sigma z_i), \qquad \sigma = \sqrt{p / (1 - p)}, \qquad
        z_i = \Phi^{-1}\!\left(\frac{n_i + 1/2}{2^{24}}\right)

    which has the mean and variance of :class:`Dropout` with the same ``p``. :math:`n_i` are the upper 24 bits of the
    word that the mask law with 32 bits gives to element :math:`i`: word ``i % 4`` of the Philox counter ``(i // 4,
    index, step, stream)``; :math:`\Phi` is the normal distribution, so that :math:`|z_i| < 5.42`. The noise is computed
    in single precision from exactly equal arguments and rounded to the type of ``x``; backends agree on it up to the
    rounding of their elementary functions. Without a key the layer passes its input on.

    Args:
        p: drop probability of the :class:`Dropout` to imitate, a number in [0, 1) or a Dr.Jit ``Float32`` of width 1
            (then clipped to [0, :math:`1 - 2^{-24}`]).
        stream: as in :class:`Dropout`.

    Raises:
        ValueError, TypeError: ``p`` or ``stream`` of another kind or out of range; inputs that :func:`dropout` refuses.

    >>> net = cn.Sequential(cn.Linear(16, 64), cn.ReLU(), cn.GaussianDropout(0.1), cn.Linear(64, 3))
    """

    DRJIT_STRUCT = Dropout.DRJIT_STRUCT

    def __init__(self, p: float = 0.5, stream: int | None = None):
        super().__init__(p, 32, stream)

    def _check(self, p: Any) -> None:
        _check_rate(p, "GaussianDropout")

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        return gaussian_dropout(x, self.p, key, self.stream or 0, self.identity.value)

    def _copy(self) -> GaussianDropout:
        return GaussianDropout(self.p, self.stream)

    def __repr__(self) -> str:
        stream = "" if self.stream is None else f", stream={self.stream}"
        return f"GaussianDropout(p={self.p}{stream})"


def gaussian_dropout(x: Any, p: Any, key: Key | None, stream: int, identity: Any = None) -> Any:
    """:class:`GaussianDropout` as a function."""
    where = "gaussian_dropout"
    kind, leaf = kinds.kind(x, where)
    kinds.require_float(leaf, where)
    _check_rate(p, where, schedule_width(x, kind) if is_schedule(p) else 1)
    stream = check_stream(stream, where)
    if key is not None and not isinstance(key, Key):
        raise TypeError(f"{where}: key is a {type(key).__name__}; a coopnet.Key or None is needed.")
    if key is None or (not is_schedule(p) and p == 0):
        return x
    identity = identity if isinstance(x, drnn.CoopVec) else None
    return modulate(x, _Noise(p, stream, leaf), key, kind, leaf, identity)


def _check_rate(p: Any, where: str, samples: int = 1) -> None:
    if is_schedule(p):
        check_schedule(p, where, samples)
    else:
        check_probability(p, where)


class _Noise(Law):
    """Multiply by one plus ``sigma`` times a normally distributed number."""

    def __init__(self, p: Any, stream: int, leaf: type):
        super().__init__(32, stream)
        self.leaf = leaf
        if is_schedule(p) and not issubclass(leaf, np.generic):
            if dr.backend_v(p) != dr.backend_v(leaf):
                raise TypeError(
                    f"gaussian_dropout: p is a {type(p).__module__}.{type(p).__name__}, but the input lives on the "
                    f"{dr.backend_v(leaf).name} backend."
                )
            p = dr.clip(dr.float32_array_t(leaf)(dr.detach(p)), 0, 1 - 2**-24)
            self.sigma: Any = dr.sqrt(p / (1 - p))
        else:
            p = min(max(float(p[0]), 0.0), 1 - 2**-24) if is_schedule(p) else float(p)
            self.sigma = math.sqrt(p / (1 - p))

    def decide(self, word: Any) -> Any:
        n = word >> 8
        if isinstance(word, np.ndarray):
            return (1 + self.sigma * _normal((n + 0.5) * 2**-24)).astype(np.float32)
        int32, single = dr.int32_array_t(type(word)), dr.float32_array_t(type(word))
        # an odd number of 24 bits and a sign: nothing rounds, up to the ends of the interval (-1, 1)
        argument = single(int32(n) * 2 - (2**24 - 1)) * 2**-24
        return dr.erfinv(argument) * (self.sigma * math.sqrt(2)) + 1

    def apply(self, x: Any, decision: Any) -> Any:
        if isinstance(x, np.ndarray):
            return x * decision.astype(x.dtype)
        return x * (type(x)(decision) if dr.depth_v(x) > 1 else self.leaf(decision))

    def factor(self, decision: Any) -> Any:
        return self.leaf(decision)


_normal = np.vectorize(statistics.NormalDist().inv_cdf, otypes=[np.float64])
