r"""Weight gradients as one product over all samples: *spill and multiply*.

The gradient of a matrix is a sum of outer products over samples, :math:`\partial L/\partial A = \sum_s \delta_s
x_s^T`. Accumulating it inside the kernel takes an atomic operation per entry and sample, whose order and, on some
backends, precision we cannot control. Here one fused kernel runs the forward and the backward pass, and writes the
activations and cotangents of each layer to memory, in rows ``(samples, width)``. A matrix product then sums over the
sample axis, in a fixed order.

A limited number of bytes is spilled at a time (:func:`~.memory.kept_bytes`). Larger batches are processed in
chunks of one size, by the same kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..jit.batch_size import batch_sample, pin_batch_size
from ..jit.lanes import live, only
from ..jit.literals import is_literal
from ..jit.registers import request_registers
from ..random.key import Key
from . import external_products
from .activation_cache import ActivationCache
from .affine import Affine, with_bias
from .chunks import chunks
from .memory import chunk_size
from .network_op import NetworkOp, Plan, in_use
from .ops import Op, Tape, matrices
from .products import Product, Sums, vectors_together, who_multiplies
from .row_vectors import Rows, spilled
from .strategies import caller_multiplies


class SpillOp(NetworkOp):
    """Computes weight gradients by spilling and multiplying."""

    cache: ActivationCache | None = None

    def pull_back(self, dys: list, samples: int) -> tuple[list, list | None]:
        # the cache serves one backward pass; another one through the same graph computes activations again
        cache, self.cache = self.cache, None
        itemsize = dr.itemsize_v(spilled(type(dys[0])))
        chunk, sums = chunk_size(self.ops, samples, itemsize, self.plan.vectors), Sums()
        if cache is None and chunk < samples:
            dxs = self._in_chunks(dys, samples, chunk, sums)
        else:
            products, dxs = self._whole(dys, samples, cache)
            s, caller = self.plan.situation, external_products.innermost()
            left = caller is not None and caller.open and caller_multiplies(s)
            if products and who_multiplies(s.backend, left) == "caller":
                assert caller is not None
                caller.leave(products)
                return dxs, None
            sums.compute(products)
        if not self.plan.situation.weights:
            return dxs, None
        gradients = [sums.gradient(buffer.index, buffer) for buffer in self.buffers]
        dr.eval(gradients)
        return dxs, gradients

    def stored(self, xs: list, key: Key | None) -> ActivationCache | None:
        """The inputs of matrices, if they are written before the backward pass."""
        return None

    def _whole(self, dys: list, samples: int, cache: ActivationCache | None) -> tuple[list[Product], list]:
        """Spill the whole batch; returns the evaluated operands of the products and the input's gradient."""
        cache = cache or self.stored(self.xs, self.key)
        if cache is not None:
            return back_from(cache, self.plan, self.xs, dys, self.key)
        vectors: list[Any] = []
        # Evaluate the outputs, too. Otherwise a loss that is read afterwards would evaluate the network again.
        s = self.plan.situation
        outputs = [] if self.tape is None or s.cuda or s.caller else self.tape.flat()
        together = vectors_together(s)
        products, dxs = spill(self.plan, self.ops, self.taped(), dys, self.key, samples, together, vectors=vectors)
        sample = batch_sample(vectors or [*dys, *self.xs], samples)
        dr.eval([p.numbers() for p in products], dxs, sample, outputs)
        pin_batch_size(sample)
        return products, dxs

    def _in_chunks(self, dys: list, samples: int, chunk: int, sums: Sums) -> list:
        xs, leaf = self.xs, type(dys[0])
        sample = batch_sample([*dys, *xs], samples)
        dr.eval(xs, dys, sample)
        dxs = [dr.empty(type(v), samples) for v in self.plan.differentiated(xs)]
        for part, key in chunks(dr.uint32_array_t(leaf), samples, chunk, self.key):
            x = [part.part(v) for v in xs]
            dy = part.cotangents(dys)
            if (cache := self.stored(x, key)) is not None:
                products, dx = back_from(cache, self.plan, x, dy, key)
            else:
                tape, together = self.plan.evaluate(self.ops, x, key), vectors_together(self.plan.situation, False)
                products, dx = spill(self.plan, self.ops, tape, dy, key, chunk, together)
            dr.eval([p.numbers() for p in products], dx)
            part.put(dxs, dx)
            sums.compute(products)
            dr.eval(dxs)
            del cache
        pin_batch_size(sample)
        return dxs


def back_from(
    cache: ActivationCache, plan: Plan, xs: list, dys: list, key: Key | None
) -> tuple[list[Product], list]:  # fmt: skip
    """The backward pass from a cache: evaluated operands of the products, and the gradient of the input."""
    if all(map(is_literal, dys)):
        # Besides rows, the kernel needs an input with an entry for each sample. Without one, frozen functions guess the
        # number of lanes when they replay it.
        dys = [dr.copy(v) for v in dys]
        dr.make_opaque(dys[0])
    tape = cache.tape(plan, xs, key)
    products, dxs = spill(plan, cache.ops, tape, dys, key, cache.samples, cache.together, cache)
    if cache.between_kernels:
        dxs = only(live(dys), cache.marked(dxs))
    dr.eval([p.cotangent.numbers for p in products], dxs)
    return products, dxs


def spill(
    plan: Plan, ops: Sequence[Op], tape: Tape, dys: list, key: Key | None, samples: int, together: int,
    cache: ActivationCache | None = None, vectors: list[Any] | None = None,
) -> tuple[list[Product], list]:  # fmt: skip
    """Trace the backward pass with its spilling; returns operands of the products and the input's gradient.

    There are no products if weights need no gradients. Arrays with an entry per sample are appended to ``vectors``, for
    :func:`batch_sample`.
    """
    products, weights = list[Product](), plan.situation.weights
    # Cached activations are finite, so piecewise linear functions need no mask: they map cotangents of 0 to 0.
    mask = None if cache is not None and plan.situation.network.piecewise_linear else live(dys)

    def visit(op: Affine, dy: Any, x: Any, biased: bool) -> Any:
        if cache is not None and op.multiplier.between_kernels:
            in_rows = op.multiplier.takes_cotangent(dy)
            rows = dy.rows if in_rows else Rows(only(mask, list(dy)), samples)
            dr.eval(rows.numbers)
            if weights:
                products.append(Product(op, rows, x.rows, "matrix"))
            if weights and biased and op.bias is not None:
                products.append(Product(op, rows.of(rows.numbers), cache.ones(rows), "bias"))
            return cache.vector(rows, dy.type, len(dy))
        ends = cache is not None and cache.ends(op)
        if not weights and not ends:
            return None
        cotangents = only(mask, list(dy))
        if cache is not None:
            activation = x.rows
        else:
            activations = only(mask, with_bias(op, list(op.fill(x)), biased))
            activation = Rows(activations, samples, together)
            if vectors is not None:
                vectors.extend([cotangents[0], activations[0]])
        rows = Rows(cotangents, samples, together)
        if weights:
            products.append(Product(op, rows, activation))
        if cache is None or not ends:
            return None
        # the next kernel goes on from the rows, as in the forward pass
        dr.eval(rows.numbers)
        return cache.vector(rows, dy.type, len(cotangents))

    width = plan.situation.network.width
    used = in_use(ops, plan.vectors) if cache is None else 2 * plan.vectors * width
    dys = request_registers(dys, matrices(ops), used)
    # the caller evaluates dx together with the rows; later, it would evaluate the whole network again
    dx = plan.pullback(tape, dys, key, visit)
    return products, only(mask, dx)
