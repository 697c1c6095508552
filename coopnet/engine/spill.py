r"""Weight gradients as one product over all samples: *spill and multiply*.

The gradient of a matrix is a sum of outer products over samples, :math:`\partial L/\partial A = \sum_s \delta_s
x_s^T`. Accumulating it inside the kernel takes an atomic operation per entry and sample, whose order and, on some
backends, precision we cannot control. Here one fused kernel runs the network forward and the cotangents
back and writes activations and cotangents out as they appear, in rows ``(samples, width)``; a matrix product then sums
over the sample axis, in a fixed order.

What is spilled at a time stays below :data:`~.limits.KEPT_BYTES` bytes: larger batches go in chunks, each a run of the
same kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..jit.batch_size import batch_sample, pin_batch_size
from ..jit.lanes import live, only
from ..jit.registers import with_room
from ..jit.scopes import frozen
from ..random.key import Key
from . import external_products
from .activation_cache import ActivationCache, chunk_size, with_bias
from .affine import Affine
from .banks import in_use
from .chunks import Chunks
from .multipliers import BetweenKernels, copying
from .network_op import NetworkOp, Plan
from .ops import Op, Tape, affine, matrices, multiplied
from .products import Product, Sums, library, multiply
from .row_vectors import Rows, spilled
from .strategies import MULTIPLIERS, Products, choose, worth_copies


class SpillOp(NetworkOp):
    """Differentiates by spilling and multiplying."""

    cache: ActivationCache | None = None

    def _prepared(self, ops: list[Op]) -> list[Op]:
        # Copies for the way back, too: then, what the caller has scheduled meanwhile would get a kernel of its own.
        if worth_copies(self.plan.situation):
            own = affine(ops)
            back = [self.plan.wants_x or i > 0 for i in range(len(own))]
            if (copies := copying(own, [True] * len(own), back)) is not None:
                return multiplied(ops, copies)
        return ops

    def pull_back(self, dys: list, samples: int) -> None:
        xs, leaf = self.xs, dr.leaf_t(type(dys[0]))
        # taken off: another backward pass through the same graph computes activations again
        cache, self.cache = self.cache, None
        if cache is not None and cache.samples != samples:
            cache = None
        chunk = chunk_size(self.ops, samples, dr.itemsize_v(spilled(leaf)), self.plan.vectors)
        sums, left = Sums(), False
        if cache is not None or chunk == samples:
            products, dxs = self._whole(dys, samples, cache)
            s, caller = self.plan.situation, external_products.innermost()
            able = caller is not None and caller.open and s.outside and caller.knows(self.plan.buffers)
            left = choose(MULTIPLIERS, Products(s.backend, frozen(), able, library(s.backend)))[0] == "caller"
            if caller is not None and left:
                caller.leave(products)
            else:
                _add(sums, products)
        else:
            dxs = self._in_chunks(xs, dys, samples, chunk, sums)
        if self.plan.wants_x:
            self.set_grad_in("xs", dxs)
        if not left:
            gradients = [sums.gradient(buffer.index, buffer) for buffer in self.buffers]
            dr.eval(gradients)
            self.set_grad_in("buffers", gradients)

    def _stored(self, xs: list, key: Key | None) -> ActivationCache | None:
        """What goes into the matrices, if it is to be written before the way back."""
        return None

    def _whole(self, dys: list, samples: int, cache: ActivationCache | None) -> tuple[list[Product], list]:
        """Spill the whole batch; returns the evaluated operands of the products and the input's gradient."""
        cache = cache or self._stored(self.xs, self.key)
        if cache is not None:
            return back_from(cache, self.plan, self.xs, dys, self.key)
        vectors: list[Any] = []
        products, dxs = spill(self.plan, self.ops, self.taped(), dys, self.key, samples, vectors=vectors)
        sample = batch_sample(vectors, samples)
        dr.eval([[p.cotangent.numbers, p.activation.numbers] for p in products], dxs, sample)
        pin_batch_size(sample)
        return products, dxs

    def _in_chunks(self, xs: list, dys: list, samples: int, chunk: int, sums: Sums) -> list:
        leaf = dr.leaf_t(type(dys[0]))
        uint32 = dr.uint32_array_t(leaf)
        sample = batch_sample([*dys, *xs], samples)
        dr.eval(xs, dys, sample)
        dxs = [dr.empty(type(x), samples) for x in xs] if self.plan.wants_x else []
        for part, key in Chunks(uint32, samples, chunk, self.key):
            own = [part.part(x) for x in xs]
            dy = [dr.select(part.inside, part.part(v), leaf(0)) for v in dys]  # none of samples that are repeated
            if (cache := self._stored(own, key)) is not None:
                products, dx = back_from(cache, self.plan, own, dy, key)
            else:
                products, dx = spill(self.plan, self.ops, self.plan.evaluate(self.ops, own, key), dy, key, chunk)
            dr.eval([[p.cotangent.numbers, p.activation.numbers] for p in products], dx)
            part.put(dxs, dx)
            _add(sums, products)
            dr.eval(dxs)
            del cache
        pin_batch_size(sample)
        return dxs


