r"""Weight gradients inside the kernel, spread over enough accumulators: *gradient banks*.

CUDA's cooperative vectors add outer products to a buffer in half precision with atomics. A sum of more than about
2^13 increments of one sign stops growing, and thousands of threads queue for the same addresses. Here, groups of
samples add to separate buffers of the same shape, which are summed in single precision at the end: no sum gets
long, and fewer threads queue for an address.

The buffers are reached through ``dr.switch``. Its callables trace to the same code and differ only in the captured
buffer, so Dr.Jit compiles one. A callable evaluates the network again and propagates the cotangents back. All callables
read the same weights.

In a symbolic loop or conditional the banks can be filled, but not summed; see :mod:`coopnet.jit.deferred`, and
:mod:`coopnet.engine.loop_banks` for gradients that are taken in the loop itself.

Other kernels can add to banks, too: they override :meth:`BankOp.cotangents`, as :mod:`coopnet.engine.inner_loss` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit import views
from ..jit.batch_size import batch_sample, pin_batch_size
from ..jit.lanes import WARP, Warps, live, only
from ..jit.layout import GAP, Accumulator
from ..jit.masks import unmasked
from ..jit.registers import request_registers
from ..jit.scopes import symbolic
from . import limits
from .affine import Affine, Weights, with_bias
from .chunks import arguments_of, key_from
from .network_op import NetworkOp, in_use
from .ops import Op, Tape, Visit, affine, matrices, rebase
from .row_vectors import spilled


def banks_for(samples: int, most: int | None = None, share: int | None = None) -> int:
    """Number of banks for a batch in which ``share`` samples share one.

    ``most`` and ``share`` default to :data:`~.limits.BANKS` and :data:`~.limits.BANK_SAMPLES`.
    """
    if samples <= limits.ONE_BANK_SAMPLES:
        return 1
    few = min(limits.BANKS_SMALL, -(-samples // (share or limits.BANK_SAMPLES)))
    return min(most or limits.BANKS, max(few, -(-samples // limits.BANK_SAMPLES_LARGE)))


def banks_in_scope(samples: int, vectors: int = 1, most: int | None = None) -> int:
    """Number of banks for a batch inside a symbolic loop, with so many ``vectors`` for each sample.

    Tracing takes time for each bank, so more terms share one than outside.
    """
    count = banks_for(samples * vectors * limits.LOOP_TURNS, most, limits.ONE_BANK_SAMPLES)
    return min(count, -(-samples // WARP))


class BankOp(NetworkOp):
    """Computes weight gradients by accumulating in banks."""

    def pull_back(self, dys: list, samples: int) -> tuple[list, list | None]:
        sets, dxs = self.filled(dys, samples, banks_for(samples * self.plan.vectors))
        return dxs, [banks.sum() for banks in sets]

    def filled(self, dys: list, samples: int, count: int, which: Any = None) -> tuple[list[Banks], list]:
        """``count`` banks for every buffer with the gradients of all samples, and the input's gradient; evaluated.

        ``which`` is the bank of each sample; without it, warps take turns.
        """
        xs = self.xs
        sample = batch_sample([*dys, *xs], samples)
        key_args, lanes = self._key_args(samples), None
        sets = [Banks(b, self.ops, count) for b in self.buffers]
        uint32 = dr.uint32_array_t(type(dys[0]))
        # an array for each bank: with another index, bodies would differ in code, and each would be compiled
        nans = [] if self.plan.situation.cuda else [dr.opaque(uint32, 0) for _ in range(count)]
        for banks in sets:
            banks.nans = nans
        if count > 1 or which is not None:
            # first, so that the losses, which the caller has scheduled, become a part of the same kernel
            dr.eval(self.beforehand(xs, dys, samples), which, sample, [banks.zeros for banks in sets])
            lanes = Warps(dr.uint32_array_t(type(dys[0])), samples)
            xs, dys = lanes.widen(xs), lanes.widen(dys)
            which = None if which is None else lanes.widen([which])[0]
            if self.key is not None and samples != lanes.count:
                # the lanes after the last sample may have any mask
                wide = [v if dr.width(v) == 1 else lanes.widen([v])[0] for v in key_args]
                key_args = wide if self.key.index is not None else [wide[0], lanes.number, wide[2]]
        dxs = self._fill(sets, count, xs, dys, key_args, which)
        if lanes is not None:
            dxs = lanes.narrow(dxs)
        dr.eval(dxs, sample)
        pin_batch_size(sample)
        return sets, dxs

    def _fill(self, sets: list[Banks], count: int, xs: list, dys: list, key_args: list, which: Any = None) -> list:
        """Trace the code that adds the gradients of all samples to the banks; returns the input's gradient."""
        for banks in sets:
            banks.open()
        bodies = [self.body(sets, k) for k in range(count)]
        if which is None and count == 1:
            return bodies[0](xs, dys, key_args)
        if which is None:
            # Warps take turns: neighbouring warps run at the same time, and would queue for the addresses of one bank.
            uint32 = dr.uint32_array_t(type(dys[0]))
            which = dr.arange(uint32, dr.width([*dys, *xs])) // WARP % count
        return dr.switch(which, bodies, xs, dys, key_args)

    def beforehand(self, xs: list, dys: list, samples: int) -> list:
        """What a kernel before the call computes.

        Cotangents follow from outputs, and so from a forward pass, which would compete with the call for registers if
        it were in the same kernel.
        """
        return [xs, dys]

    def body(self, sets: list[Banks], k: int) -> Callable[[list, list, list], list]:
        """The body of the backward kernel: it adds the gradients of its samples to bank ``k``.

        It is a function of the inputs, the cotangents and the arguments of :meth:`_key_args`, and returns the input's
        gradient.
        """
        ops = self.ops_for(k)
        visit = self.adding(sets, k, ops)

        def back(xs: list, dys: list, key_args: list) -> list:
            key = key_from(key_args)
            # masked lanes are evaluated at 0, since NaN times a gradient of 0 would be NaN
            xs = only(self.live(dys), xs)
            xs = request_registers(xs, matrices(ops), in_use(ops, self.plan.vectors))
            tape = self.plan.evaluate(ops, xs, key, ordered=self.plan.situation.cuda)
            dys, more = self.cotangents(tape, dys)
            if sets and sets[0].nans:
                dr.scatter(sets[0].nans[k], 1, 0, dr.isnan(sum(dys)))
            return [*self.plan.pullback(tape, dys, key, visit), *more] or [dys[0]]  # a call must return an array

        return back

    def adding(self, sets: Sequence[Banks], k: int, evaluated: Sequence[Op]) -> Visit:
        """The visitor that adds outer products to bank ``k`` of each of ``sets``, in the backward kernel of
        ``evaluated``: :attr:`ops`, or the same with other weights.
        """
        in_bank = affine(rebase(self.ops, self.buffers, [banks.banks[k] for banks in sets]))
        accumulators = {op: pair for banks in sets for op, *pair in banks.accumulators(self.ops, k)}
        targets: dict[Op, tuple[Affine, Affine | None]] = {}
        for op, layer, own in zip(affine(evaluated), affine(self.ops), in_bank, strict=True):
            matrix, bias = accumulators.get(layer, (None, None))
            of_matrix = own if matrix is None else Affine(Weights(matrix))
            of_bias = None if bias is None else of_matrix if bias is matrix else Affine(Weights(bias))
            targets[op] = of_matrix, of_bias

        def visit(op: Affine, dy: Any, x: Any, biased: bool) -> None:
            of_matrix, of_bias = targets[op]
            if of_bias is of_matrix:
                x = drnn.CoopVec(with_bias(op, list(op.fill(x)), biased))
            of_matrix.add_outer(dy, x, biased and of_bias is None)
            if biased and of_bias not in (of_matrix, None):
                of_bias.add_outer(dy, drnn.CoopVec([x.type(1)]), False)

        return visit

    def live(self, dys: list) -> Any:
        """Mask of the samples of a body that have a gradient."""
        return live(dys)

    def cotangents(self, tape: Tape, dys: list) -> tuple[list, list]:
        """The cotangents of the outputs, and further results of a body, from the arguments of :meth:`pull_back`."""
        return dys, []

    def ops_for(self, k: int) -> Sequence[Op]:
        """The ops with which samples of bank ``k`` are evaluated: :attr:`ops`, or the same with other weights."""
        return self.ops

    def called(self, which: Any, networks: Sequence[Sequence[Op]]) -> list:
        """The outputs of network ``which`` for each sample, in a virtual call; ``networks`` differ in weights only."""

        def forth(ops: Sequence[Op]) -> Callable[[list, list], list]:
            return lambda xs, key_args: self.plan.evaluate(ops, xs, key_from(key_args)).flat()

        key_args = self._key_args(dr.width(self.xs))
        return dr.switch(which, [forth(ops) for ops in networks], self.xs, key_args)

    def _key_args(self, samples: int) -> list:
        """The key as arguments of a call. There is no lane number in a call, so each sample's index is passed."""
        return arguments_of(self.key, dr.uint32_array_t(type(self.xs[0])), samples)


