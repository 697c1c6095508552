"""Evaluates a network on a bundle, or its gradient with respect to the input, as the tables choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.kinds import UnpackedVector, flat, of_width, packed, split
from ..jit.literals import computed, varying, vector
from ..jit.masks import unmasked
from ..jit.registers import in_order, in_separate_blocks
from ..jit.scopes import frozen
from ..random.key import Key, check_samples
from . import external_products
from .activation_cache import ActivationCache
from .banks import BankOp
from .inner_loss import InnerLossOp, loss_of
from .lane_sums import LaneSumOp
from .loop_banks import LoopBankOp, LoopSumOp
from .multipliers import for_backward, with_multipliers
from .network_op import NetworkOp, Plan, evaluate_in_kernel
from .ops import Bundle, Op, Tape, pullback
from .ops import evaluate as forward
from .situation import Network, Situation, here
from .spill import SpillOp
from .stack import evaluate as evaluate_stacked
from .stack import stacked
from .stall import warn_stall
from .store import StoreOp, evaluate_between_kernels, input_gradient_from_rows
from .strategies import (
    EVALUATION,
    GRADIENTS,
    INPUT_GRADIENTS,
    LOSSES,
    TANGENTS,
    StepLoss,
    choose,
    tangents_at_a_time,
)


def evaluate(ops: Sequence[Op], x: Bundle, key: Key | None) -> Bundle:
    """Evaluate ``ops`` on the bundle ``x``; :mod:`.strategies` chooses how, and how weight gradients are computed.

    The vectors of ``x`` may be :class:`UnpackedVector`; those that are returned are packed.

    Each sample adds ``1 + k`` outer products to the gradient of a matrix, one for each vector of the bundle.
    """
    with unmasked(x[0].type):  # the mask of an evaluated loop must not apply to entries of matrices
        return _evaluate(ops, x, key)


def _evaluate(ops: Sequence[Op], x: Bundle, key: Key | None) -> Bundle:
    s = situation_of(ops, x, key)
    if len(x) > 1 and (tangents := choose(TANGENTS, s)[0]) != "at once":
        return _in_parts(ops, x, key, tangents_at_a_time(s), tangents == "some at a time, by several kernels")
    x = varying(_widened(x, s.samples), next(iter(s.network.buffers), None))
    strategy, _ = choose(GRADIENTS if s.weights else EVALUATION, s)
    return STRATEGIES[strategy](Plan(s, strategy), x, key)


def situation_of(ops: Sequence[Op], x: Bundle, key: Key | None) -> Situation:
    """The situation of ``ops``, evaluated now on the bundle ``x``."""
    network, xs, caller = Network(ops), flat(x), external_products.innermost()
    return here(
        network, type(xs[0]), dr.width(xs), vectors=len(x), weights=dr.grad_enabled(network.buffers),
        inputs=dr.grad_enabled(xs), rates=key is not None and dr.grad_enabled(network.rates), frozen=frozen(),
        stacked=stacked() is not None, caller=caller is not None and caller.knows(network.buffers),
        runs=0 if caller is None else caller.runs,
    )  # fmt: skip


# ---- The strategies of the tables ------------------------------------------------------------------------------------


def _in_blocks(plan: Plan, x: Bundle, key: Key | None) -> Bundle:
    """Evaluate a network in blocks of its own, so that OptiX does not interleave it with others."""
    return plan.split(in_separate_blocks(lambda parts: plan.evaluate(plan.ops, parts, key).flat(), flat(x)))


def _in_kernel(plan: Plan, x: Bundle, key: Key | None) -> Bundle:
    """Evaluate a network in the surrounding kernel, with multipliers that have the name of the strategy."""
    return evaluate_in_kernel(with_multipliers(plan.ops, plan.strategy), x, key).y


def _by_drjit(plan: Plan, x: Bundle, key: Key | None) -> Bundle:
    """Evaluate a network such that Dr.Jit itself differentiates it, also with constant tangents and cotangents."""
    if plan.situation.weights and plan.situation.in_call and any(map(dr.is_half_v, plan.buffers)):
        warn_stall(None)
    if plan.situation.cuda:
        return evaluate_in_kernel(plan.ops, x, key).y
    xs = flat(x)
    x = [UnpackedVector(v) for v in split(computed(xs, xs), len(x))]
    y = evaluate_in_kernel(plan.ops, x, key).flat()
    return plan.split(computed(y, y))


def _differentiable(plan: Plan, x: Bundle, key: Key | None) -> Bundle:
    """Evaluate a network as a custom operation of Dr.Jit."""
    if key is not None and plan.situation.network.dropout:
        check_samples(key, dr.width(flat(x)))  # Dr.Jit would hide an error within a custom operation
    operation, loss = OPERATIONS[plan.strategy], loss_of(plan.ops)
    where, _ = choose(LOSSES, StepLoss(loss is not None, plan.strategy))
    if loss is not None and where == "the call for banks":
        operation, plan.loss, loss.taken = InnerLossOp, loss, True
    return plan.split(dr.custom(operation, plan, plan.buffers, plan.inputs(x), key, *operation.more_inputs(plan)))


OPERATIONS: dict[str, type[NetworkOp]] = {
    "spill": SpillOp,
    "lane sums": LaneSumOp,
    "store": StoreOp,
    "banks": BankOp,
    "loop banks": LoopBankOp,
    "loop sums": LoopSumOp,
    "kernel, forward and back": NetworkOp,
}

#: What evaluates a network, by the name of the strategy in :data:`~.strategies.GRADIENTS` and ``EVALUATION``.
STRATEGIES: dict[str, Callable[[Plan, Bundle, Key | None], Bundle]] = {
    "stacked fields": evaluate_stacked,
    "between kernels": evaluate_between_kernels,
    "kernel": lambda plan, x, key: evaluate_in_kernel(plan.ops, x, key).y,
    "unrolled": _in_kernel,
    "copies": _in_kernel,
    "separate blocks": _in_blocks,
    "builtin": _by_drjit,
    **dict.fromkeys(OPERATIONS, _differentiable),
}


def _in_parts(ops: Sequence[Op], x: Bundle, key: Key | None, most: int, apart: bool) -> Bundle:
    """:func:`evaluate` with at most so many tangents at a time; with ``apart``, each part by a kernel of its own."""
    parts = []
    for i in range(1, len(x), most):
        parts.append(_evaluate(ops, [x[0], *x[i : i + most]], key))
        if apart:
            vectors = [list(v) for v in parts[-1]]
            dr.eval(vectors)
            parts[-1] = [drnn.CoopVec(v) for v in vectors]
    return [parts[0][0], *(tangent for part in parts for tangent in part[1:])]


def _widened(x: Bundle, samples: int) -> Bundle:
    """The bundle; if it has tangents, all components get a lane for every sample.

    Tangents are often constants of one lane. Dropout would give such a vector the mask of one sample, and its gradient
    would be summed over the samples.
    """
    if len(x) == 1:
        return x

    def wide(one: Any) -> Any:
        parts = list(one)
        if all(dr.width(v) == samples for v in parts):
            return one
        return UnpackedVector(of_width(v, samples) for v in parts)

    return [wide(one) for one in x]


# ---- The gradient with respect to the input --------------------------------------------------------------------


def input_gradient(ops: Sequence[Op], x: Any, key: Key | None) -> tuple[Any, list] | None:
    """The output of ``ops`` and its gradient with respect to the input, which cannot be differentiated in turn.

    This is reverse mode: one cotangent instead of a tangent for every coordinate. Returns ``None`` where tangents are
    faster (:data:`~.strategies.INPUT_GRADIENTS`).

    Args:
        ops: a network with one output.
        x: its input, a ``CoopVec`` or :class:`UnpackedVector`.
    """
    # weights may have gradients enabled, but the results are not differentiated
    s = situation_of(ops, [x], key)._replace(weights=False, inputs=True, rates=False)
    s = s._replace(memory_left=ActivationCache.fits(Plan(s, "store"), flat([x]), key))
    with unmasked(x.type):
        strategy, _ = choose(INPUT_GRADIENTS, s)
        return None if strategy == "tangents" else INPUT_GRADIENT_BY[strategy](Plan(s, strategy), x, key)


def _gradient_in_kernel(plan: Plan, x: Any, key: Key | None) -> tuple[Any, list]:
    tape = evaluate_in_kernel(for_backward(plan, plan.ops), [x], key)
    dx = pullback(tape, _ones(x, plan.situation), key, True, lambda *_: None)
    assert dx is not None
    return tape.y[0], list(dx[0])


def _gradient_again(plan: Plan, x: Any, key: Key | None) -> tuple[Any, list]:
    """Reverse mode in one kernel, in which each layer's input is evaluated again, from the network's input."""
    s, x = plan.situation, packed(x)
    ops = for_backward(plan, plan.ops)
    records = forward(ops, [x], key).records
    y, dx = records[-1].y[0], _ones(x, s)
    behind_activations = [i for i in range(1, len(ops)) if ops[i].affine and not ops[i - 1].affine]
    for i in reversed(range(len(ops))):
        below = pullback(Tape(records[i : i + 1], dx), dx, key, True, lambda *_: None)
        assert below is not None
        dx = below
        if i in behind_activations[:-1]:  # the activations in front of the last matrix are known
            in_order(s.backend)  # or Dr.Jit would reuse the vectors from before, and keep them in registers
            records = forward(ops[:i], [x], key).records
    return y, list(dx[0])


#: What computes an input's gradient, by the name of the strategy in :data:`~.strategies.INPUT_GRADIENTS`.
INPUT_GRADIENT_BY: dict[str, Callable[[Plan, Any, Key | None], tuple[Any, list]]] = {
    "kernel": _gradient_in_kernel,
    "activations again": _gradient_again,
    "store": input_gradient_from_rows,
}


def _ones(x: Any, s: Situation) -> Bundle:
    """The cotangent 1 of one output, with a lane for each sample (see :func:`_widened`)."""
    return [vector([dr.full(x.type, 1, s.samples)], list(x))]
