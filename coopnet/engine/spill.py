r"""Weight gradients as one product over all samples: *spill and multiply*.

The gradient of a matrix is a sum of outer products over samples, :math:`\partial L/\partial A = \sum_s \delta_s
x_s^T`. Accumulating it inside the kernel takes an atomic operation per entry and sample, whose order and, on some
backends, precision we cannot control. Here one fused kernel runs the network forward and the cotangents
back and writes activations and cotangents out as they appear, in rows ``(samples, width)``; a matrix product then sums
over the sample axis, in a fixed order. GPUs rather write activations on the way forward, and read them on the way back:
all of a wide network's vectors do not fit into the registers of one kernel.

What is spilled at a time stays below :data:`MEMORY` bytes: larger batches go in chunks, each a run of the same kernels.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.batch_size import batch_sample, pin_batch_size
from ..jit.lanes import live, only
from ..jit.masks import active, masked
from ..jit.registers import LONG, with_room
from ..jit.scopes import frozen
from ..random.key import Key
from .copies import SAMPLES, copy_matrices
from .ops import Affine, Bundle, Op, Store, affine, kept, matrices, widest
from .pending import innermost
from .plan import NetworkOp, Plan
from .products import Product, Sums, multiply
from .rows import PIECE, Rows, columns, spilled

#: Bytes that are spilled at a time.
MEMORY = 2 << 30


def bytes_per_sample(ops: Sequence[Op], itemsize: int) -> int:
    """Memory that one sample's activations and cotangents take when spilled."""
    return itemsize * sum(_activations(op, itemsize) + columns(op.weights.shape[0], itemsize) for op in affine(ops))


def _activations(op: Affine, itemsize: int) -> int:
    # a constant input makes the bias one more column of the matrix
    return columns(op.weights.shape[1] + (op.bias is not None), itemsize)


