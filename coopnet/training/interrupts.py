"""Keeps Ctrl-C out of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Handler:
    """Notes the first signal in the list ``asked``, and raises ``KeyboardInterrupt`` at the second."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked.append(number)


@contextmanager
def interrupts_held() -> Iterator[list]:
    """A block in which Ctrl-C is held back until a step is done: it is noted in the list that the block gets. A second
    Ctrl-C is not held back.

    Otherwise an exception inside Dr.Jit's traversal of arguments would become a ``RuntimeError``, and one between
    updates would leave parameters of two different steps. Nested blocks share the list, so that one Ctrl-C ends all
    runs. This works in the main thread, which alone receives signals, unless the program handles Ctrl-C itself. The
    same holds for SIGTERM, if a program has given it the handler of Ctrl-C.
    """
    here = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if here else {}
    handler = next((h for h in handlers.values() if isinstance(h, _Handler)), None) or _Handler()
    held = [number for number, h in handlers.items() if h is signal.default_int_handler]
    for number in held:
        signal.signal(number, handler)
    try:
        yield handler.asked
    finally:
        for number in held:
            if signal.getsignal(number) is handler:  # a callback may have set another
                signal.signal(number, signal.default_int_handler)


def caused_by_interrupt(error: BaseException | None) -> bool:
    """Is ``error`` a ``KeyboardInterrupt``, or an error of Dr.Jit caused by one?"""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        if isinstance(error, KeyboardInterrupt):
            return True
        visited.add(id(error))
        error = error.__cause__ or error.__context__
    return False
