r"""Weight gradients as one product over all samples: *spill and multiply*.

The gradient of a matrix is a sum of outer products over samples, :math:`\partial L/\partial A = \sum_s \delta_s
x_s^T`. Accumulating it inside the kernel takes an atomic operation per entry and sample, whose order and, on some
backends, precision we cannot control. Here one fused kernel runs the network forward and the cotangents
back and writes activations and cotangents out as they appear, in rows ``(samples, width)``; a matrix product then sums
over the sample axis, in a fixed order.

What is spilled at a time stays below :data:`MEMORY` bytes: larger batches go in chunks, each a run of the same kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..jit import openblas, views
from ..jit.batch_size import batch_sample, pin_batch_size
from ..jit.kinds import nested_type
from ..jit.lanes import live, only
from ..jit.registers import with_room
from ..jit.scopes import frozen
from ..random.key import Key
from .ops import Affine, Op, Tape, affine, kept, matrices
from .plan import NetworkOp, Plan
from .products import product as blas_product

#: Bytes that are spilled at a time.
MEMORY = 1 << 30
#: Samples that one partial product sums over.
PIECE = 1024


def bytes_per_sample(ops: Sequence[Op], itemsize: int) -> int:
    """Memory that one sample's activations and cotangents take when spilled."""
    return itemsize * sum(sum(op.weights.shape) + (op.bias is not None) for op in affine(ops))


