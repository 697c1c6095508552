"""Evaluating a network on a bundle, and choosing how its weight gradients are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.constants import computed, varying
from ..jit.deferred import outside
from ..jit.kinds import Loose, flat, split
from ..jit.masks import unmasked
from ..jit.registers import ALL, apart
from ..jit.scopes import frozen, inside_call, symbolic
from ..random.key import Key
from .banks import BankOp, ScopeBankOp
from .choose import MANY, choose
from .copies import copied
from .gemm import evaluated, layerwise, pays
from .modes import forced_path, is_deterministic, warn_stall
from .ops import Bundle, Op, affine, buffers, masked, widest
from .pending import innermost
from .plan import Plan, in_room
from .spill import SpillOp, StoreOp
from .stack import evaluate as evaluate_stacked
from .stack import stacked

#: How gradients are computed where arrays can be evaluated, by the name of the path.
OPS = {"spill": SpillOp, "store": StoreOp, "banks": BankOp}


def evaluate(ops: Sequence[Op], x: Bundle, key: Key | None) -> Bundle:
    """Evaluate ``ops`` on the bundle ``x``; :func:`choose` says by which path weight gradients are computed.

    The vectors of ``x`` may be :class:`Loose`; those that are returned are packed.

    A sum over samples has as many terms as there are vectors: ``1 + k`` per sample.
    """
    with unmasked(x[0].type):  # matrices have no lanes that leave a loop
        return _evaluate(ops, x, key)


def _evaluate(ops: Sequence[Op], x: Bundle, key: Key | None) -> Bundle:
    most = _directions(ops, x)
    if len(x) - 1 > most:
        alone = in_kernels_of_their_own(ops, x)
        parts = []
        for i in range(1, len(x), most):
            parts.append(_evaluate(ops, [x[0], *x[i : i + most]], key))
            if alone:
                vectors = [list(v) for v in parts[-1]]
                dr.eval(vectors)
                parts[-1] = [drnn.CoopVec(v) for v in vectors]
        return [parts[0][0], *(tangent for part in parts for tangent in part[1:])]
    packed, x = buffers(ops), varying(_widened(x))
    if (stack := stacked()) is not None:
        return evaluate_stacked(stack, ops, packed, x, key)
    xs = flat(x)
    if not any(dr.grad_enabled(b) for b in packed):
        if _shares_a_call(xs):
            plan = Plan(ops, packed, len(x), wants_x=False)
            return plan.split(apart(lambda given: flat(plan.evaluate(ops, given, key).y), xs))
        attached = any(dr.grad_enabled(v) for v in xs)
        if not attached and layerwise(ops, max(dr.width(v) for v in xs) * len(x), type(xs[0])):
            return evaluated(ops, packed, x, key)
        return _by_drjit(copied(ops, xs), x, key) if attached else in_room(copied(ops, xs), x, key).y
    path = _path(ops, xs, len(x))
    if path == "builtin":
        return _by_drjit(ops, x, key)
    plan = Plan(ops, packed, len(x), wants_x=any(dr.grad_enabled(v) for v in xs))
    if not symbolic():
        return plan.split(dr.custom(OPS[path], plan, packed, xs, key))
    later = [outside(b).buffer for b in packed if dr.grad_enabled(b)]
    # Dr.Jit notes that the scope depends on a buffer at ordinary operations only, not at custom ones; without the
    # note, forward mode would lose the tangents of the weights.
    _ = [b * 1 for b in packed]
    return plan.split(dr.custom(ScopeBankOp, plan, packed, xs, key, later))


def _by_drjit(ops: Sequence[Op], x: Bundle, key: Key | None) -> Bundle:
    """Evaluate ``ops`` for Dr.Jit to differentiate by itself, whether tangents and cotangents are constants or not."""
    xs = flat(x)
    if dr.backend_v(type(xs[0])) != dr.JitBackend.LLVM:
        return in_room(ops, x, key).y
    x = [Loose(v) for v in split(computed(xs, xs), len(x))]
    return [drnn.CoopVec(v) for v in split(computed(flat(in_room(ops, x, key).y), xs), len(x))]


def in_kernels_of_their_own(ops: Sequence[Op], x: Bundle) -> bool:
    """May tangents that do not fit into one kernel be evaluated one by one? In one kernel, OptiX interleaves them.

    Not where gradients are wanted, which would find the values evaluated anyway, nor for few samples.
    """
    attached = stacked() is not None or any(dr.grad_enabled(v) for v in (*buffers(ops), *flat(x)))
    return not attached and not symbolic() and max(dr.width(v) for v in flat(x)) >= MANY


def _shares_a_call(xs: list) -> bool:
    """May there be other networks in the same callable on CUDA, which the compiler would interleave with this one?

    Not asked where gradients are wanted: those of weights captured by a conditional would be lost.
    """
    leaf = type(xs[0])
    cuda = symbolic() and dr.backend_v(leaf) == dr.JitBackend.CUDA
    return cuda and not any(dr.grad_enabled(v) for v in xs) and inside_call(leaf)


def _path(ops: Sequence[Op], xs: list, vectors: int) -> str:
    leaf = type(xs[0])
    backend, in_call = dr.backend_v(leaf), inside_call(leaf)
    terms, left = max(dr.width(v) for v in xs) * vectors, innermost()
    path, _ = choose(
        backend,
        terms,
        symbolic=symbolic(),
        in_call=in_call,
        frozen=frozen(),
        deterministic=is_deterministic(),
        forced=forced_path(),
        layouts_known=layouts_known(ops),
        width=widest(ops),
        masked=masked(ops),
        apart=left is not None and left.takes(ops, buffers(ops), terms),
        planned=0 if left is None else left.steps,
        wide=backend == dr.JitBackend.LLVM and pays(ops, terms),
    )
    if in_call and backend == dr.JitBackend.CUDA:
        warn_stall(None)
    return path


def layouts_known(ops: Sequence[Op]) -> bool:
    """Are the packed layouts of all matrices known, so that their gradients can be computed beside the kernel?"""
    return all(op.layout is not None for op in affine(ops))


def _directions(ops: Sequence[Op], x: Bundle) -> int:
    """How many tangents to take at a time: as many as fit into registers with the value.

    CPUs spill vectors to the cache, which is cheap.
    """
    if dr.backend_v(x[0].type) != dr.JitBackend.CUDA:
        return len(x) - 1
    return max(1, ALL // max(len(x[0]), widest(ops)) - 1)


def _widened(x: Bundle) -> Bundle:
    """A bundle whose components all have a lane for every sample, if it has tangents.

    Those are often constants. A vector of one lane would be masked as one sample by dropout, and have a gradient that
    is summed over the samples already.
    """
    if len(x) == 1:
        return x
    samples = max(dr.width(v) for v in flat(x))

    def wide(vector: Any) -> Any:
        parts = list(vector)
        if all(dr.width(v) == samples for v in parts):
            return vector
        return Loose(v if dr.width(v) == samples else v + dr.zeros(type(v), samples) for v in parts)

    return [wide(vector) for vector in x]
