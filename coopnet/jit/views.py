"""Views of packed matrices, copied and changed: ``drjit.nn.MatrixView`` has no way to."""

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
