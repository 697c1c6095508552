"""What the differentiable evaluations of a network have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..key import Key
from .stages import Stage, rebase, tangent, trail


class Plan:
    """What a :class:`NetworkOp` evaluates; opaque to Dr.Jit's traversal of arguments."""

    def __init__(self, stages: Sequence[Stage], buffers: Sequence[Any], wants_x: bool):
        self.stages, self.buffers, self.wants_x = stages, buffers, wants_x


class NetworkOp(dr.CustomOp):
    """Evaluates a list of stages; a subclass says how weight gradients come about.

    Lists of arrays go in and out because ``dr.custom`` drops the gradient of a ``CoopVec``.
    """

    def eval(self, plan: Plan, buffers: list, xs: list, key: Key | None) -> list:  # type: ignore[override]
        self.plan, self.buffers, self.xs, self.key = plan, buffers, xs, key
        self.stages = rebase(plan.stages, plan.buffers, buffers)
        self.values = trail(self.stages, drnn.CoopVec(xs), key)
        return list(self.values[-1])

    def forward(self) -> None:
        tangents = rebase(self.stages, self.buffers, self.grad_in("buffers"))
        dx = drnn.CoopVec(self.grad_in("xs"))
        self.set_grad_out(list(tangent(self.stages, tangents, self.values, dx, self.key)))

    def name(self) -> str:
        return f"coopnet.{type(self).__name__}"


def pin_batch_size(sample: Any) -> None:
    """Make Dr.Jit record a frozen function anew when the number of samples changes.

    Sizes of spilled buffers, shapes of products and numbers of banks are constants of a recording. A replay checks
    operand sizes of matrix products before it launches anything, but only arrays that kernels return follow the new
    number of samples. ``sample`` is one, evaluated; its product with a number fails the check.
    """
    tensor = dr.tensor_t(type(sample))
    n = dr.width(sample)
    # of the shapes that fit a GPU's grid at any size, a few dozen rows measured fastest
    rows = next(r for r in range(min(n, 128), 0, -1) if n % r == 0)
    dr.eval(dr.full(tensor, 1, (1, rows)) @ tensor(sample, (rows, n // rows)))
