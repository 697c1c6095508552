r"""Weight gradients as one product over all samples: *spill and multiply*.

The gradient of a matrix is a sum of outer products over samples, :math:`\partial L/\partial A = \sum_s \delta_s
x_s^T`. Accumulating it inside the kernel takes an atomic operation per entry and sample, whose order, and on some
backends whose precision, is not ours. Here one fused kernel runs the network forward and the chain of deltas
backward and writes activations and deltas out as they appear, in rows ``(samples, width)``; a matrix product then sums
over the sample axis, in a fixed order.

What is spilled at a time stays below :data:`MEMORY` bytes: larger batches go in chunks, each a run of the same kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..jit import openblas
from ..jit.lanes import live, only
from ..jit.recording import batch_sample, pin_batch_size
from ..jit.registers import with_room
from ..jit.scopes import frozen
from ..random.key import Key
from . import products
from .operation import NetworkOp, Plan
from .ops import Affine, Stage, Trail, affine, kept, matrices

#: Bytes that are spilled at a time.
MEMORY = 1 << 30
#: Samples that one partial product sums over.
PIECE = 1024


def bytes_per_sample(stages: Sequence[Stage], itemsize: int) -> int:
    """Memory that one sample's activations and deltas take when spilled."""
    return itemsize * sum(s.weights.shape[0] + s.weights.shape[1] + (s.bias is not None) for s in affine(stages))


