"""Rows of half-precision tables in symbolic loops, conditionals and calls.

Dr.Jit's own derivative of a lookup adds up in the table's precision, where long sums stall. Here, derivatives are added
up in a single-precision array, which is rounded when the loop or conditional is left. In a call there is no place for
it, so they are refused. Elsewhere :mod:`.lookup` and :mod:`.grid` make the sums.
"""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..jit.deferred import deferred_buffer
from ..jit.kinds import nested_type
from ..jit.scopes import inside_call
from ..jit.unpacked import Hidden


def read(table: Any, index: Any, active: Any, count: int, where: str) -> list:
    """Rows ``index`` of ``table``, ``count`` entries each, in single precision; zeros where not ``active``.

    Raises ``RuntimeError``, whose message begins with ``where``, in the backward pass of a call, or of ``dr.backward``
    within the loop or conditional.
    """
    if inside_call(type(table)):
        return dr.custom(_NoSums, where, _rows(table, index, active, count))
    _ = table * 1  # an ordinary operation, by which Dr.Jit records that the scope depends on the table
    return dr.custom(_Read, Hidden((table, where)), table, index, active, count, deferred_buffer(table).buffer)


def _rows(table: Any, index: Any, active: Any, count: int) -> list:
    rows = dr.gather(nested_type(type(table)), table, index, active, shape=(count, dr.width(index)))
    return list(nested_type(dr.float32_array_t(type(table)))(rows))


class _Read(dr.CustomOp):
    """Reads rows, and adds their derivatives to the sums of the scope. ``buffer`` is differentiated when it is left."""

    def eval(  # type: ignore[override]
        self, hidden: Hidden, table: Any, index: Any, active: Any, count: int, buffer: Any
    ) -> list:
        (self.table, self.where), self.rows, self.count = hidden.value, (index, active), count
        return _rows(table, index, active, count)

    def forward(self) -> None:
        self.set_grad_out(_rows(self.grad_in("table"), *self.rows, self.count))

    def backward(self) -> None:
        deferred = deferred_buffer(self.table)
        if not deferred.waits():
            _refuse(self.where)
        sums = deferred.once("table", lambda: _ScopeSums(self.table)).sums
        dr.scatter_reduce(dr.ReduceOp.Add, sums, nested_type(type(sums))(self.grad_out()), *self.rows)

    def name(self) -> str:
        return "coopnet: rows of a half-precision table"


class _ScopeSums:
    def __init__(self, table: Any):
        self.table = type(table)
        self.sums = dr.opaque(dr.float32_array_t(self.table), 0, (dr.width(table),))

    def sum(self) -> Any:
        return self.table(self.sums)


class _NoSums(dr.CustomOp):
    """Returns values as they are, and refuses their gradients."""

    def eval(self, where: str, values: list) -> list:  # type: ignore[override]
        self.where = where
        return values

    def forward(self) -> None:
        self.set_grad_out(self.grad_in("values"))

    def backward(self) -> None:
        _refuse(self.where)

    def name(self) -> str:
        return "coopnet: values of a half-precision table"


def _refuse(where: str) -> None:
    raise RuntimeError(
        f"{where}: inside a symbolic call, or by dr.backward() inside a symbolic loop or conditional, the gradient of "
        "'data' with precision='half' would add up in half precision, whose sums stall; give precision='single', "
        "evaluate outside, differentiate outside the loop, or call dr.disable_grad() for 'data'."
    )
