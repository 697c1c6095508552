"""Paths that end at a surface after a few bounces, where a cache adds the rest of their radiance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import drjit as dr
import mitsuba as mi

from ..path.vertex import power_heuristic

#: Largest number of segments of a path. Only paths between mirrors and in glass would be longer.
LONGEST = 32


@dataclass(frozen=True)
class Ending:
    r"""Where paths end: at a *rough* vertex, whose BSDF has a lobe that is not a mirror's.

    If ``spread`` is ``None``, the path ends after ``after`` rough vertices, at the next one. Otherwise it ends at the
    first rough vertex :math:`n > 1` where it has spread enough:

    .. math:: a(x_1 \dots x_n) = \Bigl( \sum_{i=2}^n \sqrt{\frac{\|x_{i-1} - x_i\|^2}
        {p(\omega_i \mid x_{i-1}, \omega)\,|\cos\theta_i|}} \Bigr)^2 > c\,a_0, \qquad
        a_0 = \frac{\|x_0 - x_1\|^2}{4 \pi \cos\theta_1}

    (Müller et al. 2021, eq. 3 and 4), where :math:`x_0` is the camera and :math:`c` is ``spread``, 0.01 in the paper.
    """

    after: int = 1
    spread: float | None = None

    def met(self, passed: Any, sum: Any, first: Any) -> Any:
        """Does a path end at a rough vertex, after ``passed`` others? ``sum`` is that of the formula, ``first`` its
        :math:`a_0`.
        """
        if self.spread is None:
            return passed >= self.after
        return (passed > 0) & (dr.square(sum) > self.spread * first)


@dataclass
class Hit:
    """A ray and its hit: enough to compute the interaction again, which costs less than to carry it in a loop."""

    ray: Any
    pi: Any
    valid: Any

    def interaction(self) -> Any:
        return self.pi.compute_surface_interaction(self.ray, mi.RayFlags.All, self.valid)


def nowhere(ray: Any) -> Hit:
    return Hit(mi.Ray3f(ray), dr.zeros(mi.PreliminaryIntersection3f, dr.width(ray.d)), mi.Bool(False))


@dataclass
class Paths:
    """Radiance collected so far, the weight of the cache's radiance at ``end``, and whether the first ray hit anything.

    With a ``query``, both concern the light that leaves that vertex towards the one before it, without its emission.
    """

    radiance: Any
    weight: Any
    end: Hit
    query: Hit
    valid: Any


@dataclass
class _State:
    """Variables of the loop."""

    ray: Any
    active: Any
    depth: Any  # segments before this one
    passed: Any  # rough vertices
    radiance: Any
    weight: Any
    previous: Any  # vertex
    pdf: Any  # of the direction sampled there
    delta: Any  # was it sampled from a mirror's lobe?
    sum: Any
    first: Any
    end: Hit
    query: Hit
    valid: Any


def trace(
    scene: Any, sampler: Any, ray: Any, ending: Ending, active: Any = True, query: Any = None,
    hide_emitters: bool = False, longest: int = LONGEST,
) -> Paths:  # fmt: skip
    """Trace paths until they end. Emitters are sampled at all vertices before the end, weighted by the power heuristic.

    With ``query``, a ``UInt32``, the rough vertex of that number becomes the start: radiance collected before it is
    discarded, and ``ending.after`` counts from there.
    """
    ray = mi.Ray3f(ray)
    width = dr.width(ray.d)
    state = _State(
        ray, mi.Bool(active) & dr.full(mi.Bool, True, width), mi.UInt32(0), mi.UInt32(0), mi.Color3f(0), mi.Color3f(1),
        dr.zeros(mi.Interaction3f, width), mi.Float(1), mi.Bool(True), mi.Float(0), mi.Float(0), nowhere(ray),
        nowhere(ray), mi.Bool(False),
    )  # fmt: skip
    context = mi.BSDFContext()

    def body(sampler: Any, s: _State) -> tuple[Any, _State]:
        pi = scene.ray_intersect_preliminary(s.ray, coherent=False, active=s.active)
        si = pi.compute_surface_interaction(s.ray, mi.RayFlags.All, s.active)
        hit = s.active & si.is_valid()
        camera = s.depth == 0
        s.valid |= camera & hit

        # light of an emitter that was hit
        shown = s.active & ~camera if hide_emitters else s.active
        ds = mi.DirectionSample3f(scene, si, s.previous)
        pdf = scene.pdf_emitter_direction(s.previous, ds, shown & ~s.delta)
        mis = dr.select(s.delta, 1, power_heuristic(s.pdf, pdf))
        s.radiance = dr.fma(s.weight, mis * ds.emitter.eval(si, shown), s.radiance)

        bsdf = si.bsdf(mi.RayDifferential3f(s.ray))
        rough = hit & mi.has_flag(bsdf.flags(), mi.BSDFFlags.Smooth)  # Mitsuba: any lobe with a density
        cosine = dr.abs(dr.dot(si.n, s.ray.d))
        s.first = dr.select(camera, dr.square(si.t) / (4 * math.pi * cosine), s.first)
        step = dr.select(camera | s.delta, 0, si.t * dr.rsqrt(dr.maximum(s.pdf * cosine, 1e-12)))
        s.sum += dr.select(dr.isfinite(step), step, 0)

        # the start of a query, or the end
        beyond = s.passed
        if query is not None:
            starts = rough & ~s.query.valid & (s.passed == query)
            s.query = dr.select(starts, Hit(s.ray, pi, mi.Bool(True)), s.query)
            s.radiance = dr.select(starts, 0, s.radiance)
            s.weight = dr.select(starts, 1, s.weight)
            beyond = dr.select(s.query.valid, s.passed - query, 0)
        ends = rough & ending.met(beyond, s.sum, s.first)
        s.end = dr.select(ends, Hit(s.ray, pi, mi.Bool(True)), s.end)
        s.active = hit & ~ends & (s.depth + 1 < longest)

        # emitter sampling, and the next direction
        sampled = s.active & rough
        ds, light = scene.sample_emitter_direction(si, sampler.next_2d(sampled), True, sampled)
        sampled &= ds.pdf != 0
        towards = si.to_local(ds.d)
        value, pdf, sample, weight = bsdf.eval_pdf_sample(
            context, si, towards, sampler.next_1d(s.active), sampler.next_2d(s.active), s.active
        )
        mis = dr.select(ds.delta, 1, power_heuristic(ds.pdf, pdf))
        s.radiance = dr.select(sampled, dr.fma(s.weight, value * light * mis, s.radiance), s.radiance)
        s.weight = dr.select(s.active, s.weight * weight, s.weight)
        s.pdf, s.delta = sample.pdf, mi.has_flag(sample.sampled_type, mi.BSDFFlags.Delta)
        s.ray = dr.select(s.active, mi.Ray3f(si.spawn_ray(si.to_world(sample.wo))), s.ray)
        s.previous = mi.Interaction3f(si)
        s.passed = dr.select(s.active & rough, s.passed + 1, s.passed)
        s.depth += 1
        s.active &= dr.max(s.weight) > 0
        return sampler, s

    sampler, state = dr.while_loop((sampler, state), lambda sampler, s: s.active, body, label="short paths")
    return Paths(state.radiance, state.weight, state.end, state.query, state.valid)
