r"""Weight gradients as one product over all samples: *spill and multiply*.

The gradient of a matrix is a sum of outer products over samples, :math:`\partial L/\partial A = \sum_s \delta_s
x_s^T`. Accumulating it inside the kernel takes an atomic operation per entry and sample, whose order, and on some
backends whose precision, is not ours. Here one fused kernel runs the network forward and the chain of deltas
backward and writes activations (rows ``(samples, width)``) and deltas (``(width, samples)``) out as they appear; a
matrix product then sums over the sample axis, in a fixed order.
"""

from __future__ import annotations

import sys
from typing import Any

import drjit as dr
import drjit.nn as drnn

from .operation import NetworkOp, pin_batch_size
from .stages import Affine, backward, frozen

#: Samples that one partial product sums over.
PIECE = 1024


class SpillOp(NetworkOp):
    """Differentiates by spilling and multiplying."""

    def backward(self) -> None:
        products: list[_Product] = []
        dx = backward(
            self.stages,
            self.values,
            drnn.CoopVec(self.grad_out()),
            self.key,
            self.plan.wants_x,
            lambda stage, delta, x: products.append(_Product(stage, delta, x)),
        )
        # dx is evaluated along, or whoever uses it next would run the whole network again
        dxs = list(dx) if self.plan.wants_x else []
        sample = products[0].sample if frozen() else None
        dr.eval([p.delta for p in products], [p.activation for p in products], dxs, sample)
        if sample is not None:
            pin_batch_size(sample)
        if dxs:
            self.set_grad_in("xs", dxs)
        self.set_grad_in("buffers", [_gradient(b, products) for b in self.buffers])


class _Product:
    """The spilled operands of one layer's weight gradient."""

    def __init__(self, stage: Affine, dy: Any, x: Any):
        self.stage = stage
        leaf = dr.leaf_t(dy.type)
        if dr.is_half_v(leaf) and dr.backend_v(leaf) == dr.JitBackend.LLVM:
            leaf = dr.float32_array_t(leaf)  # the CPU multiplies single precision, tensor cores accumulate in it
        deltas, activations = [leaf(v) for v in dy], [leaf(v) for v in stage.fill(x)]
        if stage.bias is not None:
            activations.append(leaf(1))  # a constant input makes the bias one more column of the matrix
        self.samples = n = max(dr.width(v) for v in deltas + activations)
        self.rows, self.columns = len(deltas), len(activations)
        # a single vector that the kernel returns rather than scatters, see pin_batch_size()
        self.sample = deltas[0] if dr.width(deltas[0]) == n else deltas[0] + dr.zeros(leaf, n)
        # Products are cut along the sample axis and their pieces added up afterwards, in single precision. One long sum
        # would drift: equal increments all round the same way.
        self.pieces = max(1, n // PIECE)
        length = -(-n // self.pieces)
        self.length = length
        lane = dr.arange(dr.uint32_array_t(leaf), n)
        piece, place = (lane // length, lane % length) if self.pieces > 1 else (0, lane)
        allocate = dr.empty if length * self.pieces == n else dr.zeros
        # Permute promises that no two lanes write the same entry; without it every scatter is a kernel of its own.
        self.delta = allocate(leaf, self.rows * length * self.pieces)
        for i, delta in enumerate(deltas):
            dr.scatter(self.delta, delta, piece * (self.rows * length) + place + i * length, mode=dr.ReduceMode.Permute)
        self.activation = allocate(leaf, self.columns * length * self.pieces)
        packet = getattr(sys.modules[leaf.__module__], _PACKET[dr.type_v(leaf)])
        dr.scatter(self.activation, packet(activations), lane, mode=dr.ReduceMode.Permute)

    def multiply(self) -> Any:
        """``(rows, columns)`` tensor: the sum over samples of delta times activation."""
        tensor = dr.tensor_t(type(self.delta))
        a = tensor(self.delta, (self.pieces, self.rows, self.length))
        b = tensor(self.activation, (self.pieces, self.length, self.columns))
        single = dr.tensor_t(dr.float32_array_t(type(self.delta)))
        return dr.sum(single(a @ b), axis=0)


_PACKET = {dr.VarType.Float16: "ArrayXf16", dr.VarType.Float32: "ArrayXf", dr.VarType.Float64: "ArrayXf64"}


def _gradient(buffer: Any, products: list[_Product]) -> Any:
    """Gradients of all matrices and biases in ``buffer``, in its packed layout."""
    uint32 = dr.uint32_array_t(type(buffer))
    sums: dict[tuple[int, int], tuple[Affine, Any]] = {}
    for p in products:
        stage = p.stage
        if stage.weights.buffer is buffer:
            # the same matrix may be used by several layers
            place = (stage.weights.offset, -1 if stage.bias is None else stage.bias.offset)
            product = p.multiply()
            sums[place] = (stage, sums[place][1] + product if place in sums else product)
    total = dr.zeros(type(buffer), dr.width(buffer))
    for stage, product in sums.values():
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
        # A plain scatter: LLVM's scatter_reduce turns NaN into 0, which would hide an overflow from the loss scaler.
        dr.scatter(total, type(buffer)(product.array), target, mode=dr.ReduceMode.Permute)
    dr.eval(total)
    return total
