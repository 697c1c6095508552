"""Keeps Python's garbage collector out of functions that Dr.Jit records. Checked with Dr.Jit 1.5.0."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_running = 0  #: blocks that are open, in all threads
_was_enabled = False


@contextmanager
def no_collection() -> Iterator[None]:
    """Switches Python's cyclic garbage collector off, from the start of the first such block to the end of the last.

    If it freed an array that shares memory with NumPy while Dr.Jit records a frozen function, the process would abort.
    A thread must hold the lock of :mod:`.turns` when it enters and leaves, so that no other thread records meanwhile.
    """
    global _running, _was_enabled
    if _running == 0:
        _was_enabled = gc.isenabled()
        gc.collect()
        gc.disable()
    _running += 1
    try:
        yield
    finally:
        _running -= 1
        if _running == 0 and _was_enabled:
            gc.enable()
