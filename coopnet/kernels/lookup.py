"""Rows of a table, looked up by index, and the gradient of the table."""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..jit.deferred import deferred_buffer
from ..jit.kinds import nested_type
from ..jit.scopes import inside_call, symbolic
from .segment_sum import sum_rows


class Table:
    """Holds numbers as the attribute ``data``, as all parameters outside the packed buffer do."""

    DRJIT_STRUCT = {"data": dr.ArrayBase}

    def __init__(self, data: Any = None):
        self.data = data


def lookup(data: Any, index: Any, active: Any, leaf: type, ordered: bool) -> list:
    """Rows ``index`` of the tensor ``data`` as a list of ``data.shape[1]`` arrays of type ``leaf``.

    Only rows that are read are converted to ``leaf``. The gradient of the table is summed in single precision (double
    for double tables) and rounded once.

    Args:
        data: floating point tensor ``(count, width)``.
        index: ``UInt32``, below ``count`` where ``active``.
        active: mask of the samples that read a row; the others get zeros.
        ordered: sum the gradient in a fixed order, where arrays can be evaluated, instead of with atomics?

    Raises:
        RuntimeError: in the backward pass of half-precision tables in calls, or by ``dr.backward`` within a symbolic
            scope. Gradients would add up in half precision there.
    """
    flat = data.array
    if not dr.grad_enabled(flat):
        return _read(flat, data.shape[1], index, active, leaf)
    if not symbolic():
        return dr.custom(_LookupOp, _Settings(data.shape, leaf, ordered), flat, index, active)
    if not dr.is_half_v(flat):
        return _read(flat, data.shape[1], index, active, leaf)
    if inside_call(leaf):
        rows = _read(flat, data.shape[1], index, active, type(flat))
        return [leaf(v) for v in dr.custom(_NoHalfSums, rows)]
    _ = flat * 1  # as for networks: without this, Dr.Jit would not record that the scope depends on the table
    settings = _Settings(data.shape, leaf, False, flat)
    return dr.custom(_ScopeLookupOp, settings, flat, index, active, deferred_buffer(flat).buffer)


def _read(flat: Any, width: int, index: Any, active: Any, leaf: type) -> list:
    rows = dr.gather(nested_type(type(flat)), flat, index, active, shape=(width, dr.width(index)))
    return [leaf(v) for v in rows]


class _Settings:
    """Arguments of :class:`_LookupOp` that Dr.Jit does not traverse."""

    def __init__(self, shape: tuple[int, int], leaf: type, ordered: bool, origin: Any = None):
        self.shape, self.leaf, self.ordered, self.origin = shape, leaf, ordered, origin


class _LookupOp(dr.CustomOp):
    """Looks up rows. The backward pass sums their gradients by row."""

    def eval(  # type: ignore[override]
        self, settings: _Settings, data: Any, index: Any, active: Any, later: Any = None
    ) -> list:
        self.settings, self.table, self.index, self.active = settings, type(data), index, active
        return _read(data, settings.shape[1], index, active, settings.leaf)

    def forward(self) -> None:
        width, leaf = self.settings.shape[1], self.settings.leaf
        self.set_grad_out(_read(self.grad_in("data"), width, self.index, self.active, leaf))

    def backward(self) -> None:
        count, width = self.settings.shape
        double = dr.type_v(self.table) == dr.VarType.Float64
        wide = dr.float64_array_t(self.table) if double else dr.float32_array_t(self.table)
        dy = [wide(v) for v in self.grad_out()]
        if self.settings.ordered:
            sums = sum_rows(dy, dr.select(self.active, self.index, count), count)
        else:
            sums = dr.zeros(wide, count * width)
            dr.scatter_reduce(dr.ReduceOp.Add, sums, nested_type(wide)(dy), self.index, self.active)
        self.set_grad_in("data", self.table(sums))

    def name(self) -> str:
        return "coopnet: lookup"


class _ScopeLookupOp(_LookupOp):
    """:class:`_LookupOp` for a half-precision table inside a symbolic loop or conditional.

    Gradients are added up in a single-precision array, and rounded when the scope is left. ``later`` is the buffer of
    the table's :class:`Deferred`.
    """

    def backward(self) -> None:
        deferred = deferred_buffer(self.settings.origin)
        if not deferred.waits():
            _refuse()
        sums = deferred.once("lookup", lambda: _ScopeSums(self.settings.origin))
        sums.add([sums.single(v) for v in self.grad_out()], self.index, self.active)


class _ScopeSums:
    """Sums of rows in a symbolic scope, in single precision."""

    def __init__(self, table: Any):
        self.table, self.single = type(table), dr.float32_array_t(type(table))
        self.sums = dr.opaque(self.single, 0, (dr.width(table),))

    def add(self, rows: list, index: Any, active: Any) -> None:
        dr.scatter_reduce(dr.ReduceOp.Add, self.sums, nested_type(self.single)(rows), index, active)

    def sum(self) -> Any:
        return self.table(self.sums)


class _NoHalfSums(dr.CustomOp):
    """Returns rows as they are, and refuses their gradients."""

    def eval(self, rows: list) -> list:  # type: ignore[override]
        return rows

    def forward(self) -> None:
        self.set_grad_out(self.grad_in("rows"))

    def backward(self) -> None:
        _refuse()

    def name(self) -> str:
        return "coopnet: rows of a half-precision table"


def _refuse() -> None:
    raise RuntimeError(
        "Embedding: inside a symbolic call, or by dr.backward() inside a symbolic loop or conditional, the gradient of "
        "a half-precision table would add up in half precision, whose sums stall; give precision='single', look rows "
        "up outside, or differentiate outside the loop."
    )
