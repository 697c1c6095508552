r"""Weight gradients as one product over all samples: *spill and multiply*.

The gradient of a matrix is a sum of outer products over samples, :math:`\partial L/\partial A = \sum_s \delta_s
x_s^T`. Accumulating it inside the kernel takes an atomic operation per entry and sample, whose order and, on some
backends, precision we cannot control. Here one fused kernel runs the network forward and the cotangents
back and writes activations and cotangents out as they appear, in rows ``(samples, width)``; a matrix product then sums
over the sample axis, in a fixed order. GPUs rather write activations on the way forward, and read them on the way back:
all of a wide network's vectors do not fit into the registers of one kernel.

What is spilled at a time stays below :data:`MEMORY` bytes: larger batches go in chunks, each a run of the same kernels.
On CPUs, wide layers write their outputs, too (:mod:`.gemm`), and those that functions want on the way back come on top.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Sequence, Set
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.batch_size import batch_sample, pin_batch_size
from ..jit.kinds import packed
from ..jit.lanes import live, only
from ..jit.registers import LONG, with_room
from ..jit.scopes import frozen
from ..random.key import Key
from .chunks import Chunks
from .copies import SAMPLES, copy_matrices
from .gemm import Gemm, held, kept_outputs, spare
from .ops import Affine, Bundle, Op, Store, affine, kept, matrices, widest
from .pending import innermost
from .plan import NetworkOp, Plan
from .products import Product, Sums, multiply
from .rows import PACKET, PIECE, Rows, columns, spilled

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

    def pull_back(self, dys: list, samples: int) -> None:
        xs, leaf = self.xs, dr.leaf_t(type(dys[0]))
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

    def _stored(self, xs: list, key: Key | None) -> Shelf | None:
        """What goes into the matrices, if it is to be written before the way back."""
        return None

    def _whole(self, dys: list, samples: int, shelf: Shelf | None) -> tuple[list[Product], list]:
        """Spill the whole batch; returns the evaluated operands of the products and the input's gradient."""
        shelf = shelf or self._stored(self.xs, self.key)
        if shelf is not None:
            return shelf.pullback(self.plan, self.ops, self.xs, dys, self.key)
        vectors: list[Any] = []
        products, dxs = _spill(self.plan, self.ops, self.taped(), dys, self.key, samples, vectors=vectors)
        sample = batch_sample(vectors, samples) if frozen() else None
        dr.eval([[p.cotangent.numbers, p.activation.numbers] for p in products], dxs, sample)
        if sample is not None:
            pin_batch_size(sample)
        return products, dxs

    def _in_chunks(self, xs: list, dys: list, samples: int, chunk: int, sums: dict[int, Sums]) -> list:
        leaf = dr.leaf_t(type(dys[0]))
        uint32 = dr.uint32_array_t(leaf)
        sample = batch_sample([*dys, *xs], samples) if frozen() else None
        dr.eval(xs, dys, sample)
        dxs = [dr.empty(type(x), samples) for x in xs] if self.plan.wants_x else []
        for part, key in Chunks(uint32, samples, chunk, self.key):
            own = [part.part(x) for x in xs]
            dy = [dr.select(part.inside, part.part(v), leaf(0)) for v in dys]  # none of samples that are repeated
            if (shelf := self._stored(own, key)) is not None:
                products, dx = shelf.pullback(self.plan, self.ops, own, dy, key)
            else:
                products, dx = _spill(self.plan, self.ops, self.plan.evaluate(self.ops, own, key), dy, key, chunk)
            dr.eval([[p.cotangent.numbers, p.activation.numbers] for p in products], dx)
            part.put(dxs, dx)
            _add(sums, products)
            dr.eval(dxs)
            del shelf
        if sample is not None:
            pin_batch_size(sample)
        return dxs


class StoreOp(SpillOp):
    """The same, but what goes into the matrices is written on the way forward: nothing is computed again."""

    def _prepare(self) -> None:
        self.shelf = Shelf.of(self.plan, self.ops, self.xs, self.key)

    def _store(self) -> Store | None:
        return None if self.shelf is None else self.shelf.write

    def eval(self, plan: Plan, buffers: list, xs: list, key: Key | None) -> list:  # type: ignore[override]
        y = super().eval(plan, buffers, xs, key)
        if self.shelf is None:
            return y
        if self.shelf.gemms:
            self.tape = None  # it would keep what the way back does without
        return self.shelf.filled(y)

    def _stored(self, xs: list, key: Key | None) -> Shelf | None:
        """One for another way back or a part of the samples, where that is faster than one kernel there and back."""
        if dr.backend_v(xs[0]) != dr.JitBackend.LLVM:
            return None
        shelf = Shelf.of(self.plan, self.ops, xs, key, brief=True)
        if shelf is not None:
            shelf.fill(self.plan, self.ops, xs, key)
        return shelf


