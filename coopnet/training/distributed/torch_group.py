"""Groups of ``torch.distributed``: NCCL between GPUs, Gloo between CPUs; and the group for an argument."""

from __future__ import annotations

import atexit
import datetime
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import drjit as dr

from ...checks import check, check_above
from ...field import NeuralField
from ...jit.native.core import cuda_device, cuda_stream
from .group import Group

#: Environment variables that torchrun sets, and ``torch.distributed`` needs.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

#: Communicators that were made, by (default group of torch.distributed, engine, time limit).
_made: dict[tuple[Any, str, float], Any] = {}


class TorchGroup(Group):
    """All processes of ``torch.distributed``, which is initialized from the variables of ``torchrun`` if necessary.

    Gradients go through NCCL between GPUs and Gloo between CPUs, without being copied first; everything else goes
    through Gloo. The communicators are its own, so messages of the program cannot interfere.

    Args:
        backend: ``"llvm"`` or ``"cuda"``, where the field is.
        chunks: as in :class:`Group`.
        timeout: seconds that processes wait for each other before they give up. This must include the time to compile
            the first step, and the time of metrics, in which the other processes wait for process 0.

    Raises:
        ImportError: PyTorch is not installed, or was built without ``torch.distributed``.
        ValueError: an argument is out of range; ``torch.distributed`` is not initialized and not all of ``RANK``,
            ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` are in the environment.
        RuntimeError: the other processes do not appear.

    >>> import os
    >>> group = cn.training.TorchGroup("cuda", timeout=120) if "RANK" in os.environ else None
    >>> cn.fit(field, batch, 1000, distributed=group)
    """

    def __init__(self, backend: str, *, chunks: int | None = None, timeout: float = 600.0):
        super().__init__(chunks=chunks)
        check(backend in ("llvm", "cuda"), "TorchGroup", "backend", backend, '"llvm" or "cuda"')
        self.timeout = check_above("TorchGroup", "timeout", timeout)
        self._torch = _import()
        self._distributed = self._torch.distributed
        self._limit = datetime.timedelta(seconds=self.timeout)
        with self._waiting():
            if not self._distributed.is_initialized():
                missing = [name for name in VARIABLES if name not in os.environ]
                if missing:
                    hint = "start the program with torchrun"
                    raise ValueError(f"TorchGroup: the environment lacks {', '.join(missing)}; {hint}.")
                self._initialize()
            self.rank, self.size = self._distributed.get_rank(), self._distributed.get_world_size()
            self._engine = "nccl" if backend == "cuda" else "gloo"
            for engine in ("gloo", self._engine):
                self._communicator(engine)

    def sum(self, array: Any) -> Any:
        """As :meth:`Group.sum`. On a GPU the host does not wait: the sum is queued in Dr.Jit's own stream."""
        if self.size == 1:
            return array
        group = self._communicator(self._engine)
        with self._waiting():
            if dr.backend_v(array) == dr.JitBackend.CUDA:
                stream = self._torch.cuda.ExternalStream(cuda_stream(), self._torch.device("cuda", cuda_device()))
                with self._torch.cuda.stream(stream):
                    self._distributed.all_reduce(self._torch.from_dlpack(array), group=group)
            else:
                # A copy, because Gloo's thread may hold its array last. Returning Dr.Jit's memory from that thread may
                # end in a deadlock: it holds Python's lock and waits for Dr.Jit's, whose holder waits for Python's.
                numbers = array.numpy()  # Dr.Jit's memory, once it has been written
                total = self._torch.from_numpy(numbers).clone()
                self._distributed.all_reduce(total, group=group)
                numbers[:] = total.numpy()
        return array

    def gather(self, value: Any) -> list:
        """As :meth:`Group.gather`."""
        values = [None] * self.size
        with self._waiting():
            self._distributed.all_gather_object(values, value, group=self._communicator("gloo"))
        return values

    def broadcast(self, value: Any) -> Any:
        """As :meth:`Group.broadcast`."""
        values = [value]
        with self._waiting():
            self._distributed.broadcast_object_list(values, src=0, group=self._communicator("gloo"))
        return values[0]

    def _initialize(self) -> None:
        store, rank, size = next(self._distributed.rendezvous("env://", timeout=self._limit))
        if os.environ.get("GROUP_WORLD_SIZE") == "1":
            # After a restart, torchrun's store still has the addresses of the old processes (PyTorch 2.13).
            # Every host counts its own restarts, so this does not work with several hosts: docs/distributed.md.
            store = self._distributed.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        self._distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=self._limit)

    def _communicator(self, engine: str) -> Any:
        """One communicator for all equal groups: making it takes time, and with NCCL also memory of the GPU."""
        made = (self._distributed.group.WORLD, engine, self.timeout)
        if made not in _made:
            _made[made] = self._distributed.new_group(backend=engine, timeout=self._limit)
        return _made[made]

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """A block that waits for other processes; errors of ``torch.distributed`` in it get a clear message."""
        try:
            yield
        except RuntimeError as error:
            rank = os.environ.get("RANK", self.rank)  # its own, also where joining the group has failed
            reason = f"another process has died, or did not respond within {self.timeout:g} s"
            raise RuntimeError(f"TorchGroup: process {rank} got no answer: {reason} ({_short(error)}).") from error


@atexit.register
def _end() -> None:
    """Ends Gloo's communicators while Python still runs.

    Gloo's threads may hold Python objects slightly longer than their exchange takes. Releasing them needs Python's
    lock; if the interpreter has ended, that aborts the process (PyTorch 2.13, pytorch#190489).
    """
    while _made:
        (_, engine, _), communicator = _made.popitem()
        if engine == "gloo":
            with suppress(ValueError):  # the program has destroyed it, or all
                sys.modules["torch"].distributed.destroy_process_group(communicator)


def _short(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


def _import() -> Any:
    try:
        import torch
    except ImportError:
        raise ImportError("TorchGroup needs PyTorch; pip install torch, or coopnet[distributed].") from None
    if not torch.distributed.is_available():
        raise ImportError("TorchGroup needs torch.distributed, which this PyTorch was built without.")
    return torch


def find_group(where: str, distributed: Any, field: Any) -> Group | None:
    """The group for the argument ``distributed`` and a ``field``; without a field, one for LLVM."""
    if distributed is None or isinstance(distributed, Group):
        return distributed
    automatic = isinstance(distributed, str) and distributed == "auto"
    check(automatic, where, "distributed", distributed, 'None, "auto" or a coopnet.training.Group', TypeError)
    if not is_there():
        return None
    first = next(iter(field.values()), None) if isinstance(field, NeuralField) and field.precision else None
    on_gpu = first is not None and dr.backend_v(first) == dr.JitBackend.CUDA
    return TorchGroup("cuda" if on_gpu else "llvm")


def is_there() -> bool:
    """Is ``torch.distributed`` initialized, or has torchrun started this process?"""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    initialized = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return initialized or all(name in os.environ for name in VARIABLES)
