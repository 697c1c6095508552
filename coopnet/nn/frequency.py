"""Waves of doubling frequency: as in drjit.nn, and those of tiny-cuda-nn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import check_in_features, check_number, check_positive, ensure, shown
from ..checks.sizes import MAX_OCTAVES, check_features
from .arguments import fields
from .encoding import Encoding
from .tangents import RULES

#: The smallest normal number of single precision. On GPUs, and in some threads on CPUs, denormal numbers count as 0.
TINY = 2.0**-126


class _Waves(Encoding):
    """Waves of a coordinate :math:`x`, ``_each`` for every frequency, which is :math:`2^i` times the lowest."""

    _count: str  #: name of the argument that says how many frequencies there are
    _each = 2
    _lowest = 1.0  #: frequency of the first feature, in periods per unit of the coordinates
    shift = 0.0

    def _set(self, count: int, in_features: int) -> None:
        name, limit = type(self).__name__, f"at most {MAX_OCTAVES} are possible"
        count = check_positive(name, self._count, count)
        why = "beyond which single precision has no frequencies"
        ensure(count <= MAX_OCTAVES, f"{name}: {self._count} is {shown(count)}; {limit}, {why}.")
        setattr(self, self._count, count)
        self.in_features = check_in_features(name, in_features)
        check_features(name, self._count, count, self.width(abs(self.in_features)))

    def width(self, size: int) -> int:
        return self._each * getattr(self, self._count) * size

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        y: list[Any] = []
        dys: list[list] = [[] for _ in tangents]
        for k, x in enumerate(coordinates):
            for i, phase in enumerate(self._phases(x)):
                for value, slope in self._waves(phase, i):
                    y.append(value)
                    for tangent, parts in zip(tangents, dys, strict=True):
                        # The frequency comes last: its product with the slope may overflow even if the result does not.
                        parts.append(tangent[k] * slope * self._lowest * 2.0**i)
        return y, dys

    def _phases(self, x: Any) -> Iterator[Any]:
        """The phases of ``x`` for all frequencies, in periods, each minus the nearest integer.

        Doubling a number and subtracting the nearest integer are exact, so phases are exact and do not overflow for any
        ``x``. If the first phase is below ``TINY``, it counts as 0.
        """
        phase = wrapped(x * self._lowest)
        phase = phase - dr.select(dr.abs(phase) < TINY, dr.detach(phase), 0)
        for i in range(getattr(self, self._count)):
            shift = shift_of(self.shift, i)
            yield wrapped(phase + shift) if shift else phase
            phase = wrapped(phase * 2)

    def _waves(self, phase: Any, i: int) -> list[tuple]:
        """The features of frequency ``i``, by default sine and cosine, each with its derivative by the phase."""
        s, c = dr.sincos(phase * (2 * math.pi))
        return [(s, c * (2 * math.pi)), (c, s * (-2 * math.pi))]


def wrapped(phase: Any) -> Any:
    """``phase`` minus the nearest integer: from -1/2 to 1/2, and exact. NaN if ``phase`` is not finite."""
    return phase - dr.round(phase)


def shift_of(shift: float, i: int) -> float:
    """The phase ``i * shift``, minus the nearest integer."""
    return math.remainder(i * math.remainder(shift, 1), 1)


def triangle(phase: Any, quarters: int) -> tuple[Any, Any]:
    r"""The triangle wave :math:`1 - 4|t - \mathrm{round}(t)|` and its slope, which is 0 at the tips.

    :math:`t` is ``phase``, from -1/2 to 1/2, plus ``quarters`` quarters of a period. They are not added to the phase,
    because this would round small phases.
    """
    leaf, t = type(phase), dr.detach(phase)
    size = dr.abs(t)
    if quarters % 2 == 0:
        value, tip = 1 - 4 * size, (t == 0) | (size == 0.5)
        slope = dr.select(t > 0, leaf(-4), 4)
    else:
        value, tip = -4 * dr.mulsign(dr.select(size <= 0.25, size, 0.5 - size), t), size == 0.25
        slope = dr.select(size < 0.25, leaf(-4), 4)
    sign = 1 if quarters % 4 < 2 else -1
    slope = dr.select(tip, leaf(0), sign * slope)
    return dr.replace_grad(sign * value, phase * slope), slope


class _Octaves(_Waves):
    _count = "octaves"

    def __init__(self, octaves: int = 8, shift: float = 0.0, in_features: int = -1):
        self.shift = check_number(type(self).__name__, "shift", shift)
        self._set(octaves, in_features)

    DRJIT_STRUCT = fields(__init__)


class Sinusoidal(_Octaves):
    r"""Sines and cosines of doubling frequency (Vaswani et al. 2017; NeRF, Mildenhall et al. 2020, eq. 4).

    Each coordinate :math:`x` becomes, for octave :math:`i = 0, \dots, n-1`,
    :math:`\sin 2\pi(2^i x + i s),\ \cos 2\pi(2^i x + i s)`: ``2 * octaves`` features. Coordinates belong in [0, 1].
    ``drjit.nn.SinEncode`` has the same features, but its errors double with every octave. Here phases are reduced to
    one period without rounding. So at every finite coordinate of single precision, the error of features is at most
    :math:`10^{-6}`, and so is that of derivatives relative to the frequency. Coordinates below :math:`2^{-126}` count
    as 0; NaN and infinite ones give NaN.

    Args:
        octaves: number of frequencies :math:`n`, at most 128.
        shift: phase :math:`s` per octave, in periods.
        in_features: number of coordinates; -1 takes it from ``alloc`` or the network.

    Raises:
        ValueError: arguments out of range; an input with other than ``in_features`` coordinates.
        TypeError: an input that is a NumPy array, or not floating point.

    >>> field = cn.NeuralField(cn.Sinusoidal(6, in_features=2), cn.MLP(out_features=3)).build()
    """


class Triangular(_Octaves):
    r"""Triangle waves of doubling frequency, cheaper than sines (Müller et al. 2021; ``drjit.nn.TriEncode``).

    As :class:`Sinusoidal` with :math:`\cos_\triangle(t) = 1 - 4|t - \mathrm{round}(t)|` and
    :math:`\sin_\triangle(t) = \cos_\triangle(t - \tfrac14)`, at :math:`t = 2^i x + i s`.
    Arguments and errors are the same, too. The derivative jumps at the tips of the waves. There it is 0, the mean of
    both sides.

    >>> field = cn.NeuralField(cn.Triangular(6, in_features=2), cn.MLP(out_features=3)).build()
    """

    def _waves(self, phase: Any, i: int) -> list[tuple]:
        return [triangle(phase, 3), triangle(phase, 0)]


class _Frequencies(_Waves):
    _count = "n_frequencies"
    _lowest = 0.5

    def __init__(self, n_frequencies: int = 12, in_features: int = -1):
        self._set(n_frequencies, in_features)

    DRJIT_STRUCT = fields(__init__)


class Frequency(_Frequencies):
    r"""Sines and cosines of doubling frequency (Mildenhall et al. 2020, eq. 4; tiny-cuda-nn's ``Frequency``).

    Each coordinate :math:`x` becomes :math:`\sin(2^i \pi x),\ \cos(2^i \pi x)` for :math:`i = 0, \dots, n - 1`, one
    pair after the other: ``2 * n_frequencies`` features per coordinate. The lowest frequency has the period 2; in
    :class:`Sinusoidal`, it has the period 1. Both are equally exact.

    Args:
        n_frequencies: number of frequencies :math:`n`, at most 128.
        in_features: number of coordinates; -1 takes it from ``alloc`` or the network.

    Raises:
        ValueError: ``n_frequencies`` is out of range, or the input has another number of coordinates.

    >>> field = cn.NeuralField(cn.Frequency(10, in_features=3), cn.MLP(out_features=4)).build()
    """


class TriangleWave(_Frequencies):
    r"""Triangle waves of doubling frequency (Müller et al. 2021; tiny-cuda-nn's ``TriangleWave``).

    Each coordinate :math:`x` becomes :math:`4\,|\mathrm{frac}(2^{i-1} x + \tfrac{i}{4}) - \tfrac12| - 1` for
    :math:`i = 0, \dots, n - 1`, where :math:`\mathrm{frac}(t) = t - \lfloor t \rfloor`: ``n_frequencies`` features per
    coordinate, half of :class:`Triangular`'s. The shift by a quarter of a period per frequency keeps the tips of the
    waves apart, where the derivative jumps between :math:`\pm 2^{i+1}`; there, it is 0.

    Args:
        n_frequencies: number of frequencies :math:`n`, at most 128.
        in_features: number of coordinates; -1 takes it from ``alloc`` or the network.

    Raises:
        ValueError: ``n_frequencies`` is out of range, or the input has another number of coordinates.

    >>> field = cn.NeuralField(cn.TriangleWave(12, in_features=3), cn.MLP(out_features=4)).build()
    """

    _each = 1

    def _waves(self, phase: Any, i: int) -> list[tuple]:
        return [triangle(phase, i % 4)]


# the derivatives of drjit.nn's waves are those of ours
RULES[drnn.SinEncode] = lambda layer, x, ts: (layer(x), Sinusoidal(layer.octaves, layer.shift).jvp(x, ts)[1])
RULES[drnn.TriEncode] = lambda layer, x, ts: (layer(x), Triangular(layer.octaves, layer.shift).jvp(x, ts)[1])