class Shelf:
    """What went into the matrices on the way forward, for the way back.

    Long vectors on GPUs, and those of layers that are products of their own on CPUs, end a kernel, and the next one
    reads what it wrote: on GPUs the vectors of one layer fill the registers.

    Args:
        samples, vectors, size: samples, vectors that each sends through the network, and bytes that they take.
        apart: is every layer a kernel of its own?
        gemms: the layers that are products of their own.
        spare: ``id`` of those whose outputs are not kept.
    """

    _all: weakref.WeakSet[Shelf] = weakref.WeakSet()

    def __init__(
        self, samples: int, vectors: int, size: int, apart: bool, gemms: Sequence[Gemm] = (),
        spare: Set[int] = frozenset(),
    ):  # fmt: skip
        self.samples, self.vectors, self.size, self.apart = samples, vectors, size, apart
        self.gemms, self.spare = gemms, spare
        self._one: Rows | None = None
        self._overflow: Any = None  # NaN where something was not finite, which was not stored, and 0 elsewhere
        self._rows: list[Rows] = []
        self._products: list[Rows | None] = []
        self._found: dict[int, tuple[Any, Rows]] = {}  # by the vector that was read
        Shelf._all.add(self)

    @classmethod
    def of(
        cls, plan: Plan, ops: Sequence[Op], xs: Sequence[Any], key: Key | None, brief: bool = False
    ) -> Shelf | None:  # fmt: skip
        """One for what goes into the matrices of ``ops``, or ``None`` if there is no room for it.

        On CPUs, large layers of ``ops`` become products of their own. There is room for a ``brief`` one of a chunk.
        """
        leaf = type(xs[0])
        samples, itemsize = max(dr.width(v) for v in xs), dr.itemsize_v(spilled(leaf))
        own, unneeded, cpu = affine(ops), set[int](), dr.backend_v(leaf) == dr.JitBackend.LLVM
        numbers = sum(_activations(op, itemsize) for op in own)
        if cpu:
            unneeded = spare(ops, leaf, key, plan.vectors)
            numbers += sum(columns(op.weights.shape[0], itemsize) for op in kept_outputs(ops, unneeded))
        needed = samples * plan.vectors * itemsize * numbers
        whole = chunk_size(ops, samples, itemsize, plan.vectors) == samples
        if samples == 1:  # many masks may follow, as many vectors as there are keys
            return None
        if not whole or (not brief and needed + cls.occupied() > MEMORY):
            return None
        return cls(samples, plan.vectors, needed, not cpu and widest(ops) > LONG, Gemm.of(ops) if cpu else (), unneeded)

    @classmethod
    def occupied(cls) -> int:
        """Bytes on all shelves: a function may evaluate networks often before any of them is differentiated."""
        return sum(shelf.size for shelf in cls._all)

    def ends(self, op: Affine) -> bool:
        """Does a kernel end with what goes into ``op``, and with the cotangents of its output?"""
        return self.apart or op.gemm is not None

    def fill(self, plan: Plan, ops: Sequence[Op], xs: list, key: Key | None) -> None:
        """Evaluate ``ops`` for what goes into the matrices."""
        plan.evaluate(ops, xs, key, self.write)
        dr.eval([rows.numbers for rows in self._rows])

    def write(self, op: Affine, x: Bundle) -> Bundle:
        leaf, gemm = x[0].type, op.gemm
        overflow = leaf(0) if self._overflow is None else self._overflow
        written = []
        for i, vector in enumerate(x):
            if gemm is not None and gemm.takes(vector):
                rows, overflow = self._finite(vector.rows, overflow)
                written.append(rows)
                continue
            # Whether anyone will want the gradient of a lane is not known yet: 0 times what stands there must be 0.
            components = list(op.fill(vector))
            finite = [dr.select(dr.isfinite(v), v, 0) for v in components]
            written.append(Rows(finite if gemm is not None else _with_bias(op, finite, i == 0), self.samples))
            if self.ends(op):
                sane = functools.reduce(operator.and_, map(dr.isfinite, components))
                overflow = dr.select(sane, overflow, dr.nan)
        self._rows += written
        if not self.ends(op):
            return x
        # An entry for each sample among what the next kernel reads: by rows alone, frozen functions guess how many.
        self._overflow = overflow
        dr.eval([rows.numbers for rows in written], overflow)
        if gemm is None:
            return [drnn.CoopVec(rows.read(leaf, len(vector))) for rows, vector in zip(written, x, strict=True)]
        found = [self._held(rows, leaf, len(vector)) for rows, vector in zip(written, x, strict=True)]
        for rows, vector in zip(written, found, strict=True):
            product = gemm.multiply(rows) if gemm.forth else None
            if product is not None:
                gemm.put(vector, product)
            self._products.append(None if id(op) in self.spare else product)
        return found

    def multiplied(self, op: Affine, dy: Any, x: Any, biased: bool, mask: Any, products: list[Product]) -> Any:
        """The cotangent ``dy`` in memory, of a layer that is a product of its own; adds what its gradient is to
        ``products``, where ``x`` is what went in and the bias was added if ``biased``.
        """
        assert op.gemm is not None
        if op.gemm.takes_cotangent(dy):
            rows = dy.rows
        else:
            rows = Rows(list(dy) if mask is None else only(mask, list(dy)), self.samples)
        dr.eval(rows.numbers)
        products.append(Product(op, rows, self.rows(x), "matrix"))
        if biased and op.bias is not None:
            products.append(Product(op, rows.of(rows.numbers), self._ones(rows), "bias"))
        found = self._held(rows, dy.type, len(dy))
        if op.gemm.back:
            op.gemm.put_cotangent(found, rows)
        return found

    def _held(self, rows: Rows, leaf: type, count: int) -> Any:
        """The vector of so many components in ``rows``."""
        found = held(rows, leaf, count)
        return found if self.vectors == 1 else packed(found)

    def _ones(self, like: Rows) -> Rows:
        """A 1 and zeros in every row: products with vectors would add up samples in another order."""
        if self._one is None:
            i = dr.arange(dr.uint32_array_t(like.leaf), dr.width(like.numbers) // like.columns * PACKET)
            self._one = like.others(dr.select(i % PACKET == 0, like.leaf(1), 0), PACKET)
            dr.eval(self._one.numbers)
        return self._one.of(self._one.numbers)

    def _finite(self, rows: Rows, overflow: Any) -> tuple[Rows, Any]:
        """``rows`` with zeros for what is not finite, and ``overflow`` with NaN for samples that have any."""
        uint32 = dr.uint32_array_t(rows.leaf)
        finite = dr.isfinite(rows.numbers)
        if dr.width(overflow) == 1:
            overflow = overflow + dr.zeros(rows.leaf, self.samples)
        sample = dr.arange(uint32, dr.width(rows.numbers)) // rows.columns
        dr.scatter(overflow, rows.leaf(dr.nan), sample, ~finite & (sample < self.samples))
        return rows.of(dr.select(finite, rows.numbers, 0)), overflow

    def marked(self, values: Sequence[Any]) -> list[Any]:
        """``values``, one for each sample, or NaN where something on the way was not finite."""
        return list(values) if self._overflow is None else [v + self._overflow for v in values]

    def filled(self, y: Sequence[Any]) -> list[Any]:
        """The outputs ``y``, or NaN where something on the way was not finite, when all has been written."""
        result = self.marked(y)
        sample = batch_sample(result, self.samples) if frozen() else None
        dr.eval([rows.numbers for rows in self._rows], result, sample)
        if sample is not None:
            pin_batch_size(sample)
        return result

    def reader(self) -> Any:
        """The counterpart of :meth:`write`: passes on what is on the shelf, in the same order."""
        rows, products = iter(self._rows), iter(self._products)

        def read(op: Affine, x: Bundle) -> Bundle:
            found = []
            for vector in x:
                own = next(rows)
                leaf, count = vector.type, len(vector)
                here = op.gemm is not None
                found.append(self._held(own, leaf, count) if here else drnn.CoopVec(own.read(leaf, count)))
                self._found[id(found[-1])] = found[-1], own
                product = None if op.gemm is None else next(products)
                if op.gemm is not None and product is not None:
                    op.gemm.put(found[-1], product)
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
        for gemm in self.gemms:
            gemm.forget()
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
        if shelf is not None and op.gemm is not None:
            return shelf.multiplied(op, dy, x, biased, mask, products)
        cotangents = list(dy) if mask is None else only(mask, list(dy))
        if shelf is not None:
            activation = shelf.rows(x)
        else:
            activations = only(mask, _with_bias(op, list(op.fill(x)), biased))
            activation = Rows(activations, samples)
            if vectors is not None:
                vectors.extend([cotangents[0], activations[0]])
        products.append(Product(op, Rows(cotangents, samples), activation))
        if shelf is None or not shelf.ends(op):
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
