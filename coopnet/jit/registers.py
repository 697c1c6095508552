"""How kernels with several wide vectors stay within the registers.

A vector of n components takes up to n registers of a thread. Vectors that do not fit are spilled to memory, which takes
longer than the arithmetic (``docs/derivatives.md`` has figures). Two things decide how many fit: the order of a
kernel's operations, and the number of registers that a thread may use. Functions here influence both, and keep
independent networks in one kernel from being interleaved.

Relies on ``detail.new_scope`` being a barrier in the order of operations, and on Dr.Jit raising OptiX's
``maxRegisterCount`` for kernels with long products, including products that never run. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from . import views
from .literals import is_literal, never
from .scopes import continue_scope, scope_id

#: Components in use at a time that fit into a thread's usual share of the registers.
SHARE = 128
#: Components in use at a time beyond which not even all registers suffice.
ALL = 256
#: Length of a vector beyond which Dr.Jit gives threads all registers (``maxRegisterCount``) by itself.
LONG = 64


def in_order(backend: dr.JitBackend) -> None:
    """Make kernels compute everything traced before this call before everything traced after it.

    By default, Dr.Jit orders operations depth first, output after output. It would compute the value at every layer
    before the first tangent at the first layer, and all values would stay in registers until the last tangent is done.
    """
    dr.detail.new_scope(backend)


def request_registers(parts: Sequence[Any], views: Sequence[Any], used: int) -> list[Any]:
    """The components ``parts`` of a vector, in a kernel whose threads have registers for ``used`` components at a time.

    If threads may use all registers, fewer of them run at a time, so this is done only where it pays. Dr.Jit allows all
    registers in kernels that multiply a vector longer than :data:`LONG`. So this function adds such a product, with the
    memory of one of ``views``, under a condition that never holds. Dr.Jit does not detect this, but the compiler does,
    and removes the product.
    """
    parts = list(parts)
    if dr.backend_v(parts[0]) != dr.JitBackend.CUDA or used <= SHARE or not views:
        return parts
    if max(max(view.shape) for view in views) > LONG:
        return parts
    for i, v in enumerate(parts):
        if not is_literal(v):  # with a constant, Dr.Jit would remove the product, too
            parts[i] = _request(v, views[0])
            break
    return parts


def _request(value: Any, view: Any) -> Any:
    """``value``, computed such that Dr.Jit finds a product longer than :data:`LONG`, which is not used."""
    with dr.suspend_grad():
        element, size = dr.detach(value), LONG + 8
        product, *_ = drnn.matvec(_reshaped(view, 8, size), drnn.CoopVec([element] * size))
        impossible = dr.uint32_array_t(type(value))(element < 1) == 2  # the compiler knows it
    return dr.select(impossible, product, value)


def _reshaped(view: Any, rows: int, columns: int) -> Any:
    """A view of the same memory as a matrix of another shape. It may be too large, since it is not read."""
    plain = {"layout": "row_major", "transpose": False, "offset": 0}
    shape = {"shape": (rows, columns), "stride": columns, "size": rows * columns}
    return views.changed(view, buffer=dr.detach(view.buffer), **plain, **shape)


def in_separate_blocks(function: Callable[[list], list], parts: Sequence[Any]) -> list:
    """``function(parts)`` in separate basic blocks, so that the compiler does not mix it with the code around it.

    OptiX interleaves chains of cooperative products that do not depend on each other, and all of their vectors stay in
    registers: ``docs/rendering.md`` has figures. LLVM takes longer to compile a long block than several short ones, and
    spills more of it. A branch under a condition that always holds, which the compiler does not know, prevents both.

    Use it for values without gradients.
    """
    parts = list(parts)
    known = next((v for v in parts if not is_literal(v)), None)
    if known is None:
        return function(parts)
    types: list[type] = []

    def inside(*given: Any) -> tuple:
        out = tuple(function(list(given)))
        types[:] = map(type, out)
        return out

    tp = type(known)
    before = scope_id(tp)
    result = dr.if_stmt(tuple(parts), ~never(known), inside, lambda *_: tuple(t(0) for t in types), mode="symbolic")
    continue_scope(before, tp)
    return list(result)
