"""Arithmetic at one vertex of a path, and its derivative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import drjit as dr


def power_heuristic(a: Any, b: Any) -> Any:
    r"""Weight :math:`a^2 / (a^2 + b^2)` of a sample of density ``a`` that another strategy has with density ``b``.

    Veach 1997, section 9.2.2. Without derivatives, and 0 where both densities are 0 or one is infinite.
    """
    a, b = dr.square(dr.detach(a)), dr.square(dr.detach(b))
    weight = a / (a + b)
    return dr.select(dr.isfinite(weight), weight, 0)


def ratio(value: Any) -> Any:
    """``value`` divided by its detached self: 1, with the relative derivative of ``value``; 0 where ``value`` is 0."""
    number = dr.detach(value)
    return value * dr.select(number != 0, dr.rcp(number), 0)


@dataclass
class Term:
    r"""A vertex's term in the derivative of a path's radiance: from sampled light, and from the rest of the path.

    .. math:: a\,(d\,f + (L - d\,\bar f)\,g / \bar g)

    with :math:`f` and :math:`g` the material's values for the direction of the light and for the next one of the path.
    Bars mean detached values, without derivatives. When a path is replayed, :math:`L` is the rest of its radiance
    (Vicini et al. 2021, "Path Replay Backpropagation", section 4).

    Args:
        direct: :math:`d`, by which :math:`f` enters the radiance.
        beyond: :math:`L`, the radiance from this vertex on, without the light that it emits itself.
        adjoint: :math:`a`, the derivative of the loss with respect to the radiance; 1 in forward mode.
    """

    direct: Any
    beyond: Any
    adjoint: Any

    def __call__(self, value: Any, onward: Any) -> Any:
        rest = self.beyond - self.direct * dr.detach(value)
        return self.adjoint * (self.direct * value + rest * ratio(onward))
