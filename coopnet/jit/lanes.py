"""Masked lanes, whose gradients stay zero even if they are multiplied by NaN or infinity, and lanes that fill warps.

Renderers evaluate networks in lanes whose results they discard (rays that missed, paths that ended), often at
coordinates that are NaN. The gradients of these lanes are zero, but zero times NaN is NaN, and sums over samples spread
it to all weights. So a derivative leaves out the lanes whose incoming gradients are all zero.

Relies on NaN being neither equal to 0 nor different from it, on ``dr.select`` not multiplying, and on custom operations
taking and returning lists whose gradients come as lists. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr

from .literals import is_literal


def live(gradients: Sequence[Any]) -> Any:
    """Mask of the lanes in which any of ``gradients`` is not zero. NaN counts as not zero."""
    zero = gradients[0] == 0  # to Dr.Jit, NaN is neither equal to 0 nor different from it
    for v in gradients[1:]:
        zero = zero & (v == 0)
    return ~zero


def only(mask: Any, values: Sequence[Any]) -> list[Any]:
    """``values`` in the lanes of ``mask``, zeros in the others. ``None`` is a mask of all lanes."""
    return list(values) if mask is None else [dr.select(mask, v, 0) for v in values]


#: Lanes of a GPU that branch together.
WARP = 32


def whole_warps(samples: int) -> bool:
    """Do ``samples`` need no additional lanes on a GPU, see :class:`Warps`?"""
    return samples <= WARP or samples % WARP == 0


class Warps:
    """Lanes for ``samples``, and on a GPU additional ones that fill the last warp.

    With OptiX, a kernel with products takes 1.6 times as long if its last warp is not full (H200, driver 580). Results
    of the additional lanes are discarded. The arrays must be evaluated.
    """

    def __init__(self, uint32: type, samples: int):
        cuda = dr.backend_v(uint32) == dr.JitBackend.CUDA
        self.samples, self.count = samples, -(-samples // WARP) * WARP if cuda and not whole_warps(samples) else samples
        self.number = dr.arange(uint32, self.count)
        if self.count != samples:
            # Every kernel with so many lanes reads this array. When frozen functions replay a kernel without an input
            # of its size, they guess the number of lanes.
            dr.eval(self.number)
        self.inside = self.number < samples

    def widen(self, values: Sequence[Any]) -> list[Any]:
        """``values`` of the samples, followed by zeros."""
        if self.count == self.samples:
            return list(values)

        def wide(v: Any) -> Any:
            if is_literal(v) or dr.width(v) == 1:
                return dr.select(self.inside, type(v)(v[0]) if is_literal(v) else v, 0)
            return dr.gather(type(v), v, self.number, self.inside)

        return [wide(v) for v in values]

    def narrow(self, values: Sequence[Any]) -> list[Any]:
        """The entries of ``values`` that belong to samples."""
        if self.count == self.samples:
            return list(values)
        result = [dr.empty(type(v), self.samples) for v in values]
        for target, v in zip(result, values, strict=True):
            dr.scatter(target, v, self.number, self.inside, mode=dr.ReduceMode.Permute)
        return result


class Gate:
    """Masks gradients around code that Dr.Jit differentiates by itself.

    Where the gradients of all arrays passed to ``leave`` are zero, so are those of the arrays passed to ``enter``.
    """

    def __init__(self) -> None:
        self._live: Any = None

    def enter(self, values: list) -> list:
        return dr.custom(_Enter, self, values)

    def leave(self, values: list) -> list:
        return dr.custom(_Leave, self, values)


class _Enter(dr.CustomOp):
    def eval(self, gate: Gate, values: list) -> list:  # type: ignore[override]
        self.gate = gate
        return [dr.detach(v) for v in values]

    def forward(self) -> None:
        self.set_grad_out(self.grad_in("values"))

    def backward(self) -> None:
        gradients = self.grad_out()
        mask = self.gate._live
        self.set_grad_in("values", gradients if mask is None else only(mask, gradients))

    def name(self) -> str:
        return "coopnet: input"


class _Leave(_Enter):
    def backward(self) -> None:
        gradients = self.grad_out()
        self.gate._live = live(gradients)
        self.set_grad_in("values", gradients)

    def name(self) -> str:
        return "coopnet: output"
