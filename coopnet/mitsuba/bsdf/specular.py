"""The perfectly specular parts of a material, which Mitsuba evaluates: networks cannot learn delta functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import mitsuba as mi

from ...checks import check_type, ensure
from .. import spectra

#: Bounds of the share of samples that specular parts get.
SHARES = 0.05, 0.9

#: The largest number below 1.
_LAST = 1 - 2**-24


class Specular:
    """The perfectly specular components of ``bsdf``: mirrors, smooth interfaces, and holes (of ``mask``).

    Raises ``TypeError`` or ``ValueError`` unless it has any, and Mitsuba can sample them one by one.
    """

    def __init__(self, bsdf: Any, where: str, name: str):
        check_type(where, name, bsdf, mi.BSDF, "a mi.BSDF of the variant that is set")
        count = range(bsdf.component_count())
        self.components = [i for i in count if mi.has_flag(bsdf.flags(i), mi.BSDFFlags.Delta)]
        ensure(bool(self.components), f"{where}: {name} has no perfectly specular part; one is needed.")
        masked, inner = bsdf.class_name() == "MaskBSDF", within(bsdf)
        alone = not (masked and len(self.components) > 1) and "MaskBSDF" not in [b.class_name() for b in inner]
        hint = "learn the BSDF inside, and put what is learned into a mask"
        ensure(alone, f"{where}: {name} has a mask among other specular parts or BSDFs, which is not kept; {hint}.")
        self.bsdf = bsdf
        self.flags = [bsdf.flags(i) for i in self.components]
        every = mi.BSDFContext()
        # a mask selects components by type, not by number
        by_number = [(every.type_mask, i) for i in self.components]
        self._asked = [(+mi.BSDFFlags.Null, every.component)] if masked else by_number
        smooth = bsdf.flags() & mi.BSDFFlags.Smooth
        # Mitsuba's diffuse reflectance includes all of the light only if the other parts are diffuse
        self._diffuse = not smooth & +(mi.BSDFFlags.Glossy | mi.BSDFFlags.Transmission)

    def sample(
        self, si: Any, sample1: Any, active: Any = True, enabled: Sequence[int] | None = None, rest: bool = True,
        importance: bool = False,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """``(bs, weight, share)``: where ``sample1`` is below ``share``, one of the components as Mitsuba samples it,
        with the probability ``bs.pdf``.

        A single component has no randomness: its reflectance depends only on the point and ``si.wi``. Shares are in
        proportion to the reflected light, assuming that the rest reflects its diffuse reflectance of the remaining
        light, or all of it if it is glossy or transmits.

        Args:
            enabled: numbers of the requested components, counted among the specular ones; all by default.
            rest: are other parts sampled, too? If not, the components share all samples.
            importance: is importance transported, instead of radiance?
        """
        drawn, lights = [], []
        for k in range(len(self.components)) if enabled is None else enabled:
            mode = mi.TransportMode.Importance if importance else mi.TransportMode.Radiance
            context = mi.BSDFContext(mode, *self._asked[k])
            bs, weight = self.bsdf.sample(context, si, mi.Float(_LAST), mi.Point2f(0.5), active)
            valid = mi.Bool(active) & (bs.pdf > 0) & mi.has_flag(bs.sampled_type, mi.BSDFFlags.Delta)
            if not mi.has_flag(self.flags[k], mi.BSDFFlags.BackSide):
                valid &= si.wi.z > 0
            weight = dr.select(valid, weight * bs.pdf, 0)
            bs.sampled_component = mi.UInt32(k)
            drawn.append((bs, weight))
            lights.append(dr.detach(spectra.brightness(weight, si.wavelengths)))
        light = sum(lights)
        reflected = self.bsdf.eval_diffuse_reflectance(si, active) if self._diffuse else mi.Spectrum(1)
        remaining = spectra.brightness(reflected, si.wavelengths)
        others = remaining * dr.maximum(1 - light, 0)
        share = dr.clip(light / dr.maximum(light + others, 1e-6), *SHARES) if rest else mi.Float(1)
        share = dr.detach(dr.select(light > 0, share, 0))
        chosen, end = (dr.zeros(mi.BSDFSample3f), mi.Spectrum(0)), mi.Float(0)
        for (bs, weight), part in zip(drawn, lights, strict=True):
            bs.pdf = share * (part / dr.maximum(light, 1e-30))
            weight = weight * dr.select(bs.pdf > 0, dr.rcp(bs.pdf), 0)
            chosen, end = dr.select(sample1 >= end, (bs, weight), chosen), end + bs.pdf
        return *chosen, share


def within(bsdf: Any) -> list:
    """All BSDFs nested in ``bsdf``, at any depth; outer ones first."""
    return [part for bsdf in inside(bsdf) for part in (bsdf, *within(bsdf))]


def inside(bsdf: Any) -> list:
    """The BSDFs nested directly in ``bsdf``."""
    parts: list = []

    class Collect(mi.TraversalCallback):
        def put(self, name: str, value: Any, *flags: Any) -> None:
            if isinstance(value, mi.BSDF):
                parts.append(value)

    bsdf.traverse(Collect())
    return parts
