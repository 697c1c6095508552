"""Many fields: each as if it had been fitted alone, whatever becomes of the others, and however often a run stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from types import SimpleNamespace

import drjit as dr
import numpy as np
import pytest
from drjit.opt import AdamW
from support.networks import weights

import coopnet as cn
from coopnet.engine import StackError
from coopnet.training.many import fit as many_fit
from coopnet.training.many.directory import Directory
from coopnet.training.many.errors import one_kernel
from coopnet.training.many.job import JobStep

JOBS, SAMPLES, STEPS, SEED = 5, 128, 12, 7
#: What has been fitted alone, which the cases of a test share: they differ in how many are trained together.
ALONE: dict[tuple, tuple] = {}
ENCODINGS = {
    "sinusoidal": lambda: cn.Sinusoidal(3, in_features=2),
    "hash": lambda: cn.HashGrid(2, n_levels=3, hashmap_size=2**8),
    "grid": lambda: cn.Grid(2, "dense", n_levels=2, base_resolution=4, per_level_scale=2.0),
    "codes": lambda: cn.Composite([cn.Embedding(8, 4, init_scale=1.0), cn.Sinusoidal(2, in_features=1)]),
}


def make_fields(backend, precision="auto", encoding="sinusoidal", dropout=0.1, count=JOBS):
    """Fields of two coordinates with three outputs."""
    network = cn.MLP(out_features=3, width=8, depth=1, dropout=dropout, bias=True)
    field = cn.NeuralField(ENCODINGS[encoding](), network)
    return [field.build(backend, precision, seed=seed) for seed in range(count)]


def make_batch(ns, encoding="sinusoidal", broken=-1, how=dr.nan):
    """Pixels of a picture for each job; those of job ``broken`` are multiplied by ``how``."""
    pictures = np.random.default_rng(0).random((JOBS, 8, 8, 3), np.float32)
    if broken >= 0:
        pictures[broken] *= how
    data = ns.Float(pictures.ravel())

    def batch(key, job):
        x, y = cn.uniform(2, key, ns.Float, SAMPLES)
        pixel = (job * 64 + ns.UInt32(y * 8) * 8 + ns.UInt32(x * 8)) * 3
        first = dr.floor(x * 8) if encoding == "codes" else x
        return [first, y], [dr.gather(ns.Float, data, pixel + c) for c in range(3)]

    return batch


def alone(fields, batch, ns, steps=STEPS, **options):
    """What :func:`coopnet.fit` makes of each."""
    results = []
    for j, field in enumerate(fields):
        number = dr.opaque(ns.UInt32, j)
        results.append(
            cn.fit(field, lambda key, n=number: batch(key, n), steps, seed=SEED + j, progress=False, **options)
        )
    return results


def shared(name, make):
    """What ``make()`` returns, the first time."""
    if name not in ALONE:
        ALONE[name] = make()
    return ALONE[name]


def many(fields, batch, steps=STEPS, **options):
    return cn.fit_many(fields, batch, steps, seed=SEED, progress=False, **options)


def close(result, expected, exact, half):
    """Losses; on LLVM those of fields trained one after the other agree to the bit."""
    rtol = 0 if exact else 1e-2 if half else 1e-5
    np.testing.assert_allclose(result.losses, expected.losses, rtol=rtol)


def agree(field, other, exact, half):
    a, b = weights(field), weights(other)
    assert a.keys() == b.keys()
    for name in a:
        if exact:
            assert np.array_equal(a[name], b[name]), name
        else:  # Adam moves entries whose gradient is almost zero by the sign of its rounding
            error = np.sqrt(np.mean(np.square(a[name].astype(np.float64) - b[name])))
            assert error < (1e-2 if half else 1e-5), name


@pytest.mark.parametrize("encoding, together", [*((e, JOBS) for e in ENCODINGS), ("sinusoidal", 1), ("hash", 3)])
def test_each_field_is_as_if_fitted_alone(backend, ns, encoding, together):
    batch = make_batch(ns, encoding)
    options = {"lr": lambda step: 1e-2 / (1 + step), "clip_norm": 0.5, "weight_decay": 0.05, "loss": "huber"}
    options["multipliers"] = {"network.layers.0": 0.5}

    def single():
        fields = make_fields(backend, encoding=encoding)
        return fields, alone(fields, batch, ns, **options)

    want, expected = shared(("each", backend, encoding), single)
    got = make_fields(backend, encoding=encoding)
    results = many(got, batch, together=together, **options)
    half = want[0].precision == "half"
    exact = together == 1 and backend == "llvm"
    for field, other, a, b in zip(want, got, expected, results, strict=True):
        assert (b.steps, b.stopped, b.skipped) == (STEPS, "steps", a.skipped)
        close(b, a, exact, half)
        agree(field, other, exact, half)
    assert not np.allclose(expected[0].losses, expected[1].losses, rtol=1e-3)


@pytest.mark.parametrize("steps", [3, 4, 261])
def test_several_steps_in_one_call(backend, ns, set_limits, monkeypatch, steps):
    """Once they pay, calls take several steps: they are those of :func:`coopnet.fit`, also where losses are read."""
    set_limits(UNROLLED_STEPS_LEFT=1, UNROLLED_SECONDS=1e9, UNROLLED_STEPS_SEEN=1)
    decaying = cn.training.exponential(1e-2, 0.9)
    taken, take = [], JobStep.take_several
    monkeypatch.setattr(JobStep, "take_several", lambda step, *args: taken.append(1) or take(step, *args))
    options = {"lr": decaying, "clip_norm": 0.5, "weight_decay": 0.05}
    want, got = make_fields(backend, count=2), make_fields(backend, count=2)
    expected = alone(want, make_batch(ns), ns, steps, **options)
    results = many(got, make_batch(ns), steps, together=1, **options)
    for field, other, a, b in zip(want, got, expected, results, strict=True):
        assert (b.steps, len(b.losses)) == (steps, steps)
        close(b, a, backend == "llvm", field.precision == "half")
        agree(field, other, backend == "llvm", field.precision == "half")
    assert bool(taken) == (steps >= 4)


@pytest.mark.parametrize("lanes", ["as on this backend", "whole warps"])
def test_batches_that_fill_no_warp(backend, ns, monkeypatch, lanes):
    """Lanes beyond the samples do not matter, and lookups by the number of a sample stay inside."""
    if lanes == "whole warps":
        monkeypatch.setattr("coopnet.training.many.group.lanes_of", lambda samples, backend: -(-samples // 32) * 32)
    table = ns.Float(np.random.default_rng(1).random(77, np.float32))

    def batch(key, job):
        x, y = cn.uniform(2, key, ns.Float, 77)
        own = table if key.index is None else dr.gather(ns.Float, table, key.index)
        return [x, y], [own * y, own * x, ns.Float(job) / 5 + own]

    def single():
        fields = make_fields(backend)
        return fields, alone(fields, batch, ns)

    want, expected = shared(("warps", backend), single)
    got = make_fields(backend)
    results = many(got, batch, together=3)
    half = want[0].precision == "half"
    for field, other, a, b in zip(want, got, expected, results, strict=True):
        close(b, a, False, half)
        agree(field, other, False, half)


def test_one_recording_serves_all(backend, ns):
    fields, batch = make_fields(backend), make_batch(ns)
    assert many(fields, batch, together=1)[-1].recordings <= 2
    assert many(make_fields(backend, count=4), batch, together=2)[-1].recordings <= 2


@pytest.mark.parametrize("together", [1, JOBS])
def test_losses_on_gradients(backend, ns, together):
    """Derivatives with respect to coordinates are of each lane's own field, too."""

    def batch(key, job):
        return cn.uniform(2, key, ns.Float, SAMPLES), ()

    def objective(field, drawn, key):
        value, gradient = field.value_and_grad(drawn[0], key)
        return dr.square(value[0] - 0.5) + dr.square(gradient[0] - 0.3) + dr.square(gradient[1])

    def fields():
        network = cn.MLP(2, 1, width=8, depth=1, activation="tanh", bias=True)
        return [cn.NeuralField(None, network).build(backend, seed=seed) for seed in range(JOBS)]

    def single():
        made = fields()
        return made, alone(made, batch, ns, objective=objective, lr=1e-2)

    want, expected = shared(("gradients", backend), single)
    got = fields()
    results = many(got, batch, together=together, objective=objective, lr=1e-2)
    half = want[0].precision == "half"
    for field, other, a, b in zip(want, got, expected, results, strict=True):
        close(b, a, together == 1 and backend == "llvm", half)
        agree(field, other, together == 1 and backend == "llvm", half)