def chunk_size(stages: Sequence[Stage], samples: int, itemsize: int, vectors: int = 1) -> int:
    """Samples that are spilled at a time, where each sends ``vectors`` vectors through the stages."""
    most = max(PIECE, MEMORY // (vectors * bytes_per_sample(stages, itemsize)) // PIECE * PIECE)
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
        chunk = chunk_size(self.stages, samples, dr.itemsize_v(_spilled(leaf)), self.plan.vectors)
        sums = _Sums()
        if chunk == samples:
            products, dxs = _spill(self.plan, self.stages, self.values, dys, self.key)
            sample = batch_sample([v for p in products for v in p.vectors], samples) if frozen() else None
            dr.eval([p.delta for p in products], [p.activation for p in products], dxs, sample)
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
        dr.eval(xs, dys)
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
            values = self.plan.trail(self.stages, [part(x) for x in xs], key_part)
            deltas = [dr.select(inside, part(v), leaf(0)) for v in dys]
            products, dx = _spill(self.plan, self.stages, values, deltas, key_part)
            dr.eval([p.delta for p in products], [p.activation for p in products], dx)
            for whole, piece in zip(dxs, dx, strict=True):
                dr.scatter(whole, piece, place, inside, mode=dr.ReduceMode.Permute)
            sums.add(products)
            dr.eval(dxs)
        return dxs, batch_sample([*dys, *xs], samples) if frozen() else None


def _spill(
    plan: Plan, stages: Sequence[Stage], values: Trail, dys: list, key: Key | None
) -> tuple[list[_Product], list]:
    """Trace the backward pass with its spilling; returns operands of the products and the input's gradient."""
    products: list[_Product] = []
    mask = live(dys)

    def visit(stage: Affine, delta: Any, x: Any, biased: bool = True) -> None:
        products.append(_Product(stage, delta, x, mask, biased))

    dys = with_room(dys, matrices(stages), kept(stages, plan.vectors))
    # the caller evaluates dx along, or whoever uses it next would run the whole network again
    dx = plan.backward(stages, values, dys, key, visit)
    return products, only(mask, dx)


def _spilled(leaf: type) -> type:
    """Type of spilled numbers: the CPU multiplies single precision; tensor cores take half and add up in single."""
    half_on_cpu = dr.is_half_v(leaf) and dr.backend_v(leaf) == dr.JitBackend.LLVM
    return dr.float32_array_t(leaf) if half_on_cpu else leaf


class _Product:
    """The spilled operands of one layer's weight gradient, zeros in the lanes that ``mask`` leaves out."""

    def __init__(self, stage: Affine, dy: Any, x: Any, mask: Any, biased: bool = True):
        self.stage = stage
        leaf = _spilled(dr.leaf_t(dy.type))
        deltas, activations = (only(mask, [leaf(v) for v in vector]) for vector in (dy, stage.fill(x)))
        if stage.bias is not None:
            # a constant input makes the bias one more column of the matrix
            activations.append(leaf(1 if biased else 0))
        self.samples = n = max(dr.width(v) for v in deltas + activations)
        self.rows, self.columns = len(deltas), len(activations)
        # what the kernel could return as well as scatter, see pin_batch_size()
        self.vectors = [deltas[0], activations[0]] if frozen() else []
        # Products are cut along the sample axis and their pieces added up afterwards, in single precision. One long sum
        # would drift: equal increments all round the same way.
        self.pieces = max(1, n // PIECE)
        length = -(-n // self.pieces)
        self.length = length
        # Rows of a sample's components: one store each, and the zeros behind the last sample add nothing.
        lane = dr.arange(dr.uint32_array_t(leaf), n)
        allocate = dr.empty if length * self.pieces == n else dr.zeros
        packet = getattr(sys.modules[leaf.__module__], _PACKET[dr.type_v(leaf)])

        def spill(vector: list) -> Any:
            target = allocate(leaf, len(vector) * length * self.pieces)
            # Permute promises that no two lanes write the same entry; without it every scatter is a kernel of its own.
            dr.scatter(target, packet(vector), lane, mode=dr.ReduceMode.Permute)
            return target

        self.delta, self.activation = spill(deltas), spill(activations)

    def multiply(self) -> Any:
        """``(rows, columns)`` tensor: the sum over samples of delta times activation."""
        tensor = dr.tensor_t(type(self.delta))
        a, b = (self.pieces, self.length, self.rows), (self.pieces, self.length, self.columns)
        if dr.backend_v(tensor) == dr.JitBackend.LLVM and not frozen() and openblas.available():
            # NumPy reads this memory without a copy, and its BLAS is faster; recording a function, it cannot be called
            delta, activation = self.delta.numpy().reshape(-1, a[2]), self.activation.numpy().reshape(-1, b[2])
            return tensor(products.product(delta, activation))
        single = dr.tensor_t(dr.float32_array_t(type(self.delta)))
        pieces = single(dr.matmul(tensor(self.delta, a), tensor(self.activation, b), At=True))
        if self.pieces == 1:
            return single(pieces.array, (self.rows, self.columns))
        # summed by a product, too: as a reduction over the first axis it is a few threads' work
        flat = single(pieces.array, (self.pieces, self.rows * self.columns))
        total = dr.full(single, 1, (1, self.pieces)) @ flat
        return single(total.array, (self.rows, self.columns))


_PACKET = {dr.VarType.Float16: "ArrayXf16", dr.VarType.Float32: "ArrayXf", dr.VarType.Float64: "ArrayXf64"}


class _Sums:
    """Products of all chunks, by the matrix that they are the gradient of: several layers may share one."""

    def __init__(self) -> None:
        self.entries: list[tuple[Affine, Any]] = []

    def add(self, products: list[_Product]) -> None:
        for p in products:
            product = p.multiply()
            for i, (stage, total) in enumerate(self.entries):
                same = stage.weights.buffer is p.stage.weights.buffer
                if same and stage.weights.offset == p.stage.weights.offset:
                    self.entries[i] = (stage, total + product)
                    break
            else:
                self.entries.append((p.stage, product))
        dr.eval([total for _, total in self.entries])

    def gradient(self, buffer: Any) -> Any:
        """Gradients of all matrices and biases in ``buffer``, in its packed layout."""
        uint32 = dr.uint32_array_t(type(buffer))
        total = dr.zeros(type(buffer), dr.width(buffer))
        for stage, product in self.entries:
            if stage.weights.buffer is not buffer:
                continue
            rows, columns = product.shape
            i = dr.arange(uint32, rows * columns)
            row, column = i // columns, i % columns
            view, width = stage.weights, stage.weights.shape[1]
            inside = column < width
            if stage.layout is None:
                target = view.offset + row * view.stride + column
            else:
                target = view.offset + dr.gather(uint32, stage.layout.places, row * width + column, inside)
            if stage.bias is not None:
                # one product holds both: the last column belongs to the bias
                target = dr.select(inside, target, stage.bias.offset + row * stage.bias.stride)
            # A plain scatter: scatter_reduce on LLVM turns NaN into 0, and the loss scaler would miss an overflow.
            dr.scatter(total, type(buffer)(product.array), target, mode=dr.ReduceMode.Permute)
        dr.eval(total)
        return total