class Banks:
    """``count`` accumulators for the gradients of one packed buffer.

    After the matrices of the buffer, each bank has room for the gradients that have an :class:`Accumulator`. ``apart``
    maps the offset of a matrix or bias in the buffer to its accumulator and the offset of that in a bank.
    """

    def __init__(self, buffer: Any, ops: Sequence[Op], count: int):
        self.leaf = type(buffer)
        #: The type of the sums. On CPUs, one bank takes all samples, of which sums in half precision would stall.
        self.sums = leaf = spilled(self.leaf)
        self.index = buffer.index
        self.width = width = dr.width(buffer)
        self.apart: dict[int, tuple[Accumulator, int]] = {}
        for op in self._of(ops):
            for own, accumulator in separate(op):
                if own.offset in self.apart:
                    continue
                if accumulator.view is None:
                    start = self.apart[op.weights.offset][1]
                else:
                    start = -(-width // 64) * 64
                    width = start + accumulator.view.size
                self.apart[own.offset] = (accumulator, start)
        # Only the gradients of banks are read, not their values, so all banks share one array of values.
        value = dr.opaque(leaf, 0, (width,)) if self.apart else leaf(dr.detach(buffer))
        self.banks, self.zeros = [leaf(value) for _ in range(count)], list[Any]()
        #: For each bank, whether a cotangent was NaN. On LLVM, Dr.Jit's atomic additions drop NaN.
        self.nans: list[Any] = []
        dr.enable_grad(self.banks)
        if symbolic():
            for bank in self.banks:
                dr.set_grad(bank, dr.opaque(leaf, 0, (width,)))
            return
        # One kernel writes zero gradients for all banks. Dr.Jit would merge equal arrays into one variable, so these
        # expressions differ in a lane beyond the end.
        lane = dr.arange(dr.uint32_array_t(leaf), width)
        self.zeros = [dr.select(lane == 0xFFFFFFFF, leaf(k + 1), leaf(0)) for k in range(count)]

    def open(self) -> None:
        """Set the banks to zero. :attr:`zeros` may have been evaluated before, together with other arrays."""
        if self.zeros:
            dr.eval(self.zeros)
        for bank in self.banks[: len(self.zeros)]:
            dr.set_grad(bank, self.zeros.pop(0))  # the bank must hold the only reference, or adding to it would copy

    def _of(self, ops: Sequence[Op]) -> list[Affine]:
        """Those of ``ops`` whose weights are in the buffer."""
        # compare variables, not objects: tracing a scope again makes other objects
        return [op for op in affine(ops) if op.weights.buffer.index == self.index]

    def accumulators(self, ops: Sequence[Op], k: int) -> Iterator[tuple[Affine, Any, Any]]:
        """Each layer, and the views of the accumulators of its matrix and its bias in bank ``k``, or ``None``.

        They are the same object if matrix and bias have a joint one.
        """
        for op in self._of(ops):
            matrix, bias = None, None
            for own, accumulator in separate(op):
                view = matrix
                if accumulator.view is not None:
                    view = views.changed(accumulator.view, buffer=self.banks[k], offset=self.apart[own.offset][1])
                if own is op.weights:
                    matrix = view
                else:
                    bias = view
            yield op, matrix, bias

    def sum(self) -> Any:
        """Sum of the banks' gradients, taken in single precision, in the layout of the packed buffer.

        It is not evaluated, so that it joins the kernel that reads it.
        """
        single = dr.float32_array_t(self.leaf)
        return self.leaf(sum((single(gradient) for gradient in self._gradients()), single(0)))

    def side_by_side(self) -> Any:
        """The banks' gradients concatenated, each in the layout of the packed buffer; evaluated."""
        entry = dr.arange(dr.uint32_array_t(self.leaf), self.width)
        result = dr.empty(self.leaf, len(self.banks) * self.width)
        for k, gradient in enumerate(self._gradients()):
            dr.scatter(result, self.leaf(gradient), entry + k * self.width, mode=dr.ReduceMode.Permute)
        dr.eval(result)
        return result

    def _gradients(self) -> Iterator[Any]:
        """The gradient of each bank, in the layout of the packed buffer."""
        gradients = [dr.grad(bank) for bank in self.banks]
        if self.nans:
            gradients = [dr.select(nan > 0, math.nan, g) for nan, g in zip(self.nans, gradients, strict=True)]
        if not self.apart:
            return iter(gradients)
        entry = dr.arange(dr.uint32_array_t(self.leaf), self.width)
        place, there = type(entry)(entry), dr.mask_t(entry)(True)
        with unmasked(self.leaf):  # a symbolic loop may end within an evaluated one, which has a mask
            for start, (accumulator, offset) in self.apart.items():
                inside = (entry >= start) & (entry < start + dr.width(accumulator.origins))
                origin = dr.gather(type(entry), accumulator.origins, entry - start, inside)
                place, there = dr.select(inside, offset + origin, place), there & ~(inside & (origin == GAP))
            return iter([dr.gather(self.sums, gradient, place, there) for gradient in gradients])


def separate(op: Affine) -> list[tuple[Any, Accumulator]]:
    """The views of matrix and bias of ``op`` whose gradients have an :class:`Accumulator`, each with it."""
    if op.layout is None:
        return []
    pairs = (op.weights, op.layout.matrix), (op.bias, op.layout.bias)
    return [(own, accumulator) for own, accumulator in pairs if own is not None and accumulator is not None]
