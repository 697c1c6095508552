"""What must not happen in the middle of a step: Ctrl-C, and Python's garbage collector."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Handler:
    """Notes a first Ctrl-C in ``asked``, and raises ``KeyboardInterrupt`` at the next."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked.append(number)


@contextmanager
def interrupts_held() -> Iterator[list]:
    """Holds Ctrl-C back until a step is done: the list is no longer empty then. A second Ctrl-C is not held back.

    An exception inside Dr.Jit's traversal of arguments becomes a ``RuntimeError``, and one between updates leaves the
    parameters of two different steps. Blocks inside each other share the list, so that one Ctrl-C ends all runs. Only
    in the main thread, which alone receives signals, and unless the program handles Ctrl-C itself.
    """
    current = signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread()
    if not here or current is not signal.default_int_handler:
        yield current.asked if here and isinstance(current, _Handler) else []
    else:
        handler = _Handler()
        signal.signal(signal.SIGINT, handler)
        try:
            yield handler.asked
        finally:
            if signal.getsignal(signal.SIGINT) is handler:  # a callback may have set another
                signal.signal(signal.SIGINT, current)


def caused_by_interrupt(error: BaseException | None) -> bool:
    """Is ``error`` a ``KeyboardInterrupt``, or what Dr.Jit made of one?"""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


_running = 0  #: blocks that are open, in all threads
_was_enabled = False


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps Python's cyclic garbage collector away, from the first such block to the end of the last.

    An array taken over from NumPy that it frees while Dr.Jit records a frozen function aborts the process. To be
    entered and left by a thread that has the turn (see :mod:`.turns`), so that no other one records meanwhile.
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
