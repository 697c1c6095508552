"""The loop over bounces of ``neural_path``: renders, or computes derivatives by path replay."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ..keys import key_at
from .scene_decoders import KEEP_INPUTS, upright
from .vertex import Term, power_heuristic


@dr.syntax
def trace(integrator, decoders, mode, scene, sampler, ray, adjoint, state, active):
    """Follow paths from ``ray``; arguments and results as Mitsuba's ``ADIntegrator.sample``.

    Directions, random numbers and weights are those of Mitsuba's ``path``, in its order, so that both render the same
    picture from the same seed. With a derivative ``mode``, paths are replayed: ``state`` is their radiance, from which
    every vertex subtracts its contribution (Vicini et al. 2021). Geometry and sampling are not differentiated.
    """
    primal = mode == dr.ADMode.Primal
    max_depth, lanes = integrator.max_depth, dr.width(ray)
    hide = integrator.hide_emitters

    ray = mi.Ray3f(dr.detach(ray))
    L = mi.Spectrum(0 if primal else state)
    adjoint = mi.Spectrum(0 if adjoint is None else adjoint)
    throughput = mi.Spectrum(1)
    eta = mi.Float(1)
    depth = mi.UInt32(0)
    active = mi.Bool(active) & (max_depth > 0)
    valid = mi.Bool(max_depth > 0 and not hide and scene.environment() is not None)
    previous = dr.zeros(mi.Interaction3f)
    previous_pdf = mi.Float(1)
    previous_delta = mi.Bool(True)
    pi = scene.ray_intersect_preliminary(ray, coherent=True, active=active)
    if dr.hint(hide, mode="scalar"):
        hidden = pi.is_valid() & (pi.shape.emitter() != None) & active  # noqa: E711 - an array is compared
        si = pi.compute_surface_interaction(ray, mi.RayFlags.Minimal, hidden)
        pi[hidden] = integrator.skip_area_emitters(scene, si.spawn_ray(ray.d), True, hidden)

    wavefront = decoders.way == "wavefront"
    how = "evaluated" if wavefront else None
    while dr.hint(active, max_iterations=max_depth, label=f"neural_path ({mode.name})", mode=how):
        si = pi.compute_surface_interaction(ray, ray_flags=mi.RayFlags.All)

        # Light of an emitter that was hit, weighted against emitter sampling at the previous vertex
        ds = mi.DirectionSample3f(scene, si=si, ref=previous)
        pdf = scene.pdf_emitter_direction(previous, ds, ~previous_delta)
        weight = throughput * power_heuristic(previous_pdf, pdf)
        visible = active & (previous_pdf > 0)
        if dr.hint(hide, mode="scalar"):
            visible &= (depth > 0) | si.is_valid()
        with dr.resume_grad(when=not primal):
            emitted = weight * ds.emitter.eval(si, visible)

        # Emitter sampling
        active_next = active & (depth + 1 < max_depth) & si.is_valid()
        bsdf = si.bsdf(ray)
        smooth = active_next & mi.has_flag(bsdf.flags(), mi.BSDFFlags.Smooth)
        ds, light = scene.sample_emitter_direction(si, sampler.next_2d(), True, smooth)
        smooth &= ds.pdf != 0
        toward = si.to_local(ds.d)

        # The material: one virtual call for all but the networks, then the networks
        samples = sampler.next_1d(), sampler.next_2d()
        value, pdf, bs, factor, number, below, code, lobe = dr.dispatch(
            bsdf, decoders.query, si, toward, *samples, active_next
        )
        if dr.hint(wavefront, mode="scalar"):
            # networks run in separate kernels, which would otherwise compute these values again
            dr.eval(emitted, light, toward, value, pdf, bs, factor, number, below, code, lobe, samples)
        learned = number > 0  # where a network gives the value of the next direction
        if dr.hint(bool(decoders.decoders), mode="scalar"):
            wi, onto = upright(below, [si.wi, toward])
            wo, *densities, index = decoders.sample(number, lobe, code, wi, onto, *samples)
            pdf = dr.select(learned, densities[1], pdf)
            learned &= samples[0] >= lobe[2]
            (bs.wo,) = dr.select(learned, upright(below, [wo]), [bs.wo])
            bs.pdf = dr.select(learned, densities[0], bs.pdf)
            bs.eta = dr.select(learned, index, bs.eta)
            bs.sampled_type = dr.select(learned, mi.UInt32(mi.BSDFFlags.GlossyReflection), bs.sampled_type)
        share = throughput * dr.select(ds.delta, 1, power_heuristic(ds.pdf, pdf))
        direct = dr.select(smooth, share * light, 0)
        L = L + emitted if primal else L - dr.detach(emitted)
        wi, *pair = upright(below, [si.wi, toward, bs.wo])
        pair[1] = dr.select(learned, pair[1], mi.Vector3f(0))  # tangent to the surface, where values are 0
        query = (number, code, wi, pair, key_at(integrator.key, depth, lanes), ray.wavelengths)
        if dr.hint(primal, mode="scalar"):
            networks = decoders.evaluate(*query)
        else:
            with dr.resume_grad():
                share = dr.select(smooth, share / ds.pdf, 0)
                light = share * scene.eval_emitter_direction(si, ds, smooth)
                codes, values = dr.dispatch(bsdf, decoders.attached, si, [toward, bs.wo], active_next)
            term = Term(direct, L, adjoint if mode == dr.ADMode.Backward else mi.Spectrum(1))
            networks, tangent = _differentiate(mode, decoders, query, term, emitted, light, codes, values)
            adjoint = adjoint + tangent
        value = dr.select(number > 0, networks[0], value)
        factor = dr.select(learned, networks[1] * dr.select(bs.pdf > 0, dr.rcp(bs.pdf), 0), factor)
        L = L + direct * value if primal else L - direct * value

        # The next direction
        ray = si.spawn_ray(si.to_world(bs.wo))
        throughput *= factor
        eta *= bs.eta
        valid |= active & si.is_valid() & ~mi.has_flag(bs.sampled_type, mi.BSDFFlags.Null)
        previous = mi.Interaction3f(si)
        previous_pdf = bs.pdf
        previous_delta = mi.has_flag(bs.sampled_type, mi.BSDFFlags.Delta)
        depth[si.is_valid()] += 1

        # Russian roulette
        largest = dr.max(throughput)
        survival = dr.minimum(largest * dr.square(eta), 0.95)
        roulette = depth >= integrator.rr_depth
        throughput[roulette] *= dr.rcp(survival)
        survives = sampler.next_1d() < survival
        active = active_next & (largest != 0) & (~roulette | survives)
        pi = scene.ray_intersect_preliminary(ray, coherent=False, reorder=primal, active=active)

    L = dr.select(valid, L, 0) if primal else L
    return L if primal else adjoint, valid, [], L


def _differentiate(mode, decoders, query, term, emitted, light, codes, values):
    """The contribution of a vertex to the gradients, or to the tangent of the radiance: ``(networks, tangent)``.

    Args:
        query: arguments of :meth:`SceneDecoders.evaluate`.
        emitted, light: radiance of emitters, hit and sampled, with derivatives. ``light`` is not multiplied by the
            material's value.
        codes, values: of materials, with derivatives.
    """
    number = query[0]
    tangent = mi.Spectrum(0)
    with dr.resume_grad():
        moving = [dr.grad_enabled(c) for c in codes]
    if mode == dr.ADMode.Backward:
        networks, slopes = decoders.backward(*query, term, any(moving))
    else:
        with dr.resume_grad():
            tangents = [_tangent(c, mi.Float) for c in codes]
        networks, tangent = decoders.forward(*query, term, tangents)
    with dr.resume_grad():
        value = dr.select(number > 0, networks[0], dr.detach(values[0]))
        rest = term.adjoint * (emitted + value * light) + dr.select(number > 0, 0, term(*values))
        if mode == dr.ADMode.Backward:
            # a term whose derivative with respect to the codes is that of the networks
            rest[0] += sum(c * slope for c, slope in zip(codes, slopes, strict=True))
            if dr.grad_enabled(rest):
                dr.backward_from(rest)
        else:
            tangent = tangent + _tangent(rest, mi.Spectrum)
    return networks, tangent


def _tangent(value: Any, kind: type) -> Any:
    return dr.forward_to(value, flags=KEEP_INPUTS) if dr.grad_enabled(value) else kind(0)
