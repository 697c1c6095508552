"""Half and difference vectors, and the density of sampling lobes, in double precision.

Sources: Rusinkiewicz 1998, "A new change of variables for efficient BRDF representation"; Matusik et al. 2003, "A
data-driven reflectance model"; Walter et al. 2007, "Microfacet models for refraction through rough surfaces" (equations
16, 17, 33 and 34); Heitz 2018, "Sampling the GGX distribution of visible normals" (equation 3).
"""

from __future__ import annotations

import math

import numpy as np

__all__ = [
    "fresnel",
    "interface_features",
    "interface_normals",
    "interface_pdf",
    "lobe_pdf",
    "merl_bins",
    "mixture_pdf",
    "rusinkiewicz_angles",
    "rusinkiewicz_features",
    "visible_normals",
]


def rusinkiewicz_angles(wi: np.ndarray, wo: np.ndarray, h: np.ndarray | None = None) -> np.ndarray:
    r""":math:`(\theta_h, \varphi_h, \theta_d, \varphi_d)` of unit vectors ``(3, samples)``: the difference vector is
    ``wi`` turned about the normal by :math:`-\varphi_h` and then about the binormal by :math:`-\theta_h`. If there is
    ``h``, it stands for the half vector of ``wi`` and ``wo``.

    >>> w = np.array([[0.6], [0.0], [0.8]])
    >>> ref.rusinkiewicz_angles(w, w).round(3).ravel().tolist()
    [0.644, 0.0, 0.0, 0.0]
    """
    h = interface_normals(wi, wo, 1.0) if h is None else h
    theta, phi = np.arccos(np.clip(h[2], -1, 1)), np.arctan2(h[1], h[0])
    x = np.cos(phi) * wi[0] + np.sin(phi) * wi[1]
    y = -np.sin(phi) * wi[0] + np.cos(phi) * wi[1]
    d = np.stack([np.cos(theta) * x - np.sin(theta) * wi[2], y, np.sin(theta) * x + np.cos(theta) * wi[2]])
    return np.stack([theta, phi, np.arccos(np.clip(d[2], -1, 1)), np.arctan2(d[1], d[0])])


def merl_bins(wi: np.ndarray, wo: np.ndarray) -> np.ndarray:
    r"""Bins of unit vectors above the surface in a file of the MERL database, as ints ``(3, samples)``.

    The whole parts of :math:`90 \sqrt{2 \theta_h / \pi}`, :math:`90 \cdot 2 \theta_d / \pi` and
    :math:`180\,(\varphi_d \bmod \pi) / \pi` (Matusik et al. 2003).

    >>> w = np.array([[0.6], [0.0], [0.8]])
    >>> ref.merl_bins(w, w).ravel().tolist()
    [57, 0, 0]
    """
    theta_h, _, theta_d, phi_d = rusinkiewicz_angles(wi, wo)
    parts = np.sqrt(theta_h * 2 / np.pi), theta_d * 2 / np.pi, np.mod(phi_d, np.pi) / np.pi
    counts = np.array([[90], [90], [180]])
    return np.minimum((np.stack(parts) * counts).astype(int), counts - 1)


def rusinkiewicz_features(
    wi: np.ndarray, wo: np.ndarray, sharp: float = 1000.0, h: np.ndarray | None = None
) -> np.ndarray:
    r"""Eight features of the angles, with the azimuth of the difference vector counted from the tangent instead of from
    the half vector, :math:`\varphi = \varphi_d + \varphi_h`:

    .. math:: \log(1 + s \sin^2\theta_h) / \log(1 + s),\; \sin\theta_h \cos\varphi_h,\; \sin\theta_h \sin\varphi_h,\;
        \cos\theta_h,\; \cos\theta_d,\; \cos\theta_i \cos\theta_o,\; \sin^2\theta_d \cos 2\varphi,\;
        \sin^2\theta_d \sin 2\varphi

    ``h`` as of :func:`rusinkiewicz_angles`.

    >>> w = np.array([[0.6], [0.0], [0.8]])
    >>> ref.rusinkiewicz_features(w, w).shape
    (8, 1)
    """
    th, ph, td, pd = rusinkiewicz_angles(wi, wo, h)
    narrow = np.log1p(sharp * np.sin(th) ** 2) / np.log1p(sharp)
    half = np.sin(th) * np.cos(ph), np.sin(th) * np.sin(ph), np.cos(th)
    twice = 2 * (pd + ph)
    across = np.sin(td) ** 2 * np.cos(twice), np.sin(td) ** 2 * np.sin(twice)
    return np.stack([narrow, *half, np.cos(td), wi[2] * wo[2], *across])


