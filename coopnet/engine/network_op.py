"""Base class of our strategies to compute gradients: a network as a differentiable operation of Dr.Jit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.kinds import flat, of_width, packed, split
from ..jit.lanes import live, only
from ..jit.literals import is_literal, vector
from ..jit.masks import present, unmasked
from ..jit.registers import request_registers
from ..random.key import Key
from .multipliers import for_backward
from .ops import Bundle, Op, Store, Tape, Visit, evaluate, jvp, matrices, pullback, rated, rebase, with_rates
from .situation import Situation


class Plan:
    """The network that a :class:`NetworkOp` evaluates, and its :class:`Situation`; to Dr.Jit, not a PyTree.

    Inputs, outputs and their gradients are lists of arrays: the components of a bundle's vectors, one after the other.
    If learned rates of dropout have gradients, the rates follow the components of the inputs.
    """

    def __init__(self, situation: Situation, strategy: str):
        self.situation, self.ops, self.buffers = situation, situation.network.ops, situation.network.buffers
        #: How it is evaluated, by the name in :mod:`.strategies`.
        self.strategy = strategy
        self.vectors = situation.vectors
        #: The :class:`~.inner_loss.InnerLoss` that the backward pass computes, if any.
        self.loss: Any = None
        #: Learned rates of dropout that need gradients.
        self.rates = situation.network.rates if situation.rates else []

    def split(self, components: Sequence[Any]) -> Bundle:
        """The bundle whose components are in a flat list."""
        return [drnn.CoopVec(vector) for vector in split(components, self.vectors)]

    def inputs(self, x: Bundle) -> list:
        """The list of inputs for the bundle ``x``."""
        if not self.situation.symbolic:
            return flat(x) + self.rates
        # Ordinary operations, by which Dr.Jit records that a symbolic loop depends on the rate. It cannot sum up the
        # gradients of lanes there.
        return flat(x) + [of_width(rate * 1, self.situation.samples) for rate in self.rates]

    def bundle(self, xs: Sequence[Any]) -> Bundle:
        """The bundle of the inputs ``xs``."""
        return self.split(xs[: len(xs) - len(self.rates)])

    def at(self, ops: Sequence[Op], xs: Sequence[Any]) -> Sequence[Op]:
        """``ops`` with the rates of the inputs ``xs``, or with tangents of the rates."""
        return with_rates(ops, xs[-len(self.rates) :]) if self.rates else ops

    def differentiated(self, xs: Sequence[Any]) -> Sequence[Any]:
        """Those of the inputs ``xs`` whose gradients the backward pass returns."""
        return xs if self.situation.inputs else xs[len(xs) - len(self.rates) :]

    def evaluate(
        self, ops: Sequence[Op], xs: list, key: Key | None, store: Store | None = None, ordered: bool = False
    ) -> Tape:  # fmt: skip
        return evaluate_in_kernel(self.at(ops, xs), self.bundle(xs), key, store, ordered, slopes=self.situation.cuda)

    def pullback(self, tape: Tape, dys: list, key: Key | None, visit: Visit) -> list:
        """The gradients of the inputs that are :meth:`differentiated`; ``visit`` as for :func:`pullback`."""
        dx = pullback(tape, self._vectors(dys, tape), key, self.situation.inputs, visit, self.situation.cuda)
        found = flat(dx) if self.situation.inputs and dx is not None else []
        return found + [op.rate_gradient for op in rated(tape.ops)] if self.rates else found

    def jvp(self, tape: Tape, moving: Sequence[Op], dxs: list, key: Key | None) -> list:
        return flat(jvp(tape, self.at(moving, dxs), self._vectors(dxs[: len(dxs) - len(self.rates)], tape), key))

    def _vectors(self, components: Sequence[Any], tape: Tape) -> Bundle:
        """The bundle of tangents or cotangents along ``tape``, which are often constants."""
        known = list(tape.x[0]) if any(map(is_literal, components)) else []
        return [vector(parts, known) for parts in split(components, self.vectors)]


class NetworkOp(dr.CustomOp):
    """Evaluates a list of ops, and differentiates it by the input; subclasses compute gradients of weights.

    The surrounding kernel contains both passes. It goes back with the multipliers of weight gradients, since Dr.Jit's
    own derivative reads matrices against their order.

    Inputs and outputs are lists of arrays because ``dr.custom`` drops the gradient of a ``CoopVec``.

    In evaluated loops, lanes that have left are evaluated and differentiated, too, with cotangents of zero.
    """

    tape: Tape | None = None

    @classmethod
    def more_inputs(cls, plan: Plan) -> list:
        """Inputs of the operation besides those of :meth:`eval` here."""
        return []

    def eval(self, plan: Plan, buffers: list, xs: list, key: Key | None) -> list:  # type: ignore[override]
        self.plan, self.buffers, self.xs, self.key = plan, buffers, xs, key
        self.ops, store = self.prepared(rebase(plan.ops, plan.buffers, buffers))
        tape = self.tape = plan.evaluate(self.ops, xs, key, store)
        return tape.flat()

    def taped(self) -> Tape:
        """The tape of the forward pass. If it was not kept, the network is evaluated again."""
        if self.tape is None:
            self.tape = self.plan.evaluate(self.ops, self.xs, self.key)
        return self.tape

    def prepared(self, ops: Sequence[Op]) -> tuple[Sequence[Op], Store | None]:
        """``ops`` as they are to be evaluated, and the :data:`~.ops.Store` of the forward pass, if any.

        Copies for the backward pass are made here, too. Made later, they would launch a kernel for what the caller has
        scheduled meanwhile.
        """
        return for_backward(self.plan, ops), None

    def forward(self) -> None:
        moving = rebase(self.ops, self.buffers, self.grad_in("buffers"))
        with unmasked(type(self.xs[0])):
            self.set_grad_out(self.plan.jvp(self.taped(), moving, self.grad_in("xs"), self.key))

    def backward(self) -> None:
        dys = self.grad_out()
        samples = dr.width([*dys, *self.xs])
        dys = present(dys, samples)
        with unmasked(type(dys[0])):
            dxs, gradients = self.pull_back(dys, samples)
            if dxs:
                others = [type(v)(0) for v in self.xs[: len(self.xs) - len(dxs)]]
                self.set_grad_in("xs", others + dxs)
            if gradients is not None:
                self.set_grad_in("buffers", gradients)

    def pull_back(self, dys: list, samples: int) -> tuple[list, list | None]:
        """The gradients of those ``xs`` that are :meth:`~Plan.differentiated`, and of ``buffers``, from the cotangents
        ``dys`` of the outputs.

        Those of ``buffers`` are ``None`` if they are added later. Without an override, weights get none.
        """
        # masked lanes have cotangents of 0, but their derivatives may be infinite
        dxs = only(live(dys), self.plan.pullback(self.taped(), dys, self.key, lambda *_: None))
        if self.plan.rates and not self.plan.situation.symbolic:
            dr.schedule(dxs)  # or Dr.Jit would sum up the gradients of rates in a kernel of their own
        return dxs, None

    def name(self) -> str:
        return f"coopnet.{type(self).__name__}"


def evaluate_in_kernel(
    ops: Sequence[Op], x: Bundle, key: Key | None, store: Store | None = None, ordered: bool = False,
    slopes: bool = False,
) -> Tape:  # fmt: skip
    """Evaluate ``ops`` on the bundle ``x``; several vectors get a kernel whose threads have more registers."""
    x = [packed(v) for v in x]
    if len(x) > 1:
        views = matrices(ops)
        longest = max((max(view.shape) for view in views), default=0)
        x = [drnn.CoopVec(request_registers(x[0], views, len(x) * max(len(x[0]), longest))), *x[1:]]
    return evaluate(ops, x, key, store, ordered, slopes)


def in_use(ops: Sequence[Op], vectors: int) -> int:
    """Number of components in registers at a time in the backward pass of ``vectors`` vectors.

    They are the inputs of all affine ops, and the cotangents of one; with learned rates, also factors and slopes.
    """
    shapes = [view.shape for view in matrices(ops)]
    kept = sum(columns for _, columns in shapes[1:]) * (3 if rated(ops) else 1)
    return vectors * (kept + max(map(max, shapes), default=0))
