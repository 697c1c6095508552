"""Waves of doubling frequency: drjit.nn's, and those of tiny-cuda-nn."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import check_in_features, check_number, check_positive, ensure, shown
from ..checks.sizes import MAX_OCTAVES, check_features
from ..jit import kinds
from ..random.key import Key
from .arguments import fields
from .encoding import Encoding
from .tangents import RULES, check_bundle, sines

#: Frequencies per evaluation of a sine. Doubling an angle costs less, but doubles its error.
RUN = 4


class _Waves(Encoding):
    """``_each`` features of a coordinate for each of as many frequencies as the argument ``_count`` says."""

    _count: str
    _each = 2

    def _set(self, count: int, in_features: int) -> None:
        name, limit = type(self).__name__, f"at most {MAX_OCTAVES} are possible"
        fits = check_positive(name, self._count, count) <= MAX_OCTAVES
        why = "beyond which single precision has no frequencies"
        ensure(fits, f"{name}: {self._count} is {shown(count)}; {limit}, {why}.")
        setattr(self, self._count, count)
        self.in_features = check_in_features(name, in_features)
        check_features(name, self._count, count, self.width(abs(in_features)))

    def width(self, size: int) -> int:
        return self._each * getattr(self, self._count) * size


class _Octaves(_Waves):
    _count = "octaves"
    _layer: type

    def __init__(self, octaves: int = 8, shift: float = 0.0, in_features: int = -1):
        self.shift = check_number(type(self).__name__, "shift", shift)
        self._set(octaves, in_features)

    DRJIT_STRUCT = fields(__init__)

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        kind = self._check(x)
        layer = self._layer(self.octaves, self.shift)
        if kind != kinds.ARRAYS:
            return layer(x)
        features = list(layer(drnn.CoopVec(kinds.even(kinds.components(x)))))
        return features if isinstance(x, (list, tuple)) else kinds.nested(features)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        check_bundle(self, x, tangents, arrays=True)
        return RULES[self._layer](self, x, tangents)


class Sinusoidal(_Octaves):
    r"""Sines and cosines of doubling frequency (Vaswani et al. 2017; NeRF, Mildenhall et al. 2020, eq. 4).

    Each coordinate :math:`x` becomes, for octave :math:`i = 0, \dots, n-1`,
    :math:`\sin 2\pi(2^i x + i s),\ \cos 2\pi(2^i x + i s)`: ``2 * octaves`` features. Coordinates belong in [0, 1].
    This is ``drjit.nn.SinEncode``, which doubles angles; rounding errors double with them, to about
    :math:`2^{n} \cdot 10^{-7}` in single precision.

    Args:
        octaves: number of frequencies :math:`n`, at most 128.
        shift: phase :math:`s` per octave, in periods.
        in_features: number of coordinates; -1 takes it from ``alloc`` or the network.

    Raises:
        ValueError: arguments out of range; an input with other than ``in_features`` coordinates.
        TypeError: an input that is a NumPy array, or no floating point.

    >>> field = cn.NeuralField(cn.Sinusoidal(6, in_features=2), cn.MLP(out_features=3)).build()
    """

    _layer = drnn.SinEncode


class Triangular(_Octaves):
    r"""Triangle waves of doubling frequency, cheaper than sines (Müller et al. 2021; ``drjit.nn.TriEncode``).

    As :class:`Sinusoidal` with :math:`\cos_\triangle(t) = 1 - 4|t - \mathrm{round}(t)|` and
    :math:`\sin_\triangle(t) = \cos_\triangle(t - \tfrac14)`, at :math:`t = 2^i x + i s`.
    Arguments, features and errors are the same, too.

    >>> field = cn.NeuralField(cn.Triangular(6, in_features=2), cn.MLP(out_features=3)).build()
    """

    _layer = drnn.TriEncode


class _Frequencies(_Waves):
    _count = "n_frequencies"

    def __init__(self, n_frequencies: int = 12, in_features: int = -1):
        self._set(n_frequencies, in_features)

    DRJIT_STRUCT = fields(__init__)


class Frequency(_Frequencies):
    r"""Sines and cosines of doubling frequency (Mildenhall et al. 2020, eq. 4; tiny-cuda-nn's ``Frequency``).

    Each coordinate :math:`x` becomes :math:`\sin(2^i \pi x),\ \cos(2^i \pi x)` for :math:`i = 0, \dots, n - 1`, one
    pair after the other: ``2 * n_frequencies`` features per coordinate. The lowest frequency has period 2, where
    :class:`Sinusoidal` has 1. Every fourth pair is computed from the phase reduced to one period, which is exact, and
    the three after it by doubling the angle, so that the error doesn't grow with the frequency as in
    :class:`Sinusoidal`.

    Args:
        n_frequencies: number of frequencies :math:`n`, at most 128.
        in_features: number of coordinates; -1 takes it from ``alloc`` or the network.

    Raises:
        ValueError: ``n_frequencies`` is out of range, or the number of coordinates is another.

    >>> field = cn.NeuralField(cn.Frequency(10, in_features=3), cn.MLP(out_features=4)).build()
    """

    def _features(self, coordinates: list) -> list:
        features = []
        for x in coordinates:
            for i in range(self.n_frequencies):
                if i % RUN == 0:
                    periods = x * 2.0 ** (i - 1)
                    s, c = dr.sincos((periods - dr.round(periods)) * (2 * math.pi))
                else:
                    s, c = 2 * s * c, dr.fma(-2 * s, s, 1)
                features += [s, c]
        return features

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        y = self._features(coordinates)
        return y, sines(y, tangents, self.n_frequencies, math.pi)


class TriangleWave(_Frequencies):
    r"""Triangle waves of doubling frequency (Müller et al. 2021; tiny-cuda-nn's ``TriangleWave``).

    Each coordinate :math:`x` becomes :math:`4\,|\mathrm{frac}(2^{i-1} x + \tfrac{i}{4}) - \tfrac12| - 1` for
    :math:`i = 0, \dots, n - 1`, where :math:`\mathrm{frac}(t) = t - \lfloor t \rfloor`: ``n_frequencies`` features per
    coordinate, half of :class:`Triangular`'s. The shift by a quarter of a period per frequency keeps the tips of the
    waves apart, where the derivative jumps between :math:`\pm 2^{i+1}`.

    Args:
        n_frequencies: number of frequencies :math:`n`, at most 128.
        in_features: number of coordinates; -1 takes it from ``alloc`` or the network.

    Raises:
        ValueError: ``n_frequencies`` is out of range, or the number of coordinates is another.

    >>> field = cn.NeuralField(cn.TriangleWave(12, in_features=3), cn.MLP(out_features=4)).build()
    """

    _each = 1

    def _features(self, coordinates: list) -> list:
        features = []
        for x in coordinates:
            for i in range(self.n_frequencies):
                features.append(dr.abs(self._phase(x, i)) * 4 - 1)
        return features

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        """The slope is 0 at the tips of the waves."""
        n = self.n_frequencies
        slopes = [_slope(dr.detach(self._phase(x, i))) * 2.0 ** (i + 1) for x in coordinates for i in range(n)]
        moved = [[dx * slopes[k * n + i] for k, dx in enumerate(t) for i in range(n)] for t in tangents]
        return self._features(coordinates), moved

    @staticmethod
    def _phase(x: Any, i: int) -> Any:
        """Place of ``x`` in its period of frequency ``i``, from -1/2 to 1/2."""
        t = x * 2.0 ** (i - 1)
        # whole periods go first, so that the shift costs no bits of a large phase
        t = t - dr.floor(t) + i % 4 / 4
        return t - dr.floor(t) - 0.5


def _slope(t: Any) -> Any:
    """Slope of the absolute value on [-1/2, 1/2), 0 where it is least and largest."""
    return dr.select((t == 0) | (t == -0.5), type(t)(0), dr.select(t > 0, type(t)(1), -1))
