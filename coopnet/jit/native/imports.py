"""Noticing that code makes Dr.Jit arrays of the memory of NumPy or PyTorch.

On the CPU, Dr.Jit reads such memory in place. If a function is being recorded when the array is freed, Dr.Jit ends the
process. So code is to be looked at before it is recorded. Dr.Jit attaches a function to each of these arrays, and logs
that it does. Relies on this message, and on the mangled name of ``jit_set_log_level_callback``. Checked with Dr.Jit
1.5.0; without them, and on GPUs, where such memory is copied, nothing is noticed.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager

import drjit as dr
import drjit.llvm
import numpy as np

from .core import function

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p)
_MESSAGE = re.compile(rb"jit_var_set_callback\(r\d+\): <(0x[0-9a-f]+)>")


@contextmanager
def imports() -> Iterator[list[bytes]]:
    """A list that is not empty after the block if Dr.Jit arrays of the memory of other libraries were made in it."""
    found: list[bytes] = []
    with _attached() as addresses:
        yield found
    found += [address for address in addresses if address == _of_arrays()]


@functools.cache
def _of_arrays() -> bytes | None:
    """The address of the function that Dr.Jit attaches to arrays of other memory, or ``None`` if it is not known."""
    if not dr.has_backend(dr.JitBackend.LLVM):
        return None
    with _attached() as addresses:
        drjit.llvm.Float(np.zeros(2, np.float32))
    return addresses[0] if len(addresses) == 1 else None


@contextmanager
def _attached() -> Iterator[list[bytes]]:
    """The addresses of functions that Dr.Jit attaches to variables in the block."""
    found: list[bytes] = []

    def note(level: int, message: bytes) -> None:
        if match := _MESSAGE.match(message):
            found.append(match[1])

    callback, set_level = _CALLBACK(note), function("_Z26jit_set_log_level_callback8LogLevelPFvS_PKcE")
    if set_level is None:
        yield found
        return
    level, collects = dr.log_level(), gc.isenabled()
    # Dr.Jit may hold its lock while it calls. Collecting garbage then could free a variable, which needs the lock.
    gc.disable()
    set_level(dr.LogLevel.Debug.value, callback)
    try:
        yield found
    finally:
        dr.set_log_level(level)
        if collects:
            gc.enable()
