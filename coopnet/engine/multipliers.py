"""How a layer multiplies by its matrix: in the kernel (whole, in blocks of rows, from copies, or unrolled), or between
kernels.

Each way is a class with :meth:`~Multiplier.product`, :meth:`~Multiplier.transposed` and :meth:`~Multiplier.outer`. All
ways in a kernel add the same terms in the same order, so results are bitwise equal. The exception is the gradient with
respect to the vector if Dr.Jit itself differentiates a product in blocks: it is a sum over blocks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit import views
from ..jit.kinds import packed
from ..jit.layout import GAP
from ..jit.native import core
from ..jit.registers import in_separate_blocks
from ..jit.uniform import available, uniform
from . import limits
from .ops import Op, affine
from .row_vectors import Rows, RowVector, columns
from .situation import Situation
from .strategies import BACKWARD, Matrix, between, choose, way_of


class Multiplier:
    """Dr.Jit's product of a matrix and a vector in registers; for matrices that need it, in blocks of rows.

    The ``op`` of its methods is the :class:`~.affine.Affine` that multiplies.
    """

    between_kernels = False

    def product(self, op: Any, x: Any, biased: bool) -> Any:
        """``A x``, and ``b`` added if ``biased``."""
        weights, bias, x = op.weights, op.bias if biased else None, packed(op.fill(x))
        matrix = described(weights, transposed=False)
        if way_of(matrix) == "row blocks":
            return _by_parts(_row_blocks(weights, matrix), x, bias, turned=False)
        return drnn.matvec(weights, x) if bias is None else drnn.matvec(weights, x, bias)

    def transposed(self, op: Any, dy: Any, count: int) -> Any:
        """The first ``count`` components of ``A^T dy``."""
        return first(drnn.matvec(op.weights, packed(dy), transpose=True), count)

    def outer(self, op: Any, dy: Any, x: Any, biased: bool) -> None:
        """Add the outer product of ``dy`` and ``x`` to the matrix's gradient and, if ``biased``, ``dy`` to the bias's.

        Missing components of ``dy`` and ``x`` are zeros. Dr.Jit has this operation only as the adjoint of a product
        with the matrix. The value of that is not used.
        """
        missing = op.weights.shape[0] - len(dy)
        if missing:
            dy = drnn.CoopVec([*dy, *[x.type(0)] * missing])
        with dr.resume_grad():
            differentiate(op.product(dr.detach(x), biased) * dr.detach(dy))


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


def unrolled(ops: Sequence[Op], back: bool = False) -> Sequence[Op]:
    """The same ops with :class:`Unrolled` multipliers; with ``back``, also for the backward pass."""
    if not available():
        return ops

    def multiplied(op: Any) -> Any:
        copied = back and described(op.weights, transposed=True).plain
        return op.multiplied(Unrolled(_entries(op.weights, True, 0, op.weights.shape[1], False) if copied else None))

    result = [op.map(multiplied) for op in ops]
    dr.eval([op.multiplier.back.buffer for op in affine(result) if op.multiplier.back is not None])
    return result


def with_copies(ops: Sequence[Op], back: bool = False, inputs: bool = True) -> Sequence[Op]:
    """The same ops with evaluated copies of matrices where they pay; with ``back``, also for the backward pass.

    Without ``inputs``, the backward pass needs no gradient of the input and ends at the first layer. This cannot be
    called in symbolic code. It evaluates arrays that the caller has scheduled, too.
    """
    first = next(iter(affine(ops)), None)

    def copied(op: Any) -> Any:
        transposed = back and (inputs or op is not first)
        return op.multiplied(Copies(_copy(op.weights, False), _copy(op.weights, True) if transposed else None))

    result = [op.map(copied) for op in ops]
    copies = [copy for op in affine(result) for copy in (op.multiplier.forth, op.multiplier.back) if copy is not None]
    if not copies:
        return ops
    dr.eval([part.buffer for parts, _ in copies for part in parts])
    return result


def for_backward(ops: Sequence[Op], s: Situation) -> Sequence[Op]:
    """The same ops with the multipliers of a kernel that goes forward and back (:data:`~.strategies.BACKWARD`)."""
    way, _ = choose(BACKWARD, s)
    if way == "unrolled":
        return unrolled(ops, back=True)
    return with_copies(ops, True, s.inputs) if way == "copies" else ops


def with_transposed(ops: Sequence[Op]) -> Sequence[Op]:
    """The same ops with evaluated copies of their transposed matrices for the backward pass, where a copy can be made.

    With OptiX, a product with a transposed matrix is slower. This cannot be called in symbolic code.
    """

    copies: list[Any] = []

    def copied(op: Any) -> Any:
        copy = _transposed(op)
        if copy is None:
            return op
        copies.append(copy.buffer)
        return op.multiplied(Copies(None, ([copy], False)))

    result = [op.map(copied) for op in ops]
    dr.eval(copies)
    return result


def _transposed(op: Any) -> Any:
    """A copy of the transposed matrix of ``op`` in the layout of the matrix; ``None`` if the layout is not known."""
    view, layout = op.weights, op.layout
    if dr.backend_v(view.buffer) == dr.JitBackend.LLVM:
        return _entries(view, True, 0, view.shape[1], turned=False)
    if layout is None or layout.transposed is None or layout.transposed.layout != view.layout:
        return None
    there = layout.origins != GAP
    entries = dr.gather(type(view.buffer), dr.detach(view.buffer), view.offset + layout.origins, there)
    return views.changed(layout.transposed, buffer=entries)


def between_kernels(ops: Sequence[Op]) -> list[Op]:
    """The same ops, with :class:`BetweenKernels` for layers that are large enough; its arrays are evaluated."""

    def moved(op: Any) -> Any:
        return op.multiplied(BetweenKernels(op)) if any(between(op.weights.shape)) else op

    result = [op.map(moved) for op in ops]
    dr.eval([[op.multiplier.entries, op.multiplier.bias] for op in affine(result) if op.multiplier.between_kernels])
    return result


def _copy(view: Any, transposed: bool) -> tuple[list, bool] | None:
    """Blocks of rows of a copy of the matrix, or of its transpose, and whether they are stored transposed.

    ``None`` if a copy is not faster.
    """
    matrix = described(view, transposed, copies=True)
    way = way_of(matrix)
    if way == "panels":
        bounds = _bounds(matrix.rows, limits.PANEL_ROWS)
        return [_entries(view, transposed, start, stop, turned=True) for start, stop in bounds], True
    if way == "turned copy":
        return _row_blocks(_entries(view, transposed, 0, matrix.rows, turned=False), matrix), False
    return None


def described(view: Any, transposed: bool, copies: bool = False) -> Matrix:
    """The properties of a packed matrix on which :data:`~.strategies.MATRICES` depends."""
    rows, columns = reversed(view.shape) if transposed else view.shape
    cpu = dr.backend_v(view.buffer) == dr.JitBackend.LLVM
    plain = cpu and not view.transpose and view.stride == view.shape[1] and not dr.grad_enabled(view.buffer)
    return Matrix(rows, columns, dr.itemsize_v(view.buffer), core.llvm_lanes(), transposed, plain, copies)


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


def _entries(view: Any, transposed: bool, start: int, stop: int, turned: bool) -> Any:
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

    def __init__(self, op: Any):
        m, n = op.weights.shape
        buffer = op.weights.buffer
        single, uint32 = dr.float32_array_t(type(buffer)), dr.uint32_array_t(type(buffer))
        self.outputs, self.inputs = m, n
        self.forth, self.back = between((m, n))
        self.rows, self.columns, self.bias = columns(m, 4), columns(n, 4), None
        i = dr.arange(uint32, self.rows * self.columns)
        row, column = i // self.columns, i % self.columns
        inside = (row < m) & (column < n)
        #: The matrix, padded with zeros to whole packets. It must be evaluated before use.
        self.entries = single(dr.gather(type(buffer), buffer, views.places(op.weights, row, column), inside))
        if op.bias is not None:
            row = dr.arange(uint32, self.rows)
            self.bias = single(dr.gather(type(buffer), op.bias.buffer, views.places(op.bias, row), row < m))

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


def first(vector: Any, count: int) -> Any:
    """The first ``count`` components of ``vector``."""
    return vector if len(vector) == count else drnn.CoopVec(list(vector)[:count])


def differentiate(y: Any) -> None:
    """Differentiate the sum of the components of ``y`` in reverse mode; gradients are added to its inputs."""
    components = list(y)
    for v in components:
        dr.set_grad(v, 1)
        dr.enqueue(dr.ADMode.Backward, v)
    dr.traverse(dr.ADMode.Backward)
