"""One-blob encoding."""

from __future__ import annotations

import itertools
from typing import Any

import drjit as dr

from ..checks import check_in_features, check_positive
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

    Returns:
        ``n_bins`` features per coordinate.

    Raises:
        ValueError: ``n_bins`` is not positive, or the number of coordinates is another.

    >>> field = cn.NeuralField(cn.OneBlob(16, in_features=3), cn.MLP(out_features=3)).build()
    """

    def __init__(self, n_bins: int = 16, in_features: int = -1):
        self.n_bins = check_positive("OneBlob", "n_bins", n_bins)
        self.in_features = check_in_features("OneBlob", in_features)
        check_features("OneBlob", "n_bins", n_bins, self.width(abs(in_features)))

    DRJIT_STRUCT = fields(__init__)

    def width(self, size: int) -> int:
        return self.n_bins * size

    def _features(self, coordinates: list) -> list:
        features = []
        for x in coordinates:
            integrals = [self._integral(k / self.n_bins - x) for k in range(self.n_bins)]
            integrals.append(integrals[0] + 1)
            features += [b - a for a, b in itertools.pairwise(integrals)]
        return features

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        n, rows = self.n_bins, []
        for x in coordinates:
            heights = [self._kernel(k / n - x) for k in range(n)]
            rows.append([a - b for a, b in itertools.pairwise([*heights, heights[0]])])
        moved = [[dx * v for dx, row in zip(t, rows, strict=True) for v in row] for t in tangents]
        return self._features(coordinates), moved

    def _kernel(self, t: Any) -> Any:
        """The periodic kernel, the derivative of its integral."""
        u = dr.clip((t - dr.round(t)) * self.n_bins, -1, 1)
        return dr.square(1 - u * u) * (15 / 16 * self.n_bins)

    def _integral(self, t: Any) -> Any:
        """The periodic kernel's integral up to ``t``: one per whole interval, and a part of the nearest blob."""
        whole = dr.round(t)
        u = dr.clip((t - whole) * self.n_bins, -1, 1)
        u2 = u * u
        return whole + (u * dr.fma(u2, dr.fma(u2, 3 / 16, -5 / 8), 15 / 16) + 0.5)