@pytest.mark.parametrize("together", [1, 3])
def test_objective_and_other_optimizer(backend, ns, together):
    def objective(field, drawn, key):
        p, targets = drawn
        y, moved = field.jvp(p, [ns.Float(1), ns.Float(0)], key)
        return sum(dr.square(v - t) + 1e-3 * dr.square(d) for v, t, d in zip(y, targets, moved, strict=True))

    def optimizer():
        return AdamW(lr=1e-3, weight_decay=0.01)

    batch = make_batch(ns)

    def single():
        fields = make_fields(backend, dropout=0.0)
        return fields, alone_with(fields, batch, ns, optimizer, objective=objective)

    want, expected = shared(("objective", backend), single)
    got = make_fields(backend, dropout=0.0)
    results = many(got, batch, together=together, objective=objective, optimizer=optimizer())
    for field, other, a, b in zip(want, got, expected, results, strict=True):
        half = field.precision == "half"
        np.testing.assert_allclose(b.losses, a.losses, rtol=2e-2 if half else 1e-5)
        agree(field, other, False, half)


def alone_with(fields, batch, ns, optimizer, **options):
    results = []
    for j, field in enumerate(fields):
        number = dr.opaque(ns.UInt32, j)
        own = {"seed": SEED + j, "optimizer": optimizer(), "progress": False}
        results.append(cn.fit(field, lambda key, n=number: batch(key, n), STEPS, **own, **options))
    return results


