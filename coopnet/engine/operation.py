"""What the differentiable evaluations of a network have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..random.key import Key
from .ops import Stage, Trail, backward, rebase, tangent, trail


class Plan:
    """What a :class:`NetworkOp` evaluates, and how; opaque to Dr.Jit's traversal of arguments.

    Inputs, outputs and their gradients are lists of arrays, the components of one vector (of several in a subclass).
    """

    #: Vectors that go through the network together.
    vectors = 1

    def __init__(self, stages: Sequence[Stage], buffers: Sequence[Any], wants_x: bool):
        self.stages, self.buffers, self.wants_x = stages, buffers, wants_x

    def trail(self, stages: Sequence[Stage], xs: list, key: Key | None) -> Trail:
        """The input of every stage, and the output of the last."""
        return trail(stages, drnn.CoopVec(xs), key)

    def output(self, values: Trail) -> list:
        """The outputs at the end of a trail."""
        return list(values[-1])

    def backward(
        self, stages: Sequence[Stage], values: Trail, dys: list, key: Key | None, visit: Callable[..., None]
    ) -> list:
        """The inputs' gradients (empty unless wanted); ``visit(stage, delta, input, biased)`` sees all affine stages.

        A vector is ``biased`` if the bias was added to it, too.
        """
        dx = backward(stages, values, drnn.CoopVec(dys), key, self.wants_x, visit)
        return list(dx) if self.wants_x else []

    def tangent(
        self, stages: Sequence[Stage], tangents: Sequence[Stage], values: Trail, dxs: list, key: Key | None
    ) -> list:
        """Forward derivative: ``tangents`` are the stages with the tangents of the weights for weights."""
        return list(tangent(stages, tangents, values, drnn.CoopVec(dxs), key))


class NetworkOp(dr.CustomOp):
    """Evaluates a list of stages; a subclass says how weight gradients come about.

    Lists of arrays go in and out because ``dr.custom`` drops the gradient of a ``CoopVec``.
    """

    def eval(self, plan: Plan, buffers: list, xs: list, key: Key | None) -> list:  # type: ignore[override]
        self.plan, self.buffers, self.xs, self.key = plan, buffers, xs, key
        self.stages = rebase(plan.stages, plan.buffers, buffers)
        self.values = plan.trail(self.stages, xs, key)
        return plan.output(self.values)

    def forward(self) -> None:
        tangents = rebase(self.stages, self.buffers, self.grad_in("buffers"))
        self.set_grad_out(self.plan.tangent(self.stages, tangents, self.values, self.grad_in("xs"), self.key))

    def name(self) -> str:
        return f"coopnet.{type(self).__name__}"
