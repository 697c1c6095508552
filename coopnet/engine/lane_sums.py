r"""Weight gradients that the lanes of a CPU's kernel sum up, each over samples of its own: *lane sums*.

Lane :math:`l` of :math:`L` visits the samples :math:`l, l + L, l + 2 L, \dots` in a loop. It keeps the activations and
cotangents of a few samples in local memory. Then it adds their outer products to a gradient of its own, also in local
memory, a block of 4 by 4 entries at a time in registers. The gradients of all lanes are written and summed at the end.
Local memory is read and written in groups of numbers, because every access costs a reduction over lanes.

Where samples are spilled instead, Dr.Jit writes every number of a row by an instruction of its own, and its matrix
product copies both operands first. For short vectors, both take longer than the network.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..jit.batch_size import batch_sample, pin_batch_size
from ..jit.lanes import live, only
from ..random.key import Key
from . import limits
from .affine import Affine, with_bias
from .chunks import Chunk, arguments_of
from .network_op import NetworkOp, Plan
from .ops import Op, affine
from .products import write_packed

#: Rows and columns of a block of a gradient.
SIDE = 4
#: The most lanes that a CPU computes at once: with a multiple of them, none is idle. Another number
#: changes the order of sums, and so their last bits.
LANES_OF_A_PACKET = 16


class LaneSumOp(NetworkOp):
    """Computes weight gradients by sums within lanes."""

    def eval(self, plan: Plan, buffers: list, xs: list, key: Key | None) -> list:  # type: ignore[override]
        y = super().eval(plan, buffers, xs, key)
        # the backward pass reads inputs and cotangents from memory, and cotangents depend on outputs
        dr.eval(xs, y)
        return y

    def pull_back(self, dys: list, samples: int) -> tuple[list, list | None]:
        leaf: Any = type(dys[0])
        uint32 = dr.uint32_array_t(leaf)
        key, sample = arguments_of(self.key, uint32, samples), batch_sample([*dys, *self.xs], samples)
        dr.eval(dys, key, sample)
        dxs = [dr.empty(type(v), samples) for v in self.plan.differentiated(self.xs)]
        matrices = [_Matrix(op, leaf) for op in affine(self.ops)]
        lanes = lanes_for(samples)
        first = dr.arange(uint32, lanes)
        gradients = [dr.alloc_local(m.block, m.rows * m.columns, m.zero(lanes)) for m in matrices]
        vectors = [dr.alloc_local(_packet(leaf, SIDE), limits.LANE_SAMPLES * n) for m in matrices for n in m.sides]

        def keep(k: Any, start: Any, vectors: list) -> tuple:
            """Evaluate a sample of each lane, forward and back."""
            chunk = Chunk(first + (start + k) * lanes, samples)
            self._one(chunk, chunk.key(key), dys, dxs, k, matrices, vectors)
            return k + 1, start, vectors

        def several(start: Any, gradients: list, vectors: list) -> tuple:
            zero = uint32(0)
            _, start, vectors = dr.while_loop(
                (zero, start, vectors),
                lambda k, *_: k < limits.LANE_SAMPLES,
                keep,
                label="coopnet: samples",
                mode="symbolic",
            )
            for i, m in enumerate(matrices):
                pair = vectors[2 * i : 2 * i + 2]
                _, gradients[i], *pair = dr.while_loop(
                    (zero, gradients[i], *pair),
                    lambda b, *_, m=m: b < m.rows * m.columns,
                    m.add,
                    label="coopnet: products",
                    mode="symbolic",
                )
                vectors[2 * i : 2 * i + 2] = pair
            return start + limits.LANE_SAMPLES, gradients, vectors

        with dr.suspend_grad():
            _, gradients, _ = dr.while_loop(
                (uint32(0), gradients, vectors),
                lambda start, *_: start * lanes < samples,
                several,
                label="coopnet: lanes",
                mode="symbolic",
            )
            written = [m.written(gradient, first) for m, gradient in zip(matrices, gradients, strict=True)]
        dr.eval(written, dxs)
        totals = [dr.block_sum(v, lanes) for v in written]
        pin_batch_size(sample)
        return dxs, [self._gradient(buffer, matrices, totals) for buffer in self.buffers]

    def _one(
        self, chunk: Chunk, key: Key | None, dys: list, dxs: list, k: Any, matrices: list, vectors: list
    ) -> None:  # fmt: skip
        """Evaluate a sample of each lane, and keep activations and cotangents in the ``vectors`` of sample ``k``."""
        x, dy = [chunk.part(v) for v in self.xs], chunk.cotangents(dys)
        tape, mask = self.plan.evaluate(self.ops, x, key), live(dy)
        behind = iter(reversed(range(len(matrices))))  # a layer that is there twice has two numbers

        def visit(op: Affine, dy: Any, x: Any, biased: bool) -> None:
            i = next(behind)
            for j, values in enumerate((list(dy), with_bias(op, list(op.fill(x)), biased))):
                matrices[i].write(vectors[2 * i + j], j, k, only(mask, values))

        dx = only(mask, self.plan.pullback(tape, dy, key, visit))
        chunk.put(dxs, dx)

    def _gradient(self, buffer: Any, matrices: Sequence[_Matrix], totals: Sequence[Any]) -> Any:
        """The packed gradient of ``buffer``. A matrix that is used several times has several totals."""
        parts: dict[int, list[tuple[_Matrix, Any]]] = {}
        for m, total in zip(matrices, totals, strict=True):
            if m.op.weights.buffer.index == buffer.index:
                parts.setdefault(m.op.weights.offset, []).append((m, total))
        gradient = dr.zeros(type(buffer), dr.width(buffer))
        for uses in parts.values():
            m = uses[0][0]
            total = sum((t for _, t in uses[1:]), uses[0][1])
            write_packed(m.op, "both", functools.partial(m.entry, total), gradient)
        return gradient


class _Matrix:
    """The gradient of the matrix of ``op``, with its bias as the last column, in blocks; rows and columns are padded.

    ``rows`` and ``columns`` are those of blocks.
    """

    def __init__(self, op: Affine, leaf: Any):
        self.op, self.leaf = op, leaf
        self.rows, self.columns = self.sides = _sides(op)
        self.block: Any = _packet(leaf, SIDE * SIDE)

    def zero(self, lanes: int) -> Any:
        return _packed(self.block, [dr.zeros(self.leaf, lanes)] * SIDE * SIDE)

    def write(self, memory: Any, side: int, k: Any, values: list) -> None:
        """Write the vector of sample ``k`` to local memory."""
        n = self.sides[side]
        values = values + [self.leaf(0)] * (n * SIDE - len(values))
        for i in range(n):
            memory[k * n + i] = _packed(_packet(self.leaf, SIDE), values[i * SIDE : (i + 1) * SIDE])

    def add(self, b: Any, gradient: Any, cotangents: Any, activations: Any) -> tuple:
        """Add the outer products of all kept samples to block ``b``."""
        row, column = b // self.columns, b % self.columns
        total = _unpacked(gradient[b])
        for k in range(limits.LANE_SAMPLES):
            dy, x = _unpacked(cotangents[row + k * self.rows]), _unpacked(activations[column + k * self.columns])
            total = [dr.fma(dy[i // SIDE], x[i % SIDE], t) for i, t in enumerate(total)]
        gradient[b] = _packed(self.block, total)
        return b + 1, gradient, cotangents, activations

    def written(self, gradient: Any, lane: Any) -> Any:
        """The gradients of all lanes in memory: an entry of a block after the other."""
        lanes, size = dr.width(lane), SIDE * SIDE
        written = dr.empty(self.leaf, self.rows * self.columns * size * lanes)

        def write(b: Any, gradient: Any) -> tuple:
            for i, value in enumerate(_unpacked(gradient[b])):
                dr.scatter(written, value, (b * size + i) * lanes + lane, mode=dr.ReduceMode.Permute)
            return b + 1, gradient

        zero = type(lane)(0)
        dr.while_loop(
            (zero, gradient), lambda b, _: b < self.rows * self.columns, write, label="coopnet: sums", mode="symbolic"
        )
        return written

    def entry(self, total: Any, row: Any, column: Any) -> Any:
        """The entries ``row, column`` of the sum."""
        block = row // SIDE * self.columns + column // SIDE
        return dr.gather(self.leaf, total, (block * SIDE + row % SIDE) * SIDE + column % SIDE)


def lane_bytes(ops: Sequence[Op], samples: int) -> int:
    """Bytes of the gradients of all lanes."""
    return 4 * lanes_for(samples) * sum(math.prod(_sides(op)) * SIDE**2 for op in affine(ops))


def _sides(op: Affine) -> tuple[int, int]:
    """Rows and columns of blocks."""
    rows, columns = op.weights.shape
    return -(-rows // SIDE), -(-(columns + (op.bias is not None)) // SIDE)


def lanes_for(samples: int) -> int:
    """Lanes among which ``samples`` are divided: it does not depend on the machine, so that sums do not, either."""
    lanes = min(limits.LANES, max(1, samples // limits.LANE_TURNS))
    return -(-lanes // LANES_OF_A_PACKET) * LANES_OF_A_PACKET


@functools.cache
def _packet(leaf: Any, count: int) -> Any:
    """A type of ``count`` numbers. An array of them in local memory needs one address for all."""
    return type(f"Packet{count}", (), {"DRJIT_STRUCT": {f"v{i}": leaf for i in range(count)}})


def _packed(packet: Any, values: Sequence[Any]) -> Any:
    result = packet()
    for name, value in zip(packet.DRJIT_STRUCT, values, strict=True):
        setattr(result, name, value)
    return result


def _unpacked(packet: Any) -> list[Any]:
    return [getattr(packet, name) for name in packet.DRJIT_STRUCT]
