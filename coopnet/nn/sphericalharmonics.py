"""Spherical harmonics encoding."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr

from ..checks import check_int
from ..jit.kinds import vector_type
from .arguments import fields
from .encoding import Encoding


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
        ValueError: ``degree`` is out of range, or the input does not have 3 coordinates.

    >>> field = cn.NeuralField(cn.SphericalHarmonics(4), cn.MLP(out_features=3)).build()
    >>> rgb = field(0.5 * direction + 0.5)
    """

    in_features = 3

    def __init__(self, degree: int = 4):
        self.degree = check_int("SphericalHarmonics", "degree", degree, 1, 8)

    DRJIT_STRUCT = fields(__init__)

    def width(self, size: int) -> int:
        return self.degree**2

    def _in_unit(self, size: int) -> list[int]:
        return list(range(size))

    def _features(self, coordinates: list) -> list:
        leaf = type(coordinates[0])
        v = vector_type(leaf, 3)([dr.fma(c, 2, -1) for c in coordinates])
        _, *rest = dr.sh_eval(v, self.degree - 1)
        # the first is a constant; tensors need an entry for every sample
        return [dr.full(leaf, 0.5 / math.sqrt(math.pi), dr.width(v)), *rest]

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        x, y, z = (dr.fma(c, 2, -1) for c in coordinates)
        leaf, n = type(x), self.degree
        legendre = _legendre(z, n)
        # real and imaginary part of (x + i y)^m, whose derivative is m (x + i y)^(m - 1)
        around = [(leaf(1), leaf(0))]
        for _ in range(1, n):
            a, b = around[-1]
            around.append((a * x - b * y, a * y + b * x))
        dys = []
        for tangent in tangents:
            dx, dy, dz = (2 * t for t in tangent)
            result: list[Any] = [None] * n**2
            for m in range(n):
                a, b = around[m]
                c, d = around[m - 1] if m else (leaf(0), leaf(0))
                da, db = (c * dx - d * dy) * m, (c * dy + d * dx) * m
                for band in range(m, n):
                    k = math.sqrt((2 * band + 1) / (4 * math.pi) * math.factorial(band - m) / math.factorial(band + m))
                    k *= math.sqrt(2) if m else 1
                    p, dp = legendre[band][m], -legendre[band][m + 1] * dz
                    result[band * (band + 1) + m] = (dp * a + p * da) * k
                    if m:
                        result[band * (band + 1) - m] = (dp * b + p * db) * k
            dys.append(result)
        return self._features(coordinates), dys


def _legendre(z: Any, n: int) -> list[list]:
    r""":math:`(-1)^m\, d^m P_l / dz^m` as ``[l][m]`` for :math:`l < n` and :math:`m \le l + 1`: the derivative of an
    entry is minus the one after it."""
    table = [[type(z)(0)] * (n + 1) for _ in range(n)]
    for m in range(n):
        table[m][m] = type(z)((-1.0) ** m * math.prod(range(1, 2 * m, 2)))
        for band in range(m + 1, n):
            before = table[band - 2][m] if band - 2 >= m else type(z)(0)
            table[band][m] = ((2 * band - 1) * z * table[band - 1][m] - (band + m - 1) * before) * (1 / (band - m))
    return table
