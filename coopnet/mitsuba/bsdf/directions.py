"""Features of two directions, the inputs of a BSDF decoder."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr

#: Number of features by name.
FEATURES = {"rusinkiewicz": 8, "plain": 6}

#: Widens the narrow range of half vectors in which a highlight lies: sines from about ``1 / sqrt(SHARP)`` on differ.
SHARP = 1000.0


def rusinkiewicz(wi: Any, wo: Any) -> list:
    r"""Eight features of the half vector and the difference vector (Rusinkiewicz 1998) that do not change when the
    directions change places: a decoder of them is reciprocal.

    With :math:`h = (\omega_i + \omega_o) / |\omega_i + \omega_o|` and :math:`d = R_h^{-1} \omega_i`, where
    :math:`R_h` is the shortest rotation that takes the normal to :math:`h`:

    .. math:: \frac{\log(1 + s \sin^2\theta_h)}{\log(1 + s)},\; h_x,\; h_y,\; h_z,\; d_z = \cos\theta_d,\;
        \cos\theta_i \cos\theta_o,\; d_x^2 - d_y^2,\; 2 d_x d_y

    with :math:`s = 1000`. Exchanging directions negates :math:`d_x` and :math:`d_y`, which enter by products only.
    Rusinkiewicz turns :math:`d` by :math:`-\varphi_h` besides, which jumps where :math:`h` is the normal: in the
    middle of every highlight.

    Args:
        wi, wo: unit vectors (``Vector3f``) in the shading frame, both above the surface.

    Returns:
        A list of 8 arrays.
    """
    Float = dr.value_t(type(wi))
    h = dr.normalize(wi + wo)
    # shortest rotation of h to the normal: about (h_y, -h_x, 0), by theta_h (Rodrigues)
    along = (h.x * wi.x + h.y * wi.y) / (1 + h.z)
    dx = wi.x - h.x * (wi.z + along)
    dy = wi.y - h.y * (wi.z + along)
    sharp = dr.log(1 + SHARP * (dr.square(h.x) + dr.square(h.y))) * (1 / math.log(1 + SHARP))
    features = [sharp, h.x, h.y, h.z, dr.dot(wi, h), wi.z * wo.z, dr.square(dx) - dr.square(dy), 2 * dx * dy]
    return [Float(f) for f in features]


def plain(wi: Any, wo: Any) -> list:
    """The six components of both directions. A decoder of them is not reciprocal."""
    return [*wi, *wo]


def features(name: str, wi: Any, wo: Any) -> list:
    """The features called ``name``, one of :data:`FEATURES`."""
    return {"rusinkiewicz": rusinkiewicz, "plain": plain}[name](wi, wo)
