"""The decoders of a scene: the networks that its materials share, evaluated in the lanes that need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drjit as dr
import mitsuba as mi

from ...engine.modes import gradient_path
from ...jit.masks import unmasked
from ...jit.scopes import frozen, symbolic
from ...random.key import Key
from .. import spectra
from ..bsdf import lobes
from ..bsdf.directions import relative_index
from ..bsdf.specular import inside
from ..variants import made
from .vertex import Term

#: How networks are evaluated only in lanes that need them: see :class:`SceneDecoders`.
WAYS = ("auto", "branch", "mask", "call", "wavefront")
#: Up to so many paths, ``"auto"`` computes derivatives bounce by bounce on GPUs. A path takes about a kilobyte.
WAVEFRONT_PATHS = 1 << 24

#: Flags of a forward traversal that keeps the tangents of its inputs, which later traversals need, too.
KEEP_INPUTS = dr.ADFlag.ClearInterior | dr.ADFlag.ClearEdges


class SceneDecoders:
    """The distinct decoders among the materials of a scene, evaluated in the body of a loop over bounces.

    In the loop, all lanes read the same weights. In a virtual call, every lane would fetch each weight through a
    pointer of its own. Decoders have numbers: 0 for a material without one, otherwise the index in ``decoders`` plus 1.

    Args:
        scene: a Mitsuba scene. Materials of shapes are considered, and both sides of a ``twosided``. Materials nested
            in others are evaluated in Mitsuba's virtual calls.
        way: ``"branch"`` skips a decoder where no lane of a packet or warp needs it. ``"mask"`` evaluates all of them
            in all lanes. ``"call"`` evaluates them in one virtual call, and derivatives as ``"branch"``.
            ``"wavefront"`` computes one bounce of all paths after the other (Laine et al. 2013), and evaluates each
            decoder in separate kernels for the lanes that need it. ``"auto"`` is ``"branch"`` on LLVM, where calls
            fetch weights lane by lane. On CUDA, a network in the loop needs registers beside those of ray tracing, and
            adds up weight gradients slowly, so ``"auto"`` is ``"call"`` for pictures, and ``"wavefront"`` for
            derivatives that are not recorded.
        derivative: are derivatives taken?
        paths: the number of paths.
        upsampling: the table by which colors become spectra, in spectral variants.
    """

    def __init__(self, scene: Any, way: str = "auto", derivative: bool = False, paths: int = 1, upsampling: Any = None):
        self.upsampling = upsampling
        self._sides: dict[int, tuple] = {}
        decoders: dict[int, Any] = {}
        samplers: dict[int, Any] = {}
        self._lobes = 2
        for bsdf in (shape.bsdf() for shape in scene.shapes()):
            sides = _sides(bsdf)
            if sides:
                self._sides[bsdf.ptr] = sides
                decoders.update((id(side.decoder), side.decoder) for side in sides)
                samplers.update((id(side.lobes.field), side.lobes) for side in sides if side.lobes.network)
                self._lobes = max(self._lobes, *(side.lobes.size for side in sides))
        self.decoders, self._samplers = list(decoders.values()), list(samplers.values())
        self._number, self._sampler_number = (
            {key: i + 1 for i, key in enumerate(kind)} for kind in (decoders, samplers)
        )
        self.way = self._resolved(way, derivative, paths)
        self._codes = max((d.latent_features for d in self.decoders), default=0)

    def _resolved(self, way: str, derivative: bool, paths: int) -> str:
        recorded = frozen() or symbolic()
        if way == "wavefront" and recorded:
            raise RuntimeError(
                "NeuralPath: networks='wavefront' evaluates one turn after the other, which dr.freeze cannot record, "
                "nor symbolic loops; use networks='auto' there."
            )
        if way != "auto":
            return way
        if dr.backend_v(mi.Float) == dr.JitBackend.LLVM:
            return "branch"
        turn_by_turn = derivative and bool(self.decoders) and paths <= WAVEFRONT_PATHS and not recorded
        return "wavefront" if turn_by_turn else "call"

    # ---- in virtual calls: queries of materials --------------------------------------------------------------------

    def query(self, bsdf: Any, si: Any, toward: Any, sample1: Any, sample2: Any, active: Any) -> tuple:
        """Values and samples of a material, except for the outputs of its networks.

        Args:
            bsdf: the material; ``si`` the interaction, ``active`` the lanes.
            toward: direction of the light, in the local shading frame.
            sample1, sample2: one and two uniform numbers.

        Returns:
            ``(value, pdf, bs, factor, number, below, code, lobe)``: value times cosine and density for ``toward``; a
            sampled direction (``BSDFSample3f``) and value times cosine over density for it; the number of the decoder,
            whether the surface is seen from below, the latent code, and the arguments of :meth:`sample` for the lobes.
            In lanes with a decoder, :meth:`sample` and :meth:`evaluate` compute the first four, except for samples of
            a perfectly specular part.
        """
        sides = self._sides.get(bsdf.ptr)
        if not sides:
            answer = bsdf.eval_pdf_sample(mi.BSDFContext(), si, toward, sample1, sample2, active)
            return *answer, mi.UInt32(0), mi.Bool(False), self._padded([]), self._no_lobes()
        number, below, code, lobe, bs, reflectance = self._material(sides, si, sample1, active)
        (bs.wo,) = upright(below, [bs.wo])
        return mi.Spectrum(0), mi.Float(0), bs, reflectance, number, below, code, lobe

    def attached(self, bsdf: Any, si: Any, pair: list, active: Any) -> tuple:
        """``(code, values)`` of a material for two directions, with derivatives. Neural materials have values of 0, and
        others a code of 0.
        """
        sides = self._sides.get(bsdf.ptr)
        if sides:
            return self._material(sides, si, mi.Float(0), active)[2], [mi.Spectrum(0), mi.Spectrum(0)]
        context = mi.BSDFContext()
        return self._padded([]), [bsdf.eval(context, si, wo, active) for wo in pair]

    def _material(self, sides: tuple, si: Any, sample1: Any, active: Any) -> tuple:
        """``(number, below, code, lobe, bs, weight)`` of the side that ``si.wi`` is on. The last two are the sample of
        perfectly specular parts.
        """
        below = mi.Bool(False) if len(sides) == 1 else si.wi.z < 0
        materials = []
        for side in sides:
            code = side.latent(si.uv, active)
            which, params, share = self._no_lobes()
            if side.lobes.network:
                which = mi.UInt32(self._sampler_number[id(side.lobes.field)])
            else:
                params = side.lobes.parameters(si.uv, code, si.wi, active)
                params = [mi.Float(p) for p in lobes.widened(params, self._lobes)]
            bs, weight = dr.zeros(mi.BSDFSample3f), mi.Spectrum(0)
            bs.eta = 1
            bs.sampled_type = mi.UInt32(mi.BSDFFlags.GlossyReflection)
            if side.specular is not None:
                turned = mi.SurfaceInteraction3f(si)
                (turned.wi,) = upright(below, [si.wi])
                mirrored, weight, share = side.specular.sample(turned, sample1, active)
                bs = dr.select(share > 0, mirrored, bs)
            number = mi.UInt32(self._number[id(side.decoder)])
            materials.append((number, self._padded(code), (which, params, share), bs, weight))
        number, *rest = materials[0] if len(sides) == 1 else dr.select(below, materials[1], materials[0])
        return number, below, *rest

    def _no_lobes(self) -> tuple:
        """``(sampler, parameters, share)``, all 0: the number of a network of lobes, the parameters of lobes, and the
        share of samples that a perfectly specular part gets.
        """
        return mi.UInt32(0), [mi.Float(0)] * self._lobes, mi.Float(0)

    def _padded(self, code: list) -> list:
        """A latent code, with zeros up to the length of the longest in the scene."""
        return [*code, *[mi.Float(0)] * (self._codes - len(code))]

    # ---- in the loop: networks -----------------------------------------------------------------------------------

    def sample(self, number: Any, lobe: tuple, code: list, wi: Any, toward: Any, sample1: Any, sample2: Any) -> tuple:
        """``(wo, pdf, density, eta)`` in lanes with a decoder: a direction sampled from the lobes, its density, the
        density of ``toward``, and the refractive index on the side of ``wo`` relative to that of ``wi``. ``pdf`` is 0
        where ``sample1`` chooses a perfectly specular part.

        Args:
            number, lobe, code: what :meth:`query` returned.
            wi, toward: the fixed direction and that of the light, in the local shading frame, seen from above.
            sample1, sample2: one and two uniform numbers.
        """
        which, params, share = lobe
        params = self._each(self._samplers, which, self._directional, params, code, wi, derivative=False)

        def drawn(params: list, share: Any, wi: Any, toward: Any, sample1: Any, sample2: Any) -> tuple:
            rest = 1 - share
            wo, pdf = lobes.sample(params, wi, (sample1 - share) / rest, sample2)
            return wo, dr.select(sample1 < share, 0, rest * pdf), rest * lobes.pdf(params, wi, toward)

        def none(*args: Any) -> tuple:
            return dr.zeros(mi.Vector3f), mi.Float(0), mi.Float(0)

        wo, *densities = dr.if_stmt((params, share, wi, toward, sample1, sample2), number > 0, drawn, none)
        return wo, *densities, relative_index(params[-1], wi, wo) if self._lobes == 16 else mi.Float(1)

    def _directional(self, sampler: Any, code: list, wi: Any) -> list:
        return lobes.widened(sampler.directional(code, wi), self._lobes)

    def evaluate(self, number: Any, code: list, wi: Any, pair: list, key: Key | None, wavelengths: Any) -> list:
        """Each material's values times cosine for a ``pair`` of directions; 0 in lanes without a decoder.

        Args:
            number: of each lane's decoder.
            code: its latent code, padded.
            wi, pair: the fixed direction and two others, in the local shading frame, seen from above.
            key: of the dropout masks, with an explicit index; both directions see the same masks.
            wavelengths: those of the path, in spectral variants.
        """
        more = code, wi, pair, key, wavelengths
        return self._each(self.decoders, number, self._values, _black(), *more, derivative=False)

    def _values(self, decoder: Any, code: list, wi: Any, pair: list, key: Any, wavelengths: Any) -> list:
        colors = [decoder.evaluate(code, wi, wo, key) for wo in pair]
        return [spectra.unbounded(list(color), wavelengths, self.upsampling) for color in colors]

    def backward(
        self, number: Any, code: list, wi: Any, pair: list, key: Key | None, wavelengths: Any, term: Term, codes: bool
    ) -> tuple:
        """``(values, slopes)``: values as :meth:`evaluate`, and the gradient of ``term`` with respect to the codes.

        The gradient with respect to weights is added to the fields. Both gradients are computed inside the branch, so
        that Dr.Jit has no conditional to differentiate.

        Args:
            codes: compute the gradient with respect to the codes? It is 0 otherwise.
        """

        def body(decoder: Any, code: list, wi: Any, pair: list, key: Any, wavelengths: Any, term: Term) -> tuple:
            with dr.resume_grad():
                leaves = _leaves(code, wi)
                if codes:
                    dr.enable_grad(leaves)
                values = self._values(decoder, leaves, wi, pair, key, wavelengths)
                if dr.grad_enabled(values):
                    dr.backward_from(term(*values))
                slopes = dr.grad(leaves) if codes else [mi.Float(0)] * len(leaves)
            return dr.detach(values), self._padded(slopes)

        state = _black(), self._padded([])
        return self._each(self.decoders, number, body, state, code, wi, pair, key, wavelengths, term)

    def forward(
        self, number: Any, code: list, wi: Any, pair: list, key: Key | None, wavelengths: Any, term: Term, dcodes: list
    ) -> tuple:
        """``(values, tangent)``: values as :meth:`evaluate`, and the tangent of ``term`` for tangents ``dcodes``."""

        def body(
            decoder: Any, code: list, wi: Any, pair: list, key: Any, wavelengths: Any, term: Term, dcodes: list
        ) -> tuple:
            # Networks in loops add up weight gradients until the loop ends, which forward mode inside it cannot use; on
            # the built-in path, Dr.Jit differentiates their operations one by one.
            with dr.resume_grad(), gradient_path("builtin"):
                leaves = _leaves(code, wi)
                dr.enable_grad(leaves)
                for leaf, tangent in zip(leaves, dcodes, strict=False):
                    dr.set_grad(leaf, tangent)
                values = self._values(decoder, leaves, wi, pair, key, wavelengths)
                tangent = mi.Spectrum(0)
                if dr.grad_enabled(values):
                    tangent = dr.forward_to(term(*values), flags=KEEP_INPUTS)
            return dr.detach(values), tangent

        state = _black(), mi.Spectrum(0)
        return self._each(self.decoders, number, body, state, code, wi, pair, key, wavelengths, term, dcodes)

    def _each(
        self, networks: list, number: Any, body: Callable, state: Any, code: list, *args: Any, derivative: bool = True
    ) -> Any:
        """``body(network, code, *args)`` in the lanes of each network, and ``state`` in lanes without one."""
        if self.way == "call" and networks and not derivative:
            bodies = [lambda state, *_: state, *(_with(body, network) for network in networks)]
            return dr.switch(number, bodies, state, code, *args)
        if self.way == "wavefront":
            return self._gathered(networks, number, body, state, code, *args)
        for i, network in enumerate(networks):
            lanes = number == i + 1
            if self.way != "mask":
                state = dr.if_stmt((state, code, *args), lanes, _with(body, network), lambda state, *_: state)
            else:
                state = dr.select(lanes, _with(body, network)(state, code, *args), state)
        return state

    def _gathered(self, networks: list, number: Any, body: Callable, state: Any, *args: Any) -> Any:
        """:meth:`_each`, with a batch for every network that holds only the lanes that need it."""
        args = tuple(arg.traced(mi.UInt32) if isinstance(arg, Key) else arg for arg in args)
        dr.eval(number, args)
        state = dr.select(number == number, state, state)  # with an entry for each lane
        # All lanes of a batch are active. Dr.Jit would apply the surrounding mask to a batch of one lane or of all.
        with unmasked(mi.Float):
            for i, network in enumerate(networks):
                lanes = dr.compress(number == i + 1)
                if dr.width(lanes) == 0:
                    continue
                batch = [arg if arg is None else dr.gather(type(arg), arg, lanes) for arg in args]
                dr.scatter(state, _with(body, network)(None, *batch), lanes)
                dr.eval(state)
        return state


def upright(under: Any, directions: list) -> list:
    """Local ``directions``, mirrored in the surface where ``under``."""
    return [type(w)(w.x, w.y, dr.select(under, -w.z, w.z)) for w in directions]


def _sides(bsdf: Any) -> tuple:
    """The neural materials in ``bsdf``: one, front and back of a ``twosided``, or none."""
    neural = made("NeuralBSDF")
    if isinstance(bsdf, neural):
        return (bsdf,)
    if bsdf is None or bsdf.class_name() != "TwoSidedBRDF":
        return ()
    sides = inside(bsdf)
    return tuple(sides) if all(isinstance(side, neural) for side in sides) else ()


def _with(body: Callable, network: Any) -> Callable:
    return lambda state, code, *args: body(network, code[: network.latent_features], *args)


def _black() -> list:
    return [mi.Spectrum(0), mi.Spectrum(0)]


def _leaves(values: list, like: Any) -> list:
    """``values`` as new variables, as wide as ``like``, so that their gradients are as wide, too."""
    return [dr.select(like.x == like.x, dr.detach(v), 0) for v in values]
