"""Noticing that code reads values of arrays by NumPy or another library.

In a function that is being recorded, Dr.Jit raises an error for ``x[0]`` and ``print(x)``. But ``x.numpy()`` returns
what is in memory at that time, which then is a constant of the recording. So code is to be looked at before it is
recorded. Relies on the methods of ``drjit.ArrayBase`` being replaceable. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import drjit as dr

from ..context import Context

#: Methods by which other libraries get an array's values.
_METHODS = ("numpy", "torch", "jax", "__array__", "__dlpack__")
#: The list of the innermost block of this thread.
_noted = Context("values that are read", None)
_lock = threading.Lock()
_blocks = 0  # of all threads
_originals: dict[str, Callable] = {}


@contextmanager
def reads() -> Iterator[list[str]]:
    """The names of the methods by which this thread reads values of arrays in the block."""
    found: list[str] = []
    _replace(1)
    try:
        with _noted(found):
            yield found
    finally:
        _replace(-1)


def _replace(more: int) -> None:
    """Replace the methods when the first block begins, and restore them when the last ends."""
    global _blocks
    with _lock:
        _blocks += more
        if more > 0 and _blocks == 1:
            for name in _METHODS:
                _originals[name] = getattr(dr.ArrayBase, name)
                setattr(dr.ArrayBase, name, _noting(name, _originals[name]))
        elif _blocks == 0:
            for name in _METHODS:
                setattr(dr.ArrayBase, name, _originals.pop(name))


def _noting(name: str, method: Callable) -> Callable:
    @functools.wraps(method)
    def noting(*args: Any, **more: Any) -> Any:
        found = _noted.get()
        if found is not None:
            found.append(name)
        return method(*args, **more)

    return noting
