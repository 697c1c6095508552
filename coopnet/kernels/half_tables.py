"""Gradients of half-precision tables in symbolic loops, conditionals and calls.

Dr.Jit's own derivative of a lookup adds up in the table's precision, where long sums stall. Here they are added up in a
single-precision array, which is rounded when the loop or conditional is left. Outside, sums are made by
:mod:`.lookup` and :mod:`.grid` themselves.
"""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..jit.deferred import deferred_buffer


def buffer_in_scope(table: Any) -> Any:
    """What an operation that calls :func:`sums_in_scope` must have as an input."""
    _ = table * 1  # as for networks: without this, Dr.Jit would not record that the scope depends on the table
    return deferred_buffer(table).buffer


def sums_in_scope(table: Any) -> Any:
    """The array, in single precision, to which derivatives with respect to ``table`` are added in this scope."""
    deferred = deferred_buffer(table)
    if not deferred.waits():
        _refuse()
    return deferred.once("table", lambda: _ScopeSums(table)).sums


def without_gradient(values: list) -> list:
    """``values`` read from a table in a call, where there is no place for sums: their gradients are refused."""
    return dr.custom(_NoSums, values)


class _ScopeSums:
    def __init__(self, table: Any):
        self.table = type(table)
        self.sums = dr.opaque(dr.float32_array_t(self.table), 0, (dr.width(table),))

    def sum(self) -> Any:
        return self.table(self.sums)


class _NoSums(dr.CustomOp):
    """Returns values as they are, and refuses their gradients."""

    def eval(self, values: list) -> list:  # type: ignore[override]
        return values

    def forward(self) -> None:
        self.set_grad_out(self.grad_in("values"))

    def backward(self) -> None:
        _refuse()

    def name(self) -> str:
        return "coopnet: values of a half-precision table"


def _refuse() -> None:
    raise RuntimeError(
        "Inside a symbolic call, or by dr.backward() inside a symbolic loop or conditional, the gradient of a "
        "half-precision table or grid would add up in half precision, whose sums stall; give precision='single', "
        "evaluate outside, differentiate outside the loop, or call dr.disable_grad() for the table's 'data'."
    )
