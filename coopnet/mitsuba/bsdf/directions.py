"""Features of two directions, the inputs of a BSDF decoder."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr

#: Number of features by name, without and with transmission.
FEATURES = {"rusinkiewicz": (8, 12), "plain": (6, 6)}

#: Stretches the narrow range of half vectors in a highlight: sines down to about ``1 / sqrt(SHARP)`` are resolved.
SHARP = 1000.0

#: Lower limit of the Fresnel factor before its logarithm is taken.
LEAST_SHARE = 1e-3


def count(name: str, eta: float | None) -> int:
    """The number of the features called ``name``, for ``eta`` as in :func:`features`."""
    return FEATURES[name][eta is not None]


def leaves(w: Any) -> Any:
    """Is ``w`` above or below the surface, and neither tangent to it nor NaN?

    The square is compared, because LLVM simplifies ``select(abs(z) > 0, z, 1) > 0`` to ``True``.
    """
    return dr.square(w.z) > 0


def half_vector(wi: Any, wo: Any, index: Any) -> Any:
    r"""The normal, on the side of ``wi``, of a microfacet that reflects or refracts ``wi`` to ``wo``.

    :math:`\omega_i + \omega_o` of two directions on one side, and :math:`\pm(\omega_i + \eta \omega_o)` through an
    interface (Walter et al. 2007, equation 16). If both sides have the same index, transmission is a reflection that is
    mirrored in the surface, as for thin sheets.

    Args:
        wi: a unit vector above the surface.
        wo: a unit vector on either side.
        index: :math:`\eta`, the refractive index of the other side relative to that of ``wi``.
    """
    turned = type(wo)(wo.x, wo.y, -wo.z)
    h = dr.normalize(wi + dr.select(wo.z > 0, wo, dr.select(index == 1, turned, index * wo)))
    return dr.mulsign(h, h.z)


def fresnel(cosine: Any, index: Any) -> tuple[Any, Any]:
    """Reflectance of unpolarized light, and the cosine of the refracted direction (0 if all is reflected).

    Args:
        cosine: of the angle of incidence, not negative.
        index: the refractive index of the other side relative to that of the light.
    """
    beyond = dr.safe_sqrt(1 - (1 - dr.square(cosine)) / dr.square(index))
    s = (cosine - index * beyond) / dr.maximum(cosine + index * beyond, 1e-8)
    p = (index * cosine - beyond) / dr.maximum(index * cosine + beyond, 1e-8)
    return 0.5 * (dr.square(s) + dr.square(p)), beyond


def relative_index(eta: Any, wi: Any, wo: Any) -> Any:
    """The refractive index on the side of ``wo`` relative to that on the side of ``wi``.

    ``eta`` is the index below the surface relative to that above, or 0 for a surface that only reflects. The result is
    1 for such a surface, and for directions on the same side.
    """
    transmitted = (wi.z * wo.z < 0) & (eta > 0)
    return dr.select(transmitted, dr.select(wi.z > 0, eta, 1 / eta), 1)


def rusinkiewicz(wi: Any, wo: Any, eta: float | None = None) -> list:
    r"""Eight features of the half vector and the difference vector (Rusinkiewicz 1998).

    Exchanging the two directions does not change them, so a decoder of them is reciprocal.

    With :math:`h = (\omega_i + \omega_o) / |\omega_i + \omega_o|` and :math:`d = R_h^{-1} \omega_i`, where
    :math:`R_h` is the shortest rotation that takes the normal to :math:`h`:

    .. math:: \frac{\log(1 + s \sin^2\theta_h)}{\log(1 + s)},\; h_x,\; h_y,\; h_z,\; d_z = \cos\theta_d,\;
        \cos\theta_i \cos\theta_o,\; d_x^2 - d_y^2,\; 2 d_x d_y

    with :math:`s = 1000`. Exchanging directions negates :math:`d_x` and :math:`d_y`, which only occur in products.
    Rusinkiewicz also rotates :math:`d` by :math:`-\varphi_h`. That is discontinuous where :math:`h` is the normal, in
    the middle of every highlight, and is left out here.

    With transmission there are four more: :math:`\cos\theta_i + \cos\theta_o`; whether light passes through the surface
    (1 or 0); whether it stays below it; and the logarithm of the share :math:`F` that a smooth interface with the
    normal :math:`h` reflects or refracts, :math:`\log(F + \epsilon) / \log(1 / \epsilon)` with :math:`\epsilon =
    10^{-3}`. This share has an edge at the critical angle, and is 0 where nothing can be refracted from one direction
    to the other. There :math:`h` is :func:`half_vector`, :math:`\omega_i` stands for the direction above the surface,
    and two directions below it are mirrored.

    Args:
        wi, wo: unit vectors (``Vector3f``) in the shading frame, both above the surface unless there is ``eta``.
        eta: refractive index below the surface relative to that above; ``None`` without transmission.

    Returns:
        A list of 8 or 12 arrays.
    """
    Float = dr.value_t(type(wi))
    more = []
    if eta is None:
        h = dr.normalize(wi + wo)
    else:
        transmitted, below = wi.z * wo.z < 0, (wi.z < 0) & (wo.z < 0)
        more = [wi.z + wo.z, dr.select(transmitted, Float(1), 0), dr.select(below, Float(1), 0)]
        vector, front = type(wi), wi.z > 0
        wi, wo = dr.select(front, wi, wo), dr.select(front, wo, wi)
        wi, wo = vector(wi.x, wi.y, dr.abs(wi.z)), vector(wo.x, wo.y, dr.select(below, -wo.z, wo.z))
        h = half_vector(wi, wo, eta)
        cosine_i, cosine_o = dr.dot(wi, h), dr.dot(wo, h)
        reflectance, _ = fresnel(dr.maximum(cosine_i, 0), dr.select(below, Float(1 / eta), eta))
        refracted = dr.select((cosine_i > 0) & (cosine_o < 0) | (eta == 1), 1 - reflectance, 0)
        share = dr.select(transmitted, refracted, reflectance)
        more.append(dr.log(dr.maximum(share, 0) + LEAST_SHARE) * (-1 / math.log(LEAST_SHARE)))
    # shortest rotation of h to the normal: about (h_y, -h_x, 0), by theta_h (Rodrigues)
    along = (h.x * wi.x + h.y * wi.y) / (1 + h.z)
    dx = wi.x - h.x * (wi.z + along)
    dy = wi.y - h.y * (wi.z + along)
    sharp = dr.log(1 + SHARP * (dr.square(h.x) + dr.square(h.y))) * (1 / math.log(1 + SHARP))
    features = [sharp, h.x, h.y, h.z, dr.dot(wi, h), wi.z * wo.z, dr.square(dx) - dr.square(dy), 2 * dx * dy]
    return [Float(f) for f in [*features, *more]]


def plain(wi: Any, wo: Any, eta: float | None = None) -> list:
    """The six components of both directions. A decoder of them is not reciprocal."""
    return [*wi, *wo]


def features(name: str, wi: Any, wo: Any, eta: float | None = None) -> list:
    """The features called ``name``, one of :data:`FEATURES`; for ``eta`` see :func:`rusinkiewicz`."""
    return {"rusinkiewicz": rusinkiewicz, "plain": plain}[name](wi, wo, eta)
