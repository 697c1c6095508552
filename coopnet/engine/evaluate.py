"""Evaluates a network on a bundle, and its gradient by the input, in the way that the tables choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.constants import computed, varying, vector
from ..jit.deferred import outside
from ..jit.kinds import UnpackedVector, flat, packed, split
from ..jit.masks import unmasked
from ..jit.native import core
from ..jit.registers import ALL, in_order, in_separate_blocks
from ..jit.scopes import frozen, inside_call, symbolic
from ..random.key import Key
from . import external_products, limits
from .banks import BankOp, ScopeBankOp
from .inner_loss import InnerLossOp, inner_loss
from .modes import forced_path, is_deterministic, only_traced, warn_stall
from .multipliers import unrolled, with_copies, with_transposed
from .network_op import NetworkOp, Plan, in_room
from .ops import Bundle, Op, Tape, pullback
from .ops import evaluate as forward
from .situation import Network, Situation
from .spill import SpillOp
from .stack import evaluate as evaluate_lanes
from .stack import stacked
from .store import StoreOp, evaluate_between_kernels, slopes
from .strategies import EVALUATION, GRADIENTS, LOSSES, SLOPES, StepLoss, choose, worth_copies

#: The ways of weight gradients that are operations of Dr.Jit's, by their names in :data:`~.strategies.GRADIENTS`.
OPERATIONS: dict[str, type[NetworkOp]] = {
    "spill": SpillOp,
    "store": StoreOp,
    "banks": BankOp,
    "loop banks": ScopeBankOp,
}


def evaluate(ops: Sequence[Op], x: Bundle, key: Key | None) -> Bundle:
    """Evaluate ``ops`` on the bundle ``x``; :mod:`.strategies` chooses how, and how weight gradients are computed.

    The vectors of ``x`` may be :class:`UnpackedVector`; those that are returned are packed.

    A sum over samples has as many terms as there are vectors: ``1 + k`` per sample.
    """
    with unmasked(x[0].type):  # matrices have no lanes that leave a loop
        return _evaluate(ops, x, key)


def _evaluate(ops: Sequence[Op], x: Bundle, key: Key | None) -> Bundle:
    s = situation_of(ops, x)
    if len(x) > 1 and len(x) - 1 > (limit := _tangents(s, len(x[0]))):
        return _in_parts(ops, x, key, limit, s)
    x = varying(_widened(x, s.samples))
    way, _ = choose(GRADIENTS if s.weights else EVALUATION, s)
    if way == "kernel" and not s.inputs:
        return in_room(ops, x, key).y
    if way == "unrolled":
        return in_room(unrolled(ops), x, key).y
    if way == "copies":
        return in_room(with_copies(ops), x, key).y
    plan, xs = Plan(s), flat(x)
    if way == "lanes":
        return evaluate_lanes(plan, x, key)
    if way == "between kernels":
        return evaluate_between_kernels(plan, x, key)
    if way == "separate blocks":
        return plan.split(in_separate_blocks(lambda parts: plan.evaluate(ops, parts, key).flat(), xs))
    if way in ("kernel", "builtin"):
        if s.weights and s.in_call and s.cuda:
            warn_stall(None)
        return _by_drjit(plan, x, key)
    loss, operation = inner_loss(ops), OPERATIONS[way]
    if loss is not None and choose(LOSSES, StepLoss(way))[0] == "inside":
        operation, plan.loss, loss.taken = InnerLossOp, loss, True
    inputs: list[Any] = [plan, plan.buffers, xs, key]
    if way == "loop banks":
        inputs.append([outside(b).buffer for b in plan.buffers if dr.grad_enabled(b)])
        # Dr.Jit notes that the scope depends on a buffer at ordinary operations only, not at custom ones; without the
        # note, forward mode would lose the tangents of the weights.
        _ = [b * 1 for b in plan.buffers]
    return plan.split(dr.custom(operation, *inputs))


def situation_of(ops: Sequence[Op], x: Bundle) -> Situation:
    """The situation of ``ops``, evaluated now on the bundle ``x``."""
    network, xs, caller = Network(ops), flat(x), external_products.innermost()
    leaf, in_scope = type(xs[0]), symbolic()
    return Situation(
        network, dr.backend_v(leaf), max(map(dr.width, xs)), len(x), core.llvm_lanes(),
        weights=dr.grad_enabled(network.buffers), inputs=dr.grad_enabled(xs),
        symbolic=in_scope, in_call=in_scope and inside_call(leaf), frozen=frozen(), stacked=stacked() is not None,
        deterministic=is_deterministic(), forced=forced_path(), only_traced=only_traced.get(),
        caller=caller is not None and caller.knows(network.buffers), runs=0 if caller is None else caller.runs,
        stored_lanes=core.stored_lanes(),
    )  # fmt: skip


def _by_drjit(plan: Plan, x: Bundle, key: Key | None) -> Bundle:
    """Evaluate a network for Dr.Jit to differentiate by itself, also where tangents and cotangents are constants."""
    if plan.situation.cuda:
        return in_room(plan.ops, x, key).y
    xs = flat(x)
    x = [UnpackedVector(v) for v in split(computed(xs, xs), len(x))]
    return plan.split(computed(in_room(plan.ops, x, key).flat(), xs))


def _tangents(s: Situation, components: int) -> int:
    """How many tangents to take at a time: as many as fit into a GPU's registers with the value.

    CPUs spill vectors to the cache, which is cheap.
    """
    return max(1, ALL // max(components, s.network.width) - 1) if s.cuda else s.vectors - 1


def _in_parts(ops: Sequence[Op], x: Bundle, key: Key | None, most: int, s: Situation) -> Bundle:
    """:func:`evaluate` with at most so many tangents at a time."""
    # In one kernel, OptiX would interleave them. Where gradients are wanted, values are evaluated anyway.
    attached = s.stacked or s.weights or s.inputs
    in_kernels_of_their_own = not attached and not s.symbolic and s.samples >= limits.LAUNCHES_SAMPLES
    parts = []
    for i in range(1, len(x), most):
        parts.append(_evaluate(ops, [x[0], *x[i : i + most]], key))
        if in_kernels_of_their_own:
            vectors = [list(v) for v in parts[-1]]
            dr.eval(vectors)
            parts[-1] = [drnn.CoopVec(v) for v in vectors]
    return [parts[0][0], *(tangent for part in parts for tangent in part[1:])]


def _widened(x: Bundle, samples: int) -> Bundle:
    """A bundle whose components all have a lane for every sample, if it has tangents.

    Those are often constants. A vector of one lane would be masked as one sample by dropout, and have a gradient that
    is summed over the samples already.
    """
    if len(x) == 1:
        return x

    def wide(one: Any) -> Any:
        parts = list(one)
        if all(dr.width(v) == samples for v in parts):
            return one
        return UnpackedVector(v if dr.width(v) == samples else v + dr.zeros(type(v), samples) for v in parts)

    return [wide(one) for one in x]


# ---- The gradient by the input ---------------------------------------------------------------------------------


def input_gradient(ops: Sequence[Op], x: Any, key: Key | None) -> tuple[Any, list] | None:
    """The output of ``ops`` and its gradient by the input, which cannot be differentiated in turn.

    One vector goes back through the layers instead of a tangent forward for every coordinate; ``None`` where tangents
    are faster (:data:`~.strategies.SLOPES`).

    Args:
        ops: a network with one output.
        x: its input, a ``CoopVec`` or :class:`UnpackedVector`.
    """
    # weights may track gradients, but none is taken of what is returned
    s = situation_of(ops, [x])._replace(weights=False)
    with unmasked(x.type):
        way, _ = choose(SLOPES, s)
        if way in ("between kernels", "kernels"):
            result = slopes(Plan(s._replace(inputs=True)), x, key)
            if result is not None:
                return result
            way, _ = choose(SLOPES, s._replace(room=False))
        if way == "kernel":
            return _slopes_in_kernel(ops, x, key, s)
        return _slopes_again(ops, packed(x), key, s) if way == "activations again" else None


def _slopes_in_kernel(ops: Sequence[Op], x: Any, key: Key | None, s: Situation) -> tuple[Any, list]:
    tape = in_room(with_copies(ops, back=True) if worth_copies(s) else ops, [x], key)
    dx = pullback(tape, _ones(x, s), key, True, lambda *_: None)
    assert dx is not None
    return tape.y[0], list(dx[0])


def _slopes_again(ops: Sequence[Op], x: Any, key: Key | None, s: Situation) -> tuple[Any, list]:
    """Go back with the activations of one layer at a time, each evaluated from the input when it is needed."""
    ops = with_transposed(ops)
    records = forward(ops, [x], key).records
    y, dx = records[-1].y[0], _ones(x, s)
    behind_activations = [i for i in range(1, len(ops)) if ops[i].affine and not ops[i - 1].affine]
    for i in reversed(range(len(ops))):
        below = pullback(Tape(records[i : i + 1], dx), dx, key, True, lambda *_: None)
        assert below is not None
        dx = below
        if i in behind_activations[:-1]:  # those in front of the last matrix are at hand
            in_order(s.backend)  # otherwise Dr.Jit would find that it has computed them before, and keep them
            records = forward(ops[:i], [x], key).records
    return y, list(dx[0])


def _ones(x: Any, s: Situation) -> Bundle:
    """The cotangent of one output, in a lane for each sample: dropout would take one lane for one sample."""
    return [vector([dr.full(x.type, 1, s.samples)], list(x))]
