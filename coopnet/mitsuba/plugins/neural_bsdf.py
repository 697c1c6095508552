"""A BSDF that is a neural field."""

from __future__ import annotations

import functools
import operator
from typing import Any

import drjit as dr
import mitsuba as mi

from ...checks import check_type, ensure
from ...interop.export.material import SPECULAR, TRANSMITS, Reflection
from ...random.key import Key
from .. import call_targets, keys, spectra
from ..bsdf import files
from ..bsdf import lobes as mixture
from ..bsdf.decoder import Decoder
from ..bsdf.directions import relative_index
from ..bsdf.latent import Latent
from ..bsdf.sampler import Sampler
from ..bsdf.specular import Specular
from ..fields import check_sizes, show
from ..variants import per_variant, remade
from .named_objects import object_named, object_or_file

#: Default lobes, without and with transmission.
LOBES = (0.5, 0.3)
LOBES_THROUGH = (0.0, 0.2, 0.0, 0.0, 0.5, 0.15, *[0.3] * 9)


@per_variant
def NeuralBSDF() -> type:
    class NeuralBSDF(mi.BSDF):
        r"""A BSDF that a :class:`Decoder`, which several may share, computes from a latent code of each surface point.

        Directions are sampled from an analytic mixture of lobes (:mod:`coopnet.mitsuba.bsdf.lobes`), so that values,
        samples and densities are consistent for any weights. It reflects on the front side only; use Mitsuba's
        ``twosided`` for both sides. With a decoder that has ``eta``, it reflects and transmits on both sides.

        The plugin is called ``neural_bsdf``. It takes ``filename`` (a file of :meth:`save`, or a checkpoint of a
        decoder without latent code), or names from :func:`hand_over` as ``decoder``, ``latent`` and ``lobes``. Instead
        of ``lobes`` it also takes the numbers ``specular`` and ``alpha``.

        Args:
            decoder: a :class:`Decoder`; several BSDFs may share one.
            latent: the code: ``None``, ``decoder.latent_features`` numbers, or an encoding of the texture coordinates,
                which repeat in unit squares, or a built field of one.
            lobes: the parameters of the lobes: weight of a glossy lobe in [0, 1] and its roughness in [0.02, 1], or the
                eight numbers of :data:`coopnet.mitsuba.bsdf.lobes.PARAMETERS`, or fifteen if the decoder transmits. Or
                an encoding of the texture coordinates with as many outputs; or a built field of
                ``decoder.latent_features`` + 3 inputs, latent code and direction of incidence, and eight or fifteen
                outputs; :func:`coopnet.mitsuba.bsdf.lobes.from_raw` maps outputs to parameters. ``None``: lobes of
                medium width.
            key: turns dropout on. Mitsuba's own integrators evaluate BSDFs in virtual calls, where it needs an index.
            specular: a BSDF of Mitsuba, such as ``plastic``, ``dielectric`` or ``mask``, whose perfectly specular
                parts are added. In a scene it is nested in this one. Files do not contain it; pass it again when
                loading.

        Raises:
            TypeError, ValueError: arguments that do not fit each other or the variant.

        >>> bsdf = cn.mitsuba.NeuralBSDF(decoder, latent=cn.Grid(2, "dense", n_levels=2, n_features_per_level=4))
        """

        key = keys.in_calls

        def __init__(
            self,
            decoder: Any,
            latent: Any = None,
            lobes: Any = None,
            key: Key | None = None,
            properties: Any = None,
            specular: Any = None,
        ):
            where = "NeuralBSDF"
            check_type(where, "decoder", decoder, Decoder, "a coopnet.mitsuba.Decoder")
            code, needed = Latent(latent, where, "latent"), decoder.latent_features
            ensure(code.count == needed, f"{where}: latent has {code.count} numbers, but the decoder takes {needed}.")
            if lobes is None:
                lobes = LOBES if decoder.eta is None else LOBES_THROUGH
            sampler = Sampler(lobes, needed, where, decoder.eta)
            specular = None if specular is None else Specular(specular, where, "specular")
            super().__init__(mi.Properties() if properties is None else properties)
            self.decoder, self.latent, self.lobes, self.key = decoder, code, sampler, key
            self.specular, self.eta = specular, decoder.eta
            self.call_targets, self.upsampling = call_targets.pointers(), spectra.table()
            sides: Any = mi.BSDFFlags.FrontSide
            if decoder.eta is not None:
                sides |= mi.BSDFFlags.BackSide
            if code.varies or (sampler.varies and not sampler.network):
                sides |= mi.BSDFFlags.SpatiallyVarying
            components = [mi.BSDFFlags.GlossyReflection | sides]
            if decoder.eta is not None:
                bends = 0 if decoder.eta == 1 else mi.BSDFFlags.NonSymmetric
                components.append(mi.BSDFFlags.GlossyTransmission | sides | bends)
            self.smooth_components = len(components)
            self.m_components = components + ([] if specular is None else specular.flags)
            self.m_flags = functools.reduce(operator.or_, self.m_components)

        # ---- shading --------------------------------------------------------

        def material(self, si: Any, active: Any = True) -> tuple[list, list]:
            """The latent code at ``si``, ``decoder.latent_features`` arrays, and the parameters of the lobes. The
            decoder is not evaluated.
            """
            code = self.latent(si.uv, active)
            return code, self.lobes.parameters(si.uv, code, si.wi, active)

        def sample(self, ctx: Any, si: Any, sample1: Any, sample2: Any, active: Any = True) -> tuple[Any, Any]:
            code, params = self.material(si, active)
            mirrored, reflectance, share = self._specular(ctx, si, sample1, active)
            rest = 1 - share
            wo, pdf = mixture.sample(params, dr.detach(si.wi), (sample1 - share) / rest, sample2)
            smooth = (pdf > 0) & (sample1 >= share) & self._enabled(ctx, si, wo, active)
            value = self._value(ctx, code, si, wo, smooth)
            bs = dr.zeros(mi.BSDFSample3f)
            bs.wo, bs.pdf, bs.eta = wo, dr.select(smooth, rest * pdf, 0), self._index(si.wi, wo)
            transmitted = si.wi.z * wo.z < 0 if self.smooth_components == 2 else mi.Bool(False)
            bs.sampled_type = dr.select(
                transmitted, mi.UInt32(+mi.BSDFFlags.GlossyTransmission), mi.UInt32(+mi.BSDFFlags.GlossyReflection)
            )
            bs.sampled_component = dr.select(transmitted, mi.UInt32(1), mi.UInt32(0))
            weight = value * dr.select(smooth, 1 / bs.pdf, 0)
            if self.specular is None:
                return bs, weight
            first = sample1 < share
            return dr.select(first, mirrored, bs), dr.select(first, reflectance, weight)

        def eval(self, ctx: Any, si: Any, wo: Any, active: Any = True) -> Any:
            code = self.latent(si.uv, active)
            return self._value(ctx, code, si, wo, self._enabled(ctx, si, wo, active))

        def _value(self, ctx: Any, code: list, si: Any, wo: Any, active: Any) -> Any:
            color = self.decoder.evaluate(code, si.wi, wo, self.key, active)
            if self.eta is not None and ctx.mode == mi.TransportMode.Importance:
                color *= dr.square(self._index(si.wi, wo))
            return spectra.depolarized(spectra.unbounded(list(color), si.wavelengths, self.upsampling))

        def _index(self, wi: Any, wo: Any) -> Any:
            """As :meth:`Decoder.index`."""
            return mi.Float(1) if self.eta is None else relative_index(self.eta, wi, wo)

        def pdf(self, ctx: Any, si: Any, wo: Any, active: Any = True) -> Any:
            _, params = self.material(si, active)
            _, _, share = self._specular(ctx, si, mi.Float(0), active)
            pdf = (1 - share) * mixture.pdf(params, si.wi, wo)
            return dr.select(self._enabled(ctx, si, wo, active), pdf, 0)

        def eval_pdf(self, ctx: Any, si: Any, wo: Any, active: Any = True) -> tuple[Any, Any]:
            return self.eval(ctx, si, wo, active), self.pdf(ctx, si, wo, active)

        def eval_null_transmission(self, si: Any, active: Any = True) -> Any:
            if self.specular is None:
                return mi.Spectrum(0)
            return self.specular.bsdf.eval_null_transmission(si, active)

        def _specular(self, ctx: Any, si: Any, sample1: Any, active: Any) -> tuple:
            """:meth:`Specular.sample` of the parts that ``ctx`` enables; a share of 0 if it enables none."""
            first, parts = self.smooth_components, [] if self.specular is None else self.specular.flags
            enabled = [k for k, flags in enumerate(parts) if ctx.is_enabled(_kind(flags), first + k)]
            if not enabled:
                return dr.zeros(mi.BSDFSample3f), mi.Spectrum(0), mi.Float(0)
            rest = any(self._smooth(ctx))
            importance = ctx.mode == mi.TransportMode.Importance
            bs, weight, share = self.specular.sample(si, sample1, active, enabled, rest, importance)
            bs.sampled_component += first
            return bs, weight, share

        def _smooth(self, ctx: Any) -> list[bool]:
            """Which of the network's components ``ctx`` enables."""
            kinds = (mi.BSDFFlags.GlossyReflection, mi.BSDFFlags.GlossyTransmission)
            return [ctx.is_enabled(kinds[i], i) for i in range(self.smooth_components)]

        def _enabled(self, ctx: Any, si: Any, wo: Any, active: Any) -> Any:
            on = self._smooth(ctx)
            if len(on) == 1 or on[0] == on[1]:
                return mi.Bool(active) & on[0]
            return mi.Bool(active) & ((si.wi.z * wo.z > 0) == on[0])

        # ---- Mitsuba's scene graph ------------------------------------------

        def traverse(self, callback: Any) -> None:
            show(callback, self.decoder.field, "decoder.")
            self.latent.traverse(callback, "latent", mi.ParamFlags.Differentiable)
            self.lobes.traverse(callback, "lobes", mi.ParamFlags.NonDifferentiable)
            if self.specular is not None:
                callback.put("specular", self.specular.bsdf, mi.ParamFlags.Differentiable)

        def parameters_changed(self, names: Any = ()) -> None:
            # the arrays shown by traverse() are those in use
            check_sizes(self.decoder.field, self.decoder.sizes, "NeuralBSDF: decoder")
            for name in ("latent", "lobes"):
                getattr(self, name).check_sizes(f"NeuralBSDF: {name}")

        def to_string(self) -> str:
            return f"NeuralBSDF[latent={self.latent!r}, lobes={self.lobes!r}, decoder={self.decoder!r}]"

        # ---- files, copies and plugins --------------------------------------

        def __reduce__(self) -> tuple:
            latent, lobes = self.latent.source(), self.lobes.source()
            specular = None if self.specular is None else self.specular.bsdf
            options = {"decoder": self.decoder, "latent": latent, "lobes": lobes, "key": self.key, "specular": specular}
            return remade, ("NeuralBSDF", options, self.id())

        def save(self, path: Any) -> None:
            """Write decoder, latent code and lobes to one safetensors file; raises as :func:`coopnet.save`.

            >>> bsdf.save("wood.safetensors")
            >>> mi.load_dict({"type": "neural_bsdf", "filename": "wood.safetensors"})
            """
            files.save(path, self.decoder, self.latent, self.lobes, self.specular is not None)

        def as_material(self) -> Reflection:
            """The part that :func:`coopnet.export` writes: :meth:`eval` without dropout, and no sampling.

            It is the BSDF times the cosine, in 1/sr, of (u, v) and both directions in the shading frame:
            :class:`coopnet.interop.export.Reflection` has the formula. Raises ``ValueError`` for a material that
            transmits or has a perfectly specular part.

            >>> cn.export(bsdf, "glsl", "wood.glsl", name="wood")
            """
            without = "export NeuralBSDF(bsdf.decoder, bsdf.latent.source()) for the rest"
            ensure(self.specular is None, f"NeuralBSDF: it {SPECULAR}; {without}.")
            ensure(self.decoder.eta is None, f"NeuralBSDF: it {TRANSMITS}.")
            latent, decoder = self.latent.source(), self.decoder
            return Reflection(decoder.field, tuple(latent) if isinstance(latent, list) else latent, decoder.directions)

        @classmethod
        def from_properties(cls, properties: Any) -> Any:
            """Make the plugin ``neural_bsdf`` that a scene describes."""
            where = "neural_bsdf"
            made = object_or_file(properties, where, "decoder", files.read_bsdf)
            decoder, latent, lobes, needs_specular = made if isinstance(made, tuple) else (made, None, None, False)
            if "latent" in properties:
                latent = object_named(properties["latent"], where)
            if "lobes" in properties:
                lobes = object_named(properties["lobes"], where)
            if "specular" in properties or "alpha" in properties:
                lobes = [float(properties.get(n, v)) for n, v in zip(mixture.PARAMETERS[2], LOBES, strict=True)]
            inside = [value for _, value in properties.objects() if isinstance(value, mi.BSDF)]
            ensure(len(inside) < 2, f"{where}: there are {len(inside)} BSDFs inside; at most one is needed.")
            specular = inside[0] if inside else None
            missing = needs_specular and specular is None
            lacks = "was saved with a perfectly specular part, which files do not hold; put the BSDF that has it inside"
            ensure(not missing, f"{where}: {properties.get('filename', None)!r} {lacks} this one.")
            return cls(decoder, latent, lobes, properties=properties, specular=specular)

    return NeuralBSDF


def _kind(flags: Any) -> Any:
    """The one specular kind among the flags of a component."""
    kinds = (mi.BSDFFlags.Null, mi.BSDFFlags.DeltaReflection, mi.BSDFFlags.DeltaTransmission)
    return next(kind for kind in kinds if mi.has_flag(flags, kind))
