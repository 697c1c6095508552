"""Groups of ``torch.distributed``: NCCL between GPUs, Gloo between CPUs; and which group an argument means."""

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

#: What torchrun tells each of its processes, and ``torch.distributed`` needs.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

#: Communicators that were made, by (default group of torch.distributed, engine, time limit).
_made: dict[tuple[Any, str, float], Any] = {}


class TorchGroup(Group):
    """All processes of ``torch.distributed``, which is initialized unless it is already, as ``torchrun`` says.

    Gradients travel by NCCL between GPUs and by Gloo between CPUs, without a copy on their way there; everything else
    by Gloo. The communicators are its own: what the program sends through others cannot come between.

    Args:
        backend: ``"llvm"`` or ``"cuda"``, where the field is.
        chunks: as in :class:`Group`.
        timeout: seconds that processes wait for each other before they give up. The first step takes as long as
            compiling its kernels does, and others wait while process 0 is in a metric.

    Raises:
        ImportError: PyTorch is not installed, or was built without ``torch.distributed``.
        ValueError: an argument is out of range; ``torch.distributed`` is not initialized and not all of ``RANK``,
            ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` are in the environment.
        RuntimeError: the others do not come.

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
                    cure = "start the program with torchrun"
                    raise ValueError(f"TorchGroup: the environment lacks {', '.join(missing)}; {cure}.")
                self._initialize()
            self.rank, self.size = self._distributed.get_rank(), self._distributed.get_world_size()
            self._engine = "nccl" if backend == "cuda" else "gloo"
            for engine in ("gloo", self._engine):
                self._communicator(engine)

    def sum(self, array: Any) -> Any:
        """As :meth:`Group.sum`; on a GPU nobody waits: Dr.Jit's later work comes after it in Dr.Jit's own stream."""
        if self.size == 1:
            return array
        group = self._communicator(self._engine)
        with self._waiting():
            if dr.backend_v(array) == dr.JitBackend.CUDA:
                stream = self._torch.cuda.ExternalStream(cuda_stream(), self._torch.device("cuda", cuda_device()))
                with self._torch.cuda.stream(stream):
                    self._distributed.all_reduce(self._torch.from_dlpack(array), group=group)
            else:
                # A copy: Gloo's thread may be the last to hold what it was given, and giving memory back to Dr.Jit from
                # there, with Python's lock, waits for Dr.Jit's, whose holder may wait for Python's.
                own = array.numpy()  # Dr.Jit's memory, once it has been written
                total = self._torch.from_numpy(own).clone()
                self._distributed.all_reduce(total, group=group)
                own[:] = total.numpy()
        return array

    def gather(self, value: Any) -> list:
        """As :meth:`Group.gather`."""
        found = [None] * self.size
        with self._waiting():
            self._distributed.all_gather_object(found, value, group=self._communicator("gloo"))
        return found

    def broadcast(self, value: Any) -> Any:
        """As :meth:`Group.broadcast`."""
        found = [value]
        with self._waiting():
            self._distributed.broadcast_object_list(found, src=0, group=self._communicator("gloo"))
        return found[0]

    def _initialize(self) -> None:
        store, rank, size = next(self._distributed.rendezvous("env://", timeout=self._limit))
        if os.environ.get("GROUP_WORLD_SIZE") == "1":
            # After a restart, torchrun's store still has the addresses of the processes that are gone (PyTorch 2.13).
            # Hosts count restarts each for itself, so with several this would part them: docs/distributed.md.
            store = self._distributed.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        self._distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=self._limit)

    def _communicator(self, engine: str) -> Any:
        """One for all groups that are alike: making it takes time, and NCCL memory on the GPU."""
        made = (self._distributed.group.WORLD, engine, self.timeout)
        if made not in _made:
            _made[made] = self._distributed.new_group(backend=engine, timeout=self._limit)
        return _made[made]

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """In here others are waited for, and what the engine raises is said in words."""
        try:
            yield
        except RuntimeError as error:
            reason = f"another process is gone, or did not come within {self.timeout:g} s"
            raise RuntimeError(f"TorchGroup: process {self.rank} got no answer: {reason} ({_short(error)}).") from error


@atexit.register
def _end() -> None:
    """Ends Gloo's communicators while Python still runs.

    Gloo's threads may hold objects of Python a moment longer than their exchange takes. To give them back they need its
    lock, and without an interpreter that aborts the process, whose work is done (PyTorch 2.13, pytorch#190489).
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
        raise ImportError("TorchGroup needs PyTorch; run pip install 'coopnet[distributed]'.") from None
    if not torch.distributed.is_available():
        raise ImportError("TorchGroup needs torch.distributed, which this PyTorch was built without.")
    return torch


def find_group(where: str, distributed: Any, field: Any) -> Group | None:
    """The group that ``distributed`` means for a ``field``, or for one on LLVM if it is none."""
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
