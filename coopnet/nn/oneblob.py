"""One-blob encoding."""

from __future__ import annotations

import functools
import itertools
import operator
from typing import Any

import drjit as dr

from ..checks import check_flag, check_in_features, check_positive
from ..checks.sizes import check_features
from .arguments import fields
from .encoding import Encoding


class OneBlob(Encoding):
    r"""A blob around each coordinate, integrated over bins (Müller et al. 2019; tiny-cuda-nn's ``OneBlob``).

    Each coordinate :math:`x` of the unit interval becomes, for the bins :math:`k = 0, \dots, n - 1`, the integral of
    the quartic kernel of radius :math:`1/n` around :math:`x` over bin :math:`[k/n, (k+1)/n]`:

    .. math:: \sum_{m \in \mathbb{Z}} F\bigl(k + 1 - n (x + m)\bigr) - F\bigl(k - n (x + m)\bigr), \qquad
        F(u) = \tfrac{15}{16} \bigl(u - \tfrac23 u^3 + \tfrac15 u^5\bigr) + \tfrac12 \text{ on } [-1, 1],

    0 below and 1 above. The interval wraps around, as in tiny-cuda-nn: a blob at one end reaches into the bins at the
    other. The features of a coordinate are at least 0, add up to 1, and at most 3 of them are not zero.

    Args:
        n_bins: number of bins :math:`n` (tiny-cuda-nn takes powers of two only).
        in_features: number of coordinates; -1 takes it from ``alloc`` or the network.
        periodic: wrap around everywhere? If not, the sum is over :math:`m \in \{-1, 0, 1\}` only, as in tiny-cuda-nn
            and fields of :func:`coopnet.from_config`. Both are equal on :math:`[-1 + 1/n, 2 - 1/n]`. Beyond, a blob
            that is not periodic leaves the unit interval, and all features become 0.

    Returns:
        ``n_bins`` features per coordinate.

    Raises:
        ValueError: ``n_bins`` is not positive, ``periodic`` is not a bool, or the input has another number of
            coordinates.

    >>> field = cn.NeuralField(cn.OneBlob(16, in_features=3), cn.MLP(out_features=3)).build()
    """

    def __init__(self, n_bins: int = 16, in_features: int = -1, periodic: bool = True):
        self.n_bins = check_positive("OneBlob", "n_bins", n_bins)
        self.periodic = check_flag("OneBlob", "periodic", periodic)
        self.in_features = check_in_features("OneBlob", in_features)
        check_features("OneBlob", "n_bins", n_bins, self.width(abs(self.in_features)))

    DRJIT_STRUCT = fields(__init__)

    def width(self, size: int) -> int:
        return self.n_bins * size

    def _in_unit(self, size: int) -> list[int]:
        return list(range(size))

    def _features(self, coordinates: list) -> list:
        return [b - a for x in coordinates for a, b in itertools.pairwise(self._edges(self._integral, x, 1))]

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        rows = [[a - b for a, b in itertools.pairwise(self._edges(self._kernel, x, 0))] for x in coordinates]
        dys = [[dx * v for dx, row in zip(t, rows, strict=True) for v in row] for t in tangents]
        return self._features(coordinates), dys

    def _edges(self, function: Any, x: Any, period: int) -> list:
        """``function`` at all edges of bins, relative to ``x``. If periodic, the last is the first plus ``period``."""
        n = self.n_bins
        x = x - dr.floor(x) if self.periodic else x  # exact; far from the interval, the differences would not be
        values = [function(k / n - x) for k in range(n)]
        return [*values, values[0] + period if self.periodic else function(1 - x)]

    def _kernel(self, t: Any) -> Any:
        """The kernel, the derivative of its integral."""
        heights = [dr.square(1 - u * u) * (15 / 16 * self.n_bins) for _, u in self._blobs(t)]
        return functools.reduce(operator.add, heights)

    def _integral(self, t: Any) -> Any:
        """The kernel's integral up to ``t``, up to a constant: 1 for every blob before ``t``, less for the nearest."""
        parts = []
        for whole, u in self._blobs(t):
            u2 = u * u
            parts.append(whole + (u * dr.fma(u2, dr.fma(u2, 3 / 16, -5 / 8), 15 / 16) + 0.5))
        return functools.reduce(operator.add, parts)

    def _blobs(self, t: Any) -> list[tuple[Any, Any]]:
        """For each blob that may reach ``t``: the number of blobs before it, and the position of ``t`` in it.

        Positions are in [-1, 1].
        """
        if self.n_bins == 1 and not self.periodic:  # blobs of radius 1, of which all three may reach t
            return [(0, dr.clip(t - m, -1, 1)) for m in (-1, 0, 1)]
        nearest = dr.round(t)
        nearest = nearest if self.periodic else dr.clip(nearest, -1, 1)
        return [(nearest, dr.clip((t - nearest) * self.n_bins, -1, 1))]