def chunk_size(ops: Sequence[Op], samples: int, itemsize: int, vectors: int = 1) -> int:
    """Samples that are spilled at a time, where each sends ``vectors`` vectors through the ops."""
    most = max(PIECE, MEMORY // (vectors * bytes_per_sample(ops, itemsize)) // PIECE * PIECE)
    if samples <= most:
        return samples
    chunks = -(-samples // most)
    return -(-samples // (chunks * PIECE)) * PIECE


class SpillOp(NetworkOp):
    """Differentiates by spilling and multiplying."""

    def backward(self) -> None:
        dys, xs = self.grad_out(), self.xs
        samples = max(dr.width(v) for v in [*dys, *xs])
        leaf = dr.leaf_t(type(dys[0]))
        chunk = chunk_size(self.ops, samples, dr.itemsize_v(_spilled(leaf)), self.plan.vectors)
        sums = _Sums()
        if chunk == samples:
            products, dxs = _spill(self.plan, self.ops, self.tape, dys, self.key)
            sample = batch_sample([v for p in products for v in p.vectors], samples) if frozen() else None
            dr.eval([p.cotangent for p in products], [p.activation for p in products], dxs, sample)
            sums.add(products)
        else:
            dxs, sample = self._in_chunks(xs, dys, samples, chunk, sums)
        if sample is not None:
            pin_batch_size(sample)
        if self.plan.wants_x:
            self.set_grad_in("xs", dxs)
        self.set_grad_in("buffers", [sums.gradient(b) for b in self.buffers])

    def _in_chunks(self, xs: list, dys: list, samples: int, chunk: int, sums: _Sums) -> tuple[list, Any]:
        leaf = dr.leaf_t(type(dys[0]))
        uint32 = dr.uint32_array_t(leaf)
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
            products, dx = _spill(self.plan, self.ops, tape, dy, key_part)
            dr.eval([p.cotangent for p in products], [p.activation for p in products], dx)
            for whole, piece in zip(dxs, dx, strict=True):
                dr.scatter(whole, piece, place, inside, mode=dr.ReduceMode.Permute)
            sums.add(products)
            dr.eval(dxs)
        return dxs, sample


def _spill(plan: Plan, ops: Sequence[Op], tape: Tape, dys: list, key: Key | None) -> tuple[list[_Product], list]:
    """Trace the backward pass with its spilling; returns operands of the products and the input's gradient."""
    products: list[_Product] = []
    mask = live(dys)

    def visit(op: Affine, dy: Any, x: Any, biased: bool) -> None:
        products.append(_Product(op, dy, x, mask, biased))

    dys = with_room(dys, matrices(ops), kept(ops, plan.vectors))
    # the caller evaluates dx along, or whoever uses it next would run the whole network again
    dx = plan.pullback(tape, dys, key, visit)
    return products, only(mask, dx)


def _spilled(leaf: type) -> type:
    """Type of spilled numbers: the CPU multiplies single precision; tensor cores take half and add up in single."""
    half_on_cpu = dr.is_half_v(leaf) and dr.backend_v(leaf) == dr.JitBackend.LLVM
    return dr.float32_array_t(leaf) if half_on_cpu else leaf


class _Product:
    """The spilled operands of one layer's weight gradient, zeros in the lanes that ``mask`` leaves out."""

    def __init__(self, op: Affine, dy: Any, x: Any, mask: Any, biased: bool):
        self.op = op
        leaf = _spilled(dr.leaf_t(dy.type))
        cotangents, activations = (only(mask, [leaf(v) for v in vector]) for vector in (dy, op.fill(x)))
        if op.bias is not None:
            # a constant input makes the bias one more column of the matrix
            activations.append(leaf(1 if biased else 0))
        self.samples = n = max(dr.width(v) for v in cotangents + activations)
        self.rows, self.columns = len(cotangents), len(activations)
        # what the kernel could return as well as scatter, see pin_batch_size()
        self.vectors = [cotangents[0], activations[0]] if frozen() else []
        # Products are cut along the sample axis and their pieces added up afterwards, in single precision. One long sum
        # would drift: equal increments all round the same way.
        self.pieces = max(1, n // PIECE)
        length = -(-n // self.pieces)
        self.length = length
        # Rows of a sample's components: one store each, and the zeros behind the last sample add nothing.
        lane = dr.arange(dr.uint32_array_t(leaf), n)
        allocate = dr.empty if length * self.pieces == n else dr.zeros
        packet = nested_type(leaf)

        def spill(vector: list) -> Any:
            target = allocate(leaf, len(vector) * length * self.pieces)
            # Permute promises that no two lanes write the same entry; without it every scatter is a kernel of its own.
            dr.scatter(target, packet(vector), lane, mode=dr.ReduceMode.Permute)
            return target

        self.cotangent, self.activation = spill(cotangents), spill(activations)

    def multiply(self) -> Any:
        """``(rows, columns)`` tensor: the sum over samples of cotangent times activation."""
        tensor = dr.tensor_t(type(self.cotangent))
        a, b = (self.pieces, self.length, self.rows), (self.pieces, self.length, self.columns)
        if dr.backend_v(tensor) == dr.JitBackend.LLVM and not frozen() and openblas.available():
            # NumPy reads this memory without a copy, and its BLAS is faster; recording a function, it cannot be called
            cotangent, activation = self.cotangent.numpy().reshape(-1, a[2]), self.activation.numpy().reshape(-1, b[2])
            return tensor(blas_product(cotangent, activation))
        single = dr.tensor_t(dr.float32_array_t(type(self.cotangent)))
        pieces = single(dr.matmul(tensor(self.cotangent, a), tensor(self.activation, b), At=True))
        if self.pieces == 1:
            return single(pieces.array, (self.rows, self.columns))
        # summed by a product, too: as a reduction over the first axis it is a few threads' work
        flat = single(pieces.array, (self.pieces, self.rows * self.columns))
        total = dr.full(single, 1, (1, self.pieces)) @ flat
        return single(total.array, (self.rows, self.columns))


class _Sums:
    """Products of all chunks, by the matrix that they are the gradient of: several layers may share one."""

    def __init__(self) -> None:
        self.entries: list[tuple[Affine, Any]] = []

    def add(self, products: list[_Product]) -> None:
        for p in products:
            product = p.multiply()
            for i, (op, total) in enumerate(self.entries):
                same = op.weights.buffer is p.op.weights.buffer
                if same and op.weights.offset == p.op.weights.offset:
                    self.entries[i] = (op, total + product)
                    break
            else:
                self.entries.append((p.op, product))
        dr.eval([total for _, total in self.entries])

    def gradient(self, buffer: Any) -> Any:
        """Gradients of all matrices and biases in ``buffer``, in its packed layout."""
        uint32 = dr.uint32_array_t(type(buffer))
        total = dr.zeros(type(buffer), dr.width(buffer))
        for op, product in self.entries:
            if op.weights.buffer is not buffer:
                continue
            rows, columns = product.shape
            i = dr.arange(uint32, rows * columns)
            row, column = i // columns, i % columns
            inside = column < op.weights.shape[1]
            target = views.places(op.weights, row, column, op.layout, inside)
            if op.bias is not None:
                # one product holds both: the last column belongs to the bias
                target = dr.select(inside, target, views.places(op.bias, row))
            # A plain scatter: scatter_reduce on LLVM turns NaN into 0, and the loss scaler would miss an overflow.
            dr.scatter(total, type(buffer)(product.array), target, mode=dr.ReduceMode.Permute)
        dr.eval(total)
        return total