@pytest.mark.parametrize("encoding, together", [("sinusoidal", 1), ("hash", 3), ("hash", JOBS), ("codes", JOBS)])
def test_a_job_that_diverges_harms_no_other(backend, ns, encoding, together):
    batch = make_batch(ns, encoding, broken=2)

    def single():
        fields = make_fields(backend, encoding=encoding)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return fields, alone(fields, batch, ns)

    want, expected = shared(("diverges", backend, encoding), single)
    got = make_fields(backend, encoding=encoding)
    before = weights(got[2])
    with pytest.warns(RuntimeWarning, match="job 2: fit: training diverged") as caught:
        results = many(got, batch, together=together)
    assert len(caught) == 1
    assert [r.stopped for r in results] == ["steps", "steps", "diverged", "steps", "steps"]
    assert all(np.array_equal(before[k], v) for k, v in weights(got[2]).items())
    half = got[0].precision == "half"
    for j in (0, 1, 3, 4):
        np.testing.assert_allclose(results[j].losses, expected[j].losses, rtol=1e-2 if half else 1e-5)
        agree(want[j], got[j], together == 1 and backend == "llvm", half)


@pytest.mark.parametrize("together", [1, JOBS])
def test_large_gradients_of_one_spoil_no_other(backend, ns, together):
    """A sum in fixed point has one scale."""
    got = make_fields(backend, encoding="hash")
    batch = make_batch(ns, "hash", broken=2, how=1e3 if got[0].precision == "half" else 1e9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = shared(("large", backend), lambda: alone(make_fields(backend, encoding="hash"), batch, ns))
        results = many(got, batch, together=together)
    for j in (0, 1, 3, 4):
        rtol = 1e-2 if got[0].precision == "half" else 1e-5
        np.testing.assert_allclose(results[j].losses, expected[j].losses, rtol=rtol)


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("steps", [1, 3])
def test_targets_that_are_not_finite(backend, ns, together, steps):
    """Also where weights stay finite, since sums by atomics take NaN for 0, and there is a single loss to tell."""
    if backend == "cuda":
        pytest.skip("a loss scaler skips such steps")

    def batch(key, job):
        x, y = cn.uniform(2, key, ns.Float, SAMPLES)
        return [x, y], [x * dr.nan] * 3

    with pytest.warns(RuntimeWarning, match="training diverged: losses are not finite from step 0 on"):
        results = cn.fit_many(make_fields(backend, count=2), batch, steps, together=together, progress=False)
    assert [r.stopped for r in results] == ["diverged"] * 2


def test_others_go_on_after_one_diverged(backend, ns):
    """In windows of 256 steps: the others are looked at, and go on, for a second and third."""
    fields, steps = make_fields(backend, dropout=0.0), 600
    with pytest.warns(RuntimeWarning, match="job 1: fit: training diverged"):
        results = many(fields, make_batch(ns, broken=1), steps, together=JOBS)
    assert [r.steps for r in results] == [steps, 256, steps, steps, steps]
    for j in (0, 2, 3, 4):
        assert len(results[j].losses) == steps and np.mean(results[j].losses[-50:]) < 0.6 * results[j].losses[0]


@pytest.mark.parametrize("together", [1, JOBS])
def test_each_field_has_its_own_loss_scale(backend, ns, together):
    batch = make_batch(ns, broken=1, how=3e3)  # whose gradients overflow at first

    def single():
        fields = make_fields(backend, "half", dropout=0.0)
        return fields, alone(fields, batch, ns, lr=1e-3)

    got = make_fields(backend, "half", dropout=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want, expected = shared(("scale", backend), single)
        results = many(got, batch, together=together, lr=1e-3)
    assert [r.skipped for r in results] == [r.skipped for r in expected]
    assert results[1].skipped > 2 and results[0].skipped == 0
    for j in range(JOBS):
        agree(want[j], got[j], False, True)
        np.testing.assert_allclose(results[j].losses, expected[j].losses, rtol=1e-2)


# ---- directories ------------------------------------------------------------


def entries(directory):
    lines = (directory / "results.jsonl").read_text().split("\n")
    return [json.loads(line) for line in lines if line]


@pytest.mark.parametrize("together", [1, 3])
def test_results_are_in_the_directory(backend, ns, together, tmp_path):
    fields, batch, runs = make_fields(backend), make_batch(ns), tmp_path / "new" / "runs"
    results = many(fields, batch, together=together, directory=runs)
    found = entries(runs)
    assert sorted(e["job"] for e in found) == list(range(JOBS))
    for e in found:
        result, field = results[e["job"]], fields[e["job"]]
        assert (e["steps"], e["stopped"], e["seed"]) == (STEPS, "steps", SEED + e["job"])
        assert e["loss"] == result.losses[-1] and e["seconds"] > 0
        loaded = cn.load(runs / e["file"], backend)
        assert all(np.array_equal(v, weights(field)[k]) for k, v in weights(loaded).items())
    # what is done is not done again
    files, again = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in runs.iterdir()}, make_fields(backend)
    repeated = many(again, batch, together=together, directory=runs)
    assert files == {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in runs.iterdir()}
    for a, b, field, other in zip(results, repeated, fields, again, strict=True):
        assert a.losses == b.losses and (b.steps, b.stopped) == (STEPS, "steps")
        agree(field, other, True, False)


@pytest.mark.parametrize("together", [1, 3])
def test_more_steps_go_on_from_what_is_there(backend, ns, together, tmp_path):
    batch = make_batch(ns)
    whole, parts = make_fields(backend), make_fields(backend)
    expected = many(whole, batch, 2 * STEPS, together=together)
    many(parts, batch, STEPS, together=together, directory=tmp_path)
    results = many(make_fields(backend), batch, 2 * STEPS, together=together, directory=tmp_path)
    for a, b in zip(expected, results, strict=True):
        close(b, a, together == 1 and backend == "llvm", whole[0].precision == "half")
    assert [e["steps"] for e in entries(tmp_path)] == [STEPS] * JOBS + [2 * STEPS] * JOBS


@pytest.mark.parametrize("together", [1, 3])
def test_fit_goes_on_from_a_checkpoint(backend, ns, together, tmp_path):
    batch, fields = make_batch(ns), make_fields(backend)
    expected = many(fields, batch, 2 * STEPS, together=together)[3]
    many(make_fields(backend), batch, together=together, directory=tmp_path)
    field, number = make_fields(backend)[3], dr.opaque(ns.UInt32, 3)
    file = {"checkpoint": tmp_path / "0003.safetensors", "resume": True}
    result = cn.fit(field, lambda key: batch(key, number), 2 * STEPS, seed=SEED + 3, progress=False, **file)
    half, exact = field.precision == "half", together == 1 and backend == "llvm"
    close(result, expected, exact, half)
    agree(field, fields[3], exact, half)


def test_a_diverged_job_is_not_done_again(backend, ns, tmp_path):
    batch = make_batch(ns, broken=2)
    with pytest.warns(RuntimeWarning, match="job 2"):
        many(make_fields(backend), batch, directory=tmp_path)
    with open(tmp_path / "results.jsonl", "a") as file:
        file.write('{"job": 1, "stop')  # as a killed process may leave it
    with pytest.warns(RuntimeWarning, match="job 2 diverged in an earlier run"):
        results = many(make_fields(backend), batch, directory=tmp_path)
    assert results[2].stopped == "diverged" and "training diverged" in results[2].message
    assert not (tmp_path / "0002.safetensors").exists()


def test_a_directory_knows_what_diverged(tmp_path):
    """The first job, too; of lines that are not ours, nothing."""
    directory = Directory(tmp_path, 2)
    directory.note(0, 7, cn.FitResult(3, [0.25, float("nan")], stopped="diverged", message="said"))
    directory.note(1, 8, cn.FitResult(3, [float("nan"), 0.5]))
    noted = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines() if line]
    assert [entry["loss"] for entry in noted] == [None, 0.5]
    with open(tmp_path / "results.jsonl", "a") as file:
        for job, message in ((-1, '"said"'), ("true", '"said"'), ('"1"', '"said"'), (1, "null")):
            file.write(f'{{"job": {job}, "stopped": "diverged", "file": null, "message": {message}}}\n')
    assert directory.diverged() == {0: {"stopped": "diverged", "file": None, "message": "said"}}


