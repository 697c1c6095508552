"""Colors of fields in the units of a variant: three numbers, one, or a spectrum at the wavelengths of a path.

Spectra are upsampled from colors as in Mitsuba (Jakob and Hanika 2019); its table is read in the kernel.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path
from typing import Any

import drjit as dr
import mitsuba as mi
import numpy as np

#: Range of wavelengths in nm, which is [0, 1] for fields that take a wavelength.
SHORTEST, LONGEST = 360.0, 830.0
#: Distance in nm between the tabulated values of daylight.
WHITE_STEP = 5.0
#: Number of wavelengths per path.
COUNT = 4


def table() -> dict[str, Any] | None:
    """The table of the upsampling for the variant that is set; ``None`` in variants without spectra.

    Objects that are evaluated in virtual calls keep it in an attribute, where ``dr.freeze`` finds it.
    """
    return _table(mi.variant()) if mi.is_spectral else None


@functools.cache
def _table(variant: str) -> dict[str, Any]:
    resolver: Any = mi.file_resolver
    data = Path(str(resolver().resolve("data/srgb.coeff"))).read_bytes()
    (size,) = struct.unpack_from("<I", data, 4)
    numbers = np.frombuffer(data, "<f4", offset=8)
    si = dr.zeros(mi.SurfaceInteraction3f)
    si.wavelengths = SHORTEST + WHITE_STEP * dr.arange(mi.Float, int((LONGEST - SHORTEST) / WHITE_STEP) + 1)
    white = mi.load_dict({"type": "d65"}).eval(si)[0]
    dr.eval(white)
    return {
        "levels": mi.Float(numbers[:size].copy()), "coefficients": mi.Float(numbers[size:].copy()), "white": white,
    }  # fmt: skip


def reflectance(color: list, wavelengths: Any, table: dict | None) -> Any:
    """A color of 1 or 3 numbers in [0, 1], as a ``mi.UnpolarizedSpectrum``."""
    if table is None or len(color) == 1:
        return _plain(color)
    return mi.srgb_model_eval(_coefficients(color, table), wavelengths)


def unbounded(color: list, wavelengths: Any, table: dict | None) -> Any:
    """A color of 1 or 3 nonnegative numbers: twice the largest, times the spectrum of the color divided by that, as in
    Mitsuba's ``envmap`` and ``gridvolume``."""
    if table is None or len(color) == 1:
        return _plain(color)
    scale = 2 * dr.maximum(dr.maximum(color[0], color[1]), color[2])
    share = dr.select(scale > 0, dr.rcp(scale), 0)
    return scale * mi.srgb_model_eval(_coefficients([v * share for v in color], table), wavelengths)


def emitted(color: list, wavelengths: Any, table: dict | None) -> Any:
    """Emission of a color: :func:`unbounded`, times the spectrum of daylight (D65), which is white."""
    spectrum = unbounded(color, wavelengths, table)
    if table is None:
        return spectrum
    white, position = table["white"], [v * ((LONGEST - SHORTEST) / WHITE_STEP) for v in units(wavelengths)]
    at = [dr.minimum(mi.UInt32(dr.maximum(v, 0)), dr.width(white) - 2) for v in position]
    pairs = [(dr.gather(mi.Float, white, i), dr.gather(mi.Float, white, i + 1)) for i in at]
    return spectrum * mi.UnpolarizedSpectrum(
        *(dr.lerp(a, b, v - mi.Float(i)) for (a, b), v, i in zip(pairs, position, at, strict=True))
    )


def depolarized(spectrum: Any) -> Any:
    """``spectrum`` as a ``mi.Spectrum``: in polarized variants, a depolarizer."""
    return mi.depolarizer(spectrum)


def brightness(spectrum: Any, wavelengths: Any) -> Any:
    """Luminance of a ``mi.Spectrum``, polarized or not, for importance sampling."""
    return mi.luminance(mi.unpolarized_spectrum(spectrum), wavelengths)


def units(wavelengths: Any) -> list:
    """Wavelengths in nm as numbers in [0, 1]."""
    return [(wavelengths[i] - SHORTEST) * (1 / (LONGEST - SHORTEST)) for i in range(COUNT)]


def spread(sample: Any) -> Any:
    """A number in [0, 1) for each wavelength, equally spaced, from a single random one."""
    shifted = [sample + i / COUNT for i in range(COUNT)]
    return mi.UnpolarizedSpectrum(*(v - dr.floor(v) for v in shifted))


def _plain(color: list) -> Any:
    if len(color) == 3 and not mi.is_rgb:
        color = [mi.luminance(mi.Color3f(*color))]
    return mi.UnpolarizedSpectrum(*color)


def _coefficients(color: list, table: dict) -> Any:
    """The three coefficients of the upsampling, interpolated between those of the table."""
    levels, data = table["levels"], table["coefficients"]
    size = dr.width(levels)
    r, g, b = (dr.clip(v, 0, 1) for v in color)
    # the largest component, and the other two in their cyclic order, relative to it
    green, blue = (g >= r) & (g > b), (b >= r) & (b >= g)
    z = dr.select(blue, b, dr.select(green, g, r))
    x = dr.select(blue, r, dr.select(green, b, g))
    y = dr.select(blue, g, dr.select(green, r, b))
    scale = dr.select(z > 0, (size - 1) / z, 0)
    x, y = x * scale, y * scale
    xi, yi = (dr.minimum(mi.UInt32(v), size - 2) for v in (x, y))
    zi = dr.binary_search(0, size - 1, lambda i: dr.gather(mi.Float, levels, i) <= z)
    zi = dr.minimum(dr.maximum(zi, 1) - 1, size - 2)
    low, high = dr.gather(mi.Float, levels, zi), dr.gather(mi.Float, levels, zi + 1)
    fraction = [x - mi.Float(xi), y - mi.Float(yi), (z - low) / (high - low)]
    which = dr.select(blue, mi.UInt32(2), dr.select(green, mi.UInt32(1), mi.UInt32(0)))
    coefficients = mi.Vector3f(0)
    for corner in range(8):
        offsets = [corner & 1, corner >> 1 & 1, corner >> 2]
        weight = mi.Float(1)
        for v, offset in zip(fraction, offsets, strict=True):
            weight = weight * (v if offset else 1 - v)
        cell = ((which * size + zi + offsets[2]) * size + yi + offsets[1]) * size + xi + offsets[0]
        coefficients += weight * dr.gather(mi.Vector3f, data, cell)
    # grey has a flat spectrum; black and white are limited as in Mitsuba
    flat, grey = (r == g) & (g == b), (r + g + b) * (1 / 3)
    level = (grey - 0.5) * dr.rsqrt(dr.maximum(grey * (1 - grey), (0.5 / 8192) ** 2))
    return dr.select(flat, mi.Vector3f(0, 0, level), coefficients)
