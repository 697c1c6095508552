"""How a layer multiplies by its matrix: in the kernel (whole, in blocks of rows, from copies, or unrolled), or between
kernels.

Each is a class with :meth:`~Multiplier.product` and :meth:`~Multiplier.transposed`. Those in a
kernel add the same terms in the same order, so results are bitwise equal. The exception is the gradient with respect to
the vector if Dr.Jit itself differentiates a product in blocks: it is a sum over blocks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit import views
from ..jit.kinds import packed
from ..jit.layout import GAP
from ..jit.native import core
from ..jit.registers import in_separate_blocks
from ..jit.uniform import uniform
from . import limits
from .ops import Op, affine
from .row_vectors import Rows, RowVector, columns
from .strategies import AS_THEY_ARE, OFFERS, Matrix, choose, strategy_of


class Multiplier:
    """Dr.Jit's product of a matrix and a vector in registers; for matrices that need it, in blocks of rows.

    The ``op`` of its methods is the :class:`~.affine.Affine` that multiplies.
    """

    between_kernels = False

    def product(self, op: Any, x: Any, biased: bool) -> Any:
        """``A x``, and ``b`` added if ``biased``."""
        weights, bias, x = op.weights, op.bias if biased else None, packed(op.fill(x))
        matrix = described(weights, transposed=False)
        if strategy_of(matrix) == "row blocks":
            return _by_parts(_row_blocks(weights, matrix), x, bias, turned=False)
        return drnn.matvec(weights, x) if bias is None else drnn.matvec(weights, x, bias)

    def transposed(self, op: Any, dy: Any, count: int) -> Any:
        """The first ``count`` components of ``A^T dy``."""
        return first(drnn.matvec(op.weights, packed(dy), transpose=True), count)

    def arrays(self) -> list:
        """The copies that the multiplier reads, which must be evaluated before."""
        return []


IN_KERNEL = Multiplier()


class Unrolled(Multiplier):
    """Code without loops: one instruction for each entry of the matrix, so that outputs stay in registers.

    Dr.Jit's own product is a loop that loads and stores an output for every multiplication. Unrolled code grows with
    the matrix. Some outputs at a time are a block of their own, because the time to compile a block grows faster than
    its length.

    Args:
        back: a copy of the transposed matrix for the backward pass, if there is one. Without a copy, the compiler would
            keep the entries that the forward pass has loaded, in more registers than there are.
    """

    def __init__(self, back: Any = None):
        self.back = back

    def arrays(self) -> list:
        return [] if self.back is None else [self.back.buffer]

    def product(self, op: Any, x: Any, biased: bool) -> Any:
        if not described(op.weights, transposed=False).plain:
            return super().product(op, x, biased)
        bias = uniform(op.bias.buffer, op.bias.offset, op.bias.shape[0]) if biased and op.bias is not None else None
        return _unrolled(op.weights, packed(op.fill(x)), bias)

    def transposed(self, op: Any, dy: Any, count: int) -> Any:
        if self.back is None:
            return super().transposed(op, dy, count)
        return first(_unrolled(self.back, packed(dy), None), count)


class Copies(Multiplier):
    """Products from copies of the matrix: ``forth`` for products, ``back`` for transposed ones; ``None``: no copy."""

    def __init__(self, forth: tuple[list, bool] | None, back: tuple[list, bool] | None):
        self.forth, self.back = forth, back

    def arrays(self) -> list:
        return [part.buffer for parts, _ in filter(None, (self.forth, self.back)) for part in parts]

    def product(self, op: Any, x: Any, biased: bool) -> Any:
        if self.forth is None:
            return super().product(op, x, biased)
        parts, turned = self.forth
        return _by_parts(parts, packed(op.fill(x)), op.bias if biased else None, turned)

    def transposed(self, op: Any, dy: Any, count: int) -> Any:
        if self.back is None:
            return super().transposed(op, dy, count)
        parts, turned = self.back
        return first(_by_parts(parts, packed(dy), None, turned), count)


def with_multipliers(ops: Sequence[Op], offer: str, back: bool = False, inputs: bool = True) -> Sequence[Op]:
    """The same ops with the multipliers that :data:`~.strategies.MATRICES` chooses for an ``offer``; copies of matrices
    are evaluated.

    With ``back``, there are copies for the backward pass, too. Without ``inputs``, it needs no gradient of the input,
    and ends at the first layer. In symbolic code, nothing can be copied. Arrays that the caller has scheduled are
    evaluated together with the copies.
    """
    if offer == AS_THEY_ARE:
        return ops
    layers = affine(ops)
    made: list[Any] = []

    def multiplied(op: Any) -> Any:
        if not op.affine:
            return op
        turns = op.layout is not None and op.layout.transposed is not None
        forth = described(op.weights, False, offer)
        there = described(op.weights, True, offer, turns and op.layout.transposed.layout == op.weights.layout)
        ways = strategy_of(forth), strategy_of(there) if back and (inputs or op is not layers[0]) else "whole"
        multiplier = _multiplier(op, forth, there, *ways)
        if multiplier is None:
            return op
        made.extend(multiplier.arrays())
        return op.multiplied(multiplier)

    result = [op.map(multiplied) for op in ops]
    if made:
        dr.eval(made)
    return result


def for_backward(plan: Any, ops: Sequence[Op]) -> Sequence[Op]:
    """``ops``, those of ``plan``, with the multipliers of :data:`~.strategies.OFFERS` for its gradients."""
    return with_multipliers(ops, choose(OFFERS, plan)[0], True, plan.situation.inputs)


def _multiplier(op: Any, forth: Matrix, there: Matrix, strategy: str, back: str) -> Multiplier | None:
    """The multiplier for the strategies of a matrix and of its transpose; ``None``: that of the op."""
    if "between kernels" in (strategy, back):
        return BetweenKernels(op, strategy == "between kernels", back == "between kernels")
    if strategy == "unrolled":
        return Unrolled(_copied(op.weights, True, 0, there.rows, turned=False) if back == "unrolled" else None)
    copies = [COPIES[s](op, m) if s in COPIES else None for s, m in ((strategy, forth), (back, there))]
    return Copies(*copies) if any(copies) else None


def _panels(op: Any, matrix: Matrix) -> tuple[list, bool]:
    bounds = _bounds(matrix.rows, limits.PANEL_ROWS)
    return [_copied(op.weights, matrix.transposed, start, stop, turned=True) for start, stop in bounds], True


def _transposed_blocks(op: Any, matrix: Matrix) -> tuple[list, bool]:
    return _row_blocks(_copied(op.weights, matrix.transposed, 0, matrix.rows, turned=False), matrix), False


def _transposed_copy(op: Any, matrix: Matrix) -> tuple[list, bool]:
    view, origins = op.weights, op.layout.origins
    entries = dr.gather(type(view.buffer), dr.detach(view.buffer), view.offset + origins, origins != GAP)
    return [views.changed(op.layout.transposed, buffer=entries)], False


#: Blocks of rows of a copy of a matrix, and whether they are stored transposed, by the name of the strategy in
#: :data:`~.strategies.MATRICES`. Other strategies copy nothing.
COPIES: dict[str, Callable[[Any, Matrix], tuple[list, bool]]] = {
    "panels": _panels,
    "transposed copy in blocks": _transposed_blocks,
    "transposed copy": _transposed_copy,
}


def described(view: Any, transposed: bool, offer: str = AS_THEY_ARE, turns: bool = False) -> Matrix:
    """The properties of a packed matrix on which :data:`~.strategies.MATRICES` depends."""
    rows, columns = reversed(view.shape) if transposed else view.shape
    cpu = dr.backend_v(view.buffer) == dr.JitBackend.LLVM
    plain = cpu and not view.transpose and view.stride == view.shape[1] and not dr.grad_enabled(view.buffer)
    return Matrix(
        rows, columns, dr.itemsize_v(view.buffer), core.llvm_lanes(), transposed, plain, offer, turns and not cpu
    )  # fmt: skip


def _by_parts(parts: Sequence[Any], x: Any, bias: Any, turned: bool) -> drnn.CoopVec:
    """``M x + b`` from blocks of rows of ``M``, each a view, ``turned`` if it is stored transposed."""
    components: list[Any] = []
    for part in parts:
        start, rows = len(components), part.shape[turned]
        more = () if bias is None else (views.rows(bias, start, start + rows),)
        components.extend(drnn.matvec(part, x, *more, transpose=turned))
    return drnn.CoopVec(components)


def _unrolled(matrix: Any, x: Any, bias: Sequence[Any] | None) -> drnn.CoopVec:
    """``M x + b``, as many outputs at a time as registers hold, each summed up in the order of the columns."""

    def outputs(start: int, stop: int, parts: list) -> list:
        rows = [uniform(matrix.buffer, matrix.offset + i * matrix.stride, len(parts)) for i in range(start, stop)]
        y = drnn.CoopVec([x.type(0)] * len(rows) if bias is None else bias[start:stop])
        for v, column in zip(parts, zip(*rows, strict=True), strict=True):
            y = dr.fma(drnn.CoopVec(column), drnn.CoopVec([v] * len(rows)), y)
        return list(y)

    components: list[Any] = []
    for bounds in _bounds(matrix.shape[0], limits.by_lanes(limits.UNROLLED_ROWS, core.llvm_lanes())):
        components += in_separate_blocks(functools.partial(outputs, *bounds), list(x))
    return drnn.CoopVec(components)


def _row_blocks(view: Any, matrix: Matrix) -> list[Any]:
    return [views.rows(view, start, stop) for start, stop in _bounds(matrix.rows, int(matrix.block))]


def _bounds(rows: int, most: int) -> list[tuple[int, int]]:
    count = -(-rows // most)
    return list(itertools.pairwise(k * rows // count for k in range(count + 1)))


def _copied(view: Any, transposed: bool, start: int, stop: int, turned: bool) -> Any:
    """Rows ``start`` to ``stop`` of ``M``, row by row or, ``turned``, column by column, in memory of their own."""
    buffer, stride = view.buffer, view.stride
    columns, rows = view.shape[not transposed], stop - start
    i = dr.arange(dr.uint32_array_t(type(buffer)), rows * columns)
    row, column = (i % rows, i // rows) if turned else (i // columns, i % columns)
    row, column = (column, row + start) if transposed else (row + start, column)
    entries = dr.gather(type(buffer), buffer, view.offset + row * stride + column)
    shape = (columns, rows) if turned else (rows, columns)
    return views.changed(view, buffer=entries, shape=shape, stride=shape[1], offset=0, size=rows * columns)


class BetweenKernels(Multiplier):
    """Multiplies the vectors of all samples, which are rows in memory, by one matrix product.

    In a kernel, Dr.Jit loads and stores an output for every multiplication. A matrix product keeps outputs in
    registers. For wide layers, that saves more time than writing vectors out and reading them back costs.

    ``forth`` and ``back``: is this done in the forward pass, and in the backward pass? Products with few components are
    as fast in a kernel. Vectors in registers are always multiplied in the kernel.
    """

    between_kernels = True

    def __init__(self, op: Any, forth: bool, back: bool):
        m, n = op.weights.shape
        buffer = op.weights.buffer
        single, uint32 = dr.float32_array_t(type(buffer)), dr.uint32_array_t(type(buffer))
        self.outputs, self.inputs = m, n
        self.forth, self.back = forth, back
        self.rows, self.columns, self.bias = columns(m, 4), columns(n, 4), None
        i = dr.arange(uint32, self.rows * self.columns)
        row, column = i // self.columns, i % self.columns
        inside = (row < m) & (column < n)
        #: The matrix, padded with zeros to whole packets.
        self.entries = single(dr.gather(type(buffer), buffer, views.places(op.weights, row, column), inside))
        if op.bias is not None:
            row = dr.arange(uint32, self.rows)
            self.bias = single(dr.gather(type(buffer), op.bias.buffer, views.places(op.bias, row), row < m))

    def arrays(self) -> list:
        return [self.entries] if self.bias is None else [self.entries, self.bias]

    def takes(self, vector: Any) -> bool:
        """Can an input vector be multiplied in place?"""
        return isinstance(vector, RowVector) and (len(vector), vector.rows.columns) == (self.inputs, self.columns)

    def takes_cotangent(self, vector: Any) -> bool:
        return isinstance(vector, RowVector) and (len(vector), vector.rows.columns) == (self.outputs, self.rows)

    def multiply(self, rows: Rows) -> Rows:
        """``A x`` of the vectors in ``rows``."""
        return rows.of(dr.matmul(rows.matrix(), self._matrix(rows.leaf), Bt=True).array, self.rows)

    def product(self, op: Any, x: Any, biased: bool) -> Any:
        rows = x.product if isinstance(x, RowVector) else None
        if rows is None:
            return super().product(op, x, biased)
        if biased and self.bias is not None:
            i = dr.arange(dr.uint32_array_t(rows.leaf), dr.width(rows.numbers))
            rows = rows.of(rows.numbers + dr.gather(rows.leaf, rows.leaf(self.bias), i % self.rows))
        return RowVector(rows, self.outputs, x.type, x.in_place)

    def transposed(self, op: Any, dy: Any, count: int) -> Any:
        if not self.back or not self.takes_cotangent(dy):
            return super().transposed(op, dy, count)
        rows = dy.rows.of(dr.matmul(dy.rows.matrix(), self._matrix(dy.rows.leaf)).array, self.columns)
        return RowVector(rows, count, dy.type, dy.in_place)

    def _matrix(self, leaf: type) -> Any:
        """The matrix as a tensor of ``leaf``: inputs may have a type without derivatives, unlike parameters."""
        return dr.tensor_t(leaf)(leaf(self.entries), (self.rows, self.columns))


def padded(vector: Any, count: int, leaf: type) -> Any:
    """``vector`` with zeros, of type ``leaf``, as further components up to ``count``."""
    missing = count - len(vector)
    return drnn.CoopVec([*vector, *[leaf(0)] * missing]) if missing else vector


def first(vector: Any, count: int) -> Any:
    """The first ``count`` components of ``vector``."""
    return vector if len(vector) == count else drnn.CoopVec(list(vector)[:count])