def test_what_has_diverged_is_not_looked_at_again(backend, ns, set_limits):
    """It goes on with numbers that are finite: after the window in which it diverged, the jobs stay in one piece."""
    if backend == "cuda":
        pytest.skip("a loss scaler skips a step that is not finite")
    set_limits(WINDOW_STEPS=4)
    fields, draw, seen = make_fields(backend, encoding="hash", count=2), make_batch(ns, "hash"), []

    def batch(key, job):
        p, targets = draw(key, job)
        bad = (job == 1) & (ns.UInt32(key.step) == 2)
        return p, [dr.select(bad, dr.nan, t) for t in targets]

    def lr(step):  # parameters that a field was handed are other arrays
        seen.append(fields[0]["network.weights"].array.index)
        return 1e-3

    with pytest.warns(RuntimeWarning, match="job 1: fit: training diverged"):
        results = many(fields, batch, 16, together=2, lr=lr)
    assert [r.stopped for r in results] == ["steps", "diverged"]
    assert [i for i in range(1, 16) if seen[i] != seen[i - 1]] == [4]


def test_a_damaged_checkpoint_says_which(backend, ns, tmp_path):
    many(make_fields(backend), make_batch(ns), 3, directory=tmp_path)
    (tmp_path / "0003.safetensors").write_text("garbage")
    with pytest.raises(
        ValueError, match=r"fit_many: job 3: it cannot continue: .* to begin it anew, move '.*0003.safetensors' away"
    ):
        many(make_fields(backend), make_batch(ns), 6, directory=tmp_path)


