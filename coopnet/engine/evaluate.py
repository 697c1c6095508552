"""Evaluating a network on a bundle, by the way that the tables have for its situation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.constants import computed, varying
from ..jit.deferred import outside
from ..jit.kinds import UnpackedVector, flat, split
from ..jit.masks import unmasked
from ..jit.registers import ALL, in_separate_blocks
from ..jit.scopes import inside_call, symbolic
from ..random.key import Key
from . import external_products, limits
from .banks import BankOp, ScopeBankOp
from .inner_loss import InnerLossOp, inner_loss
from .modes import warn_stall
from .multipliers import copying
from .network_op import NetworkOp, Plan, in_room
from .ops import Bundle, Op, multiplied
from .situation import Network, Situation, situation
from .spill import SpillOp
from .stack import evaluate as evaluate_lanes
from .stack import stacked
from .store import StoreOp, evaluate_between_kernels
from .strategies import EVALUATION, GRADIENTS, LOSSES, StepLoss, choose

#: The ways of weight gradients that are operations of Dr.Jit's, by their names in :data:`~.strategies.GRADIENTS`.
OPERATIONS: dict[str, type[NetworkOp]] = {
    "spill": SpillOp,
    "store": StoreOp,
    "banks": BankOp,
    "loop banks": ScopeBankOp,
}


def evaluate(ops: Sequence[Op], x: Bundle, key: Key | None) -> Bundle:
    """Evaluate ``ops`` on the bundle ``x``; :mod:`.strategies` say how, and how weight gradients come about.

    The vectors of ``x`` may be :class:`UnpackedVector`; those that are returned are packed.

    A sum over samples has as many terms as there are vectors: ``1 + k`` per sample.
    """
    with unmasked(x[0].type):  # matrices have no lanes that leave a loop
        return _evaluate(ops, x, key)


def _evaluate(ops: Sequence[Op], x: Bundle, key: Key | None) -> Bundle:
    s = situation_of(ops, x)
    packed = s.network.buffers
    if len(x) - 1 > (most := _tangents(s, len(x[0]))):
        return _in_parts(ops, x, key, most, s)
    x = varying(_widened(x, s.samples))
    way, _ = choose(GRADIENTS if s.weights else EVALUATION, s)
    if way == "kernel" and not s.inputs:
        return in_room(ops, x, key).y
    plan, xs = Plan(ops, packed, s), flat(x)
    if way == "lanes":
        return evaluate_lanes(plan, x, key)
    if way == "copies":
        own = s.network.layers
        copies = copying(own, [True] * len(own), [False] * len(own))
        return in_room(ops if copies is None else multiplied(ops, copies), x, key).y
    if way == "between kernels":
        return evaluate_between_kernels(plan, x, key)
    if way == "separate blocks":
        return plan.split(in_separate_blocks(lambda given: flat(plan.evaluate(ops, given, key).y), xs))
    if way in ("kernel", "builtin"):
        if s.weights and s.in_call and s.cuda:
            warn_stall(None)
        return _by_drjit(plan, x, key)
    loss = inner_loss(ops)
    if choose(LOSSES, StepLoss(loss is not None, way))[0] == "inside":
        return plan.split(dr.custom(InnerLossOp, plan.computing(loss), packed, xs, key))
    if way != "loop banks":
        return plan.split(dr.custom(OPERATIONS[way], plan, packed, xs, key))
    later = [outside(b).buffer for b in packed if dr.grad_enabled(b)]
    # Dr.Jit notes that the scope depends on a buffer at ordinary operations only, not at custom ones; without the
    # note, forward mode would lose the tangents of the weights.
    _ = [b * 1 for b in packed]
    return plan.split(dr.custom(OPERATIONS[way], plan, packed, xs, key, later))


def situation_of(ops: Sequence[Op], x: Bundle) -> Situation:
    """The situation of ``ops``, evaluated now on the bundle ``x``."""
    network, xs, caller = Network(ops), flat(x), external_products.innermost()
    leaf = type(xs[0])
    return situation(
        network, dr.backend_v(leaf), max(dr.width(v) for v in xs), vectors=len(x),
        in_call=symbolic() and inside_call(leaf), stacked=stacked() is not None,
        weights=dr.grad_enabled(network.buffers), inputs=dr.grad_enabled(xs),
        caller=caller is not None and caller.knows(network.buffers), runs=0 if caller is None else caller.runs,
    )  # fmt: skip


def _by_drjit(plan: Plan, x: Bundle, key: Key | None) -> Bundle:
    """Evaluate a network for Dr.Jit to differentiate by itself, also where tangents and cotangents are constants."""
    if plan.situation.cuda:
        return in_room(plan.ops, x, key).y
    xs = flat(x)
    x = [UnpackedVector(v) for v in split(computed(xs, xs), len(x))]
    return plan.split(computed(flat(in_room(plan.ops, x, key).y), xs))


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

    def wide(vector: Any) -> Any:
        parts = list(vector)
        if all(dr.width(v) == samples for v in parts):
            return vector
        return UnpackedVector(v if dr.width(v) == samples else v + dr.zeros(type(v), samples) for v in parts)

    return [wide(vector) for vector in x]
