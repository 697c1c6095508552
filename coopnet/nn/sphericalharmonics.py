"""Spherical harmonics encoding."""

from __future__ import annotations

import math
import sys
from typing import Any

import drjit as dr

from .encodings import Encoding


class SphericalHarmonics(Encoding):
    r"""Real spherical harmonics of a direction (tiny-cuda-nn's ``SphericalHarmonics``; by ``dr.sh_eval``, Sloan 2013).

    The input is a unit vector :math:`v` as :math:`(v + 1) / 2`, three coordinates in [0, 1]; it is not normalized.
    Feature :math:`l^2 + l + m` is :math:`Y_{lm}(v)` for :math:`0 \le l < \mathrm{degree}` and :math:`-l \le m \le l`,
    orthonormal on the sphere, with the Condon-Shortley phase :math:`(-1)^m`:

    .. math:: Y_{lm}(v) = \sqrt{\tfrac{2l + 1}{4\pi} \tfrac{(l - |m|)!}{(l + |m|)!}}\;
        \tfrac{d^{|m|} P_l}{d z^{|m|}}(v_z)\; (-1)^m
        \begin{cases} \sqrt2\, \mathrm{Re}\,(v_x + i v_y)^m & m > 0 \\ 1 & m = 0 \\
        \sqrt2\, \mathrm{Im}\,(v_x + i v_y)^{|m|} & m < 0 \end{cases}

    Args:
        degree: number of bands, from 1 to 8.

    Returns:
        ``degree**2`` features.

    Raises:
        ValueError: ``degree`` is out of range, or the input has not 3 coordinates.

    >>> field = cn.NeuralField(cn.SphericalHarmonics(4), cn.MLP(out_features=3)).build()
    >>> rgb = field(0.5 * direction + 0.5)
    """

    DRJIT_STRUCT = {"degree": int}
    in_features = 3

    def __init__(self, degree: int = 4):
        if isinstance(degree, bool) or not isinstance(degree, int) or not 1 <= degree <= 8:
            raise ValueError(f"SphericalHarmonics: degree is {degree!r}; an int from 1 to 8 is needed.")
        self.degree = degree

    def width(self, size: int) -> int:
        return self.degree**2

    def _features(self, coordinates: list) -> list:
        leaf = type(coordinates[0])
        suffix = "f64" if dr.itemsize_v(leaf) == 8 else "f"
        v = getattr(sys.modules[leaf.__module__], "Array3" + suffix)([dr.fma(c, 2, -1) for c in coordinates])
        _, *rest = dr.sh_eval(v, self.degree - 1)
        # the first is a constant, which tensors need in full width
        return [dr.full(leaf, 0.5 / math.sqrt(math.pi), dr.width(v)), *rest]

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[SphericalHarmonics, int]:  # type: ignore[override]
        self._size(size)
        return SphericalHarmonics(self.degree), self.degree**2

    def __repr__(self) -> str:
        return f"SphericalHarmonics(degree={self.degree})"
