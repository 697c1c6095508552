"""Functions that ``drjit.nn.MatrixView`` lacks: positions of entries, and changed copies of views.

Relies on the fields of a view being those of its ``DRJIT_STRUCT``, which can be set, and on ``drjit.nn.pack`` keeping
the buffer of all matrices as the module's ``_packed_buffer``. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from typing import Any

import drjit as dr
import drjit.nn as drnn

from .layout import Layout
from .masks import unmasked


def places(view: Any, row: Any, column: Any = 0, layout: Layout | None = None, active: Any = True) -> Any:
    """Positions in ``view.buffer`` of entries ``(row, column)`` of a packed matrix, or entries ``row`` of a vector.

    This evaluates nothing, and can be recorded by ``dr.freeze``.

    Args:
        view: a ``drjit.nn.MatrixView``.
        row, column: ``UInt32``; ``column`` may be an int.
        layout: the layout of the matrix; if ``None``, it is looked up when needed.
        active: which entries to look up; the positions of others are arbitrary.

    Raises ``RuntimeError`` if the hardware's layout is not known.
    """
    uint32 = type(row)
    if view.transpose:
        row, column = column, row
    if view.layout != "row_major" and dr.backend_v(view.buffer) == dr.JitBackend.CUDA and layout is None:
        layout = Layout.find(dr.tensor_t(type(view.buffer)), tuple(view.shape), False)
        if layout is None:
            problem = f"the packed layout of a {view.shape[0]} x {view.shape[1]} matrix is not known"
            raise RuntimeError(f"places: {problem}; use layers of at most 2047 features.")
    if layout is None:
        return view.offset + row * view.stride + column
    with unmasked(uint32):
        return view.offset + dr.gather(uint32, layout.places, row * view.shape[1] + column, active)


def changed(view: Any, **fields: Any) -> Any:
    """A copy of ``view`` with some of its fields, such as ``buffer`` and ``offset``, replaced."""
    copy, known = drnn.MatrixView(), type(view).DRJIT_STRUCT
    if not fields.keys() <= known.keys():
        raise TypeError(f"changed: a view has no {', '.join(fields.keys() - known.keys())}; it has {', '.join(known)}.")
    for name in known:
        setattr(copy, name, getattr(view, name))
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


def rows(view: Any, start: int, stop: int) -> Any:
    """A view of the rows ``start`` to ``stop`` of a row-major matrix or a vector."""
    count, columns = stop - start, view.shape[1] if len(view.shape) > 1 else 1
    offset = view.offset + start * view.stride
    return changed(view, shape=(count, columns), offset=offset, size=count * view.stride)


def packed_attribute(module: Any) -> str | None:
    """Name of the attribute in which ``drjit.nn.pack`` keeps the buffer of all matrices of ``module``, if it does."""
    return "_packed_buffer" if getattr(module, "_packed_buffer", None) is not None else None