def interface_normals(wi: np.ndarray, wo: np.ndarray, index: float | np.ndarray) -> np.ndarray:
    r"""Unit normals, on the side of ``wi``, of mirrors or interfaces that send ``wi``, above the surface, to ``wo``:
    :math:`\omega_i + \omega_o`, or :math:`\pm(\omega_i + \eta \omega_o)` with the ``index`` :math:`\eta` of the other
    side (Walter's equation 16). Where :math:`\eta = 1`, ``wo`` is first mirrored in the surface.

    >>> w = np.array([[0.0], [0.0], [1.0]])
    >>> (ref.interface_normals(w, -w, 1.5).ravel() + 0.0).tolist()
    [0.0, 0.0, 1.0]
    """
    transmitted = np.where(np.equal(index, 1), wo * [[1], [1], [-1]], index * wo)
    h = wi + np.where(wo[2] > 0, wo, transmitted)
    return h / np.linalg.norm(h, axis=0) * np.where(h[2] < 0, -1, 1)


def fresnel(cosine: np.ndarray, index: float | np.ndarray) -> np.ndarray:
    """Share of unpolarized light that an interface reflects, from the cosine of incidence and the index of the other
    side relative to that of the light: the mean of the squared amplitudes of both polarizations.

    >>> ref.fresnel(np.array([1.0, 0.0, 0.5]), 1.5).round(3).tolist()
    [0.04, 1.0, 0.089]
    """
    refracted = np.sqrt(np.maximum(index**2 - 1 + cosine**2, 0))  # the refracted cosine times the index
    with np.errstate(invalid="ignore"):
        across = (cosine - refracted) / (cosine + refracted)
        along = (index**2 * cosine - refracted) / (index**2 * cosine + refracted)
    return np.where(index**2 - 1 + cosine**2 > 0, (across**2 + along**2) / 2, 1.0)


def interface_features(wi: np.ndarray, wo: np.ndarray, eta: float, least: float = 1e-3) -> np.ndarray:
    r"""Twelve features of directions on both sides of a surface with the relative index ``eta`` below it:
    :func:`rusinkiewicz_features` for :func:`interface_normals`, :math:`\cos\theta_i + \cos\theta_o`, whether one of
    them is on either side, whether both are below, and the logarithm of Fresnel's share. Directions are exchanged to
    begin above, and mirrored where both are below.

    >>> w = np.array([[0.6], [0.0], [0.8]])
    >>> ref.interface_features(w, -w, 1.5).shape
    (12, 1)
    """
    transmitted, below = wi[2] * wo[2] < 0, (wi[2] < 0) & (wo[2] < 0)
    total = wi[2] + wo[2]
    wi, wo = np.where(wi[2] > 0, wi, wo), np.where(wi[2] > 0, wo, wi)
    flip = np.where(below, [[1], [1], [-1]], 1)
    wi, wo = wi * flip, wo * flip
    h = interface_normals(wi, wo, eta)
    refracted = transmitted & (np.sum(wi * h, axis=0) > 0) & (np.sum(wo * h, axis=0) <= 0)
    reflectance = fresnel(np.sum(wi * h, axis=0), np.where(below, 1 / eta, eta))
    share = np.where(transmitted, np.where(refracted | (eta == 1), 1 - reflectance, 0), reflectance)
    more = [total, transmitted.astype(float), below.astype(float), np.log(share + least) / -np.log(least)]
    return np.concatenate([rusinkiewicz_features(wi, wo, h=h), more])


def lobe_pdf(specular: float, alpha: float, wi: np.ndarray, wo: np.ndarray) -> np.ndarray:
    """Density of ``wo`` in solid angle: a cosine lobe, and with weight ``specular`` reflection by visible GGX normals
    of roughness ``alpha``; 0 below the surface.

    >>> w = np.array([[0.0], [0.0], [1.0]])
    >>> ref.lobe_pdf(0.0, 0.5, w, w).round(4).tolist()
    [0.3183]
    """
    return mixture_pdf([0.0, specular, 0.0, *[alpha] * 5], wi, wo)


