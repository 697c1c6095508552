r"""Weight gradients as one product over all samples: *spill and multiply*.

The gradient of a matrix is a sum of outer products over samples, :math:`\partial L/\partial A = \sum_s \delta_s
x_s^T`. Accumulating it inside the kernel takes an atomic operation per entry and sample, whose order, and on some
backends whose precision, is not ours. Here one fused kernel runs the network forward and the chain of deltas
backward and writes activations (rows ``(samples, width)``) and deltas (``(width, samples)``) out as they appear; a
matrix product then sums over the sample axis, in a fixed order.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..key import Key
from .stages import Affine, Stage, rebase


class Plan:
    """What :class:`SpillOp` evaluates; opaque to Dr.Jit's traversal of arguments."""

    def __init__(self, stages: Sequence[Stage], buffers: Sequence[Any], wants_x: bool):
        self.stages, self.buffers, self.wants_x = stages, buffers, wants_x


class SpillOp(dr.CustomOp):
    """Evaluates a list of stages; differentiates them by spilling and multiplying.

    Lists of arrays go in and out because ``dr.custom`` drops the gradient of a ``CoopVec``.
    """

    def eval(self, plan: Plan, buffers: list, xs: list, key: Key | None) -> list:  # type: ignore[override]
        self.plan, self.buffers, self.key = plan, buffers, key
        self.stages = rebase(plan.stages, plan.buffers, buffers)
        # References to unevaluated vectors cost no memory: a later kernel that needs one computes it again.
        x = drnn.CoopVec(xs)
        self.values = [x]
        for stage in self.stages:
            x = stage.forward(x, key)
            self.values.append(x)
        return list(x)

    def forward(self) -> None:
        dx = drnn.CoopVec(self.grad_in("xs"))
        tangents = rebase(self.stages, self.buffers, self.grad_in("buffers"))
        for i, (stage, tangent) in enumerate(zip(self.stages, tangents, strict=True)):
            x, y = self.values[i], self.values[i + 1]
            if isinstance(stage, Affine):
                dx = Affine(stage.weights).forward(dx, None) + tangent.forward(x, None)
            else:
                # the Jacobian is diagonal, so the adjoint is also the tangent
                dx = stage.vjp(dx, x, y, self.key)
        self.set_grad_out(list(dx))

    def backward(self) -> None:
        dy = drnn.CoopVec(self.grad_out())
        first = next(i for i, s in enumerate(self.stages) if isinstance(s, Affine))
        products: list[_Product] = []
        for i in reversed(range(len(self.stages))):
            stage, x, y = self.stages[i], self.values[i], self.values[i + 1]
            if isinstance(stage, Affine):
                # Write each vector as soon as it exists: written at the end, all of them would stay live.
                products.append(_Product(stage, dy, x))
                if i == first and not self.plan.wants_x:
                    break
                dy = drnn.matvec(stage.weights, dy, transpose=True)
                if len(dy) > len(x):
                    dy = drnn.CoopVec(list(dy)[: len(x)])
            else:
                dy = stage.vjp(dy, x, y, self.key)
        # dx is evaluated along, or whoever uses it next would run the whole network again
        dxs = list(dy) if self.plan.wants_x else []
        guard = products[0].delta_sample if dr.flag(dr.JitFlag.FreezingScope) else None
        dr.eval([p.delta for p in products], [p.activation for p in products], dxs, guard)
        if guard is not None:
            _pin_batch_size(guard)
        if dxs:
            self.set_grad_in("xs", dxs)
        self.set_grad_in("buffers", [_gradient(b, products) for b in self.buffers])

    def name(self) -> str:
        return "coopnet: spill and multiply"


class _Product:
    """The spilled operands of one layer's weight gradient."""

    def __init__(self, stage: Affine, dy: Any, x: Any):
        self.stage = stage
        leaf = dr.leaf_t(dy.type)
        if dr.is_half_v(leaf):
            leaf = dr.float32_array_t(leaf)  # products accumulate in single precision
        deltas, activations = [leaf(v) for v in dy], [leaf(v) for v in x]
        if stage.bias is not None:
            activations.append(leaf(1))  # a constant input makes the bias one more column of the matrix
        self.samples = n = max(dr.width(v) for v in deltas + activations)
        self.rows, self.columns = len(deltas), len(activations)
        # a single vector that the kernel returns rather than scatters, see _pin_batch_size
        self.delta_sample = deltas[0] if dr.width(deltas[0]) == n else deltas[0] + dr.zeros(leaf, n)
        lane = dr.arange(dr.uint32_array_t(leaf), n)
        # Permute promises that no two lanes write the same entry; without it every scatter is a kernel of its own.
        self.delta = dr.empty(leaf, self.rows * n)
        for i, delta in enumerate(deltas):
            dr.scatter(self.delta, delta, lane + i * n, mode=dr.ReduceMode.Permute)
        self.activation = dr.empty(leaf, self.columns * n)
        packet = (
            sys.modules[leaf.__module__].ArrayXf64
            if leaf is dr.float64_array_t(leaf)
            else sys.modules[leaf.__module__].ArrayXf
        )
        dr.scatter(self.activation, packet(activations), lane, mode=dr.ReduceMode.Permute)

    def multiply(self) -> Any:
        """``(rows, columns)`` tensor: the sum over samples of delta times activation."""
        tensor = dr.tensor_t(type(self.delta))
        return tensor(self.delta, (self.rows, self.samples)) @ tensor(self.activation, (self.samples, self.columns))


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
        view = stage.weights
        target = view.offset + row * view.stride + column
        if stage.bias is not None:
            # one product holds both: the last column belongs to the bias
            target = dr.select(column == columns - 1, stage.bias.offset + row * stage.bias.stride, target)
        # A plain scatter: LLVM's scatter_reduce turns NaN into 0, which would hide an overflow from the loss scaler.
        dr.scatter(total, type(buffer)(product.array), target, mode=dr.ReduceMode.Permute)
    dr.eval(total)
    return total


def _pin_batch_size(guard: Any) -> None:
    """Make Dr.Jit record a frozen function anew when the number of samples changes.

    The sizes of spilled buffers and the shapes of their products are constants of a recording. A replay checks the
    operand sizes of matrix products before it launches anything, but only arrays that kernels return follow the new
    size; ``guard`` is one, so its product with itself fails the check.
    """
    n = dr.width(guard)
    tensor = dr.tensor_t(type(guard))
    dr.eval(tensor(guard, (1, n)) @ tensor(guard, (n, 1)))
