"""Half and difference vectors, and the density of sampling lobes, in double precision.

Sources: Rusinkiewicz 1998, "A new change of variables for efficient BRDF representation"; Walter et al. 2007,
"Microfacet models for refraction through rough surfaces" (equations 33 and 34); Heitz 2018, "Sampling the GGX
distribution of visible normals" (equation 3).
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["lobe_pdf", "mixture_pdf", "rusinkiewicz_angles", "rusinkiewicz_features", "visible_normals"]


def rusinkiewicz_angles(wi: np.ndarray, wo: np.ndarray) -> np.ndarray:
    r""":math:`(\theta_h, \varphi_h, \theta_d, \varphi_d)` of unit vectors ``(3, samples)``: the difference vector is
    ``wi`` turned about the normal by :math:`-\varphi_h` and then about the binormal by :math:`-\theta_h`.

    >>> w = np.array([[0.6], [0.0], [0.8]])
    >>> ref.rusinkiewicz_angles(w, w).round(3).ravel().tolist()
    [0.644, 0.0, 0.0, 0.0]
    """
    h = wi + wo
    h = h / np.linalg.norm(h, axis=0)
    theta, phi = np.arccos(np.clip(h[2], -1, 1)), np.arctan2(h[1], h[0])
    x = np.cos(phi) * wi[0] + np.sin(phi) * wi[1]
    y = -np.sin(phi) * wi[0] + np.cos(phi) * wi[1]
    d = np.stack([np.cos(theta) * x - np.sin(theta) * wi[2], y, np.sin(theta) * x + np.cos(theta) * wi[2]])
    return np.stack([theta, phi, np.arccos(np.clip(d[2], -1, 1)), np.arctan2(d[1], d[0])])


def rusinkiewicz_features(wi: np.ndarray, wo: np.ndarray, sharp: float = 1000.0) -> np.ndarray:
    r"""Eight features of the angles, with the azimuth of the difference vector counted from the tangent instead of from
    the half vector, :math:`\varphi = \varphi_d + \varphi_h`:

    .. math:: \log(1 + s \sin^2\theta_h) / \log(1 + s),\; \sin\theta_h \cos\varphi_h,\; \sin\theta_h \sin\varphi_h,\;
        \cos\theta_h,\; \cos\theta_d,\; \cos\theta_i \cos\theta_o,\; \sin^2\theta_d \cos 2\varphi,\;
        \sin^2\theta_d \sin 2\varphi

    >>> w = np.array([[0.6], [0.0], [0.8]])
    >>> ref.rusinkiewicz_features(w, w).shape
    (8, 1)
    """
    th, ph, td, pd = rusinkiewicz_angles(wi, wo)
    narrow = np.log1p(sharp * np.sin(th) ** 2) / np.log1p(sharp)
    half = np.sin(th) * np.cos(ph), np.sin(th) * np.sin(ph), np.cos(th)
    twice = 2 * (pd + ph)
    across = np.sin(td) ** 2 * np.cos(twice), np.sin(td) ** 2 * np.sin(twice)
    return np.stack([narrow, *half, np.cos(td), wi[2] * wo[2], *across])


def lobe_pdf(specular: float, alpha: float, wi: np.ndarray, wo: np.ndarray) -> np.ndarray:
    """Density of ``wo`` in solid angle: a cosine lobe, and with weight ``specular`` reflection by visible GGX normals
    of roughness ``alpha``; 0 below the surface.

    >>> w = np.array([[0.0], [0.0], [1.0]])
    >>> ref.lobe_pdf(0.0, 0.5, w, w).round(4).tolist()
    [0.3183]
    """
    return mixture_pdf([0.0, specular, 0.0, *[alpha] * 5], wi, wo)


def mixture_pdf(params: list[float], wi: np.ndarray, wo: np.ndarray) -> np.ndarray:
    """Density of ``wo`` in solid angle: the weights of a Beckmann, a GGX and another, isotropic GGX distribution of
    visible normals, the rest being a cosine lobe; then the roughnesses ``u, v`` of the first two and that of the third.

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
