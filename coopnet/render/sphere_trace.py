r"""Sphere tracing: where rays meet the zero set of a signed distance, in one loop of one kernel, with gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import drjit as dr

from ..checks import check, check_above, check_int, is_number
from ..jit.kernel_parameters import kept
from ..random.key import Key
from .arguments import Rays
from .sphere_trace_loop import FINE, HALF, FoundHit, Limits, trace
from .surface import Surface

#: Directions and gradients whose squared length is at most this count as zero.
TINY = 1e-30


@dataclass
class SurfaceHit:
    """Where rays meet a surface: the result of :func:`coopnet.render.sphere_trace`, a Dr.Jit PyTree.

    It can be unpacked: ``t, hit, position, normal = sphere_trace(...)``.

    Args:
        t: ``Float``, the distance of the hit in units of the length of ``d``; infinite for rays that miss.
        hit: ``Bool``, does the ray meet the surface?
        position: ``Array3f``, ``o + t d``; zeros for rays that miss.
        normal: ``Array3f``, the gradient of the distance at ``position`` divided by its length, so that it points to
            where distances are positive; zeros for rays that miss.
        closest: ``Float``, detached: where on the ray the smallest distance was found, for
            :func:`coopnet.render.soft_visibility`.
        evaluations: ``UInt32``, how often the distance was evaluated to find the hit; normals are not counted.

    >>> t, hit, position, normal = cn.render.sphere_trace(sdf, o, d, t_max=4)
    """

    t: Any
    hit: Any
    position: Any
    normal: Any
    closest: Any
    evaluations: Any

    def __iter__(self) -> Iterator[Any]:
        return iter((self.t, self.hit, self.position, self.normal))


def sphere_trace(
    sdf: Any,
    o: Any,
    d: Any = None,
    t_max: Any = None,
    steps: int = 128,
    eps: Any = 1e-4,
    *,
    t_min: Any = 0.0,
    relaxation: float = 1.2,
    bisections: int = 4,
    lipschitz: Any = 1.0,
    silhouette: Any = None,
    min_cosine: float = 0.01,
    difference: float = 1e-3,
    key: Key | None = None,
    active: Any = True,
) -> SurfaceHit:
    r"""The first points of the rays :math:`o + t d` at which the signed distance ``sdf`` is zero.

    A ball around :math:`p` of radius :math:`|f(p)|` is free of the surface, so a ray may advance by it (Hart 1996,
    *Sphere Tracing*). Steps are ``relaxation`` times as long, and taken back if two consecutive balls don't touch
    (Keinert et al. 2014, *Enhanced Sphere Tracing*, section 3.1). Where the sign has changed or the distance is below
    ``eps``, regula falsi (the Illinois variant, which keeps the root between its ends) finds the hit more precisely. A
    ray that comes so close but finds no hit, because it grazes the surface, continues.
    One symbolic loop evaluates the distance once per iteration; rays that are done leave it. If all results are
    evaluated together, they come from one kernel.

    **Gradients.** The loop is not differentiated. On the surface :math:`f(o + t d; \theta) = 0`, so that

    .. math::
        dt = -\frac{\partial_\theta f\, d\theta + \nabla f \cdot (do + t\, dd)}{\nabla f \cdot d}

    (Niemeyer et al. 2020, *Differentiable Volumetric Rendering*, section 3.4; Yariv et al. 2020, *IDR*, section 3.1),
    which one more evaluation at the hit attaches to ``t`` with respect to the parameters of ``sdf``, ``o`` and ``d``,
    in forward and reverse mode. The denominator cannot get too small: a cosine between ray and normal below
    ``min_cosine`` counts as ``min_cosine``. Positions and normals follow from ``t``; gradients of normals are second
    derivatives of ``sdf``, which ReLU networks and hash grids hardly have. Hits that appear or vanish at silhouettes
    have no gradient here: see :func:`coopnet.render.soft_visibility`.

    Args:
        sdf: a built :class:`NeuralField` of 3 coordinates and one output, or a function ``p -> Float`` (``sdf(p, key)``
            if there is a key) of an ``Array3f``. The normals of a function are its gradient by Dr.Jit's forward mode,
            and derivatives of normals are central differences; if it has a method ``value_and_grad``, that is
            called instead. It must be the same function of a point in every lane.
        o, d: origins and directions: ``Array3f`` or anything else with 3 components that a field takes; three numbers
            or rows of them, also as a NumPy array of shape (3,) or (3, rays), rounded to single precision. One of each
            or one for each ray. Or ``o`` is a ray such as ``mi.Ray3f``, and ``d`` left out. Rays of numbers are on the
            backend of ``sdf`` if that is a field. Directions need not have length 1. Rays that are not finite miss.
        t_max: end of the rays, in units of the length of ``d``: a number, a row of numbers or a ``Float``, one or one
            for each ray. Left out, it is the ``maxt`` of a ``mi.Ray3f``.
        steps: most evaluations of the distance, plus ``bisections``; rays that have found no surface by then miss.
        eps: distance below which regula falsi looks for the surface, in units of ``sdf / lipschitz``: a number or a
            ``Float``. A distance of at most a hundredth of it is a hit; if ``steps`` are used up, of at most ``eps``.
            Fields in half precision resolve no more than they round coordinates by: there, a distance of at most
            :math:`2^{-12}` times the largest coordinate is a hit, too, unless ``eps`` is less than that.
        t_min: start of the rays, as ``t_max``. A ray that starts where the distance is negative is traced through the
            inside, and its hit is where it leaves. One that starts within ``eps`` of the surface hits it there at
            once: start rays that leave a surface some ``eps`` above it.
        relaxation: factor of step lengths in [1, 2); 1 is plain sphere tracing.
        bisections: most steps of regula falsi after the first sample within ``eps``, which end as ``eps`` says; 0 for
            no regula falsi, so that rays end, and hit, at the first such sample or beyond the surface.
        lipschitz: a bound on the length of the gradient of ``sdf`` (a number or a ``Float``), by which distances are
            divided. Networks that have not been trained to be distances need more than 1, or hits are missed.
        silhouette: if not ``None``, the width of soft visibility, in units of ``sdf`` (a number or a ``Float``). Rays
            then continue beyond their hit in search of the smallest distance on them, until it is below -5 widths, and
            ``closest`` is refined. That costs more evaluations. ``None``: ``closest`` is the best of the samples.
        min_cosine: see above, in (0, 1].
        difference: half the distance of the points of central differences, in units of ``p``.
        key: turns dropout on, as in a call of a field: all evaluations of a ray see the same masks.
        active: rays that are traced, a bool or a ``Bool``; the others miss, and contribute nothing to any gradient.

    Returns:
        A :class:`SurfaceHit`.

    Raises:
        ValueError: arguments out of range, arrays of different sizes, a field of another number of coordinates, or
            several outputs.
        TypeError: arguments of another kind or backend, or in double precision.

    >>> t, hit, position, normal = cn.render.sphere_trace(sdf, o, d, t_max=4, steps=64)
    """
    where = "sphere_trace"
    steps = check_int(where, "steps", steps, 1, 2**31, "a positive int")
    bisections = check_int(where, "bisections", bisections, 0, 1024)
    ok = is_number(relaxation, 1) and relaxation < 2
    check(ok, where, "relaxation", relaxation, "a number of at least 1 and below 2")
    ok = is_number(min_cosine) and 0 < min_cosine <= 1
    check(ok, where, "min_cosine", min_cosine, "a number above 0 and at most 1")
    rays = Rays(o, d, where, sdf)
    t_max = getattr(o, "maxt", None) if t_max is None else t_max
    start, end = rays.constant("t_min", t_min), rays.constant("t_max", t_max)
    rays.ordered("t_min", t_min, "t_max", t_max)
    near, bound = rays.constant("eps", eps, positive=True), rays.constant("lipschitz", lipschitz, positive=True)
    width = None if silhouette is None else rays.constant("silhouette", silhouette, positive=True)
    alive = rays.mask(active)
    surface = Surface(sdf, key, rays.point, check_above(where, "difference", difference), where)

    with dr.suspend_grad():
        o, d, alive = _finite(rays, alive)
        # distances in units of t from here on
        scale = dr.rcp(bound * dr.norm(d))
        near = near * bound * scale
        uint32 = dr.uint32_array_t(rays.leaf)
        limits = Limits(
            o, d, start, end, near, FINE * near if bisections else near,
            HALF * bound * scale if surface.is_half else None, scale,
            None if width is None else width * scale, kept(uint32(steps)), kept(uint32(bisections)),
            kept(rays.leaf(relaxation)),
        )  # fmt: skip
        traced = trace(surface, limits, alive)
    return _attached(surface, rays, traced, kept(rays.leaf(min_cosine)))


def _finite(rays: Rays, active: Any) -> tuple[Any, Any, Any]:
    """Detached origins and directions, and the mask of rays to trace: active ones that are finite and have a
    direction. Others are replaced by a ray from 0 along z.
    """
    o, d = dr.detach(rays.o), dr.detach(rays.d)
    length = dr.squared_norm(d)
    ok = active & dr.all(dr.isfinite(o)) & dr.isfinite(length) & (length > TINY)
    ok &= dr.full(dr.mask_t(rays.leaf), True, rays.lanes)
    return dr.select(ok, o, 0), dr.select(ok, d, rays.point(0, 0, 1)), ok


def _attached(surface: Surface, rays: Rays, traced: FoundHit, min_cosine: Any) -> SurfaceHit:
    """The hits with their gradients."""
    point, hit = rays.point, traced.hit
    t = dr.select(hit, traced.t_hit, 0)
    # lanes without a hit must not pass NaN back to rays: 0 times NaN is NaN
    o, d = dr.select(hit, rays.o, 0), dr.select(hit, rays.d, point(0, 0, 1))
    with dr.suspend_grad():
        p = point(o + t * d)
        _, gradient = surface.value_and_grad(p, hit)
    value = surface.value(dr.detach(p), hit)
    if any(dr.grad_enabled(v) for v in (value, o, d)):
        along = dr.dot(gradient, dr.detach(d))
        smallest = min_cosine * dr.norm(gradient) * dr.norm(dr.detach(d))
        # a gradient of zero has no direction, and no surface
        slope = dr.select(smallest > 0, dr.mulsign(dr.maximum(abs(along), smallest), along), 1)
        # the gradient of the value with respect to the point is known already
        distance = value + dr.dot(gradient, o + t * d)
        t = dr.replace_grad(t, -distance / slope)
        p = point(o + t * d)
        _, gradient = surface.value_and_grad(p, hit)
    length = dr.squared_norm(gradient)
    normal = dr.select(length > TINY, gradient * dr.rsqrt(dr.maximum(length, TINY)), 0)
    return SurfaceHit(
        t=dr.select(hit, t, dr.inf),
        hit=hit,
        position=dr.select(hit, p, 0),
        normal=dr.select(hit, normal, 0),
        closest=traced.closest,
        evaluations=traced.evaluations,
    )
