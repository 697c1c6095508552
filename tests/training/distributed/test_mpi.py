"""The same through MPI, where there is one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from types import SimpleNamespace

import drjit as dr
import numpy as np
import pytest
from support.machines import environment
from support.processes import PROGRAMS, told

import coopnet as cn


def test_two_processes(ns, backend):
    pytest.importorskip("mpi4py")
    if shutil.which("mpirun") is None or backend == "cuda":
        pytest.skip("needs mpirun and LLVM")
    options = ["--allow-run-as-root", "--oversubscribe", "-n", "2"]
    program = [sys.executable, "-m", "mpi4py", str(PROGRAMS / "mpi.py"), backend]
    done = subprocess.run(
        ["mpirun", *options, *program], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (both, one), (same, other) = sorted(told(done, 2), key=str)
    assert both == same
    messages = {one, other}
    assert messages == {"llvm: no such step", "llvm: fit: process 1 of 2 failed: ValueError: no such step"}
    network = cn.MLP(out_features=2, width=16, depth=2, dropout=0.1)  # as in the program
    field = cn.NeuralField(cn.HashGrid(2, n_levels=4, hashmap_size=2**10), network).build(backend)

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 501)
        return [x, y], [dr.sin(6 * x) * y, x * y]

    alone = cn.fit(field, batch, 10, lr=1e-2, progress=False, distributed=cn.training.Group(chunks=2))
    np.testing.assert_array_equal(both[0], alone.losses)


class Communicator:
    """One of mpi4py, of two processes that have the same values."""

    def __init__(self, name):
        self.name = name

    def Dup(self):
        return Communicator(f"{self.name}, again")

    def Get_rank(self):
        return 1

    def Get_size(self):
        return 2

    def Allreduce(self, place, numbers):
        assert place == "in place"
        numbers *= 2

    def allgather(self, value):
        return [value, value]

    def bcast(self, value):
        return value


def test_what_is_asked_of_mpi(ns, monkeypatch):
    """The same without MPI."""
    mpi = SimpleNamespace(COMM_WORLD=Communicator("all"), IN_PLACE="in place")
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    group = cn.training.MPIGroup(chunks=4)
    assert (group._communicator.name, group.rank, group.size, group.chunks) == ("all, again", 1, 2, 4)
    numbers = dr.opaque(ns.Float, 3, 5)
    assert group.sum(numbers).numpy().tolist() == [6] * 5
    assert group.gather("x") == ["x", "x"] and group.broadcast("x") == "x"
    assert cn.training.MPIGroup(Communicator("some"))._communicator.name == "some, again"
    with pytest.raises(ValueError, match="MPIGroup: chunks is 0"):
        cn.training.MPIGroup(chunks=0)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match="MPIGroup needs mpi4py and an MPI; run pip install mpi4py"):
        cn.training.MPIGroup()