def test_checkpoints_while_one_has_diverged(backend, ns, tmp_path):
    """Those of the others are written as often as was asked for, and no more."""
    fields, written = make_fields(backend, dropout=0.0), set()

    def lr(step):
        written.update((p.name, p.stat().st_mtime_ns) for p in tmp_path.glob("*.safetensors"))
        return 1e-3

    with pytest.warns(RuntimeWarning, match="job 0: fit: training diverged"):
        results = many(
            fields, make_batch(ns, broken=0), 300, together=JOBS, lr=lr, directory=tmp_path, checkpoint_every=1e9
        )
    assert [r.stopped for r in results] == ["diverged"] + ["steps"] * 4 and not written
    assert sorted(p.name for p in tmp_path.glob("*.safetensors")) == [f"000{j}.safetensors" for j in range(1, JOBS)]


@pytest.mark.usefixtures("ctrl_c_works")
@pytest.mark.parametrize("together", [1, JOBS])
def test_ctrl_c_and_continuing(backend, ns, together, tmp_path):
    batch, asked = make_batch(ns), []

    def lr(step):
        if not asked and step == 5:
            asked.append(step)
            os.kill(os.getpid(), signal.SIGINT)
        return 1e-3

    results = many(make_fields(backend), batch, together=together, lr=lr, directory=tmp_path)
    steps = [r.steps for r in results]
    assert steps == ([6] * JOBS if together > 1 else [6, 0, 0, 0, 0])
    assert {r.stopped for r in results} == {"interrupt"} and not (tmp_path / "results.jsonl").exists()
    got, want = make_fields(backend), make_fields(backend)
    results, expected = (
        many(f, batch, together=together, lr=lr, **o) for f, o in ((got, {"directory": tmp_path}), (want, {}))
    )
    for a, b, field, other in zip(expected, results, want, got, strict=True):
        assert b.stopped == "steps"
        close(b, a, together == 1 and backend == "llvm", field.precision == "half")
        agree(field, other, together == 1 and backend == "llvm", field.precision == "half")


