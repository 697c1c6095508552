"""The gradient of a network's output with respect to its input, where nobody is going to differentiate it.

One vector goes back through the layers instead of a tangent forward for every coordinate. Bundles remain for gradients
that are differentiated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.constants import vector
from ..jit.kinds import flat
from ..jit.masks import unmasked
from ..jit.scopes import symbolic
from ..random.key import Key
from .choose import LONGER, MANY
from .copies import copied
from .gemm import layerwise
from .ops import Op, buffers, pullback, rebase, widest
from .plan import Plan, in_room
from .spill import Shelf
from .stack import stacked


def input_gradient(ops: Sequence[Op], x: Any, key: Key | None) -> tuple[Any, list] | None:
    """The output of ``ops`` and the gradient of its only component, or ``None`` where tangents are faster.

    ==========================================  ====================================================================
    LLVM                                        in the kernel around it: a vector that goes back costs an evaluation
    the same, wide layers, not in symbolic      between kernels, if there is memory: see :mod:`.gemm`
    code nor in frozen functions
    CUDA, long vectors, outside symbolic code   a kernel for each layer: two vectors of one do not fit into registers
    the same, linear in pieces                  tangents, which take few registers: the slopes are zeros and ones
    several fields in one kernel                tangents: they are going to be differentiated
    CUDA otherwise                              tangents: going back, the activations of all layers stay in registers
    ==========================================  ====================================================================

    Args:
        ops: a network with one output.
        x: its input, a ``CoopVec`` or :class:`~coopnet.jit.kinds.Loose`.
    """
    if stacked() is not None:
        return None
    with unmasked(x.type):
        return _input_gradient(ops, x, key)


def _input_gradient(ops: Sequence[Op], x: Any, key: Key | None) -> tuple[Any, list] | None:
    samples = max(dr.width(v) for v in x)
    if layerwise(ops, samples, x.type) and (found := stored(ops, x, key)) is not None:
        return found
    if dr.backend_v(x.type) == dr.JitBackend.LLVM:
        tape = in_room(copied(ops, list(x), back=True), [x], key)
        one = dr.full(x.type, 1, samples)  # a lane for each sample: dropout would take one lane for one sample
        dx = pullback(tape, [vector([one], list(x))], key, True, lambda *_: None)
        assert dx is not None
        return tape.y[0], list(dx[0])
    if widest(ops) <= LONGER or all(op.flat for op in ops) or samples < MANY or symbolic():
        return None
    return stored(ops, x, key)


def stored(ops: Sequence[Op], x: Any, key: Key | None) -> tuple[Any, list] | None:
    """:func:`input_gradient` by kernels for each layer, or ``None`` if memory lacks for what lies between."""
    xs, packed = flat([x]), buffers(ops)
    ops = rebase(ops, packed, packed)
    plan = Plan(ops, packed, 1, wants_x=True)
    shelf = Shelf.of(plan, ops, xs, key)
    if shelf is None:
        return None
    y = shelf.filled(plan.evaluate(ops, xs, key, shelf.write).flat())
    _, dx = shelf.pullback(plan, ops, xs, [dr.full(type(y[0]), 1, shelf.samples)], key)
    return drnn.CoopVec(y), shelf.marked(dx) if shelf.gemms else dx
