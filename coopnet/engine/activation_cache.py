"""Activations that are kept for the backward pass: the inputs of all matrices."""

from __future__ import annotations

import functools
import itertools
import operator
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import drjit as dr

from ..jit.batch_size import batch_sample, pin_batch_size
from ..jit.registers import in_order
from ..random.key import Key
from .affine import Affine, with_bias
from .memory import chunk_size, inputs, kept_bytes, kept_outputs, unneeded_outputs
from .network_op import Plan
from .ops import Bundle, Op, Record, Store, Tape, affine, evaluate
from .products import vectors_together
from .row_vectors import PACKET, Rows, RowVector, columns, spilled
from .strategies import kernels_end


class ActivationCache(Store):
    """The inputs of the matrices of ``ops``, in memory (:class:`~.row_vectors.Rows`), and outputs that take long to
    evaluate again (:func:`~.memory.kept_outputs`).

    A kernel may end with the input of a layer (:meth:`ends`). The next one then reads the rows that it has written.

    Args:
        plan, ops: the network, with the multipliers of :func:`~.multipliers.for_backward`.
        samples, size: number of samples, and the bytes that the cache takes.
        together: how many vectors are in a row.
        unneeded: layers whose outputs are not needed in the backward pass.
        outputs: layers whose outputs are kept.
    """

    _all: weakref.WeakSet[ActivationCache] = weakref.WeakSet()

    def __init__(
        self, plan: Plan, ops: Sequence[Op], samples: int, size: int, unneeded: Sequence[Affine],
        outputs: Sequence[Affine], together: int,
    ):  # fmt: skip
        self.samples, self.size, self.together = samples, size, together
        s = plan.situation
        #: Layers before which a GPU's kernel ends: with their inputs.
        self.ending = {op.origin for op in kernels_end(s)}
        #: May functions be applied to whole arrays of numbers?
        self.in_place = not s.cuda and plan.vectors == 1
        self.unneeded = {op.origin for op in unneeded}
        #: Layers of a GPU's network whose outputs are written by the kernel.
        self.written = {op.origin for op in outputs} if s.cuda else set()
        self._outputs: list[Bundle | None] = []  # of all layers, in order: one layer may be there twice
        self.ops = ops
        self._one: Rows | None = None
        self._overflow: Any = None  # NaN for samples with a number that was not finite (stored as 0), 0 for others
        self._kept: list[RowVector] = []
        ActivationCache._all.add(self)

    @classmethod
    def make(
        cls, plan: Plan, ops: Sequence[Op], xs: Sequence[Any], key: Key | None, brief: bool = False
    ) -> ActivationCache | None:  # fmt: skip
        """A cache for ``ops`` at ``xs``, or ``None`` if it does not fit.

        ``brief`` caches live for one chunk; the bytes of other caches do not count for them.
        """
        needed = cls._needed(plan, ops, xs, key, brief)
        return None if needed is None else cls(plan, ops, *needed, vectors_together(plan.situation, not brief))

    @classmethod
    def fits(cls, plan: Plan, xs: Sequence[Any], key: Key | None) -> bool:
        """Does :meth:`make` make a cache for the network of ``plan``?"""
        return bool(plan.situation.network.layers) and cls._needed(plan, plan.ops, xs, key, False) is not None

    @classmethod
    def _needed(
        cls, plan: Plan, ops: Sequence[Op], xs: Sequence[Any], key: Key | None, brief: bool
    ) -> tuple[int, int, list[Affine], list[Affine]] | None:  # fmt: skip
        """Samples, bytes, and layers as for the class; ``None`` if the cache does not fit, or for one sample only."""
        samples, itemsize = dr.width(xs), dr.itemsize_v(spilled(type(xs[0])))
        if samples == 1:  # the key may have many lanes: dropout then makes one vector into many
            return None
        unneeded = unneeded_outputs(ops, key, plan.vectors)
        outputs = kept_outputs(ops, unneeded, plan.situation)
        numbers = sum(inputs(op, itemsize) for op in affine(ops))
        numbers += sum(columns(op.weights.shape[0], itemsize) for op in outputs)
        size = samples * plan.vectors * itemsize * numbers
        whole = chunk_size(ops, samples, itemsize, plan.vectors) == samples
        fits = whole and (brief or size + cls.occupied() <= kept_bytes(ops))
        return (samples, size, unneeded, outputs) if fits else None

    @classmethod
    def occupied(cls) -> int:
        """Bytes of all living caches. A function may evaluate many networks before it differentiates one."""
        return sum(cache.size for cache in cls._all)

    @property
    def between_kernels(self) -> bool:
        """Is any layer a product between kernels?"""
        return any(op.multiplier.between_kernels for op in affine(self.ops))

    def ends(self, op: Affine) -> bool:
        """Does a kernel end with the input of ``op``, and with the cotangents of its output?"""
        return op.origin in self.ending or op.multiplier.between_kernels

    def fill(self, plan: Plan, xs: list, key: Key | None) -> None:
        """Evaluate the ops, and keep the inputs of their matrices."""
        plan.evaluate(self.ops, xs, key, self)
        dr.eval(self._numbers())

    def outputs(self, op: Affine, y: Bundle) -> None:
        """Keep the output of ``op``, if it is among :attr:`written`."""
        if op.origin not in self.written:
            self._outputs.append(None)
            return
        rows = [Rows(list(v), self.samples, self.together) for v in y]
        self._outputs.append([self.vector(r, v.type, len(v)) for r, v in zip(rows, y, strict=True)])

    def inputs(self, op: Affine, x: Bundle) -> Bundle:
        """Keep the input of ``op``; returns the vectors to continue with."""
        multiplier = op.multiplier if op.multiplier.between_kernels else None
        leaf = x[0].type
        overflow = leaf(0) if self._overflow is None else self._overflow
        written = []
        for i, vector in enumerate(x):
            if multiplier is not None and multiplier.takes(vector):
                rows, overflow = self._finite(vector.rows, overflow)
                written.append(rows)
                continue
            # Lanes without gradient are not known yet. Infinity or NaN stored for them would spoil the product.
            components = list(op.fill(vector))
            finite = [dr.select(dr.isfinite(v), v, 0) for v in components]
            extended = finite if multiplier is not None else with_bias(op, finite, i == 0)
            written.append(Rows(extended, self.samples, self.together))
            if self.ends(op):
                sane = functools.reduce(operator.and_, map(dr.isfinite, components))
                overflow = dr.select(sane, overflow, dr.nan)
        if not self.ends(op):
            self._kept += [RowVector(rows, len(v), leaf) for rows, v in zip(written, x, strict=True)]
            in_order(dr.backend_v(leaf))  # or kernels would write rows at their end, and keep all vectors until then
            return x
        # The next kernel must read an array with one entry per sample (`overflow`). From rows alone, a frozen function
        # would guess a wrong number of lanes.
        self._overflow = overflow
        dr.eval([rows.numbers for rows in written], overflow)
        result = []
        for rows, vector in zip(written, x, strict=True):
            product = multiplier.multiply(rows) if multiplier is not None and multiplier.forth else None
            result.append(self.vector(rows, leaf, len(vector), product))
            self._kept.append(self.vector(rows, leaf, len(vector), None if op.origin in self.unneeded else product))
        return result

    def vector(self, rows: Rows, leaf: type, count: int, product: Rows | None = None) -> RowVector:
        """The vector of ``count`` components in ``rows``."""
        return RowVector(rows, count, leaf, self.in_place, product)

    def ones(self, like: Rows) -> Rows:
        """Rows of a 1 and zeros, whose product with cotangents is the bias gradient.

        They have a whole packet of columns, because a product with a single column adds up samples in another order.
        """
        if self._one is None:
            i = dr.arange(dr.uint32_array_t(like.leaf), dr.width(like.numbers) // like.columns * PACKET)
            self._one = like.of(dr.select(i % PACKET == 0, like.leaf(1), 0), PACKET)
            dr.eval(self._one.numbers)
        return self._one.of(self._one.numbers)

    def _finite(self, rows: Rows, overflow: Any) -> tuple[Rows, Any]:
        """``rows`` with zeros for numbers that are not finite, and ``overflow`` with NaN for samples that have any."""
        uint32 = dr.uint32_array_t(rows.leaf)
        finite = dr.isfinite(rows.numbers)
        sample = dr.arange(uint32, dr.width(rows.numbers)) // rows.columns
        dr.scatter(overflow, rows.leaf(dr.nan), sample, ~finite & (sample < self.samples))
        return rows.of(dr.select(finite, rows.numbers, 0)), overflow

    def marked(self, values: Sequence[Any]) -> list[Any]:
        """``values``, one for each sample, but NaN where an intermediate number was not finite."""
        return list(values) if self._overflow is None else [v + self._overflow for v in values]

    def filled(self, y: Sequence[Any]) -> list[Any]:
        """The outputs ``y``, evaluated, but NaN where an intermediate number was not finite.

        Call it after all layers were written.
        """
        result = self.marked(y)
        sample = batch_sample(result, self.samples)
        dr.eval(self._numbers(), result, sample)
        pin_batch_size(sample)
        return result

    def _numbers(self) -> list:
        """The numbers of all kept vectors."""
        outputs = itertools.chain.from_iterable(filter(None, self._outputs))
        return [vector.rows.numbers for vector in itertools.chain(self._kept, outputs)]

    def tape(self, plan: Plan, xs: list, key: Key | None) -> Tape:
        """The tape of the network, from the kept vectors."""
        kept = [list(bundle) for bundle in zip(*[iter(self._kept)] * plan.vectors, strict=True)]
        if plan.situation.network.branches:
            return plan.evaluate(self.ops, xs, key, _Kept(kept))
        return KeptTape(plan.at(self.ops, xs), plan.bundle(xs), kept, self._outputs, key)


class KeptTape(Tape):
    """A tape that is traced from kept vectors while the backward pass goes through it.

    Args:
        ops, x, key: the network, its input, and the key.
        kept: the input bundles of all matrices.
        outputs: their output bundles, if they were kept.

    Kernels compute in the order of tracing. If all layers were traced first, their outputs would stay in registers
    until the backward pass needs them, to differentiate activations.
    """

    def __init__(
        self, ops: Sequence[Op], x: Bundle, kept: Sequence[Bundle], outputs: Sequence[Bundle | None], key: Key | None
    ):  # fmt: skip
        self._ops, self._x, self._kept, self._outputs, self._key = ops, x, kept, outputs, key

    @property
    def ops(self) -> Sequence[Op]:
        return self._ops

    @property
    def x(self) -> Bundle:
        return self._x

    def backward(self) -> Iterator[Record]:
        starts = [i for i, op in enumerate(self._ops) if op.affine]
        bounds = itertools.pairwise([*starts, len(self._ops)])
        for i, (start, stop) in reversed(list(enumerate(bounds))):
            records = self._records(i, self._ops[start:stop])
            if i + 1 < len(starts):
                records[-1].y = self._kept[i + 1]
            yield from reversed(records)
        if starts and starts[0] > 0:
            yield from reversed(evaluate(self._ops[: starts[0]], self._x, self._key).records)

    def _records(self, i: int, ops: Sequence[Op]) -> list[Record]:
        """The records of ``ops``, which begin with matrix ``i``."""
        kept, y = self._kept[i], self._outputs[i]
        if y is None:
            return evaluate(ops, kept, self._key, _Kept([kept])).records
        return [Record(ops[0], kept, y), *evaluate(ops[1:], y, self._key).records]


class _Kept(Store):
    """Replaces the inputs of matrices, one after the other, by ``bundles``."""

    def __init__(self, bundles: Sequence[Bundle]):
        self.bundles = iter(bundles)

    def inputs(self, op: Affine, x: Bundle) -> Bundle:
        return next(self.bundles)
