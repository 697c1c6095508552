"""Noticing that code reads values of arrays by NumPy or another library.

In a function that is being recorded, Dr.Jit raises an error for ``x[0]`` and ``print(x)``. But ``x.numpy()`` returns
what is in memory at that time, which then is a constant of the recording. So code is to be looked at before it is
recorded. Relies on the methods of ``drjit.ArrayBase`` being replaceable. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import drjit as dr

from ..context import Context

#: Methods by which other libraries get an array's values.
_METHODS = ("numpy", "torch", "jax", "__array__", "__dlpack__")
#: The list of the innermost block of this thread.
_noted = Context("values that are read", None)


@contextmanager
def reads() -> Iterator[list[str]]:
    """The names of the methods by which this thread reads values of arrays in the block.

    Blocks of different threads must not overlap: those of :func:`coopnet.fit` are in its turn.
    """
    found: list[str] = []
    originals = {name: getattr(dr.ArrayBase, name) for name in _METHODS}
    try:
        for name, method in originals.items():
            setattr(dr.ArrayBase, name, _noting(name, method))
        with _noted(found):
            yield found
    finally:
        for name, method in originals.items():
            setattr(dr.ArrayBase, name, method)


def _noting(name: str, method: Callable) -> Callable:
    @functools.wraps(method)
    def noting(*args: Any, **more: Any) -> Any:
        found = _noted.get()
        if found is not None:
            found.append(name)
        return method(*args, **more)

    return noting