def test_a_run_that_was_killed_continues(backend, ns, tmp_path):
    """Killed twice without warning, in the middle of a job that has written checkpoints, and of another."""
    pytest.importorskip("safetensors")
    program = textwrap.dedent(f"""
        import os, signal, sys
        sys.path[:0] = {[os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))]}
        import conftest  # which compiles for the same processor as here
        from test_many import *
        ns, seen = cn.backend.namespace({backend!r}), []
        def lr(step):
            seen.append(step)
            if len(seen) == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            return 1e-3
        many(make_fields({backend!r}), make_batch(ns), directory=sys.argv[1], checkpoint_every=0, lr=lr, together=1)
    """)
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    for kill in (STEPS + 4, 5):
        command = [sys.executable, "-c", program, str(tmp_path), str(kill)]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=120)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    want, got, batch = make_fields(backend), make_fields(backend), make_batch(ns)
    expected, results = (
        many(want, batch, lr=1e-3, together=1),
        many(got, batch, lr=1e-3, together=1, directory=tmp_path),
    )
    for a, b, field, other in zip(expected, results, want, got, strict=True):
        close(b, a, backend == "llvm", field.precision == "half")
        agree(field, other, backend == "llvm", field.precision == "half")
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"000{j}.safetensors" for j in range(JOBS)] + [
        "results.jsonl"
    ]


@pytest.mark.parametrize("together", [1, 2])
def test_processes_share_the_jobs(backend, ns, together, tmp_path, monkeypatch):
    batch, want, done = make_batch(ns), make_fields(backend), []
    expected = many(want, batch, together=together)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        fields = make_fields(backend)
        untouched = [weights(field) for field in fields]
        results = many(fields, batch, together=together, directory=tmp_path)
        done.append([j for j in range(JOBS) if results[j] is not None])
        for j in range(JOBS):
            if j not in done[-1]:
                assert all(np.array_equal(untouched[j][k], v) for k, v in weights(fields[j]).items())
    assert sorted(done[0] + done[1]) == list(range(JOBS)) and done[0] and done[1]
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("RANK")
    got = make_fields(backend)
    results = many(got, batch, together=together, directory=tmp_path)
    assert len(entries(tmp_path)) == JOBS
    for a, b in zip(expected, results, strict=True):
        close(b, a, together == 1 and backend == "llvm", want[0].precision == "half")


# ---- errors -----------------------------------------------------------------


def test_arguments_are_checked(backend, ns, tmp_path, monkeypatch):
    fields, batch = make_fields(backend), make_batch(ns)
    with pytest.raises(TypeError, match="fit_many: fields"):
        many(fields[0], batch)
    with pytest.raises(ValueError, match="fields is empty"):
        many([], batch)
    with pytest.raises(ValueError, match=r"fields\[2\] is fields\[0\], too"):
        many([fields[0], fields[1], fields[0]], batch)
    other = cn.NeuralField(None, cn.MLP(2, 3, width=16)).build(backend)
    with pytest.raises(ValueError, match=r"fields\[1\] differs from fields\[0\]"):
        many([fields[0], other], batch)
    with pytest.raises(ValueError, match="the last job"):
        cn.fit_many(fields, batch, 1, seed=2**64 - 1, progress=False)
    for together in (0, JOBS + 1, 1.5, True):
        with pytest.raises(ValueError, match="together"):
            many(fields, batch, together=together)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        many(fields, batch, directory=tmp_path / "file")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="pass directory"):
        many(fields, batch)
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match="RANK and WORLD_SIZE are '2' and '2'"):
        many(fields, batch, directory=tmp_path)


