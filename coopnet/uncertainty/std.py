"""The deviation of the outputs of a posterior or an ensemble, without drawing."""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..call import result_type
from ..checks import ensure
from ..field import NeuralField, check_built
from .displacement import displacement_std, is_displaced
from .ensemble import ensemble_std, members_of
from .linearized import deviations, is_drawn


def has_std(field: NeuralField) -> bool:
    """Was ``field`` made by :func:`laplace` or :func:`ensemble`, so that it has a deviation without drawing?"""
    return members_of(field) is not None or is_drawn(field) or is_displaced(field)


def std(self: NeuralField, p: Any) -> Any:
    r"""The standard deviation of the outputs, for fields that :func:`laplace` or :func:`ensemble` has made.

    For an ensemble it is that of the members, :math:`\sqrt{\frac1K \sum_k (f_k(p) - \mu)^2}`. For a posterior it
    follows by linearization from the deviations :math:`\sigma_{ek}` of a grid's features and the covariance
    :math:`\Sigma` of the last layer, with the slope :math:`g_o` of an activation after it:

    .. math::
        \sigma_o(p)^2 = \sum_{e, k} \sigma_{ek}^2 \Big(\frac{\partial f_o}{\partial \theta_{ek}}\Big)^2
        + g_o^2\, \tilde h^T \Sigma \tilde h

    For a posterior of displacements (``spatial=``) it is one number: how far the place ``p`` may move, :math:`\lVert
    \sum_v w_v(p)\, \sigma_v \rVert` of the deviations :math:`\sigma_v` at the vertices around it, in the units of ``p``
    (Goli et al. 2024). The deviation of the outputs comes from :func:`mc_dropout`.

    This takes one kernel and no draws. A posterior costs one evaluation and the derivatives with respect to all
    features of the grid, one of displacements a look-up, an ensemble its members. The result is the uncertainty of the
    model; to include the noise of measurements, add the squares. The deviation of a posterior has no gradient.

    Args:
        p: as in a call.

    Returns:
        The deviations, in the container that a call returns; one component for a posterior of displacements.

    Raises:
        ValueError, TypeError: as for a call; the field is neither a posterior nor an ensemble.

    >>> deviation = cn.laplace(field, batch, steps=4).std(p)
    """
    where = "NeuralField.std"
    check_built(where, self)
    if members_of(self) is not None:
        return ensemble_std(self, p, where)
    hint = "use a field from cn.laplace() or cn.ensemble(), or mc_dropout"
    ensure(has_std(self), f"{where}: this field has no posterior and no ensemble members; {hint}.")
    with dr.suspend_grad():
        call, unit, _ = self._enter(p, None, True, where)
        result = result_type(self.output, call.leaf)
        deviation = [displacement_std(self, unit)] if is_displaced(self) else deviations(self, unit)
        return call.contained([result(v) for v in deviation])


NeuralField.std = std
