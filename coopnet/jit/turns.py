"""A lock that training threads take in turn.

Dr.Jit 1.5 replays frozen functions with global variables of the process, so two threads in such functions raise or
abort. It also traverses their arguments while it holds its lock. If Python then switches to another thread that uses
Dr.Jit, both wait forever. So a thread in :func:`coopnet.fit` holds :data:`TURNS` from the start to the end of its run,
and lets other threads have it between two steps. ``docs/reliability.md`` says why ``threading.Lock`` does not suffice.
Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import ParamSpec, TypeVar

#: Seconds that a thread trains before it hands the lock to a waiting thread: many short steps, so that the change costs
#: little.
TURN_SECONDS = 0.02

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Turns:
    """A reentrant lock that goes to the thread that has waited longest, and raises an error if its owner waits for a
    thread that waits for the lock.

    Only ``owner`` determines which thread holds it, so that an exception at any moment, such as Ctrl-C, leaves it
    either held or free.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.queue: deque[int] = deque()
        self.owner: int | None = None
        self.depth, self.since = 0, 0.0

    def held(self) -> bool:
        """Does this thread hold the lock?"""
        return self.owner == threading.get_ident()

    def __enter__(self) -> None:
        if self.held():
            self.depth += 1
        else:
            self._take()

    def __exit__(self, *_: object) -> None:
        if not self.held():  # Ctrl-C while it waited for its next turn
            return
        self.depth -= 1
        if self.depth == 0:
            self._leave()

    def hand_on(self) -> None:
        """Let another thread have the lock, if one waits and this thread has held it long enough. Does nothing while
        the lock is held twice.
        """
        if self.queue and self.depth == 1 and time.monotonic() - self.since >= TURN_SECONDS:
            self._leave()
            self._take()

    def _take(self) -> None:
        me = threading.get_ident()
        try:
            with self.condition:
                self.queue.append(me)
                while self.owner is not None or self.queue[0] != me:
                    self._check_owner()
                    self.condition.wait(1)
                self.owner, self.depth, self.since = me, 1, time.monotonic()
                self.queue.popleft()
        except BaseException:
            with self.condition:
                if me in self.queue:
                    self.queue.remove(me)
                if self.held():
                    self.owner = None
                self.condition.notify_all()
            raise

    def _leave(self) -> None:
        with self.condition:
            self.owner = None
            self.condition.notify_all()

    def _check_owner(self) -> None:
        """Raise ``RuntimeError`` if the thread that holds the lock waits for this one to end: a deadlock."""
        frame: FrameType | None = sys._current_frames().get(self.owner or 0)
        me = threading.current_thread()
        while frame is not None:
            waits = frame.f_code is threading.Thread.join.__code__ and frame.f_locals.get("timeout") is None
            if waits and frame.f_locals.get("self") is me:
                problem = f"the thread that trains waits for {me.name!r}, which was to train as well"
                hint = "a callback of fit may call fit itself, but not wait for a thread that does"
                raise RuntimeError(f"fit: {problem}; {hint}.")
            frame = frame.f_back

    def forget(self) -> None:
        """Reset the lock in a forked process, which does not have the thread that held it."""
        self.__init__()  # type: ignore[misc]


TURNS = Turns()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TURNS.forget)


def exclusive() -> Turns:
    """A ``with`` block in which no other thread of this process trains.

    Use it in threads that use Dr.Jit in any way while others are in :func:`coopnet.fit`: to build and evaluate fields,
    render with Mitsuba, or call frozen functions. Without it, Dr.Jit 1.5 may raise, abort the process, or hang. It
    waits until the running step, metric or checkpoint is done, and may be nested. :func:`coopnet.fit` inside it keeps
    all other threads out until it ends. The metric of a run does not need it: the run holds the lock when it calls it.

    Raises:
        RuntimeError: the thread that trains is in a callback that waits for this one.

    >>> with cn.training.exclusive():
    ...     picture = field(p)
    """
    return TURNS


def in_turn(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """``function``, called while its thread holds the lock, until its arrays are released."""

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with TURNS:
            return function(*args, **kwargs)

    return wrapper
