"""Views of packed matrices, copied and changed, which ``drjit.nn.MatrixView`` has no way to; and what they view.

Relies on the fields of a view being those of its ``DRJIT_STRUCT``, which can be set, and on ``drjit.nn.pack`` keeping
the buffer of all matrices as the module's ``_packed_buffer``. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from typing import Any

import drjit.nn as drnn


def changed(view: Any, **fields: Any) -> Any:
    """A copy of ``view`` with some of its fields, such as ``buffer`` and ``offset``, replaced."""
    copy = drnn.MatrixView()
    for name in type(view).DRJIT_STRUCT:
        setattr(copy, name, fields.pop(name) if name in fields else getattr(view, name))
    if fields:
        raise TypeError(f"changed: a view has no {', '.join(fields)}; it has {', '.join(type(view).DRJIT_STRUCT)}.")
    return copy


def packed(module: Any) -> str | None:
    """Name of the attribute in which ``drjit.nn.pack`` keeps the buffer of all matrices of ``module``, if it does."""
    return "_packed_buffer" if getattr(module, "_packed_buffer", None) is not None else None
