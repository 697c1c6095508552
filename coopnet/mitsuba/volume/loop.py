"""The loop of ``neural_volpath``: renders, or computes derivatives by path replay."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ..keys import key_at
from ..path.vertex import power_heuristic, ratio


@dr.syntax
def trace(integrator, media, mode, scene, sampler, ray, adjoint, state, active):
    """Follow paths from ``ray``; arguments and results as Mitsuba's ``ADIntegrator.sample``.

    Distances are sampled by a majorant that is the same for all colors. At a collision, a path is either scattered or
    goes straight on, with probabilities in proportion to the coefficients; absorption lowers its weight (Galtier et al.
    2013). In backward ``mode``, paths are replayed: ``state`` is their radiance, from which every contribution of a
    path is subtracted (Vicini et al. 2021).
    """
    primal = mode == dr.ADMode.Primal
    max_depth, key = integrator.max_depth, key_at(integrator.key, 0, dr.width(ray))

    ray = mi.Ray3f(dr.detach(ray))
    L = mi.Spectrum(0 if primal else state)
    adjoint = mi.Spectrum(0 if adjoint is None else adjoint)
    throughput = mi.Spectrum(1)
    eta = mi.Float(1)
    depth = mi.UInt32(0)
    active = mi.Bool(active) & (max_depth > 0)
    valid = mi.Bool(scene.environment() is not None)
    medium = dr.zeros(mi.MediumPtr)
    si = dr.zeros(mi.SurfaceInteraction3f)
    unknown = mi.Bool(True)  # must the surface that the ray hits be looked up?
    previous = dr.zeros(mi.Interaction3f)
    previous_pdf = mi.Float(1)
    previous_delta = mi.Bool(True)

    while dr.hint(active, label=f"neural_volpath ({mode.name})"):
        # Russian roulette
        survival = dr.minimum(dr.max(throughput) * dr.square(eta), 0.95)
        roulette = depth > integrator.rr_depth
        active &= (sampler.next_1d() < survival) | ~roulette
        throughput[roulette] *= dr.rcp(survival)

        # A collision in the medium, or the surface behind it
        si[active & unknown] = scene.ray_intersect(ray, active & unknown)
        unknown = mi.Bool(False)
        mei, number, majorant, met, lit = _collide(media, medium, ray, si.t, sampler.next_1d(), active)
        with dr.resume_grad(when=not primal):
            sigma_s, sigma_t, emitted = media.coefficients(medium, number, mei, key, met)
            mean_free = dr.select(met, dr.rcp(majorant), 0)
            light = throughput * emitted * mean_free
        L = L + light if primal else L - dr.detach(light)
        sigma_n = dr.maximum(majorant - dr.detach(sigma_t), 0)
        share, rest = dr.mean(dr.detach(sigma_s)), dr.mean(sigma_n)
        share = dr.select(rest > 0, share / (share + rest), 1)  # total absorption ends a path
        scattered = met & (sampler.next_1d() < share)
        passed = met & ~scattered
        with dr.resume_grad(when=not primal):
            chance = mean_free * dr.rcp(dr.select(scattered, share, 1 - share))
            followed = dr.select(scattered, sigma_s, majorant - sigma_t)
            weight = dr.select(met, followed * dr.select(met, chance, 0), 1)
            if dr.hint(not primal, mode="scalar"):
                _back(adjoint * (light + L * ratio(weight)))
        throughput *= dr.detach(weight)
        ray.o[passed] = mei.p
        si.t[passed] = si.t - mei.t
        depth[scattered] += 1
        active &= depth < max_depth
        scattered &= active
        passed &= active
        valid |= scattered

        # Light of an emitter that was hit
        reached = active & ~met
        emitter = si.emitter(scene)
        visible = reached & (emitter != None) & ((depth > 0) | (not integrator.hide_emitters))  # noqa: E711 - of lanes
        ds = mi.DirectionSample3f(scene, si, previous)
        pdf = scene.pdf_emitter_direction(previous, ds, visible & ~previous_delta)
        with dr.resume_grad(when=not primal):
            light = throughput * power_heuristic(previous_pdf, pdf) * emitter.eval(si, visible)
            if dr.hint(not primal, mode="scalar"):
                _back(adjoint * light)
        L = L + light if primal else L - dr.detach(light)
        reached &= si.is_valid()

        # Emitter sampling, at a surface or in the medium
        bsdf = si.bsdf(ray)
        phase = dr.select(scattered, medium.phase_function(), dr.zeros(mi.PhaseFunctionPtr))
        context, phase_context = mi.BSDFContext(), mi.PhaseFunctionContext(sampler)
        of_surface = reached & mi.has_flag(bsdf.flags(), mi.BSDFFlags.Smooth) & (depth + 1 < max_depth)
        of_medium = scattered & lit
        vertex = dr.zeros(mi.Interaction3f)
        vertex[scattered] = mei
        vertex[reached] = si
        asks = of_surface | of_medium
        ds, light = scene.sample_emitter_direction(vertex, sampler.next_2d(), False, asks)
        ds = dr.detach(ds)
        asks &= ds.pdf != 0
        behind = mi.MediumPtr(medium)
        behind[of_surface & si.is_medium_transition()] = si.target_medium(ds.d)
        toward = vertex.spawn_ray_to(ds.p)
        replay = sampler.clone()  # draws the same numbers once more
        clear = _transmittance(media, scene, sampler if primal else replay, toward, behind, key, asks, None)
        with dr.resume_grad(when=not primal):
            surface, surface_pdf = bsdf.eval_pdf(context, si, si.to_local(ds.d), of_surface)
            volume, volume_pdf = phase.eval_pdf(phase_context, mei, ds.d, of_medium)
            value = dr.select(of_surface, surface, volume)
            pdf = dr.detach(dr.select(of_surface, surface_pdf, volume_pdf))
            share = throughput * clear * dr.select(ds.delta, 1, power_heuristic(ds.pdf, pdf))
            if dr.hint(not primal, mode="scalar"):
                light = scene.eval_emitter_direction(vertex, ds, asks) / ds.pdf
            light = dr.select(asks, share * value * light, 0)
            if dr.hint(not primal, mode="scalar"):
                _back(adjoint * light)
        L = L + light if primal else L - dr.detach(light)
        if dr.hint(not primal, mode="scalar"):
            _transmittance(media, scene, sampler, toward, behind, key, asks, adjoint * dr.detach(light))

        # The next direction
        out, onward, volume_pdf = phase.sample(phase_context, mei, sampler.next_1d(), sampler.next_2d(), scattered)
        scattered &= volume_pdf > 0
        bs, factor = bsdf.sample(context, si, sampler.next_1d(), sampler.next_2d(), reached)
        reached &= bs.pdf > 0
        if dr.hint(not primal, mode="scalar"):
            with dr.resume_grad():
                volume, _ = phase.eval_pdf(phase_context, mei, out, scattered)
                surface = bsdf.eval(context, si, bs.wo, reached)
                _back(adjoint * L * (dr.select(scattered, ratio(volume), 0) + dr.select(reached, ratio(surface), 0)))
        throughput[scattered] *= onward
        throughput[reached] *= factor
        eta[reached] *= bs.eta
        ray[reached] = si.spawn_ray(si.to_world(bs.wo))
        ray[scattered] = mei.spawn_ray(out)
        unknown = reached | scattered
        real = reached & ~mi.has_flag(bs.sampled_type, mi.BSDFFlags.Null)
        previous[scattered] = mei
        previous[real] = si
        previous_pdf[scattered] = volume_pdf
        previous_pdf[real] = bs.pdf
        previous_delta = (previous_delta & ~scattered & ~real) | (scattered & ~lit)
        previous_delta |= real & mi.has_flag(bs.sampled_type, mi.BSDFFlags.Delta)
        depth[real] += 1
        valid |= real
        medium[reached & si.is_medium_transition()] = si.target_medium(ray.d)
        active &= (scattered | passed | reached) & (dr.max(throughput) != 0)

    return L if primal else adjoint, valid, [], L


def _collide(media, medium, ray, surface, sample, active):
    """A collision before the distance ``surface``: ``(interaction, number of the medium, majorant, is there a
    collision, does the medium sample emitters)``.
    """
    mei = dr.zeros(mi.MediumInteraction3f)
    mei.wi, mei.sh_frame, mei.time, mei.wavelengths = -ray.d, mi.Frame3f(-ray.d), ray.time, ray.wavelengths
    mei.p, mei.medium = ray.o, medium
    inside = active & (medium != None)  # noqa: E711 - an array is compared
    number, majorant, near, far, lit = dr.dispatch(medium, media.segment, ray, mei, inside)
    t = dr.maximum(near, 0) - dr.log(1 - sample) / majorant
    met = inside & (majorant > 0) & (t < dr.minimum(far, surface))
    mei.t = dr.select(met, t, dr.inf)
    mei.p = dr.select(met, ray(t), 0)
    return mei, number, majorant, met, lit


@dr.syntax
def _transmittance(media, scene, sampler, ray, medium, key, active, adjoint):
    """The transmittance along ``ray``, by ratio tracking (Novák et al. 2014).

    With an ``adjoint``, its derivative times the adjoint is added to the gradients of the media.
    """
    primal = adjoint is None
    ray, medium, active = mi.Ray3f(ray), mi.MediumPtr(medium), mi.Bool(active)
    clear = mi.Spectrum(1)
    si = dr.zeros(mi.SurfaceInteraction3f)
    unknown = mi.Bool(True)
    while dr.hint(active, label="neural_volpath (light)"):
        si[active & unknown] = scene.ray_intersect(ray, active & unknown)
        unknown = mi.Bool(False)
        mei, number, majorant, met, _ = _collide(
            media, medium, ray, dr.minimum(si.t, ray.maxt), sampler.next_1d(), active
        )
        reached = active & ~met & si.is_valid()
        with dr.resume_grad(when=not primal):
            _, sigma_t, _ = media.coefficients(medium, number, mei, key, met)
            share = 1 - sigma_t * dr.select(met, dr.rcp(majorant), 0)
            share = dr.select(reached, si.bsdf(ray).eval_null_transmission(si, reached), share)
            if dr.hint(not primal, mode="scalar"):
                _back(adjoint * ratio(share))
        clear *= dr.detach(share)
        left = ray.maxt - dr.select(met, mei.t, si.t)
        si.t[met] = si.t - mei.t
        ray.o[met] = mei.p
        ray[reached] = si.spawn_ray(ray.d)
        ray.maxt = left
        unknown = reached
        medium[reached & si.is_medium_transition()] = si.target_medium(ray.d)
        active &= (met | reached) & (left > 0) & (dr.max(clear) != 0)
    return clear


def _back(value: Any) -> None:
    if dr.grad_enabled(value):
        dr.backward_from(value)