def mixture_pdf(params: list[float], wi: np.ndarray, wo: np.ndarray) -> np.ndarray:
    """Density of ``wo`` in solid angle under a mixture. ``params`` are the weights of a Beckmann, a GGX and another,
    isotropic GGX distribution of visible normals (a cosine lobe has the rest); then the roughnesses ``u, v`` of the
    first two and that of the third.

    >>> w = np.array([[0.0], [0.0], [1.0]])
    >>> ref.mixture_pdf([0.5, 0.5, 0.0, 0.2, 0.4, 0.2, 0.4, 1.0], w, w).round(4).tolist()
    [0.9947]
    """
    beckmann, ggx, coat, bu, bv, gu, gv, c = params
    h = wi + wo
    h = h / np.linalg.norm(h, axis=0)
    dot = np.sum(wi * h, axis=0)
    visible = beckmann * visible_normals("beckmann", bu, bv, wi, h)
    visible = visible + ggx * visible_normals("ggx", gu, gv, wi, h) + coat * visible_normals("ggx", c, c, wi, h)
    pdf = (1 - beckmann - ggx - coat) * wo[2] / np.pi + visible / (4 * dot)
    return np.where((wi[2] > 0) & (wo[2] > 0), pdf, 0.0)


def interface_pdf(params: list[float], eta: float, wi: np.ndarray, wo: np.ndarray) -> np.ndarray:
    """Density of ``wo`` in solid angle on both sides of a surface with the relative index ``eta`` below it. ``params``
    are the weights of the three distributions of :func:`mixture_pdf`, of a Beckmann and a GGX distribution of
    interfaces, which reflect Fresnel's share and refract the rest (Walter's equation 17), and of a cosine lobe on the
    other side (one on the side of ``wi`` has the rest); then the roughnesses of :func:`mixture_pdf` and ``u, v`` of
    both interfaces.

    >>> w = np.array([[0.0], [0.0], [1.0]])
    >>> ref.interface_pdf([0.0] * 5 + [0.25] + [0.3] * 9, 1.5, w, np.hstack([w, -w])).round(4).tolist()
    [0.2387, 0.0796]
    """
    weights, alphas = params[:6], params[6:]
    below = wi[2] < 0
    flip = np.where(below, [[1], [1], [-1]], 1)
    wi, wo, index = wi * flip, wo * flip, np.where(below, 1 / eta, eta)
    h = interface_normals(wi, wo, index)
    before, after = np.sum(wi * h, axis=0), np.sum(wo * h, axis=0)
    pairs = alphas[:2], alphas[2:4], [alphas[4]] * 2, alphas[5:7], alphas[7:9]
    kinds = "beckmann", "ggx", "ggx", "beckmann", "ggx"
    terms = zip(weights[:5], kinds, pairs, strict=True)
    normals = np.stack([w * visible_normals(kind, u, v, wi, h) for w, kind, (u, v) in terms])
    mirrors, interfaces = np.sum(normals[:3], axis=0), np.sum(normals[3:], axis=0)
    share = fresnel(np.maximum(before, 0), index)
    bent = index**2 * np.abs(after) / np.sum((wi + index * wo) ** 2, axis=0) * ((before > 0) & (after < 0))
    refracted = (1 - share) * interfaces * np.where(index == 1, 1 / (4 * before), bent)
    reflected = (mirrors + share * interfaces) / (4 * before)
    cosine = np.where(wo[2] > 0, 1 - np.sum(weights), weights[5]) * np.abs(wo[2]) / np.pi
    return np.asarray(cosine + np.where(wo[2] > 0, reflected, refracted))


def visible_normals(kind: str, alpha_u: float, alpha_v: float, w: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Density of the normals ``h`` that are seen from ``w``, of a ``"beckmann"`` or ``"ggx"`` distribution (Heitz 2014,
    "Understanding the Masking-Shadowing Function in Microfacet-Based BRDFs", equation 16).

    >>> w = np.array([[0.0], [0.0], [1.0]])
    >>> ref.visible_normals("ggx", 0.5, 0.5, w, w).round(4).tolist()
    [1.2732]
    """
    slopes = ((h[0] / alpha_u) ** 2 + (h[1] / alpha_v) ** 2) / h[2] ** 2
    tangent = np.sqrt((alpha_u * w[0]) ** 2 + (alpha_v * w[1]) ** 2) / w[2]
    if kind == "ggx":
        d, masking = 1 / (1 + slopes) ** 2, 2 / (1 + np.sqrt(1 + tangent**2))
    else:
        a = 1 / np.maximum(tangent, 1e-12)
        d, masking = np.exp(-slopes), 2 / (1 + _erf(a) + np.exp(-(a**2)) / (a * np.sqrt(np.pi)))
    return d / (np.pi * alpha_u * alpha_v * h[2] ** 4) * masking * np.sum(w * h, axis=0) / w[2]


_erf = np.vectorize(math.erf, otypes=[float])
