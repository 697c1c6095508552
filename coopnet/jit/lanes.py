"""Masked lanes: their gradients stay zero, also where what they are multiplied by is NaN or infinite.

Renderers evaluate networks in lanes whose results they discard (rays that missed, paths that ended), often at
coordinates that are NaN. Discarding sends gradients of zero back there, but zero times NaN is NaN, and sums over
samples spread it to all weights. So a derivative leaves out the lanes whose incoming gradients are all zero.

Relies on NaN being neither equal to 0 nor different from it, on ``dr.select`` not multiplying, and on custom operations
taking and returning lists whose gradients come as lists. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr


def live(gradients: Sequence[Any]) -> Any:
    """Mask of the lanes in which any of ``gradients`` is not zero; NaN is not."""
    zero = gradients[0] == 0  # to Dr.Jit, NaN is neither equal to 0 nor different from it
    for v in gradients[1:]:
        zero = zero & (v == 0)
    return ~zero


def only(mask: Any, values: Sequence[Any]) -> list[Any]:
    """``values`` in the lanes of ``mask``, zeros in the others."""
    return [dr.select(mask, v, 0) for v in values]


#: Lanes of a GPU that branch together.
WARP = 32


class Warps:
    """Lanes for ``samples``, and on a GPU as many more as make all warps full.

    OptiX runs a kernel with products 1.6 times as long if its last warp is not (H200, driver 580), whatever the lanes
    beyond the samples do. The arrays are evaluated ones.
    """

    def __init__(self, uint32: type, samples: int):
        cuda = dr.backend_v(uint32) == dr.JitBackend.CUDA
        self.samples, self.count = samples, -(-samples // WARP) * WARP if cuda and samples > WARP else samples
        self.number = dr.arange(uint32, self.count)
        if self.count != samples:
            # In memory, an input of every kernel that has so many lanes: of one that has no input of its own size,
            # frozen functions guess how many lanes to replay it with.
            dr.eval(self.number)
        self.inside = self.number < samples

    def widen(self, values: Sequence[Any]) -> list[Any]:
        """``values`` of the samples with zeros behind them."""
        if self.count == self.samples:
            return list(values)

        def wide(v: Any) -> Any:
            constant = v.state == dr.VarState.Literal
            if constant or dr.width(v) == 1:
                return dr.select(self.inside, type(v)(v[0]) if constant else v, 0)
            return dr.gather(type(v), v, self.number, self.inside)

        return [wide(v) for v in values]

    def narrow(self, values: Sequence[Any]) -> list[Any]:
        """The samples' among ``values``."""
        if self.count == self.samples:
            return list(values)
        result = [dr.empty(type(v), self.samples) for v in values]
        for target, v in zip(result, values, strict=True):
            dr.scatter(target, v, self.number, self.inside, mode=dr.ReduceMode.Permute)
        return result


class Gate:
    """Keeps the gradient of ``enter``'s arrays zero in lanes where that of ``leave``'s is.

    For everything that Dr.Jit differentiates by itself in between.
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
