"""Frequency encoding as in tiny-cuda-nn."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr

from ..checks import check_in_features
from ..checks.sizes import check_features
from .encodings import Plain, check_octaves
from .tangents import sines

#: Frequencies per evaluation of a sine. Doubling an angle costs less, but doubles its error.
RUN = 4


class _Frequencies(Plain):
    """Encodings by waves of doubling frequency."""

    DRJIT_STRUCT = {"n_frequencies": int, "in_features": int}

    def __init__(self, n_frequencies: int = 12, in_features: int = -1):
        name = type(self).__name__
        self.n_frequencies = check_octaves(name, "n_frequencies", n_frequencies)
        self.in_features = check_in_features(name, in_features)
        check_features(name, "n_frequencies", n_frequencies, self.width(abs(in_features)))


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

    def width(self, size: int) -> int:
        return 2 * self.n_frequencies * size

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

    def width(self, size: int) -> int:
        return self.n_frequencies * size

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
