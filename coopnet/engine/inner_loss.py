"""Losses that are computed between forward and backward pass, inside one kernel.

Gradient banks are filled by callables that evaluate the network again. The context :func:`loss_inside` says how the
loss of a sample follows from its outputs. In it, the callable itself computes the loss and the cotangents of the
outputs. So each step evaluates the network once, draws every dropout mask once, and writes no output to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr

from ..context import Context
from ..jit.lanes import live, whole_warps
from .banks import BankOp
from .ops import Op, Tape
from .strategies import BATCHES, StepBatch, choose


class InnerLoss:
    """How the losses of samples follow from the outputs of a network.

    Args:
        ops: the network, the very list that is going to be evaluated.
        function: ``function(outputs, inputs) -> losses``, of each sample separately. It is traced inside a call, so it
            may refer to no other arrays.
        inputs: arrays with an entry per sample, or one: targets, and further arguments of the function.
        straight: do they, and the coordinates, come from code without symbolic loops, conditionals and calls?
    """

    def __init__(self, ops: Sequence[Op], function: Callable, inputs: Sequence[Any], straight: bool):
        self.ops, self.function, self.inputs, self.straight = ops, function, list(inputs), straight
        #: ``taken``: will the backward pass of the network compute the losses? If so, set ``cotangent``, one number for
        #: all losses, before it; it sets ``losses``.
        self.taken, self.cotangent, self.losses = False, None, None

    def differentiate(self, outputs: list, inputs: list, cotangent: Any) -> tuple[Any, list]:
        """The losses, and the cotangents of ``outputs``, which are zero where the cotangent of the loss is."""
        with dr.isolate_grad():
            outputs = [dr.detach(v) for v in outputs]
            dr.enable_grad(outputs)
            losses = self.function(outputs, inputs)
            dr.set_grad(losses, cotangent)
            dr.enqueue(dr.ADMode.Backward, losses)
            dr.traverse(dr.ADMode.Backward)
            return dr.detach(losses), [dr.select(cotangent == 0, 0, dr.grad(v)) for v in outputs]


class InnerLossOp(BankOp):
    """Accumulates in banks. The same call computes the losses; cotangents from outside are not used."""

    def pull_back(self, dys: list, samples: int) -> tuple[list, list | None]:
        loss = self.plan.loss
        (*dxs, loss.losses), gradients = super().pull_back([*loss.inputs, loss.cotangent], samples)
        return dxs, gradients

    def beforehand(self, xs: list, dys: list, samples: int) -> list:
        where, _ = choose(BATCHES, StepBatch(self.plan.loss.straight, whole_warps(samples)))
        return [xs, dys] if where == "a kernel before" else []

    def live(self, dys: list) -> Any:
        return live(dys[-1:])

    def cotangents(self, tape: Tape, dys: list) -> tuple[list, list]:
        *inputs, cotangent = dys
        losses, dys = self.plan.loss.differentiate(tape.flat(), inputs, cotangent)
        return dys, [losses]


#: ``with loss_inside(loss)``: the network of ``loss`` may compute it in its backward pass. ``None`` changes nothing.
loss_inside = Context("inner loss")


def loss_of(ops: Sequence[Op]) -> InnerLoss | None:
    """The loss of the innermost context if it belongs to ``ops``, or ``None``."""
    loss = loss_inside.get()
    return loss if loss is not None and loss.ops is ops else None
