"""Lanes that count for nothing: zero gradients stay zero, whatever the numbers beside them are.

Renderers evaluate networks in lanes whose results they discard (rays that missed, paths that ended), often at
coordinates that are no numbers. Discarding sends gradients of zero back there, but zero times NaN is NaN, and sums over
samples spread it to all weights. So whoever differentiates a network here leaves out the lanes in which nothing but
zeros comes in.

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
