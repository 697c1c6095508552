"""Rows of a table, looked up by index, and the gradient of the table."""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..jit.kinds import nested_type
from ..jit.scopes import symbolic
from ..jit.unpacked import Hidden
from . import half_tables
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
        return dr.custom(_LookupOp, Hidden((data.shape, leaf, ordered)), flat, index, active)
    if not dr.is_half_v(flat):
        return _read(flat, data.shape[1], index, active, leaf)
    return [leaf(v) for v in half_tables.read(flat, index, active, data.shape[1], "Embedding")]


def _read(flat: Any, width: int, index: Any, active: Any, leaf: type) -> list:
    rows = dr.gather(nested_type(type(flat)), flat, index, active, shape=(width, dr.width(index)))
    return [leaf(v) for v in rows]


class _LookupOp(dr.CustomOp):
    """Looks up rows. The backward pass sums their gradients by row."""

    def eval(self, settings: Hidden, data: Any, index: Any, active: Any) -> list:  # type: ignore[override]
        self.shape, self.leaf, self.ordered = settings.value
        self.table, self.index, self.active = type(data), index, active
        return _read(data, self.shape[1], index, active, self.leaf)

    def forward(self) -> None:
        self.set_grad_out(_read(self.grad_in("data"), self.shape[1], self.index, self.active, self.leaf))

    def backward(self) -> None:
        count, width = self.shape
        double = dr.type_v(self.table) == dr.VarType.Float64
        wide = dr.float64_array_t(self.table) if double else dr.float32_array_t(self.table)
        dy = [wide(v) for v in self.grad_out()]
        if self.ordered:
            sums = sum_rows(dy, dr.select(self.active, self.index, count), count)
        else:
            sums = dr.zeros(wide, count * width)
            dr.scatter_reduce(dr.ReduceOp.Add, sums, nested_type(wide)(dy), self.index, self.active)
        self.set_grad_in("data", self.table(sums))

    def name(self) -> str:
        return "coopnet: lookup"
