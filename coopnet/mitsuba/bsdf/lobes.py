r"""Analytic sampling of a BSDF: visible normals of Beckmann and GGX distributions, and cosine lobes, mixed.

A network can be evaluated but not sampled. Its samples come from

.. math:: p(\omega_o) = \Bigl(1 - \sum_k w_k\Bigr) \frac{\cos\theta_o}{\pi}
    + \sum_k w_k \frac{D_k(h) G_k(\omega_i)}{4 \cos\theta_i}

with distributions of normals :math:`D_k`, their masking functions :math:`G_k` (Walter et al. 2007; Heitz 2014) and
:math:`h = (\omega_i + \omega_o) / |\omega_i + \omega_o|`. Parameters are a list of arrays:

==================================  ===================================================================
``[w, alpha]``                      one isotropic GGX distribution
eight numbers (:data:`PARAMETERS`)  an anisotropic Beckmann distribution, an anisotropic GGX distribution and an
                                    isotropic GGX distribution (a clear coat): three weights, then their roughnesses
fifteen numbers and ``eta``         the same on the side of :math:`\omega_i`, and transmission: a Beckmann and a GGX
                                    distribution of interfaces, and a cosine on the other side
==================================  ===================================================================

An interface of two media reflects samples with the probability of Fresnel's equations and refracts the others (Walter
et al. 2007, equation 17). ``eta`` is the refractive index below the surface relative to that above. With 1, all samples
pass through, in mirrored directions of reflection. With 0, the surface only reflects, on its upper side.

Densities are with respect to solid angle; directions are unit vectors in the shading frame. Invalid samples have
density 0: those below the surface and, with fifteen numbers, reflections to the other side and refractions to the same
side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import drjit as dr

from ...checks import ensure
from .directions import fresnel, half_vector, leaves

#: Names of the parameters in order, by their number.
PARAMETERS = {
    2: ("specular", "alpha"),
    8: ("beckmann", "ggx", "coat", "beckmann_u", "beckmann_v", "ggx_u", "ggx_v", "coat_alpha"),
    15: (
        *("beckmann", "ggx", "coat", "interface_beckmann", "interface_ggx", "through"),
        *("beckmann_u", "beckmann_v", "ggx_u", "ggx_v", "coat_alpha"),
        *("interface_beckmann_u", "interface_beckmann_v", "interface_ggx_u", "interface_ggx_v"),
    ),
}
#: Number of weights, the first of the parameters.
WEIGHTS = {2: 1, 8: 3, 15: 6}

#: Smallest roughness: single precision is too coarse for narrower lobes.
LEAST_ALPHA = 0.02

#: Largest sum of fitted weights. The rest is the weight of the cosine lobe, which samples what the other lobes miss.
MOST_SPECULAR = {2: 0.95, 8: 0.999, 15: 0.999}


def check(params: Sequence[float], where: str) -> None:
    """Raise ``ValueError`` unless weights and roughnesses are in their ranges."""
    weights, alphas = _split(list(zip(PARAMETERS[len(params)], params, strict=True)))
    for name, weight in weights:
        ensure(0 <= weight <= 1, f"{where}: {name} is {weight:g}; a number in [0, 1] is needed.")
    total = sum(weight for _, weight in weights)
    ensure(total <= 1 + 1e-6, f"{where}: the weights of the lobes add up to {total:g}; at most 1 is needed.")
    for name, alpha in alphas:
        in_range = LEAST_ALPHA <= alpha + 1e-6 <= 1 + 2e-6
        ensure(in_range, f"{where}: {name} is {alpha:g}; it must be in [{LEAST_ALPHA}, 1].")


def _split(params: list) -> tuple[list, list]:
    """``params``, split into weights and roughnesses."""
    weights = WEIGHTS[len(params)]
    return params[:weights], params[weights:]


def from_raw(raw: Any) -> list:
    """Parameters from as many unbounded numbers: weights whose sum is less than :data:`MOST_SPECULAR`, and roughnesses
    in (:data:`LEAST_ALPHA`, 1).
    """
    weights, alphas = _split(list(raw))
    # softmax with a 0 for the cosine lobe; no exponential is larger than 1
    peak = dr.maximum(weights[0], 0)
    for w in weights[1:]:
        peak = dr.maximum(peak, w)
    powers = [dr.exp(w - peak) for w in weights]
    scale = MOST_SPECULAR[len(raw)] / (sum(powers) + dr.exp(-peak))
    return [*(p * scale for p in powers), *(LEAST_ALPHA + (1 - LEAST_ALPHA) / (1 + dr.exp(-a)) for a in alphas)]


def widened(params: list, count: int = 8) -> list:
    """The same lobes in ``count`` parameters: 8, or 16 (fifteen numbers and ``eta``)."""
    if len(params) == 2 < count:
        w, alpha = params
        params = [0 * w, w, 0 * w, alpha, alpha, alpha, alpha, alpha]
    if len(params) == 8 < count:
        none, rough = 0 * params[0], 0 * params[0] + 1
        params = [*params[:3], none, none, none, *params[3:], rough, rough, rough, rough, none]
    return params


def sample(params: Any, wi: Any, sample1: Any, sample2: Any) -> tuple[Any, Any]:
    """A direction and its density.

    Args:
        params: two, eight or sixteen arrays.
        wi: direction of incidence (``Vector3f``).
        sample1: uniform number (``Float``) that chooses the lobe.
        sample2: two uniform numbers (``Point2f``).

    Returns:
        ``(wo, pdf)``; the density of the mixture, 0 for invalid samples.
    """
    if len(params) == 2:
        w, au = params
        h, bound = _ggx_normal(au, au, wi, sample2), w
    elif len(params) == 16:
        return _sample_two_sides(params, wi, sample1, sample2)
    else:
        beckmann, ggx, coat, bu, bv, gu, gv, c = params
        main, bound = sample1 < ggx, ggx + coat
        h = _ggx_normal(dr.select(main, gu, c), dr.select(main, gv, c), wi, sample2)
        h = dr.select(sample1 < bound, h, _beckmann_normal(bu, bv, wi, sample2))
        bound = bound + beckmann
    reflected = dr.fma(2 * dr.dot(wi, h), h, -wi)
    wo = dr.select(sample1 < bound, reflected, _cosine(type(wi), sample2))
    return wo, pdf(params, wi, wo)


def pdf(params: Any, wi: Any, wo: Any) -> Any:
    """Density of ``wo`` under the mixture; 0 if a direction is below the surface. Arguments as in :func:`sample`."""
    if len(params) == 16:
        return _pdf_two_sides(params, wi, wo)
    above = (wi.z > 0) & (wo.z > 0)
    h = dr.normalize(wi + wo)
    h = dr.select(above, h, type(wi)(0, 0, 1))
    if len(params) == 2:
        w, alpha = params
        glossy, normals = w, w * _ggx(alpha, alpha, wi, h)
    else:
        beckmann, ggx, coat, bu, bv, gu, gv, c = params
        glossy = beckmann + ggx + coat
        normals = beckmann * _beckmann(bu, bv, wi, h) + ggx * _ggx(gu, gv, wi, h) + coat * _ggx(c, c, wi, h)
    cosine = wo.z * (1 / math.pi)
    return dr.select(above, (1 - glossy) * cosine + normals / (4 * dr.maximum(wi.z, 1e-8)), 0)


def _sample_two_sides(params: Any, wi: Any, sample1: Any, sample2: Any) -> tuple[Any, Any]:
    """:func:`sample` of fifteen numbers and ``eta``."""
    beckmann, ggx, coat, in_beckmann, in_ggx, diffuse_through, bu, bv, gu, gv, c, ibu, ibv, igu, igv, eta = params
    upper, index = _seen_from_above(wi, eta)
    # lobes from 0 to 1: ggx, coat, interfaces of ggx, of beckmann, beckmann, diffuse_through, cosine
    ends = [ggx]
    for weight in (coat, in_ggx, in_beckmann, beckmann, diffuse_through):
        ends.append(ends[-1] + weight)
    first, second, interface = sample1 < ends[0], sample1 < ends[1], (sample1 >= ends[1]) & (sample1 < ends[3])
    by_ggx, by_normals = sample1 < ends[2], sample1 < ends[4]
    au, av = (dr.select(first, g, dr.select(second, c, i)) for g, i in ((gu, igu), (gv, igv)))
    h = _ggx_normal(au, av, upper, sample2)
    au, av = (dr.select(interface, i, b) for b, i in ((bu, ibu), (bv, ibv)))
    h = dr.select(by_ggx, h, _beckmann_normal(au, av, upper, sample2))
    cosine = dr.dot(upper, h)
    mirrored = dr.fma(2 * cosine, h, -upper)
    reflectance, beyond = fresnel(cosine, index)
    at = dr.select(by_ggx, (sample1 - ends[1]) / in_ggx, (sample1 - ends[2]) / in_beckmann)
    passes = interface & (at >= reflectance)
    refracted = dr.fma(cosine / index - beyond, h, -upper / index)
    refracted = dr.select(index == 1, _turned(mirrored), refracted)
    lobe, straight = _cosine(type(wi), sample2), ~by_normals & (sample1 < ends[5])
    wo = dr.select(by_normals, dr.select(passes, refracted, mirrored), dr.select(straight, _turned(lobe), lobe))
    consistent = (wo.z < 0) == (passes | straight)
    wo = dr.select(wi.z < 0, _turned(wo), wo)
    return wo, dr.select(consistent, pdf(params, wi, wo), 0)


def _pdf_two_sides(params: Any, wi: Any, wo: Any) -> Any:
    """:func:`pdf` of fifteen numbers and ``eta``."""
    beckmann, ggx, coat, in_beckmann, in_ggx, diffuse_through, bu, bv, gu, gv, c, ibu, ibv, igu, igv, eta = params
    visible = dr.select(eta > 0, leaves(wi) & leaves(wo), (wi.z > 0) & (wo.z > 0))
    up = type(wi)(0, 0, 1)
    upper, index = _seen_from_above(dr.select(visible, wi, up), eta)
    wo = dr.select(visible, dr.select(wi.z < 0, _turned(wo), wo), up)
    h, above = half_vector(upper, wo, index), wo.z > 0
    rest = 1 - (beckmann + ggx + coat + in_beckmann + in_ggx + diffuse_through)
    mirrors = beckmann * _beckmann(bu, bv, upper, h) + ggx * _ggx(gu, gv, upper, h) + coat * _ggx(c, c, upper, h)
    interfaces = in_beckmann * _beckmann(ibu, ibv, upper, h) + in_ggx * _ggx(igu, igv, upper, h)
    cosine_i, cosine_o = dr.dot(upper, h), dr.dot(wo, h)
    reflectance, _ = fresnel(dr.maximum(cosine_i, 0), index)
    reflected = (mirrors + reflectance * interfaces) / 4
    # ratio of the solid angles of normals and refracted directions (Walter et al. 2007, equation 17), times a cosine
    bent = cosine_i * dr.square(index) * -cosine_o / dr.squared_norm(upper + index * wo)
    bent = dr.select((cosine_i > 0) & (cosine_o < 0), bent, 0)
    refracted = (1 - reflectance) * interfaces * dr.select(index == 1, 0.25, bent)
    cosine = dr.select(above, rest, diffuse_through) * dr.abs(wo.z) * (1 / math.pi)
    return dr.select(visible, cosine + dr.select(above, reflected, refracted) / dr.maximum(upper.z, 1e-8), 0)


def _seen_from_above(wi: Any, eta: Any) -> tuple[Any, Any]:
    """``wi`` mirrored to the upper side, and the refractive index of the other side relative to that of ``wi``."""
    below = wi.z < 0
    index = dr.select(eta > 0, dr.select(below, 1 / eta, eta), 1)
    return dr.select(below, _turned(wi), wi), index


def _turned(w: Any) -> Any:
    """``w`` mirrored in the surface."""
    return type(w)(w.x, w.y, -w.z)


def _cosine(vector: type, u: Any) -> Any:
    """Malley's method: a uniform point of the disk, lifted."""
    s, c = dr.sincos(2 * math.pi * u.x)
    r = dr.sqrt(u.y)
    return vector(r * c, r * s, dr.safe_sqrt(1 - u.y))


