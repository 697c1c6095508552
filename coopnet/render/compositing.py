r"""Emission and absorption along rays whose samples are in memory.

Sample :math:`i` of a ray, at distance :math:`t_i`, has an optical thickness :math:`\tau_i` and a color :math:`c_i`.
With the transmittance in front of it, :math:`T_i = e^{-\sum_{j<i} \tau_j}`, it weighs
:math:`w_i = T_i (1 - e^{-\tau_i})`
(Max 1995; Mildenhall et al. 2020, eq. 3):

.. math:: C = \sum_i w_i c_i, \quad D = \sum_i w_i t_i, \quad T = e^{-\sum_i \tau_i} .

If a sample gets thicker, more of its own color is seen and less of everything behind it,

.. math:: \frac{\partial C}{\partial \tau_i} = T_{i+1} c_i - \sum_{j>i} w_j c_j, \quad
          \frac{\partial T}{\partial \tau_i} = -T .

The light from behind a sample is the total minus the light from in front of it. So gradients need only one more walk
along the ray, forward, and the sums of the first (Vicini et al. 2021, "Path replay backpropagation").
"""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..jit.kernel_parameters import kept
from .march_loop import Marcher, Sums, add


class Pullback:
    """Cotangents of samples from those of a ray's sums, one sample after the other.

    Args:
        sums, cotangents: ``[r, g, b, depth, transmittance]`` of the rays, and the derivatives of the loss with respect
            to them.
    """

    def __init__(self, sums: Sums, cotangents: Sums):
        *total, transmittance = (dr.detach(v) for v in sums)
        *self.weights, weight = (dr.detach(v) for v in cotangents)
        # all light that reaches the camera, times the derivatives of the loss: the sums are used in no other way
        self.behind = sum((v * w for v, w in zip(total, self.weights, strict=True)), transmittance * weight)

    def sample(self, transmittance: Any, behind: Any, tau: Any, values: list) -> tuple[Any, Any, Any, list]:
        """One sample of thickness ``tau`` and ``values = [r, g, b, t]``; ``behind`` is the light from it and from
        behind it.

        Returns the transmittance and the light behind it, and the cotangents of ``tau`` and ``values``.
        """
        left = transmittance * dr.exp(-tau)
        weight = transmittance - left
        emitted = sum(v * w for v, w in zip(values, self.weights, strict=True))
        behind = dr.fma(-weight, emitted, behind)
        return left, behind, dr.fma(left, emitted, -behind), [weight * w for w in self.weights]


class CompositeOp(dr.CustomOp):
    """The sums of rays over samples in memory, step by step: sample ``s`` is number ``s // n`` of ray ``s % n``.

    Takes ``tau`` and ``values = [r, g, b, t]``, with an entry per sample, or per entry of ``where``, the numbers of the
    samples that exist.
    """

    def eval(self, marcher: Marcher, n: int, steps: int, tau: Any, values: list, where: Any) -> Sums:  # type: ignore[override]
        self.marcher, self.n, self.steps, self.where = marcher, n, steps, where
        self.uint32, self.float32 = dr.uint32_array_t(type(tau)), type(tau)
        self.tau, self.values = self._spread(tau), [self._spread(v) for v in values]
        dr.eval(self.tau, self.values)
        self.sums = self._walk(lambda place, *sample: add(*sample), [0, 0, 0, 0])
        return self.sums

    def _spread(self, v: Any) -> Any:
        """``v`` with an entry for every sample."""
        if self.where is None:
            return v + dr.zeros(type(v), self.n * self.steps) if dr.width(v) == 1 else v
        full = dr.zeros(type(v), self.n * self.steps)
        dr.scatter(full, v, self.where, mode=dr.ReduceMode.Permute)
        return full

    def _walk(self, visit: Any, state: list) -> list:
        """:meth:`Marcher.walk` with ``visit(place, transmittance, state, tau, values) -> (transmittance, state)``."""
        lane = dr.arange(self.uint32, self.n)

        def gathered(i: Any, transmittance: Any, state: list, active: Any) -> tuple:
            entry = dr.fma(i, self.n, lane)
            tau, *values = [dr.gather(self.float32, v, entry) for v in (self.tau, *self.values)]
            return visit(entry, transmittance, state, tau, values)

        start, steps = dr.zeros(self.uint32, self.n), kept(self.uint32(self.steps))
        return self.marcher.walk(start, steps, gathered, state, "coopnet.composite")

    def forward(self) -> None:
        dtau, *dvalues = [self._spread(self.float32(v)) for v in (self.grad_in("tau"), *self.grad_in("values"))]
        dr.eval(dtau, dvalues)

        def move(place: Any, transmittance: Any, state: list, tau: Any, values: list) -> tuple:
            # state: tangents of the sums, and of the logarithm of the transmittance
            *tangents, log = state
            left = transmittance * dr.exp(-tau)
            weight = transmittance - left
            dt = dr.gather(self.float32, dtau, place)
            dweight = dr.fma(weight, log, left * dt)
            moved = [dr.gather(self.float32, v, place) for v in dvalues]
            tangents = [s + dweight * v + weight * dv for s, v, dv in zip(tangents, values, moved, strict=True)]
            return left, [*tangents, log - dt]

        *tangents, log, transmittance = self._walk(move, [0] * 5)
        self.set_grad_out([*tangents, transmittance * log])

    def backward(self) -> None:
        pullback = Pullback(self.sums, self.grad_out())
        targets = [dr.zeros(self.float32, self.n * self.steps) for _ in range(5)]

        def visit(place: Any, transmittance: Any, state: list, tau: Any, values: list) -> tuple:
            left, behind, dtau, dvalues = pullback.sample(transmittance, state[0], tau, values)
            for target, v in zip(targets, (dtau, *dvalues), strict=True):
                dr.scatter(target, v, place, mode=dr.ReduceMode.Permute)
            return left, [behind]

        dr.eval(targets)
        dr.eval(self._walk(visit, [pullback.behind]))
        if self.where is not None:
            targets = [dr.gather(self.float32, v, self.where) for v in targets]
        dtau, *dvalues = targets
        self.set_grad_in("tau", dtau)
        self.set_grad_in("values", dvalues)

    def name(self) -> str:
        return "coopnet.composite"
