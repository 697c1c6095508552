r"""Measured reflections of the MERL database (Matusik et al. 2003): files, the bins of two directions, and a lobe.

A file holds three colors for 90 x 90 x 180 bins of Rusinkiewicz's angles: :math:`\theta_h`, with narrow bins at
highlights, as the bounds are quadratic in their number; :math:`\theta_d`; and :math:`\varphi_d`, with period
:math:`\pi` because of reciprocity. Bins with a direction below the surface, and those that could not be measured, hold
negative numbers, and are black.
"""

from __future__ import annotations

import math
import os
from typing import Any

import drjit as dr
import mitsuba as mi
import numpy as np

from ...checks import ensure
from ...io.files import file_name, naming, regular
from . import lobes

#: Number of bins of theta_h, theta_d and phi_d.
SHAPE = (90, 90, 180)
COUNT = math.prod(SHAPE)
#: Factors from the numbers of a file to 1/sr: red, green, blue.
SCALES = (1 / 1500, 1.15 / 1500, 1.66 / 1500)
#: Bytes of a file.
SIZE = 4 * len(SHAPE) + 8 * len(SCALES) * COUNT

#: Angles of incidence that the lobe is fitted for, azimuths of half vectors, and the roughnesses and weights compared.
_INCIDENCE = np.radians([5, 25, 45, 65, 80])
_AZIMUTHS = np.pi * (np.arange(8) + 0.5) / 8
_ALPHAS = np.geomspace(lobes.LEAST_ALPHA, 1, 24)
_WEIGHTS = np.linspace(0, lobes.MOST_SPECULAR[2], 20)


def read(path: str | os.PathLike[str], where: str) -> np.ndarray:
    """The BSDF in 1/sr as float32, ``(bins, 3)``; ``where`` opens error messages.

    Raises:
        TypeError: ``path`` is neither string nor path.
        ValueError: no MERL file, a truncated one, one of other sizes, or one with values that are not finite.
        OSError: the file cannot be read.
    """
    path = file_name(path, where, "filename")
    size = regular(path, where).st_size
    ensure(size == SIZE, f"{where}: {path!r}: not a MERL file, or truncated: it has {size} bytes, not {SIZE}.")
    with naming(path), open(path, "rb") as file:
        shape = tuple(np.frombuffer(file.read(4 * len(SHAPE)), "<i4").tolist())
        begins = f"it begins with {shape}, and not with the numbers of bins {SHAPE}"
        ensure(shape == SHAPE, f"{where}: {path!r}: not a MERL file, or one with other bins: {begins}.")
        stored = np.frombuffer(file.read(), "<f8").reshape(len(SCALES), COUNT)
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.ascontiguousarray((stored * np.array(SCALES)[:, None]).T, np.float32)
    ensure(np.isfinite(values).all(), f"{where}: {path!r}: a damaged MERL file: not all of its values are finite.")
    return np.maximum(values, 0, out=values)


def bins(wi: Any, wo: Any) -> Any:
    r"""The number of the bin of two unit vectors above the surface (``Vector3f``).

    The difference vector is half of :math:`\omega_i - \omega_o`, in a frame whose third axis is the half vector.
    Exchanging the directions gives the same bin to the last bit. Neither angle is taken from its cosine alone, which
    single precision cannot tell from 1 within the first bins of :math:`\theta_h`.
    """
    total, across = wi + wo, (wi - wo) * 0.5
    length = dr.norm(total)
    h = total / length
    sine = dr.sqrt(dr.square(h.x) + dr.square(h.y))
    turned = sine > 0  # at the normal, the azimuth of the half vector is 0
    c, s = dr.select(turned, h.x / sine, 1), dr.select(turned, h.y / sine, 0)
    dx, dy = h.z * (c * across.x + s * across.y) - sine * across.z, c * across.y - s * across.x
    back = (dy < 0) | ((dy == 0) & (dx < 0))
    dx, dy = dr.select(back, -dx, dx), dr.select(back, -dy, dy)
    theta_h, theta_d = dr.atan2(sine, h.z), dr.atan2(dr.sqrt(dr.square(dx) + dr.square(dy)), 0.5 * length)
    phi_d = dr.atan2(dy, dr.select((dx == 0) & (dy == 0), 1, dx))
    places = dr.sqrt(theta_h * (2 / math.pi)), theta_d * (2 / math.pi), phi_d * (1 / math.pi)
    index = dr.uint32_array_t(type(sine))(0)
    for count, coordinate in zip(SHAPE, places, strict=True):
        index = index * count + dr.minimum(type(index)(coordinate * count), count - 1)
    return index


def evaluate(table: Any, wi: Any, wo: Any, active: Any = True) -> Any:
    """The color of the bin of two directions, times the cosine; 0 unless both are above the surface."""
    above = (wi.z > 0) & (wo.z > 0) & active
    up = type(wi)(0, 0, 1)
    at = bins(dr.select(above, wi, up), dr.select(above, wo, up))
    return dr.select(above, dr.gather(mi.Color3f, table, at) * wo.z, 0)


def fit_lobe(table: Any) -> list[float]:
    """Weight and roughness of a GGX lobe beside a cosine: those of a list with the smallest cross entropy.

    The integral is over the bins of the half vector, where a highlight has many points.
    """
    edges = (np.arange(SHAPE[0] + 1) / SHAPE[0]) ** 2 * (np.pi / 2)
    angle, theta, phi = (
        v.ravel() for v in np.meshgrid(_INCIDENCE, (edges[1:] + edges[:-1]) / 2, _AZIMUTHS, indexing="ij")
    )
    widths = np.tile(np.repeat(np.diff(edges), len(_AZIMUTHS)), len(_INCIDENCE))
    wi = np.stack([np.sin(angle), 0 * angle, np.cos(angle)])
    h = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)])
    dot = np.sum(wi * h, axis=0)
    wo = 2 * dot * h - wi
    above = (dot > 0) & (wo[2] > 0)
    solid = (4 * dot * np.sin(theta) * widths)[above]  # solid angle of wo, from that of h
    wi, wo, cosine = wi[:, above], wo[:, above], wo[2, above] / np.pi
    values = mi.luminance(evaluate(table, _vectors(wi), _vectors(wo))).numpy() * solid
    repeated = [_vectors(np.tile(w, len(_ALPHAS))) for w in (wi, wo)]
    alphas = mi.Float(np.repeat(_ALPHAS, len(cosine)).astype(np.float32))
    glossy = lobes.pdf([mi.Float(1), alphas], *repeated).numpy().reshape(len(_ALPHAS), -1)
    likelihood = [np.log((1 - w) * cosine + w * glossy) @ values for w in _WEIGHTS]
    weight, alpha = np.unravel_index(np.argmax(likelihood), np.shape(likelihood))
    return [float(_WEIGHTS[weight]), float(_ALPHAS[alpha])]


def _vectors(w: np.ndarray) -> Any:
    return mi.Vector3f(*map(mi.Float, w.astype(np.float32)))
