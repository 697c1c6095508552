"""The perfectly specular reflection of a material, which no function of directions is, kept as it is."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ...checks import check_type, ensure

#: Bounds of the share of samples that a specular part gets.
SHARES = 0.05, 0.9


def specular_components(bsdf: Any) -> list[int]:
    """Numbers of the components of ``bsdf`` that are perfectly specular."""
    return [i for i in range(bsdf.component_count()) if mi.has_flag(bsdf.flags(i), mi.BSDFFlags.Delta)]


class Specular:
    """The specular component of ``bsdf``, a ``mi.BSDF`` such as ``plastic``.

    Raises ``TypeError`` or ``ValueError`` unless it has exactly one, and nothing is transmitted.
    """

    def __init__(self, bsdf: Any, where: str, name: str):
        check_type(where, name, bsdf, mi.BSDF, "a mi.BSDF of the variant that is set")
        components = specular_components(bsdf)
        ensure(len(components) == 1, f"{where}: {name} has {len(components)} perfectly specular parts; one is needed.")
        transmits = mi.has_flag(bsdf.flags(), mi.BSDFFlags.Transmission)
        ensure(not transmits, f"{where}: {name} transmits light, but only reflection is kept.")
        self.bsdf, self.component = bsdf, components[0]

    def sample(self, si: Any, active: Any = True) -> tuple[Any, Any, Any]:
        """``(bs, weight, share)``: the specular direction, its reflectance, and the share of samples it should get.

        One component alone leaves nothing to chance: the reflectance depends on the point and ``si.wi`` only. The
        share is that of the reflected light, if the rest reflects its diffuse reflectance of what is left.
        """
        context = mi.BSDFContext()
        context.component = self.component
        bs, weight = self.bsdf.sample(context, si, mi.Float(0.5), mi.Point2f(0.5), active)
        front = mi.Bool(active) & (si.wi.z > 0) & (bs.pdf > 0)
        weight = dr.select(front, weight, 0)
        light = mi.luminance(weight)
        rest = mi.luminance(self.bsdf.eval_diffuse_reflectance(si, active)) * dr.maximum(1 - light, 0)
        share = dr.clip(light / dr.maximum(light + rest, 1e-6), *SHARES)
        bs.sampled_component = mi.UInt32(1)
        return bs, weight, dr.detach(dr.select(front, share, 0))
