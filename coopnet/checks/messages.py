"""Values in messages, at most a line long."""

from __future__ import annotations

import reprlib
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

#: Characters of a value in a message.
LINE = 60


class _Repr(reprlib.Repr):
    """``repr`` with a few entries and levels only. Of arrays and networks, it shows the type."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, LINE, LINE

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, np.ndarray) and (x.size > 8 or x.dtype.kind not in "biufc"):
            return f"a NumPy array of {x.dtype} and shape {x.shape}"
        if isinstance(x, (dr.ArrayBase, drnn.Module, drnn.CoopVec)):  # values may not be known yet
            return f"a {type(x).__name__}"
        return super().repr1(x, level)

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() < 200 else f"an int of {x.bit_length()} bits"

    def repr_str(self, x: str, level: int) -> str:
        return str.__repr__(str.__getitem__(x, slice(LINE + 1)))

    def repr_bytes(self, x: bytes, level: int) -> str:
        return bytes.__repr__(bytes.__getitem__(x, slice(LINE + 1)))


_repr = _Repr()


def shown(value: Any) -> str:
    """``value`` in a message: its ``repr``, cut to a line.

    Arrays are not evaluated, long containers are not read to their end, and errors in a ``repr`` are caught.
    """
    try:
        text = " ".join(_repr.repr(value).split("\n"))
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= LINE else text[: LINE - 3] + "..."


def shown_typed(value: Any) -> str:
    """``value`` and its type, in a message."""
    return f"{shown(value)} of type {type(value).__name__}"


def shown_path(path: Any) -> str:
    """A path in a message; of a long path, the end."""
    text = " ".join(str(path).split("\n"))
    return text if len(text) <= 200 else "..." + text[-197:]


def shown_bytes(count: int) -> str:
    """A number of bytes in a message, such as 1.5 MiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