def chunk_size(ops: Sequence[Op], samples: int, itemsize: int, vectors: int = 1) -> int:
    """Samples that are spilled at a time, where each sends ``vectors`` vectors through the ops."""
    most = max(PIECE, MEMORY // (vectors * bytes_per_sample(ops, itemsize)) // PIECE * PIECE)
    if samples <= most:
        return samples
    chunks = -(-samples // most)
    return -(-samples // (chunks * PIECE)) * PIECE


class SpillOp(NetworkOp):
    """Differentiates by spilling and multiplying."""

    shelf: Shelf | None = None

    def _prepare(self) -> None:
        # Copies for the way back, too: then, what the caller has scheduled meanwhile would get a kernel of its own.
        if max(dr.width(v) for v in self.xs) >= SAMPLES:
            own = affine(self.ops)
            copy_matrices(own, own if self.plan.wants_x else own[1:])

    def backward(self) -> None:
        dys, xs = self.grad_out(), self.xs
        samples = max(dr.width(v) for v in [*dys, *xs])
        leaf = dr.leaf_t(type(dys[0]))
        # taken off: another backward pass through the same graph computes activations again
        shelf, self.shelf = self.shelf, None
        if shelf is not None and shelf.samples != samples:
            shelf = None
        chunk = chunk_size(self.ops, samples, dr.itemsize_v(spilled(leaf)), self.plan.vectors)
        sums: dict[int, Sums] | None = None
        if shelf is not None or chunk == samples:
            products, dxs = self._whole(dys, samples, shelf)
            later, terms = innermost(), samples * self.plan.vectors
            if later is not None and later.leaves(self.plan.ops, self.plan.buffers, terms):
                known = dict(zip(map(id, affine(self.ops)), affine(self.plan.ops), strict=True))
                for p in products:
                    later.leave(known[id(p.op)], p)
            else:
                _add(sums := {}, products)
        else:
            sums = {}
            dxs = self._in_chunks(xs, dys, samples, chunk, sums)
        if self.plan.wants_x:
            self.set_grad_in("xs", dxs)
        if sums is not None:
            self.set_grad_in("buffers", _gradients(sums, self.buffers))

    def _whole(self, dys: list, samples: int, shelf: Shelf | None) -> tuple[list[Product], list]:
        """Spill the whole batch; returns the evaluated operands of the products and the input's gradient."""
        if shelf is not None:
            return shelf.pullback(self.plan, self.ops, self.xs, dys, self.key)
        vectors: list[Any] = []
        products, dxs = _spill(self.plan, self.ops, self.tape, dys, self.key, samples, vectors=vectors)
        sample = batch_sample(vectors, samples) if frozen() else None
        dr.eval([[p.cotangent.numbers, p.activation.numbers] for p in products], dxs, sample)
        if sample is not None:
            pin_batch_size(sample)
        return products, dxs

    def _in_chunks(self, xs: list, dys: list, samples: int, chunk: int, sums: dict[int, Sums]) -> list:
        leaf = dr.leaf_t(type(dys[0]))
        uint32 = dr.uint32_array_t(leaf)
        if masked(leaf):  # of all samples: a chunk has another size
            dys = only(active(leaf, samples), dys)
        sample = batch_sample([*dys, *xs], samples) if frozen() else None
        dr.eval(xs, dys, sample)
        key_args: list[Any] = []
        if self.key is not None:
            key = self.key.traced(uint32)
            key_args = [key.words(uint32, samples)[0], key.step]
            dr.eval(key_args)
        dxs = [dr.empty(type(x), samples) for x in xs] if self.plan.wants_x else []
        for start in range(0, samples, chunk):
            # an opaque start makes all chunks the same kernel; the last one repeats a sample with a gradient of zero
            lane = dr.arange(uint32, chunk) + dr.opaque(uint32, start)
            inside = lane < samples
            place = dr.minimum(lane, samples - 1)

            def part(v: Any, place: Any = place) -> Any:
                return dr.gather(type(v), v, place) if dr.width(v) > 1 else v

            key_part = None
            if self.key is not None:
                key_part = Key(key.seed, part(key_args[0]), part(key_args[1]))
            tape = self.plan.evaluate(self.ops, [part(x) for x in xs], key_part)
            dy = [dr.select(inside, part(v), leaf(0)) for v in dys]
            products, dx = _spill(self.plan, self.ops, tape, dy, key_part, chunk)
            dr.eval([[p.cotangent.numbers, p.activation.numbers] for p in products], dx)
            for whole, piece in zip(dxs, dx, strict=True):
                dr.scatter(whole, piece, place, inside, mode=dr.ReduceMode.Permute)
            _add(sums, products)
            dr.eval(dxs)
        if sample is not None:
            pin_batch_size(sample)
        return dxs


class StoreOp(SpillOp):
    """The same, but what goes into the matrices is written on the way forward: nothing is computed again."""

    def _store(self) -> Store | None:
        self.shelf = Shelf.of(self.plan, self.ops, self.xs)
        return None if self.shelf is None else self.shelf.write

    def eval(self, plan: Plan, buffers: list, xs: list, key: Key | None) -> list:  # type: ignore[override]
        y = super().eval(plan, buffers, xs, key)
        return y if self.shelf is None else self.shelf.filled(y)


class Shelf:
    """What went into the matrices on the way forward, for the way back.

    With ``apart``, every layer is a kernel of its own, which reads what the one before it wrote: the vectors of one
    fill the registers.
    """

    _all: weakref.WeakSet[Shelf] = weakref.WeakSet()

    def __init__(self, samples: int, size: int, apart: bool):
        self.samples, self.size, self.apart = samples, size, apart
        self._overflow: Any = None  # NaN where something was not finite, which was not stored, and 0 elsewhere
        self._rows: list[Rows] = []
        self._found: dict[int, tuple[Any, Rows]] = {}  # by the vector that was read
        Shelf._all.add(self)

    @classmethod
    def of(cls, plan: Plan, ops: Sequence[Op], xs: Sequence[Any]) -> Shelf | None:
        """One for what goes into the matrices of ``ops``, or ``None`` if there is no room for it."""
        samples, itemsize = max(dr.width(v) for v in xs), dr.itemsize_v(spilled(type(xs[0])))
        needed = samples * plan.vectors * itemsize * sum(_activations(op, itemsize) for op in affine(ops))
        whole = chunk_size(ops, samples, itemsize, plan.vectors) == samples
        if not whole or needed + cls.occupied() > MEMORY:
            return None
        return cls(samples, needed, apart=widest(ops) > LONG)

    @classmethod
    def occupied(cls) -> int:
        """Bytes on all shelves: a function may evaluate networks often before any of them is differentiated."""
        return sum(shelf.size for shelf in cls._all)

    def write(self, op: Affine, x: Bundle) -> Bundle:
        leaf = x[0].type
        overflow, written = leaf(0) if self._overflow is None else self._overflow, []
        for i, vector in enumerate(x):
            # Whether anyone will want the gradient of a lane is not known yet: 0 times what stands there must be 0.
            components = list(op.fill(vector))
            finite = [dr.select(dr.isfinite(v), v, 0) for v in components]
            written.append(Rows(_with_bias(op, finite, i == 0), self.samples))
            if self.apart:
                sane = functools.reduce(operator.and_, map(dr.isfinite, components))
                overflow = dr.select(sane, overflow, dr.nan)
        self._rows += written
        if not self.apart:
            return x
        # An entry for each sample among what the next kernel reads: by rows alone, frozen functions guess how many.
        self._overflow = overflow
        dr.eval([rows.numbers for rows in written], overflow)
        return [drnn.CoopVec(rows.read(leaf, len(vector))) for rows, vector in zip(written, x, strict=True)]

    def filled(self, y: Sequence[Any]) -> list[Any]:
        """The outputs ``y``, or NaN where something on the way was not finite, when all has been written."""
        result = list(y) if self._overflow is None else [v + self._overflow for v in y]
        sample = batch_sample(result, self.samples) if frozen() else None
        dr.eval([rows.numbers for rows in self._rows], result, sample)
        if sample is not None:
            pin_batch_size(sample)
        return result

    def reader(self) -> Any:
        """The counterpart of :meth:`write`: passes on what is on the shelf, in the same order."""
        rows = iter(self._rows)

        def read(op: Affine, x: Bundle) -> Bundle:
            found = []
            for vector in x:
                own = next(rows)
                found.append(drnn.CoopVec(own.read(vector.type, len(vector))))
                self._found[id(found[-1])] = found[-1], own
            return found

        return read

    def rows(self, vector: Any) -> Rows:
        return self._found[id(vector)][1]

    def pullback(
        self, plan: Plan, ops: Sequence[Op], xs: list, dys: list, key: Key | None
    ) -> tuple[list[Product], list]:
        """The way back: evaluated operands of the products, and the gradient of the input."""
        if all(v.state == dr.VarState.Literal for v in dys):
            # Beside what is read from rows the kernel needs an input with an entry for each sample: without, frozen
            # functions guess how many lanes to replay it with.
            dys = [dr.copy(v) for v in dys]
            dr.make_opaque(dys[0])
        tape = plan.evaluate(ops, xs, key, self.reader())
        products, dxs = _spill(plan, ops, tape, dys, key, self.samples, self)
        dr.eval([p.cotangent.numbers for p in products], dxs)
        return products, dxs


def _with_bias(op: Affine, x: Sequence[Any], biased: bool) -> list[Any]:
    """``x`` and, for a layer with a bias, the constant input that it is the weight of."""
    return list(x) if op.bias is None else [*x, type(x[0])(1 if biased else 0)]


def _spill(
    plan: Plan, ops: Sequence[Op], tape: Any, dys: list, key: Key | None, samples: int, shelf: Shelf | None = None,
    vectors: list[Any] | None = None,
) -> tuple[list[Product], list]:  # fmt: skip
    """Trace the backward pass with its spilling; returns operands of the products and the input's gradient.

    ``vectors`` gets what the kernel could return as well as write, see :func:`pin_batch_size`.
    """
    products: list[Product] = []
    # from 0 and what is finite on the shelf, functions that are linear in pieces make no NaN
    mask = None if shelf is not None and all(op.flat for op in ops) else live(dys)

    def visit(op: Affine, dy: Any, x: Any, biased: bool) -> Any:
        cotangents = list(dy) if mask is None else only(mask, list(dy))
        if shelf is not None:
            activation = shelf.rows(x)
        else:
            activations = only(mask, _with_bias(op, list(op.fill(x)), biased))
            activation = Rows(activations, samples)
            if vectors is not None:
                vectors.extend([cotangents[0], activations[0]])
        products.append(Product(op, Rows(cotangents, samples), activation))
        if shelf is None or widest(ops) <= LONG:
            return None
        # a kernel for each layer: the vectors of one fill the registers
        dr.eval(products[-1].cotangent.numbers)
        return drnn.CoopVec(products[-1].cotangent.read(dy.type, len(cotangents)))

    used = kept(ops, plan.vectors) if shelf is None else 2 * plan.vectors * widest(ops)
    dys = with_room(dys, matrices(ops), used)
    # the caller evaluates dx along, or whoever uses it next would run the whole network again
    dx = plan.pullback(tape, dys, key, visit)
    return products, dx if mask is None else only(mask, dx)


def _add(sums: dict[int, Sums], products: list[Product]) -> None:
    """Compute ``products`` and add them to those of their buffers."""
    for p, parts in zip(products, multiply([(p.cotangent, p.activation) for p in products]), strict=True):
        sums.setdefault(id(p.op.weights.buffer), Sums()).add(p, parts)
    for found in sums.values():
        found.eval()


def _gradients(sums: dict[int, Sums], buffers: Sequence[Any]) -> list[Any]:
    found = [sums.get(id(buffer), Sums()).gradient(buffer) for buffer in buffers]
    dr.eval(found)
    return found
