"""Random directions at a BSDF, with its values and densities for them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import drjit as dr
import mitsuba as mi

from ...checks import ensure
from ...random.key import Key
from ...training.sampling import uniform


class Reflections(NamedTuple):
    """Samples of a reflection, without perfectly specular parts: ``uv``; ``wi``, uniform in the hemisphere; ``wo``, by
    the BSDF's own sampling or, every second one, a cosine lobe; ``value``, the BSDF times the cosine; ``pdf``, the
    density of ``wo``; where ``valid``.
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
    # In a call, if only of this one function: BSDFs mask what they ask of their textures, and a masked lookup outside
    # calls ends the process where a function is frozen (the pointer that it selects for other lanes has no variable).
    return Reflections(*dr.switch(mi.UInt32(0), [lambda u: _drawn(bsdf, u)], u))


def _drawn(bsdf: Any, u: list) -> tuple:
    """The fields of :class:`Reflections`, by eight numbers."""
    si, context = _interaction(u), mi.BSDFContext()
    context.type_mask = +mi.BSDFFlags.Smooth
    own, _ = bsdf.sample(context, si, u[4], mi.Point2f(u[5], u[6]))
    lobe = mi.warp.square_to_cosine_hemisphere(mi.Point2f(u[5], u[6]))
    first = u[7] < 0.5
    wo = dr.select(first, own.wo, lobe)
    value, density = bsdf.eval_pdf(context, si, wo)
    pdf = 0.5 * density + 0.5 / math.pi * wo.z
    valid = (wo.z > 0) & (pdf > 0) & (~first | (own.pdf > 0)) & dr.isfinite(dr.sum(value)) & dr.isfinite(pdf)
    wo = dr.select(valid, wo, mi.Vector3f(0, 0, 1))
    return si.uv, si.wi, wo, dr.select(valid, value, 0), dr.select(valid, pdf, 1), valid


def check_reflects(bsdf: Any, where: str) -> None:
    """Raise ``ValueError`` unless ``bsdf`` can be evaluated and reflects anything: at samples that a kernel draws."""
    try:
        with dr.suspend_grad():
            drawn = draw(bsdf, Key(0), 4096)
            bright = dr.any(drawn.valid & (dr.sum(drawn.value) > 0))[0]
    except RuntimeError as error:
        root: BaseException = error
        while root.__cause__ is not None:  # Dr.Jit's own says "see above"
            root = root.__cause__
        slopes = "; a bumpmap asks for slopes, which bitmaps and neural_textures have" if "_grad" in str(root) else ""
        raise ValueError(f"{where}: reference cannot be evaluated ({str(root)[:200]}){slopes}.") from error
    ensure(bright, f"{where}: reference reflects nothing on its front side; there is nothing to learn.")


def weights(bsdf: Any, key: Key, samples: int) -> Any:
    """Luminance of the weights of samples of ``bsdf``, everywhere and from everywhere; 0 for directions below."""
    u = uniform(7, key, mi.Float, samples)
    own, weight = bsdf.sample(mi.BSDFContext(), _interaction(u), u[4], mi.Point2f(u[5], u[6]))
    return dr.select((own.pdf > 0) & (own.wo.z > 0), mi.luminance(weight), 0)


def spread(bsdf: Any, key: Key, samples: int) -> Any:
    """Relative standard deviation of the :func:`weights`."""
    light = weights(bsdf, key, samples)
    dr.eval(light)  # or both means would sample anew
    mean = dr.mean(light)
    return dr.sqrt(dr.mean(dr.square(light - mean))) / mean


def _interaction(u: list) -> Any:
    """A uniform point of the unit square in the plane z = 0, seen from a uniform direction above, by four numbers."""
    wi = mi.warp.square_to_uniform_hemisphere(mi.Point2f(u[2], u[3]))
    wi.z = dr.maximum(wi.z, 1e-3)  # not along the surface
    si = dr.zeros(mi.SurfaceInteraction3f, dr.width(wi))
    si.t, si.uv, si.wi = 1.0, mi.Point2f(u[0], u[1]), dr.normalize(wi)
    si.p, si.n = mi.Point3f(u[0], u[1], 0), mi.Normal3f(0, 0, 1)
    si.sh_frame = mi.Frame3f(mi.Vector3f(1, 0, 0), mi.Vector3f(0, 1, 0), mi.Vector3f(0, 0, 1))
    si.dp_du, si.dp_dv = mi.Vector3f(1, 0, 0), mi.Vector3f(0, 1, 0)
    return si