def test_errors_say_which_job(backend, ns):
    fields, batch = make_fields(backend), make_batch(ns)
    fields[1] = cn.NeuralField(None, cn.MLP(2, 3))
    with pytest.raises(ValueError, match=r"^fit_many: fields\[1\] is not built yet"):
        many(fields, batch)
    with pytest.raises(TypeError, match=r"^fit_many: fields\[2\] is a int"):
        many([*make_fields(backend)[:2], 3], batch)
    with pytest.raises(TypeError, match=r"^fit_many: job 0: fit: batch\(\) returned a int"):
        many(make_fields(backend), lambda key, job: 3)
    for bad in (dict(lr=-1.0), dict(weight_decay=-1), dict(loss="nope"), dict(multipliers={"q": 1})):
        with pytest.raises(ValueError, match=r"^fit_many: job 0: fit: "):
            many(make_fields(backend), batch, **bad)
    for together, jobs in ((1, "job 0"), (3, "jobs 0 to 1")):  # 5 jobs in groups of at most 3
        with pytest.raises(ValueError, match=rf"^fit_many: {jobs}: fit: lr\(2\) is -1"):
            many(make_fields(backend), batch, together=together, lr=lambda step: 1.0 if step < 2 else -1.0)
    with pytest.raises(ZeroDivisionError, match=r"^float division by zero$"):
        many(make_fields(backend), batch, lr=lambda step: 1.0 / 0.0)


def test_directories_that_cannot_be(backend, ns):
    for bad, error in (("a\0b", ValueError), ("", ValueError), (3, TypeError), ("\ud800", ValueError)):
        with pytest.raises(error, match=r"^fit_many: directory is "):
            cn.fit_many(make_fields(backend, count=1), lambda key, job: None, 1, directory=bad)


def test_lines_of_results_that_are_not_ours(tmp_path):
    """Cut short, nested too deep to be read, or something else: the other lines count."""
    deep, entry = "[" * 100_000, {"job": 2, "stopped": "diverged", "file": None, "message": "it has"}
    lines = ['{"job": 1, "sto', deep, f'{{"job": 0, "stopped": {deep}', '"diverged"', "3", "{}", json.dumps(entry)]
    lines += ['{"job": 1e400, "stopped": "diverged"}', '{"job": 2, "stopped": "steps"}']
    lines += [json.dumps(entry | bad) for bad in ({"job": 1.5}, {"job": -1}, {"job": [[0]]}, {"message": [["x"]]})]
    # a checkpoint has one name; whoever removes it wants the job to be done again
    lines += [json.dumps(entry | {"job": 0, "file": name}) for name in ("../a\0b", 5)]
    (tmp_path / "results.jsonl").write_text("\n".join(lines))
    found = Directory(tmp_path, 3).diverged()
    assert list(found) == [2] and found[2]["message"] == "it has"


def test_a_directory_of_other_jobs_is_refused(backend, ns, tmp_path):
    many(make_fields(backend), make_batch(ns), directory=tmp_path)
    with pytest.raises(ValueError, match=r"0000\.safetensors.*its seed is '7', but this run's is '8'"):
        cn.fit_many(make_fields(backend), make_batch(ns), STEPS, seed=8, directory=tmp_path, progress=False)


def test_what_cannot_be_trained_together_says_why(backend, ns):
    fields = make_fields(backend)

    def fixed(key, job):
        coordinates = [dr.arange(ns.Float, SAMPLES) / SAMPLES] * 2
        return coordinates, [dr.gather(ns.Float, ns.Float(0.5), ns.UInt32(0)) + coordinates[0]] * 3

    assert many(fields, fixed, 2, together=1)[0].steps == 2
    where = (
        r"one kernel: fields that .* are evaluated at 128 samples instead of 256, those of all fields; pass together=1"
    )
    with pytest.raises(ValueError, match=f"together is 2, but fields cannot be trained in {where}"):
        many(fields, fixed, 2, together=2)
    with pytest.raises(ValueError, match="one kernel: Novograd is not element-wise"):
        many(fields, make_batch(ns), 2, together=2, optimizer=cn.training.Novograd(1e-3))
    with pytest.raises(ValueError, match="one kernel: accumulation and lookahead"):
        many(fields, make_batch(ns), 2, together=2, optimizer=cn.training.Adam(1e-3, accumulate=2))
    assert many(fields, make_batch(ns), 2, optimizer=cn.training.Adam(1e-3, accumulate=2), together=1)[0].steps == 2


