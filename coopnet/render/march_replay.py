"""Marching twice: once for the sums, and a second time for gradients, which need the sums."""

from __future__ import annotations

import contextlib
from typing import Any

import drjit as dr

from ..nn.gradient_banks import gradient_banks
from .compositing import Pullback
from .march_loop import Marcher, Sums
from .parameters import ModuleParameters
from .rays import SampledRays


def march_replay(marcher: Marcher, rays: SampledRays, parameters: ModuleParameters) -> Sums:
    """The sums of rays, in memory that does not depend on the number of steps, forward and backward."""
    moving = dr.grad_enabled(rays.geometry)
    return dr.custom(Replay, marcher, rays, parameters, moving, rays.geometry, parameters.arrays())


class Replay(dr.CustomOp):
    """Walks along the rays again for the gradient, and differentiates one sample at a time.

    ``geometry`` are the components of origins and directions, near and bin lengths; ``moving`` says whether any of them
    tracks gradients; ``arrays`` are the parameters.
    """

    def eval(  # type: ignore[override]
        self, marcher: Marcher, rays: SampledRays, parameters: ModuleParameters, moving: bool, geometry: list,
        arrays: list,
    ) -> Sums:  # fmt: skip
        self.marcher, self.parameters, self.moving, self.arrays = marcher, parameters, moving, arrays
        self.rays = rays.moved(geometry)
        with parameters.replaced(arrays):
            self.sums = marcher.march(self.rays)
        return self.sums

    def forward(self) -> None:
        with dr.resume_grad(), dr.isolate_grad():
            moving = [self._moving(v, g) for v, g in zip(self.rays.geometry, self.grad_in("geometry"), strict=True)]
            arrays = [self._moving(v, g) for v, g in zip(self.arrays, self.grad_in("arrays"), strict=True)]
            # the derivative is computed in this block, too, because Dr.Jit traces the loop's body again for it
            with self.parameters.replaced(arrays):
                tangents = dr.forward_to(*self.marcher.march(self.rays.moved(moving)))
        self.set_grad_out([dr.detach(v) for v in tangents])

    @staticmethod
    def _moving(value: Any, gradient: Any) -> Any:
        """A new variable with the value of ``value``, and a gradient."""
        with dr.resume_grad():
            value = type(value)(dr.detach(value))
            dr.enable_grad(value)
            dr.set_grad(value, gradient)
        return value

    def backward(self) -> None:
        pullback = Pullback(self.sums, self.grad_out())
        arrays = [self._moving(v, 0) for v in self.arrays]

        def visit(i: Any, transmittance: Any, state: list, active: Any) -> tuple:
            behind, *sums = state
            left, behind, added = self._sample(pullback, i, transmittance, behind, active)
            return left, [behind, *(s + dr.select(active, a, 0) for s, a in zip(sums, added, strict=True))]

        start = [pullback.behind, *[0] * (8 if self.moving else 0)]
        # on CUDA, one buffer in half precision could not hold the sum of so many samples
        banks = gradient_banks(*self.parameters.modules) if arrays else contextlib.nullcontext()
        with self.parameters.replaced(arrays), banks:
            behind, *sums, _ = self.marcher.along(self.rays, visit, start, "coopnet.replay")
            dr.eval(behind, sums)
        if self.moving:
            self.set_grad_in("geometry", sums)
        self.set_grad_in("arrays", [dr.grad(v) for v in arrays])

    def _sample(
        self, pullback: Pullback, i: Any, transmittance: Any, behind: Any, active: Any
    ) -> tuple[Any, Any, list]:
        """Differentiate sample ``i``: returns the transmittance and the light behind it, and the gradients of the
        geometry.
        """
        rays, t = self.rays, self.rays.distance(i)
        with dr.resume_grad(), dr.isolate_grad():
            p, d = [dr.detach(v) for v in rays.point(t)], [v + 0 * t for v in rays.d]
            if self.moving:
                dr.enable_grad(p, d)
            sigma, rgb = self.marcher.radiance(p, d, rays.key(i), active)
            density, *color = (dr.detach(v) for v in (sigma, *rgb))
            left, behind, dtau, dvalues = pullback.sample(transmittance, behind, density * rays.dt, [*color, t])
            cotangents = [dr.select(active, v, 0) for v in (dtau * rays.dt, *dvalues[:3])]
            dr.backward(sum(v * c for v, c in zip((sigma, *rgb), cotangents, strict=True)))
            if not self.moving:
                return left, behind, []
            dp, dd = dr.grad(p), dr.grad(d)
        dt = sum((v * w for v, w in zip(dp, rays.d, strict=True)), dvalues[3])
        dlength = dr.fma(dt, rays.float32(i) + rays.offset(i), dtau * density)
        return left, behind, [*dp, *[dr.fma(v, t, w) for v, w in zip(dp, dd, strict=True)], dt, dlength]

    def name(self) -> str:
        return "coopnet.replay"
