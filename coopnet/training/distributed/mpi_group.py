"""Groups of processes that ``mpirun`` started."""

from __future__ import annotations

from typing import Any

import drjit as dr
import numpy as np

from .group import Group


class MPIGroup(Group):
    """The processes of an MPI communicator, through mpi4py.

    Start them like this, so that an error in one process ends all: ``mpirun -n 4 python -m mpi4py train.py``. MPI has
    no time limits. Gradients of GPUs go through the memory of the host.

    Args:
        communicator: of mpi4py; all processes if ``None``.
        chunks: as in :class:`Group`.

    Raises:
        ImportError: mpi4py is not installed.
        ValueError: ``chunks`` is not a positive int.

    >>> import os
    >>> group = cn.training.MPIGroup() if "OMPI_COMM_WORLD_SIZE" in os.environ else None
    >>> cn.fit(field, batch, 1000, distributed=group)
    """

    def __init__(self, communicator: Any = None, *, chunks: int | None = None):
        super().__init__(chunks=chunks)
        try:
            from mpi4py import MPI
        except ImportError:
            raise ImportError("MPIGroup needs mpi4py and an MPI; run pip install mpi4py.") from None
        # a duplicate, so that messages of the program cannot interfere
        self._communicator = (MPI.COMM_WORLD if communicator is None else communicator).Dup()
        self._in_place = MPI.IN_PLACE
        self.rank, self.size = self._communicator.Get_rank(), self._communicator.Get_size()

    def sum(self, array: Any) -> Any:
        """As :meth:`Group.sum`."""
        on_gpu = dr.backend_v(array) == dr.JitBackend.CUDA
        numbers = np.array(array.numpy()) if on_gpu else array.numpy()  # on LLVM, it is Dr.Jit's memory
        self._communicator.Allreduce(self._in_place, numbers)
        return type(array)(numbers) if on_gpu else array

    def gather(self, value: Any) -> list:
        """As :meth:`Group.gather`."""
        return self._communicator.allgather(value)

    def broadcast(self, value: Any) -> Any:
        """As :meth:`Group.broadcast`."""
        return self._communicator.bcast(value)