def _ggx_normal(au: Any, av: Any, wi: Any, u: Any) -> Any:
    """A visible normal of GGX, drawn as a spherical cap (Dupuy and Benyoub 2023, listing 3)."""
    vector = type(wi)
    stretched = dr.normalize(vector(au * wi.x, av * wi.y, wi.z))
    z = dr.fma(1 - u.y, 1 + stretched.z, -stretched.z)
    r = dr.safe_sqrt(1 - dr.square(z))
    s, c = dr.sincos(2 * math.pi * u.x)
    cap = vector(r * c, r * s, z) + stretched
    return dr.normalize(vector(au * cap.x, av * cap.y, dr.maximum(cap.z, 1e-8)))


def _beckmann_normal(au: Any, av: Any, wi: Any, u: Any) -> Any:
    r"""A visible normal of Beckmann's distribution, whose slopes are Gaussian (Heitz and d'Eon 2014; Jakob 2014).

    Where roughness is stretched to 1 and ``wi`` is in the plane of the first slope, the other one is Gaussian, and the
    first one :math:`x` has a density in proportion to :math:`(1 - x \tan\theta_i) e^{-x^2}` up to
    :math:`x = \cot\theta_i`. Its integral, as a function of :math:`b = \mathrm{erf}(x)`, is increasing and concave, and
    is inverted by Newton's method.
    """
    vector = type(wi)
    stretched = dr.normalize(vector(au * wi.x, av * wi.y, wi.z))
    sine = dr.sqrt(dr.square(stretched.x) + dr.square(stretched.y))
    tangent = dr.maximum(sine, 1e-6) / dr.maximum(stretched.z, 1e-6)
    smallest = 1e-6
    u1, u2 = (dr.clip(v, smallest, 1 - smallest) for v in u)
    last = dr.erf(1 / tangent)

    def integral(b: Any, x: Any) -> Any:
        return 1 + b + tangent * dr.exp(-dr.square(x)) * (1 / math.sqrt(math.pi))

    target = u1 * integral(last, 1 / tangent)
    b = last - (1 + last) * dr.erf(
        dr.sqrt(-dr.log(u1))
    )  # the solution along the surface, where the density is x e^-x^2
    for _ in range(3):
        x = dr.erfinv(b)
        b -= (integral(b, x) - target) / (1 - x * tangent)
        b = dr.clip(b, smallest - 1, last - smallest)
    x, y = dr.erfinv(b), dr.erfinv(2 * u2 - 1)
    flat = sine < 1e-6
    c, s = (dr.select(flat, v, w / dr.maximum(sine, 1e-6)) for v, w in ((1, stretched.x), (0, stretched.y)))
    return dr.normalize(vector(-au * (c * x - s * y), -av * (s * x + c * y), 1))


