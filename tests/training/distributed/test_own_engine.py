"""Two processes learn what one does, by an engine that needs no package: these tests run wherever Dr.Jit does."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from support.machines import environment
from support.processes import PROGRAMS, gpus, told


class Done:
    def __init__(self, process):
        self.stdout, self.stderr = process.communicate(timeout=120)
        assert process.returncode == 0, self.stderr


def start(folder, backend, how, **variables):
    command = [sys.executable, PROGRAMS / "curves.py", backend, how]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment(**variables), **pipes)


@pytest.mark.parametrize("chunks", ["", "2"])
def test_two_processes(backend, tmp_path, chunks):
    if backend == "cuda" and gpus() < 2:
        pytest.skip("needs 2 GPUs")
    variables = {"CASES": "plain patience overflow interrupt", "CHUNKS": chunks}
    # first: the others find its kernels in the cache
    alone = Done(start(tmp_path, backend, "alone" if chunks else "none", **variables))
    variables["SOCKET"] = "socket"  # without its folder: the whole may be longer than an address can be
    both = [start(tmp_path, backend, "pipes", RANK=rank, LOCAL_RANK=rank, **variables) for rank in "01"]
    first, second = (told(Done(process), 2)[rank] for rank, process in enumerate(both))
    assert first == second and len(first) == 4 and first[-1]["ends"] == [6, "interrupt", 0]
    for many, (_, one) in zip(first, map(json.loads, alone.stdout.splitlines()), strict=True):
        assert many["ends"] == one["ends"]
        if chunks and backend == "llvm":
            assert many == one  # to the last bit
        rtol = 3e-2 if backend == "cuda" or one["case"] == "overflow" else 1e-4
        np.testing.assert_allclose(many["losses"], one["losses"], rtol=rtol)
