r"""Analytic sampling of a reflection: a cosine lobe and one of visible GGX normals, mixed.

A network can be evaluated but not sampled. Its samples come from

.. math:: p(\omega_o) = (1 - w) \frac{\cos\theta_o}{\pi} + w \frac{D(h) G_1(\omega_i)}{4 \cos\theta_i}

with the isotropic GGX distribution :math:`D` of roughness :math:`\alpha`, its masking function :math:`G_1` (Walter et
al. 2007) and :math:`h = (\omega_i + \omega_o) / |\omega_i + \omega_o|`. Two numbers are the parameters everywhere: a
list ``[w, alpha]`` of arrays. Densities are with respect to solid angle; directions are unit vectors in the shading
frame. Samples of the second lobe that fall below the surface have density 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import drjit as dr

from ...checks import ensure

#: Names of the parameters, in their order.
PARAMETERS = ("specular", "alpha")

#: Least roughness: single precision holds narrower lobes only roughly.
LEAST_ALPHA = 0.02

#: Largest weight of the glossy lobe that is fitted: what that lobe misses must be sampled, too.
MOST_SPECULAR = 0.95


def check(params: Sequence[float], where: str) -> None:
    """Raise ``ValueError`` unless both parameters are in their ranges."""
    specular, alpha = params
    ensure(0 <= specular <= 1, f"{where}: specular is {specular:g}; a number in [0, 1] is needed.")
    ensure(LEAST_ALPHA <= alpha + 1e-6 <= 1 + 2e-6, f"{where}: alpha is {alpha:g}; it must be in [{LEAST_ALPHA}, 1].")


def from_raw(raw: Any) -> list:
    """Parameters from two unbounded numbers: a weight in (0, :data:`MOST_SPECULAR`) and a roughness in
    (:data:`LEAST_ALPHA`, 1).
    """
    w, alpha = (1 / (1 + dr.exp(-v)) for v in raw)
    return [MOST_SPECULAR * w, LEAST_ALPHA + (1 - LEAST_ALPHA) * alpha]


def sample(params: Any, wi: Any, sample1: Any, sample2: Any) -> tuple[Any, Any]:
    """A direction and its density.

    Args:
        params: ``[w, alpha]``.
        wi: direction of incidence (``Vector3f``).
        sample1: uniform number (``Float``) that chooses the lobe.
        sample2: two uniform numbers (``Point2f``).

    Returns:
        ``(wo, pdf)``; the density of the mixture, 0 for invalid samples.
    """
    w, alpha = params
    glossy = sample1 < w
    wo = dr.select(glossy, _reflected(alpha, wi, sample2), _cosine(type(wi), sample2))
    return wo, pdf(params, wi, wo)


def pdf(params: Any, wi: Any, wo: Any) -> Any:
    """Density of ``wo`` under the mixture; 0 unless both directions are above the surface. Arguments as above."""
    w, alpha = params
    above = (wi.z > 0) & (wo.z > 0)
    h = dr.normalize(wi + wo)
    h = dr.select(above, h, type(wi)(0, 0, 1))
    cosine = wo.z * (1 / math.pi)
    normals = _ggx(alpha, h) * _visible(alpha, wi) / (4 * dr.maximum(wi.z, 1e-8))
    return dr.select(above, (1 - w) * cosine + w * normals, 0)


def _cosine(vector: type, u: Any) -> Any:
    """Malley's method: a uniform point of the disk, lifted."""
    s, c = dr.sincos(2 * math.pi * u.x)
    r = dr.sqrt(u.y)
    return vector(r * c, r * s, dr.safe_sqrt(1 - u.y))


def _reflected(alpha: Any, wi: Any, u: Any) -> Any:
    """``wi`` reflected by a visible GGX normal, drawn as a spherical cap (Dupuy and Benyoub 2023, listing 3)."""
    vector = type(wi)
    stretched = dr.normalize(vector(alpha * wi.x, alpha * wi.y, wi.z))
    z = dr.fma(1 - u.y, 1 + stretched.z, -stretched.z)
    r = dr.safe_sqrt(1 - dr.square(z))
    s, c = dr.sincos(2 * math.pi * u.x)
    cap = vector(r * c, r * s, z) + stretched
    h = dr.normalize(vector(alpha * cap.x, alpha * cap.y, dr.maximum(cap.z, 1e-8)))
    return dr.fma(2 * dr.dot(wi, h), h, -wi)


def _ggx(alpha: Any, h: Any) -> Any:
    """Density of normals times the cosine's share, :math:`D(h)`."""
    a2 = dr.square(alpha)
    # 1 - h_z^2 loses the digits that a narrow lobe consists of
    k = a2 * dr.square(h.z) + dr.square(h.x) + dr.square(h.y)
    return a2 / (math.pi * dr.square(k))


def _visible(alpha: Any, w: Any) -> Any:
    """Smith's masking of direction ``w``, :math:`G_1`."""
    tangent = (dr.square(w.x) + dr.square(w.y)) / dr.maximum(dr.square(w.z), 1e-12)
    return 2 / (1 + dr.sqrt(1 + dr.square(alpha) * tangent))