def _ggx(au: Any, av: Any, w: Any, h: Any) -> Any:
    """Distribution of normals ``h``, times Smith's masking of direction ``w``."""
    area = au * av
    # from h_x and h_y, because in a narrow lobe 1 - h_z^2 would lose its digits by cancellation
    k = area * dr.square(h.z) + dr.square(h.x) * (av / au) + dr.square(h.y) * (au / av)
    tangent = _stretched_tangent(au, av, w)
    return area / (math.pi * dr.square(k)) * (2 / (1 + dr.sqrt(1 + tangent)))


def _beckmann(au: Any, av: Any, w: Any, h: Any) -> Any:
    """As :func:`_ggx`, for Beckmann's distribution."""
    z2 = dr.maximum(dr.square(h.z), 1e-6)  # 0 below it; a smaller bound is too small for derivatives
    slopes = (dr.square(h.x / au) + dr.square(h.y / av)) / z2
    normals = dr.exp(-slopes) / (math.pi * au * av * dr.square(z2))
    a = dr.rsqrt(dr.maximum(_stretched_tangent(au, av, w), 1e-12))
    return normals * (2 / (1 + dr.erf(a) + dr.exp(-dr.square(a)) / (a * math.sqrt(math.pi))))


def _stretched_tangent(au: Any, av: Any, w: Any) -> Any:
    """Squared tangent of direction ``w`` where roughness is stretched to 1."""
    return (dr.square(au * w.x) + dr.square(av * w.y)) / dr.maximum(dr.square(w.z), 1e-12)
