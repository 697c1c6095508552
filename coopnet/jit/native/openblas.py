"""The number of threads of the OpenBLAS inside NumPy's wheels, set by ``ctypes``.

Relies on the place of the library in wheels, and on the names of its functions. Checked with NumPy 2.4 and, for arrays
in Dr.Jit's memory that BLAS reads, with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import os
from collections.abc import Callable, Iterator

import numpy as np


def available() -> bool:
    """Can NumPy's BLAS be limited to one thread?"""
    return _controls() is not None


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A block in which BLAS uses one thread: its threads spin while they wait, and would slow down those of Dr.Jit."""
    controls = _controls()
    if controls is None:
        yield
        return
    get, set_ = controls
    before = get()
    set_(1)
    try:
        yield
    finally:
        set_(before)


@functools.lru_cache(maxsize=1)
def _controls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Functions that read and set the number of threads, or ``None``."""
    folder = os.path.dirname(np.__file__)
    places = os.path.join(folder, "..", "numpy.libs", "*openblas*"), os.path.join(folder, ".dylibs", "*openblas*")
    for path in [path for place in places for path in glob.glob(place)]:
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            for name in ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}"):
                with contextlib.suppress(AttributeError):
                    get, set_ = (getattr(library, name.format(f"{verb}_num_threads")) for verb in ("get", "set"))
                    return get, set_
    return None
