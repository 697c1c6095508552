"""Losses that are computed between forward and backward pass, inside one kernel.

Outer products are added up by callables that evaluate the network again. In the context of :func:`loss_inside`, which
says how the loss of a sample follows from its outputs, the callable computes this loss and its cotangents in between.
The network is evaluated once for each step, every dropout mask is drawn once, and no output is written to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr

from ..jit.lanes import live
from .banks import BankOp
from .modes import Context
from .ops import Op, Tape


class InnerLoss:
    """How the losses of samples follow from the outputs of a network.

    Args:
        ops: the network, as it is going to be evaluated.
        function: ``function(outputs, inputs) -> losses``, of each sample separately. It is traced inside a call, so it
            may refer to no other arrays.
        inputs: arrays with an entry per sample, or one: targets, and further arguments of the function.
    """

    def __init__(self, ops: Sequence[Op], function: Callable, inputs: Sequence[Any]):
        self.ops, self.function, self.inputs = ops, function, list(inputs)
        #: ``taken``: will the backward pass of the network compute the losses? Then ``cotangent``, of one entry, times
        #: ``share`` is set before it as the cotangent of every loss, and the ``losses`` are here after it.
        self.taken, self.cotangent, self.share, self.losses = False, None, 1.0, None

    def differentiate(self, outputs: list, inputs: list, cotangent: Any) -> tuple[Any, list]:
        """The losses, and the cotangents of ``outputs``, which are zero where the cotangent of the loss is."""
        with dr.isolate_grad():
            outputs = [dr.detach(v) for v in outputs]
            dr.enable_grad(outputs)
            losses = self.function(outputs, inputs)
            dr.set_grad(losses, cotangent * self.share)
            dr.enqueue(dr.ADMode.Backward, losses)
            dr.traverse(dr.ADMode.Backward)
            return dr.detach(losses), [dr.select(cotangent == 0, 0, dr.grad(v)) for v in outputs]


class InnerLossOp(BankOp):
    """Accumulates in banks, and computes the losses in between; cotangents from outside are not used."""

    def pull_back(self, dys: list, samples: int) -> tuple[list, list | None]:
        loss = self.plan.loss
        (*dxs, loss.losses), gradients = super().pull_back([*loss.inputs, loss.cotangent], samples)
        return dxs, gradients

    def live(self, dys: list) -> Any:
        return live(dys[-1:])

    def cotangents(self, tape: Tape, dys: list) -> tuple[list, list]:
        *inputs, cotangent = dys
        losses, dys = self.plan.loss.differentiate(tape.flat(), inputs, cotangent)
        return dys, [losses]


#: ``with loss_inside(loss)``: the network of ``loss`` may compute it in its backward pass, if it is not ``None``.
loss_inside = Context("inner loss")


def inner_loss(ops: Sequence[Op]) -> InnerLoss | None:
    """The loss of the innermost context, if it is about ``ops``."""
    loss = loss_inside.get()
    return loss if loss is not None and loss.ops is ops else None
