"""Marching along rays in one symbolic loop, differentiated by Dr.Jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drjit as dr

from .rays import SampledRays

#: The sums of a march: ``[r, g, b, depth, transmittance]``.
Sums = list


class Marcher:
    """Emission and absorption along rays; the three modes share it.

    Args:
        radiance: :class:`Radiance`. occupancy: an :class:`OccupancyGrid` or ``None``.
        termination: the transmittance at which a ray ends.
    """

    def __init__(self, radiance: Any, occupancy: Any, termination: Any):
        self.radiance, self.occupancy, self.termination = radiance, occupancy, termination

    def walk(
        self, start: Any, steps: Any, visit: Callable, state: list, label: str, following: Callable = lambda i: i + 1,
        max_iterations: int | None = None,
    ) -> list:  # fmt: skip
        """Visit the samples of every ray in a symbolic loop, from number ``start`` on while there is light left.

        Args:
            visit: traced code ``(i, transmittance, state, active) -> (transmittance, state)`` of the sample ``i``.
            state: numbers or ``Float`` s to begin with.
            following: number of the sample that comes after ``i``.

        Returns:
            ``[*state, transmittance]``.
        """
        zero = dr.zeros(dr.float32_array_t(type(start)), dr.width(start))

        def cond(i: Any, transmittance: Any, state: list) -> Any:
            return (i < steps) & (transmittance > self.termination)

        def body(i: Any, transmittance: Any, state: list) -> tuple:
            return following(i), *visit(i, transmittance, state, cond(i, transmittance, state))

        first = (start, zero + 1, [zero + v for v in state])
        _, transmittance, state = dr.while_loop(
            first, cond, body, mode="symbolic", max_iterations=max_iterations, label=label
        )
        return [*state, transmittance]

    def along(self, rays: SampledRays, visit: Callable, state: list, label: str, **options: Any) -> list:
        """:meth:`walk` over those samples of ``rays`` whose cells are not empty."""
        start = dr.select(rays.alive, self._occupied(rays, rays.uint32(0)), rays.bins)
        start += dr.zeros(rays.uint32, dr.width(rays.dt))
        return self.walk(start, rays.bins, visit, state, label, lambda i: self._occupied(rays, i + 1), **options)

    def _occupied(self, rays: SampledRays, i: Any) -> Any:
        """The first sample from ``i`` on whose cell is not empty; ``steps`` if there is none."""
        if self.occupancy is None:
            return i
        with dr.suspend_grad():
            return self.occupancy.skip(rays, i)

    def march(self, rays: SampledRays, max_iterations: int | None = None) -> Sums:
        """The sums of each ray, by a loop that Dr.Jit differentiates; in reverse mode, up to ``max_iterations``."""

        def visit(i: Any, transmittance: Any, sums: list, active: Any) -> tuple:
            t = rays.distance(i)
            sigma, rgb = self.radiance(rays.point(t), rays.d, rays.key(i), active)
            return add(transmittance, sums, sigma * rays.dt, [*rgb, t])

        return self.along(rays, visit, [0, 0, 0, 0], "coopnet.ray_march", max_iterations=max_iterations)


def add(transmittance: Any, sums: list, tau: Any, values: list) -> tuple[Any, list]:
    """The transmittance behind a sample of thickness ``tau``, and the sums with its ``values = [r, g, b, t]``."""
    left = transmittance * dr.exp(-tau)
    weight = transmittance - left
    return left, [dr.fma(weight, v, s) for v, s in zip(values, sums, strict=True)]
