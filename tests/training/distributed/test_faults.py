"""What goes wrong on one process is an error on all, and none waits for ever."""

from __future__ import annotations

import time

import pytest
from support.processes import need, told, torchrun


@pytest.fixture(scope="module")
def faults(backend, tmp_path_factory):
    need(backend, 2)
    found = told(torchrun("faults.py", 2, backend, tmp_path_factory.mktemp("faults")), 2)
    names = [name for name, _ in found[0]]
    assert names == [name for name, _ in found[1]]
    return {name: (one, other) for (name, one), (_, other) in zip(*found, strict=True)}


@pytest.mark.parametrize(
    "name",
    ["learning rate", "batch in the first place", "batch when recorded", "penalty", "learning rate before a metric"],
)
def test_one_raises(faults, name):
    """Its own error there, and what it was elsewhere."""
    other, own = faults[name]
    assert other.startswith("RuntimeError: fit: process 1 of 2 failed: ") and "no such file" in other
    assert "process 1" not in own and ("no such file" in own or "error encountered while recording" in own)


@pytest.mark.parametrize("name", ["metric", "metric after a failure of process 0"])
def test_process_0_raises(faults, name):
    own, other = faults[name]
    assert own == "Boom: no such file"
    assert other == "RuntimeError: fit: process 0 of 2 failed: Boom: no such file"


def test_bad_arguments_of_one(faults):
    other, own = faults["argument"]
    assert own.startswith("ValueError: fit: lr is -1.0")
    assert other == f"RuntimeError: fit: process 1 of 2 failed: {own}"
    own, other = faults["no folder"]
    assert "none" in own and other == f"RuntimeError: fit: process 0 of 2 failed: {own}"


@pytest.mark.parametrize(
    "name, words",
    [
        ("seed", "seed is 0 on process 0 and 1 on process 1"),
        ("steps", "steps is 20 on process 0 and 21 on process 1"),
        ("field", "the architecture is "),
        ("weights", "a hash of the parameters is "),
        ("clip_norm", "clip_norm is 1.0 on process 0 and 2.0 on process 1"),
        ("batch size", "the number of samples is 501 on process 0 and 300 on process 1"),
        ("version", "and '0.0.1' on process 1"),
    ],
)
def test_processes_differ(faults, name, words):
    for told_by in faults[name]:
        assert told_by.startswith("ValueError: fit: the processes differ: ") and words in told_by


def test_batches_that_cannot_be_shared(faults):
    for told_by in faults["too small"]:
        assert told_by == "ValueError: fit: a batch of 1 samples cannot be shared among 2."


def test_one_interrupt_stops_all(faults):
    one, other = faults["Ctrl-C"]
    assert one == other and one[1] == "interrupt" and 6 <= one[0] < 100_000


def test_divergence_of_one_share(faults):
    one, other = faults["divergence"]
    assert one == other and one[1] == "diverged"


def test_and_then_all_is_well(faults):
    one, other = faults["well"]
    assert one == other and one[:2] == [20, "steps"]


@pytest.mark.parametrize("how", ["hangs", "leaves", "killed"])
def test_one_is_gone(backend, how):
    """Others don't wait longer than they are told to."""
    need(backend, 2)
    start = time.monotonic()
    done = torchrun("gone.py", 2, backend, how, check=False)
    assert time.monotonic() - start < 60
    if how == "killed":
        assert done.returncode != 0  # torchrun ends the others
    else:
        (found,) = told(done, 2)[0]
        reason = "another process is gone, or did not come within 3 s"
        assert found.startswith(f"RuntimeError: TorchGroup: process 0 got no answer: {reason}")