def back_from(
    cache: ActivationCache, plan: Plan, xs: list, dys: list, key: Key | None
) -> tuple[list[Product], list]:  # fmt: skip
    """The way back from what is kept: evaluated operands of the products, and the gradient of the input."""
    if all(v.state == dr.VarState.Literal for v in dys):
        # Beside what is read from rows the kernel needs an input with an entry for each sample: without, frozen
        # functions guess how many lanes to replay it with.
        dys = [dr.copy(v) for v in dys]
        dr.make_opaque(dys[0])
    tape = plan.evaluate(cache.ops, xs, key, cache.reader())
    products, dxs = spill(plan, cache.ops, tape, dys, key, cache.samples, cache)
    dr.eval([p.cotangent.numbers for p in products], dxs)
    return products, dxs


def spill(
    plan: Plan, ops: Sequence[Op], tape: Tape, dys: list, key: Key | None, samples: int,
    cache: ActivationCache | None = None, vectors: list[Any] | None = None,
) -> tuple[list[Product], list]:  # fmt: skip
    """Trace the backward pass with its spilling; returns operands of the products and the input's gradient.

    ``vectors`` gets what the kernel could return as well as write, see :func:`pin_batch_size`.
    """
    products: list[Product] = []
    # from 0 and what is finite in a cache, functions that are linear in pieces make no NaN
    mask = None if cache is not None and plan.situation.network.piecewise_linear else live(dys)

    def visit(op: Affine, dy: Any, x: Any, biased: bool) -> Any:
        if cache is not None and isinstance(op.multiplier, BetweenKernels):
            in_rows = op.multiplier.takes_cotangent(dy)
            rows = dy.rows if in_rows else Rows(list(dy) if mask is None else only(mask, list(dy)), samples)
            dr.eval(rows.numbers)
            products.append(Product(op, rows, x.rows, "matrix"))
            if biased and op.bias is not None:
                products.append(Product(op, rows.of(rows.numbers), cache.ones(rows), "bias"))
            return cache.vector(rows, dy.type, len(dy))
        cotangents = list(dy) if mask is None else only(mask, list(dy))
        if cache is not None:
            activation = x.rows
        else:
            activations = only(mask, with_bias(op, list(op.fill(x)), biased))
            activation = Rows(activations, samples)
            if vectors is not None:
                vectors.extend([cotangents[0], activations[0]])
        rows = Rows(cotangents, samples)
        products.append(Product(op, rows, activation))
        if cache is None or not cache.ends(op):
            return None
        # a kernel for each layer: the vectors of one fill the registers
        dr.eval(rows.numbers)
        return cache.vector(rows, dy.type, len(cotangents))

    width = plan.situation.network.width
    used = in_use(ops, plan.vectors) if cache is None else 2 * plan.vectors * width
    dys = with_room(dys, matrices(ops), used)
    # the caller evaluates dx along, or whoever uses it next would run the whole network again
    dx = plan.pullback(tape, dys, key, visit)
    return products, dx if mask is None else only(mask, dx)


def _add(sums: Sums, products: list[Product]) -> None:
    """Compute ``products`` and add them to those of their buffers."""
    for p, parts in zip(products, multiply([(p.cotangent, p.activation) for p in products]), strict=True):
        sums.add(p.op.weights.buffer.index, p, parts)
    sums.eval()
