"""Processes that are killed: torchrun starts the group again, and the run ends as if nothing had happened."""

from __future__ import annotations

import random

import pytest
from support.processes import need, told, torchrun


def train(backend, folder, kills):
    folder.mkdir()
    (folder / "kills").write_text("".join(f"{rank} {step} {seconds}\n" for rank, step, seconds in kills))
    options = [f"--max-restarts={len(kills)}"]
    done = torchrun("restarts.py", 2, backend, folder, options=options, timeout=900)
    assert len(list(folder.glob("killed-*"))) == len(kills)
    one, other = told(done, 2)
    assert one == other
    return one[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [1, 20])
def test_killed(backend, tmp_path, count):
    need(backend, 2)
    rng = random.Random(count)
    kills = [(rng.randrange(2), rng.randrange(350), rng.random() * 0.05) for _ in range(count)]
    whole, resumed = train(backend, tmp_path / "whole", []), train(backend, tmp_path / "killed", kills)
    assert whole[0] == resumed[0] == 400
    if backend == "llvm":
        assert resumed == whole


def test_communicators_end_before_python(backend):
    """Their threads need its lock: now and then, a process whose work was done ended by SIGABRT."""
    need(backend, 2)
    left = 1 if backend == "cuda" else 0  # that of NCCL
    assert told(torchrun("ends.py", 2, backend), 2) == [[left], [left]]
