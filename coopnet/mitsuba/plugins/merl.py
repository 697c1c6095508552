"""A measured BSDF of the MERL database."""

from __future__ import annotations

import os
from typing import Any

import drjit as dr
import mitsuba as mi

from ...checks import ensure
from .. import call_targets, spectra, variants
from ..bsdf import lobes
from ..bsdf import merl as measured
from ..variants import per_variant, remade
from .named_objects import from_file


@per_variant
def MERL() -> type:
    class MERL(mi.BSDF):
        r"""A measured, isotropic reflection from a file of the MERL database (Matusik et al. 2003).

        The file has values of 90 x 90 x 180 bins of half and difference angles. A pair of directions has the value of
        its bin, as in the code that comes with the database. Values are not interpolated, since neighbours of a bin may
        be unmeasured; a network that :func:`fit_bsdf` fits to them is smooth. Where nothing was measured the material
        is black. It is reciprocal, and reflects on the front side only; use Mitsuba's ``twosided`` for both sides.
        Samples come from a GGX lobe and a cosine, which are fitted to the file when it is read. As a plugin it is
        called ``merl``, with ``filename``.

        Args:
            filename: of 34,992,012 bytes. In memory it takes half of that.

        Raises:
            TypeError: ``filename`` is neither string nor path.
            ValueError: the file is not a MERL file, truncated, or damaged.
            OSError: the file cannot be read.
            RuntimeError: no variant is set, or one in which fields do not run.

        >>> gold = cn.mitsuba.MERL("gold-metallic-paint.binary")
        """

        def __init__(self, filename: Any, properties: Any = None):
            variants.current("MERL")
            values = measured.read(filename, "MERL")
            super().__init__(mi.Properties() if properties is None else properties)
            self.filename, self.table = os.path.abspath(filename), mi.Float(values.ravel())
            self.lobe = [dr.opaque(mi.Float, v) for v in measured.fit_lobe(self.table)]
            self.call_targets, self.upsampling = call_targets.pointers(), spectra.table()
            self.m_components = [mi.BSDFFlags.GlossyReflection | mi.BSDFFlags.FrontSide]
            self.m_flags = self.m_components[0]

        def sample(self, ctx: Any, si: Any, sample1: Any, sample2: Any, active: Any = True) -> tuple[Any, Any]:
            wo, pdf = lobes.sample(self.lobe, dr.detach(si.wi), sample1, sample2)
            active = _enabled(ctx, active) & (pdf > 0)
            bs = dr.zeros(mi.BSDFSample3f)
            bs.wo, bs.pdf, bs.eta = wo, dr.select(active, pdf, 0), mi.Float(1)
            bs.sampled_type, bs.sampled_component = mi.UInt32(+mi.BSDFFlags.GlossyReflection), mi.UInt32(0)
            return bs, self._value(si, wo, active) * dr.select(active, dr.rcp(pdf), 0)

        def eval(self, ctx: Any, si: Any, wo: Any, active: Any = True) -> Any:
            return self._value(si, wo, _enabled(ctx, active))

        def _value(self, si: Any, wo: Any, active: Any) -> Any:
            color = measured.evaluate(self.table, si.wi, wo, active)
            return spectra.depolarized(spectra.unbounded(list(color), si.wavelengths, self.upsampling))

        def pdf(self, ctx: Any, si: Any, wo: Any, active: Any = True) -> Any:
            return dr.select(_enabled(ctx, active), lobes.pdf(self.lobe, si.wi, wo), 0)

        def eval_pdf(self, ctx: Any, si: Any, wo: Any, active: Any = True) -> tuple[Any, Any]:
            return self.eval(ctx, si, wo, active), self.pdf(ctx, si, wo, active)

        def to_string(self) -> str:
            weight, alpha = (float(v[0]) for v in self.lobe)
            return f"MERL[filename={self.filename!r}, lobe of alpha {alpha:.3g} and weight {weight:.3g}]"

        def __reduce__(self) -> tuple:
            return remade, ("MERL", {"filename": self.filename}, self.id())

        @classmethod
        def from_properties(cls, properties: Any) -> Any:
            """Make the plugin ``merl`` that a scene describes."""
            ensure("filename" in properties, "merl: got no filename; that of a MERL file is needed.")
            return from_file(properties, "merl", lambda filename: cls(filename, properties=properties))

    return MERL


def _enabled(ctx: Any, active: Any) -> Any:
    return mi.Bool(active) & ctx.is_enabled(mi.BSDFFlags.GlossyReflection, 0)
