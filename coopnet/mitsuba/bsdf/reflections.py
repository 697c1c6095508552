"""Random pairs of directions at a BSDF, with values and densities."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import drjit as dr
import mitsuba as mi

from ...checks import ensure
from ...random.key import Key
from ...training.sampling import uniform
from .directions import leaves


class Reflections(NamedTuple):
    """Samples of a BSDF without perfectly specular parts, where ``valid``.

    ``wi`` is uniform in the hemisphere, and ``wo`` sampled by the BSDF or, every second one, by a cosine lobe; in both
    hemispheres if the BSDF transmits. ``value`` is the BSDF times the cosine, for importance, and ``pdf`` the density
    of ``wo``.
    """

    uv: Any
    wi: Any
    wo: Any
    value: Any
    pdf: Any
    valid: Any


def draw(bsdf: Any, key: Key, samples: int) -> Reflections:
    """Samples of ``bsdf`` at uniform points of the unit square, a function of ``key``; traced code."""
    u = uniform(8, key, mi.Float, samples)
    if dr.backend_v(mi.Float) != dr.JitBackend.CUDA:
        return Reflections(*_drawn(bsdf, u))
    # In a virtual call, although there is only one function: BSDFs mask their texture lookups. In a frozen function, a
    # masked lookup outside of virtual calls ends the process (the pointer for the masked lanes has no variable).
    return Reflections(*dr.switch(mi.UInt32(0), [lambda u: _drawn(bsdf, u)], u))


def _drawn(bsdf: Any, u: list) -> tuple:
    """The fields of :class:`Reflections`, from eight random numbers."""
    transmitting = transmits(bsdf)
    si, context = _interaction(u, transmitting), _importance()
    if not mi.has_flag(bsdf.flags(), mi.BSDFFlags.Null):  # a mask samples its holes even if only the rest is requested
        context.type_mask = +mi.BSDFFlags.Smooth
    sample, weight = bsdf.sample(context, si, u[4], mi.Point2f(u[5], u[6]))
    lobe = mi.warp.square_to_cosine_hemisphere(mi.Point2f(u[5], u[6]))
    if transmitting:
        lobe.z = dr.mulsign(lobe.z, u[7] - 0.75)
    first = u[7] < 0.5
    wo = dr.select(first, sample.wo, lobe)
    value, density = bsdf.eval_pdf(context, si, wo)
    height, visible = (dr.abs(wo.z), leaves(wo)) if transmitting else (wo.z, wo.z > 0)
    pdf = 0.5 * density + (0.25 if transmitting else 0.5) / math.pi * height
    drawn = (sample.pdf > 0) & mi.has_flag(sample.sampled_type, mi.BSDFFlags.Smooth)
    if transmitting:  # principled materials return rejected directions with the density of other parts
        drawn &= (dr.sum(weight) > 0) | (dr.sum(value) == 0)
    drawn |= ~first
    valid = visible & (pdf > 0) & drawn & dr.isfinite(dr.sum(value)) & dr.isfinite(pdf)
    wo = dr.select(valid, wo, mi.Vector3f(0, 0, 1))
    return si.uv, si.wi, wo, dr.select(valid, value, 0), dr.select(valid, pdf, 1), valid


def transmits(bsdf: Any) -> bool:
    """Does ``bsdf`` transmit light other than by perfectly specular parts?"""
    return bool(mi.has_flag(bsdf.flags() & mi.BSDFFlags.Smooth, mi.BSDFFlags.Transmission))


def find_eta(bsdf: Any, where: str) -> float | None:
    """The refractive index below the surface relative to that above, from samples of ``bsdf``; ``None`` if it does not
    transmit. Raises ``ValueError`` if samples have different ones.
    """
    if not transmits(bsdf):
        return None
    with dr.suspend_grad():
        u = uniform(7, Key(0), mi.Float, 4096)
        si, kinds = _interaction(u, True), +(mi.BSDFFlags.DiffuseTransmission | mi.BSDFFlags.GlossyTransmission)
        sample, _ = bsdf.sample(mi.BSDFContext(), si, u[4], mi.Point2f(u[5], u[6]))
        passed = (sample.pdf > 0) & ((sample.sampled_type & kinds) != 0)
        eta = dr.select(si.wi.z > 0, sample.eta, dr.rcp(sample.eta)).numpy()[passed.numpy()]
    if not len(eta):
        return 1.0
    lowest, highest = float(eta.min()), float(eta.max())
    one = "learn the BSDFs inside separately"
    same = highest < lowest * (1 + 1e-4)
    ensure(same, f"{where}: reference transmits with refractive indices from {lowest:g} to {highest:g}; {one}.")
    return float(eta[0]) if abs(eta[0] - 1) > 1e-6 else 1.0


def check_reflects(bsdf: Any, where: str) -> None:
    """Raise ``ValueError`` unless ``bsdf`` can be evaluated in a kernel and reflects anything."""
    try:
        with dr.suspend_grad():
            drawn = draw(bsdf, Key(0), 4096)
            bright = dr.any(drawn.valid & (dr.sum(drawn.value) > 0))[0]
    except RuntimeError as error:
        root: BaseException = error
        while root.__cause__ is not None:  # Dr.Jit's own says "see above"
            root = root.__cause__
        slopes = "; a bumpmap needs slopes, which bitmaps and neural_textures have" if "_grad" in str(root) else ""
        raise ValueError(f"{where}: reference cannot be evaluated ({str(root)[:200]}){slopes}.") from error
    ensure(bright, f"{where}: reference reflects nothing on its front side; there is nothing to learn.")


def weights(bsdf: Any, key: Key, samples: int) -> Any:
    """Luminance of the weights (for importance) of samples of ``bsdf``, at uniform points and directions of incidence;
    0 for directions below a surface that only reflects.
    """
    u = uniform(7, key, mi.Float, samples)
    sample, weight = bsdf.sample(_importance(), _interaction(u, transmits(bsdf)), u[4], mi.Point2f(u[5], u[6]))
    visible = (sample.wo.z > 0) | mi.has_flag(bsdf.flags(), mi.BSDFFlags.Transmission)
    return dr.select((sample.pdf > 0) & visible, mi.luminance(weight), 0)


def spread(bsdf: Any, key: Key, samples: int) -> Any:
    """Relative standard deviation of the :func:`weights`."""
    light = weights(bsdf, key, samples)
    dr.eval(light)  # otherwise the kernel of each mean would sample again
    mean = dr.mean(light)
    return dr.sqrt(dr.mean(dr.square(light - mean))) / mean


def _importance() -> Any:
    """A context for importance instead of radiance: importance conserves energy in transmission."""
    context = mi.BSDFContext()
    context.mode = mi.TransportMode.Importance
    return context


def _interaction(u: list, both: bool) -> Any:
    """From four random numbers: a uniform point of the unit square in the plane z = 0, seen from a uniform direction
    above it, or on ``both`` sides.
    """
    half = 2 * u[2] - dr.floor(2 * u[2]) if both else u[2]
    wi = mi.warp.square_to_uniform_hemisphere(mi.Point2f(half, u[3]))
    wi.z = dr.maximum(wi.z, 1e-3)  # not along the surface
    if both:
        wi.z = dr.mulsign(wi.z, 0.5 - u[2])
    si = dr.zeros(mi.SurfaceInteraction3f, dr.width(wi))
    si.t, si.uv, si.wi = 1.0, mi.Point2f(u[0], u[1]), dr.normalize(wi)
    si.p, si.n = mi.Point3f(u[0], u[1], 0), mi.Normal3f(0, 0, 1)
    si.sh_frame = mi.Frame3f(mi.Vector3f(1, 0, 0), mi.Vector3f(0, 1, 0), mi.Vector3f(0, 0, 1))
    si.dp_du, si.dp_dv = mi.Vector3f(1, 0, 0), mi.Vector3f(0, 1, 0)
    return si
