"""``coopnet bench``: everybody computes the same, turns are taken, and what is printed is what was found."""

import importlib.util
import json
import sys

import numpy as np
import pytest
from support.command_line import fails

import coopnet as cn

pytest.importorskip("typer")

from coopnet import bench, cli
from coopnet.bench import peers, problem, worker

compare_module = sys.modules["coopnet.bench.compare"]  # whose name the function has
SMALL = 1 << 10


@pytest.mark.parametrize("name", peers.PEERS)
def test_peers_compute_the_same(name, backend):
    """Outputs and gradients of every way to call, against NumPy in double precision."""
    if name == "PyTorch":
        torch = pytest.importorskip("torch")
        if backend == "cuda" and not torch.cuda.is_available():
            pytest.skip("PyTorch without a GPU")
    half = backend == "cuda"
    if half and name == "drjit.nn, tensors":
        pytest.skip("minutes")
    peer = peers.PEERS[name](backend, 16, SMALL)
    weights = [w.astype(np.float64) for w in problem.matrices(16, half)]
    x, _ = problem.data(SMALL, half)
    expected = cn.reference.mlp(weights, x.astype(np.float64), "relu")
    for way, call in peer.calls("infer"):
        found = call()
        if hasattr(found, "detach") and name == "PyTorch":
            values = found.cpu().numpy().T
        else:
            values = found.numpy() if name.endswith("tensors") else np.stack([v.numpy() for v in found])
        np.testing.assert_allclose(
            values, expected, atol=(2e-2 if half else 1e-5) * np.abs(expected).max(), err_msg=way
        )
    right = problem.gradients(16, SMALL, half)
    for way, call in peer.calls("train"):
        assert problem.error(peer.gradients(call()), right) < (3e-2 if half else 1e-5), way


def test_errors_are_seen():
    right = problem.gradients(16, 64, False)
    assert problem.error(right, right) == 0
    assert problem.error([g * 1.5 for g in right], right) == pytest.approx(0.5)
    assert problem.error([right[0] * 0, *right[1:]], right) == pytest.approx(1)


@pytest.mark.slow
def test_command(backend, capsys):
    arguments = ["bench", "--backend", backend, "--width", "16", "--batch", "1024", "--seconds", "0.5"]
    assert cli.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["left_out"].keys() == (set() if importlib.util.find_spec("torch") else {"PyTorch"})
    names = {row["peer"] for row in found["results"]}
    assert names | found["left_out"].keys() == set(peers.PEERS)
    for row in found["results"]:
        assert row["ms"] > 0 and row["calls"] >= 3 and row["way"]
        if row["peer"] == "coopnet":
            assert row["ratio"] == 1
        if row["mode"] == "train" and backend == "llvm":
            assert row["gradient_error"] < 1e-5
    assert found["machine"]["versions"]["coopnet"] == cn.__version__
    assert cli.main(arguments) == 0
    said = capsys.readouterr().out
    assert "inference" in said and "training step" in said and "drjit.nn, vectors" in said and "1.00x" in said


class Played:
    """A worker whose calls take 2 ms, frozen ones 1 ms; of ``drjit.nn, tensors``, whose process dies, and PyTorch,
    twice as long."""

    made = []

    def __init__(self):
        self.jobs = []
        self.closed = False
        Played.made.append(self)

    def ask(self, **job):
        self.jobs.append(job)
        if job["job"] == "start":
            self.name = job["peer"]
        if self.name == "drjit.nn, tensors" and len(self.jobs) > 5:
            raise compare_module.PeerError("its process ended with -9")
        factor = 2 if self.name == "PyTorch" else 1
        if job["job"] == "turn":
            return {"frozen": [factor * 1.0] * 3, "not frozen": [factor * 2.0] * 3}
        return {"frozen": 1e-7, "not frozen": 0.5} if job["job"] == "gradient_errors" else None

    def close(self):
        self.closed = True


def test_medians_and_ratios(monkeypatch, backend):
    """The faster way counts, for everybody; a peer that dies is named; all processes are ended."""
    Played.made.clear()
    monkeypatch.setattr(compare_module, "Worker", Played)
    monkeypatch.setattr(compare_module, "has_torch", lambda: True)
    lines = []
    found = bench.compare(backend, 32, 4096, 1, lines.append)
    assert found["left_out"] == {"drjit.nn, tensors": "its process ended with -9"}
    rows = {(row["peer"], row["mode"]): row for row in found["results"]}
    assert set(rows) == {(p, m) for p in ("coopnet", "drjit.nn, vectors", "PyTorch") for m in ("infer", "train")}
    assert rows["PyTorch", "train"]["ratio"] == 2 and rows["coopnet", "infer"]["ratio"] == 1
    row = rows["coopnet", "train"]
    assert (row["ms"], row["way"], row["calls"], row["spread"], row["gradient_error"]) == (1, "frozen", 9, 0, 1e-7)
    assert rows["coopnet", "infer"]["gradient_error"] is None
    assert found["settings"]["batch"] == 4096 and "16 -> 32 -> 32 -> 32 -> 3" in found["settings"]["network"]
    assert len(Played.made) == 4 and all(p.closed for p in Played.made)
    assert any("turn 3 of 3" in line for line in lines)
    text = bench.format_comparison(found)
    assert "2.00x" in text and "left out, its process ended with -9" in text and "1.0e-07" in text
    assert "to rely on: PyTorch; coopnet; drjit.nn, vectors." in text  # nine calls each
    for row in found["results"]:
        row |= {"calls": 50, "spread": 0.6 if row["peer"] == "PyTorch" else 0.1}
    assert "to rely on: PyTorch." in bench.format_comparison(found)
    for row in found["results"]:
        row["spread"] = 0.1
    assert "to rely on" not in bench.format_comparison(found)


def test_workers_answer_and_die():
    process = compare_module.Worker()
    try:
        with pytest.raises(compare_module.PeerError, match="KeyError"):
            process.ask(job="start", peer="nobody", backend="llvm", width=8, batch=8)
        process.process.kill()
        with pytest.raises(compare_module.PeerError, match="ended"):
            process.ask(job="turn", mode="infer", seconds=0)
    finally:
        process.close()


def test_turns(monkeypatch):
    """Warm-up once per way, then calls until the time is over, and at least one."""
    calls = []

    class Peer:
        def __init__(self, *arguments):
            pass

        def calls(self, mode):
            yield "way", lambda: calls.append(mode)

    monkeypatch.setitem(worker.PEERS, "played", Peer)
    runner = worker.Runner("played", "llvm", 8, 8)
    assert len(runner.turn("infer", 0.0)["way"]) == 1 and len(calls) == worker.WARMUP + 1
    assert len(runner.turn("infer", 0.0)["way"]) == 1 and len(calls) == worker.WARMUP + 2
    assert len(runner.turn("infer", 0.01)["way"]) > 3


def test_bad_arguments(capsys):
    for option in ("--width=0", "--batch=0", "--seconds=0", "--seconds=nan", "--backend=metal"):
        fails(capsys, ["bench", option], 2, option.split("=")[0])
    with pytest.raises(ValueError, match="compare: width is 0"):
        bench.compare("auto", 0)
