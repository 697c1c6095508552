"""Marching along rays in one symbolic loop, differentiated by Dr.Jit."""

from __future__ import annotations

from typing import Any

import drjit as dr

from .rays import SampledRays

#: What a march sums up: ``[r, g, b, transmittance, depth]``.
Sums = list


class Marcher:
    """Emission and absorption along rays; the three modes share it.

    Args:
        radiance: :class:`Radiance`. occupancy: an :class:`OccupancyGrid` or ``None``.
        termination: the transmittance at which a ray ends.
    """

    def __init__(self, radiance: Any, occupancy: Any, termination: Any):
        self.radiance, self.occupancy, self.termination = radiance, occupancy, termination

    def goes_on(self, i: Any, transmittance: Any, steps: int) -> Any:
        """Mask of the rays that have a sample ``i`` and light left for it."""
        return (i < steps) & (transmittance > self.termination)

    def start(self, rays: SampledRays) -> Any:
        """Number of the first sample of each ray; ``steps`` where there is none."""
        return dr.select(rays.alive, self.occupied(rays, rays.uint32(0)), rays.steps)

    def occupied(self, rays: SampledRays, i: Any) -> Any:
        """The first sample from ``i`` on whose cell is not empty; ``steps`` if there is none."""
        if self.occupancy is None:
            return i
        with dr.suspend_grad():
            return self.occupancy.skip(rays, i)

    def march(self, rays: SampledRays, max_iterations: int | None = None) -> Sums:
        """The sums of each ray, by a loop that Dr.Jit differentiates; in reverse mode, up to ``max_iterations``."""
        n = max(dr.width(v) for v in [*rays.o, *rays.d, rays.near, rays.dt, rays.alive])
        zero = dr.zeros(rays.float32, n)

        def cond(i: Any, transmittance: Any, *sums: Any) -> Any:
            return self.goes_on(i, transmittance, rays.steps)

        def body(i: Any, transmittance: Any, r: Any, g: Any, b: Any, depth: Any) -> tuple:
            t = rays.distance(i)
            active = cond(i, transmittance)
            sigma, (red, green, blue) = self.radiance(rays.point(t), rays.d, rays.key(i), active)
            left = transmittance * dr.exp(-sigma * rays.dt)
            weight = transmittance - left
            r, g, b = dr.fma(weight, red, r), dr.fma(weight, green, g), dr.fma(weight, blue, b)
            return self.occupied(rays, i + 1), left, r, g, b, dr.fma(weight, t, depth)

        start = (self.start(rays) + dr.zeros(rays.uint32, n), zero + 1, zero, zero, zero, zero)
        _, transmittance, r, g, b, depth = dr.while_loop(
            start,
            cond,
            body,
            labels=("i", "transmittance", "r", "g", "b", "depth"),
            mode="symbolic",
            max_iterations=max_iterations,
            label="coopnet.ray_march",
        )
        return [r, g, b, transmittance, depth]