def test_one_field(backend, ns):
    (result,) = many(make_fields(backend, count=1), make_batch(ns), 2)
    assert (result.steps, result.stopped, len(result.losses)) == (2, "steps", 2)


def test_how_many_are_together_on_cuda_unless_it_is_said(monkeypatch):
    step = SimpleNamespace(float32=pytest.importorskip("drjit.llvm.ad").Float)
    group = SimpleNamespace(evaluate_all=lambda number: None)
    monkeypatch.setattr(many_fit, "hindrance", lambda step: "")
    monkeypatch.setattr(dr, "backend_v", lambda kind: dr.JitBackend.CUDA)

    def together(fields, samples):
        jobs = SimpleNamespace(fields=[None] * fields, step=lambda n: step, group=lambda *_: group)
        return many_fit._together(None, jobs, samples)

    assert [together(n, 4096) for n in (1, 2, 128, 129, 500)] == [1, 2, 128, 128, 128]
    assert together(500, 4097) == 1


def test_a_batch_that_raises_leaves_fields_as_they_were(backend, ns):
    fields = make_fields(backend)
    before = [weights(field) for field in fields]

    def broken(key, job):
        raise OSError("no such picture")

    with pytest.raises(OSError, match="no such picture"):
        many(fields, broken)
    assert all(np.array_equal(a[k], v) for a, f in zip(before, fields, strict=True) for k, v in weights(f).items())


def test_what_the_engine_refuses_has_a_cure():
    with pytest.raises(RuntimeError, match="fit_many: there are 3 lanes; pass together=1"), one_kernel():
        raise StackError("there are 3 lanes")


GRID = cn.HashGrid(2, n_levels=2, hashmap_size=2**6)


@pytest.mark.parametrize(
    "encoding, layer, why",
    [
        (GRID, cn.ConcreteDropout(0.2), "a layer with a learned rate, frequency or deviation"),
        (
            cn.Fourier(4, in_features=2, trained=True),
            cn.Identity(),
            "a layer with a learned rate, frequency",
        ),
        (GRID, cn.DropLevels(0.2), "the engine does not evaluate DropLevels"),
    ],
)
def test_layers_that_cannot_be_trained_together(ns, backend, encoding, layer, why):
    def make():
        return cn.NeuralField(encoding, cn.Sequential(layer, cn.Linear(-1, 1))).build(backend, seed=1)

    def batch(key, job):
        x = cn.uniform(2, key, ns.Float, 64)
        return x, [x[0]]

    with pytest.raises(ValueError, match=why):
        cn.fit_many([make(), make()], batch, 2, together=2, progress=False)


def test_optimizers_that_know_layers(ns, backend):
    """Novograd has a moment for each layer, also where fields are trained one after the other."""

    def batch(key, job=0):
        x, y = cn.uniform(2, key, ns.Float, 100)
        return [x, y], [x * y]

    fields = [cn.NeuralField(None, cn.MLP(2, 1, 8, 1, bias=True)).build(backend, seed=0) for _ in range(2)]
    one = cn.fit(fields[0], batch, 8, optimizer=cn.training.Novograd(1e-2), progress=False)
    (other,) = cn.fit_many(fields[1:], batch, 8, optimizer=cn.training.Novograd(1e-2), progress=False)
    if backend == "llvm":
        assert one.losses == other.losses
    np.testing.assert_allclose(one.losses, other.losses, rtol=5e-3)


def test_fields_are_not_trained_together_in_a_fixed_order(ns, backend):
    fields = [cn.NeuralField(None, cn.MLP(2, 1, 8, 1)).build(backend, seed=i) for i in range(2)]

    def batch(key, job):
        x = cn.uniform(2, key, ns.Float, 64)
        return x, [x[0]]

    with cn.deterministic(), pytest.raises(ValueError, match="gradients would be summed with atomics"):
        cn.fit_many(fields, batch, 2, together=2, progress=False)
