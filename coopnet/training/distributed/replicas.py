"""Processes that hold the same field: process 0 acts for all, their arguments must agree, and an error ends all."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import drjit as dr
import numpy as np

from ...checks import shown
from ...jit.native.core import cuda_device
from ...jit.native.cuda import gpu_id
from .. import limits
from ..interrupts import caused_by_interrupt
from .group import Group

_R = TypeVar("_R")


class Replicas:
    """The processes of a ``group`` in a run; by default a single process, for which the methods cost nothing.

    All processes make the same exchanges in the same order. If an error occurs in one, it is noted, and the process
    goes on to its next exchange, where all processes receive the error and raise. Until then, it adds zeros to the
    sums that others wait for.
    """

    def __init__(self, group: Group | None = None):
        self.group = Group() if group is None else group
        self.alone = self.group.size == 1
        self.leads = self.group.rank == 0  #: Does this process write files, show progress and warn?
        self.error: Exception | None = None  #: of this process, until it has been exchanged
        self.failed = False  #: Has any process failed?
        self._pace, self._steps, self._exchanged = 1, 0, time.monotonic()

    # ---- errors -------------------------------------------------------------

    @contextmanager
    def noting(self) -> Iterator[None]:
        """A block whose errors are noted, and raised on all processes at the next exchange; a single process raises
        them.
        """
        try:
            yield
        except Exception as error:
            if self.alone or caused_by_interrupt(error):
                raise
            self.error = self.error or error

    @contextmanager
    def alike(self, what: str) -> Iterator[None]:
        """A block that all processes enter, without an exchange in it; an error in one is raised on all at the end."""
        with self.noting():
            yield
        self.exchange(what)

    def exchange(self, what: Any, value: Any = None) -> list:
        """The small values of all processes; ``what`` names the exchange, which must be the same on all.

        Raises the error that was noted; on other processes it is a ``RuntimeError``.
        """
        if self.alone:
            return [value]
        message = None if self.error is None else _message(self.error)
        self.failed = True  # until it is known that no process has failed
        gathered = self.group.gather((what, message, value))
        if self.error is not None:
            raise self.error
        size = self.group.size
        for rank, (other, error, _) in enumerate(gathered):
            if error is not None:
                raise RuntimeError(f"fit: process {rank} of {size} failed: {error}")
            if other != what:
                order = f"process {rank} of {size} has come to {shown(other)}, but process {self.group.rank} to"
                raise RuntimeError(f"fit: {order} {shown(what)}; all must do the same, in the same order.")
        self.failed = False
        return [value for _, _, value in gathered]

    def once(self, what: Any, function: Callable[[], _R]) -> _R:
        """The result of ``function``, which only process 0 calls; a ``KeyboardInterrupt`` in it is raised on all."""
        if self.alone:
            return function()
        value: Any = None
        interrupted = False
        if self.leads and self.error is None:
            with self.noting():
                try:
                    value = function()
                except (KeyboardInterrupt, RuntimeError) as error:
                    if not caused_by_interrupt(error):
                        raise
                    interrupted = True
        if any(self.exchange(what, interrupted)):
            raise KeyboardInterrupt
        return self.group.broadcast(value)

    # ---- agreement ----------------------------------------------------------

    def agree(self, what: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Raise ``ValueError`` on all processes unless ``facts()`` are equal on all."""
        if self.alone:
            return
        local: dict[str, Any] = {}
        with self.noting():
            local = dict(facts())
        gathered = self.exchange(what, local)
        for name, first in gathered[0].items():
            for rank, other in enumerate(gathered):
                if repr(other.get(name)) != repr(first):
                    self.failed = True
                    both = f"{shown(first)} on process 0 and {shown(other.get(name))} on process {rank}"
                    raise ValueError(f"fit: the processes differ: {name} is {both}; all must train the same.")

    def agree_on(self, what: str, arrays: Callable[[], Mapping[str, Any]]) -> None:
        """Like :meth:`agree`, for a hash of the numbers in ``arrays()``; ``what`` names them in the error."""
        self.agree(what, lambda: {f"a hash of {what}": digest(arrays())})

    def check_gpus(self, backend: dr.JitBackend) -> None:
        """Raise ``ValueError``, on all, if two processes have the same GPU."""
        if self.alone or backend != dr.JitBackend.CUDA:
            return
        owners: dict[Any, int] = {}
        for rank, gpu in enumerate(self.exchange("GPU", (socket.gethostname(), gpu_id(cuda_device())))):
            if gpu in owners:
                self.failed = True
                hint = (
                    "Dr.Jit takes the first that it sees: start with torchrun --virtual-local-rank, or set "
                    "CUDA_VISIBLE_DEVICES to the process's own before coopnet, drjit or mitsuba is imported"
                )
                raise ValueError(f"fit: processes {owners[gpu]} and {rank} have the same GPU of {gpu[0]}. {hint}.")
            owners[gpu] = rank

    def exchange_flags(self, step: int, interrupted: bool, due: bool) -> tuple[bool, bool]:
        """Called before a step: did any process get Ctrl-C, and is a hook due on process 0?

        The processes exchange this before the same steps, a few times a second.
        """
        if self.alone:
            return interrupted, due
        self._steps += 1
        if self._steps < self._pace:
            return False, False
        now = time.monotonic()
        pace = int(self._pace * min(2.0, limits.EXCHANGE_SECONDS / max(now - self._exchanged, 1e-6)))
        gathered = self.exchange(("step", step), (interrupted, due, max(1, min(pace, limits.EXCHANGE_STEPS))))
        self._pace, self._steps, self._exchanged = gathered[0][2], 0, time.monotonic()
        return any(stop for stop, _, _ in gathered), gathered[0][1]


def digest(arrays: Mapping[str, Any]) -> str:
    """A hash of the numbers in Dr.Jit arrays."""
    hashed = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        hashed.update(name.encode())
        hashed.update(np.ascontiguousarray(dr.detach(array).numpy()).data)
    return hashed.hexdigest()[:16]


def _message(error: BaseException) -> str:
    """An error and its first cause as text; errors of Dr.Jit do not name their cause."""
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    said = f"{type(error).__name__}: {error}"
    return said if root is error else f"{said} ({type(root).__name__}: {root})"
