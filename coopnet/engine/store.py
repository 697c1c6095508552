"""Weight gradients as products over all samples, of activations that the forward pass writes: *store and multiply*.

If weights need no gradients, there are no products over samples.

On GPUs, it is used if the vectors of a network do not fit into the registers of one kernel for both passes, and where
outer products would compile for too long. On CPUs, it is used for wide layers, which are multiplied between kernels
(:class:`~.multipliers.BetweenKernels`). Activations between two such layers are applied to the rows in place
(:class:`~.row_vectors.RowVector`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.batch_size import batch_sample, pin_batch_size
from ..jit.kinds import flat
from ..random.key import Key
from . import limits
from .activation_cache import ActivationCache
from .affine import Affine
from .chunks import chunks, even_size
from .multipliers import for_backward, with_multipliers
from .network_op import Plan
from .ops import Bundle, Op, Store, affine
from .row_vectors import Rows, RowVector, columns
from .spill import SpillOp, back_from
from .strategies import refills


class StoreOp(SpillOp):
    """Computes weight gradients from activations that the forward pass has stored.

    If there is no memory for them, the backward pass computes them again.
    """

    def prepared(self, ops: Sequence[Op]) -> tuple[Sequence[Op], Store | None]:
        ops, _ = super().prepared(ops)
        self.cache = ActivationCache.make(self.plan, ops, self.xs, self.key)
        return ops, self.cache

    def eval(self, plan: Plan, buffers: list, xs: list, key: Key | None) -> list:  # type: ignore[override]
        y = super().eval(plan, buffers, xs, key)
        if self.cache is None:
            return y
        if self.cache.between_kernels:
            self.tape = None  # it would keep activations that the backward pass does not need
        return self.cache.filled(y)

    def stored(self, xs: list, key: Key | None) -> ActivationCache | None:
        """A filled cache for another backward pass or a chunk of the samples, where that pays."""
        if not refills(self.plan.situation):
            return None
        cache = ActivationCache.make(self.plan, self.ops, xs, key, brief=True)
        if cache is not None:
            cache.fill(self.plan, xs, key)
        return cache


def input_gradient_from_rows(plan: Plan, x: Any, key: Key | None) -> tuple[Any, list]:
    """The single output of a network and its gradient with respect to the input."""
    xs = flat([x])
    cache = ActivationCache.make(plan, for_backward(plan, plan.ops), xs, key)
    assert cache is not None
    y = cache.filled(plan.evaluate(cache.ops, xs, key, cache).flat())
    _, dx = back_from(cache, plan, xs, [dr.full(type(y[0]), 1, cache.samples)], key)
    return drnn.CoopVec(y), dx


def evaluate_between_kernels(plan: Plan, x: Bundle, key: Key | None) -> Bundle:
    """The evaluated output of a network if no gradient is needed. This cannot be called in symbolic code.

    Sizes of products are constants of a recording: a frozen function is recorded again for another number of samples.
    """
    ops = with_multipliers(plan.ops, plan.strategy)
    xs, samples = flat(x), plan.situation.samples
    shapes = [op.weights.shape for op in affine(ops) if op.multiplier.between_kernels]
    each = len(x) * sum(4 * (columns(n, 4) + columns(m, 4)) for m, n in shapes)
    size = even_size(samples, limits.WIDE_BYTES // each)
    sample = batch_sample(xs, samples)
    if size == samples:
        dr.schedule(sample)  # for the first kernel; the others read rows, whose number is a constant
        y = plan.evaluate(ops, xs, key, _EndingKernels(samples)).flat()
        dr.eval(y)
        pin_batch_size(sample)
        return plan.split(y)
    dr.eval(xs, sample)
    y = []
    for chunk, part in chunks(dr.uint32_array_t(x[0].type), samples, size, key):
        outputs = plan.evaluate(ops, [chunk.part(v) for v in xs], part, _EndingKernels(size)).flat()
        y = y or [dr.empty(type(v), samples) for v in outputs]
        chunk.put(y, outputs)
        dr.eval(y)
    pin_batch_size(sample)
    return plan.split(y)


class _EndingKernels(Store):
    """Ends a kernel before every large layer, and keeps nothing."""

    def __init__(self, samples: int):
        self.samples = samples

    def inputs(self, op: Affine, x: Bundle) -> Bundle:
        multiplier = op.multiplier
        if not (multiplier.between_kernels and multiplier.forth):
            return x
        rows = [v.rows if multiplier.takes(v) else Rows(list(op.fill(v)), self.samples) for v in x]
        dr.eval([one.numbers for one in rows])
        return [RowVector(r, len(v), v.type, False, multiplier.multiply(r)) for r, v in zip(rows, x, strict=True)]
