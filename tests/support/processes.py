"""Groups of processes, as torchrun starts them."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest
from support.machines import python

PROGRAMS = Path(__file__).resolve().parents[1] / "training" / "distributed" / "programs"


@lru_cache(maxsize=1)
def gpus() -> int:
    from coopnet.jit.native.cuda import driver

    return len(driver()[2])


def need(backend, processes):
    """Skip a test that cannot run here: without PyTorch, or with fewer GPUs than processes."""
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    if backend == "cuda" and (gpus() < processes or not torch.cuda.is_available()):
        pytest.skip(f"needs {processes} GPUs")


def torchrun(program, processes, *arguments, options=(), timeout=240, check=True, **environ):
    """Run a program of ``tests/training/distributed/programs`` in so many processes."""
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *options]
    done = python(*command, PROGRAMS / program, *arguments, timeout=timeout, OMP_NUM_THREADS="1", **environ)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def told(done, processes):
    """What every process printed, by rank: its lines are JSON of (rank, anything)."""
    found = [[] for _ in range(processes)]
    for line in done.stdout.splitlines():
        if line.startswith("["):
            rank, value = json.loads(line)
            found[rank].append(value)
    return found
