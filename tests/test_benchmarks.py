"""The benchmarks run and write what their plots and tables read; nothing is said about time."""

from __future__ import annotations

import json

import pytest
from support.machines import ROOT, python

pytestmark = pytest.mark.slow


def run(script, *arguments):
    done = python(ROOT / "benchmarks" / script, *arguments, timeout=None)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_networks(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    peers = ["coopnet", "drjit-coop", "drjit-tensor"]
    sizes = ["--widths", 16, "--log2-batches", "6,7", "--repeat", 1, "--all"]
    run("networks.py", "--backend", backend, *sizes, "--peers", ",".join(peers), "--out", tmp_path)
    results = json.loads((tmp_path / "networks-llvm.json").read_text())["results"]
    assert results["skipped"] == []
    entries = results["entries"]
    assert {e["peer"] for e in entries} == set(peers)
    assert len(entries) == 2 * (8 + 4 + 4)  # batches * (peers' modes, frozen and not, coopnet's with dropout and not)
    for entry in entries:
        assert min(entry["wall_ms"], entry["kernel_ms"], entry["first_call_s"], entry["peak_bytes"]) > 0
        if entry["mode"] == "train":
            assert entry["gradient_error"] < 1e-4
    table = run("table.py", "--results", tmp_path)
    assert "| 16 | training, dropout 0.1 |" in table and "drjit.nn, CoopVec" in table
    pytest.importorskip("matplotlib")
    run("plots.py", "--results", tmp_path, "--images", tmp_path)
    assert len(list(tmp_path.glob("bench-*-llvm.png"))) == 5


def test_budget(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    sizes = ["--widths", 16, "--log2-batches", 6, "--peers", "coopnet"]
    run("networks.py", "--backend", backend, *sizes, "--budget", 0, "--out", tmp_path)
    results = json.loads((tmp_path / "networks-llvm.json").read_text())["results"]
    assert results["entries"] == [] and results["skipped"][0]["why"] == "the budget was spent"


def test_steps_side_by_side(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    files = []
    for folder in ("before", "after"):
        jobs = ["--jobs", "network", "eikonal", "--log2-samples", 6]
        run("steps.py", "--backend", backend, *jobs, "--out", tmp_path / folder)
        files.append(tmp_path / folder / "steps-llvm.json")
    out = tmp_path / "side-by-side.json"
    printed = run("side_by_side.py", *files, "--out", out)
    results = json.loads(out.read_text())["results"]
    assert {row["job"] for row in results["rows"]} == {"network", "eikonal"}
    assert all(row["ratio"] == row["after"] / row["before"] for row in results["rows"])
    assert [line["entries"] for line in results["summary"]] == [2, 2] and "wall time" in printed


def test_gradients_of_grids(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    run("grid_gradient.py", "--backend", backend, "--quick", "--parts", "gradient", "--out", tmp_path)
    results = json.loads((tmp_path / "grid-gradient-llvm.json").read_text())["results"]
    assert {row["plan"] for row in results["rows"]} == {"one", "rule"}
    assert all(row["difference"] < 1e-5 for row in results["rows"]) and not results["skipped"]


def test_memory(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    peers = ["copy", "coopnet", "coopnet-list", "coopnet-fused"]
    run("memory.py", "--backend", backend, "--log2-sizes", 17, "--peers", ",".join(peers), "--out", tmp_path)
    results = json.loads((tmp_path / "memory-llvm.json").read_text())["results"]
    assert results["skipped"] == []
    entries = results["entries"]
    assert len(entries) == 4 * 4 and {e["peer"] for e in entries} == set(peers)
    for entry in entries:
        assert min(entry["wall_ms"], entry["kernel_ms"], entry["wall_gb_per_s"]) > 0
        assert abs(entry["kept"] - (1 if entry["peer"] == "copy" else 0.9)) < 0.01
        output = 2**17 * (2 if entry["dtype"] == "float16" else 4)
        if entry["peer"] in ("copy", "coopnet"):
            assert entry["extra_bytes"] <= 1.1 * output
    run("memory.py", "--backend", backend, "--log2-sizes", 17, "--peers", "copy", "--budget", 0, "--out", tmp_path)
    results = json.loads((tmp_path / "memory-llvm.json").read_text())["results"]
    assert results["entries"] == [] and results["skipped"][0]["why"] == "the budget was spent"


def test_embedding(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    sizes = ["--log2-batches", 10, "--widths", 4, "--counts", "1,100"]
    run("embedding.py", "--backend", backend, *sizes, "--out", tmp_path)
    results = json.loads((tmp_path / "embedding-llvm.json").read_text())["results"]
    assert [r["count"] for r in results] == [1, 100]
    for row in results:
        for what in ("look up", "sort", "sorted", "fixed point", "atomics"):
            assert row[what]["ms"] > 0
        assert max(row[way]["error"] for way in ("sorted", "fixed point", "atomics")) < 1e-3


def test_precision(backend, tmp_path):
    sizes = ["--samples", 300, "--networks", 2, "--activations", "relu", "tanh"]
    run("precision.py", "--backend", backend, *sizes, "--out", tmp_path)
    results = json.loads((tmp_path / f"precision-{backend}.json").read_text())["results"]
    precisions = ["half"] if backend == "cuda" else ["single", "half"]
    assert [(r["activation"], r["precision"]) for r in results["errors"]] == [
        (a, p) for a in ("relu", "tanh") for p in precisions
    ]
    for row in results["errors"]:
        low, high = (1e-5, 2e-2) if row["precision"] == "half" else (1e-8, 1e-4)
        assert low < row["output"] < high
        assert row["activation"] == "relu" or low < row["gradient"] < high  # ReLU's gradient jumps
        assert len(row["each"]["output"]) == len(row["each"]["gradient"]) == 2
    assert [layer["layer"] for layer in results["audit"]["layers"]][-1] == "Linear(64, 1)"


def test_uncertainty(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    sizes = ["--widths", 4, "--masks", 2, 3, "--log2-samples", 6, "--steps", 5]
    run("uncertainty.py", "--backend", backend, *sizes, "--out", tmp_path)
    results = json.loads((tmp_path / "uncertainty-llvm.json").read_text())["results"]
    first, second = results["passes"]
    for row in (first, second):
        assert row["difference"] < 1e-5
        assert min(row[way]["kernel_ms"] for way in ("loop", "unrolled")) > 0
        assert row["unrolled"]["compile_ms"] > 0
    # the loop's kernel is compiled once for any number of masks
    assert first["loop"]["compile_ms"] > 0 and second["loop"]["compile_ms"] == 0
    assert 0 < results["example"]["within 1 sigma"] < results["example"]["within 2 sigma"] <= 1


def test_projection(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    sizes = ["--large", 300, 64, "--small", 32, 8, "--log2-samples", 4]
    run("projection.py", "--backend", backend, *sizes, "--out", tmp_path)
    results = json.loads((tmp_path / "projection-llvm.json").read_text())["results"]
    assert [r["input"] for r in results] == ["tensor", "arrays"] * 3
    for row in results:
        assert min(row[way][k] for way in ("project", "transpose") for k in ("kernel_ms", "wall_ms")) > 0
    assert results[0]["project"]["compile_ms"] > 0  # the caches were empty


def test_derivatives(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    sizes = ["--fields", "relu", "sinusoidal, softplus", "--widths", 2, "--log2-samples", 6]
    run("derivatives.py", "--backend", backend, *sizes, "--out", tmp_path)
    plain, compared = json.loads((tmp_path / "derivatives-llvm.json").read_text())["results"]
    calls = {"call", "value_and_grad", "jvp", "value step", "eikonal step"}
    others = {"numerical_gradient", "eikonal step, built-in path", "eikonal step, numerical_gradient"}
    for row, expected in ((plain, calls), (compared, calls | others)):
        assert set(row) == {"field", "width", "inputs", "samples"} | expected
        assert min(row[name] for name in expected) > 0


def test_input_gradient(backend, tmp_path):
    networks = ["--networks", "relu,8,2,0", "tanh,8,1,0.1", "--log2-samples", 6]
    run("input_gradient.py", "--backend", backend, *networks, "--out", tmp_path)
    results = json.loads((tmp_path / f"input-gradient-{backend}.json").read_text())["results"]
    assert [row["network"] for row in results] == networks[1:3]
    for row in results:
        assert min(row[way] for way in ("call", "next", "again")) > 0 and row["difference"] < 0.02


def test_photo_dropout(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    pytest.importorskip("matplotlib")
    chosen = ["--conditions", "noisy, hash grid", "--quick"]
    run("photo_dropout.py", "--backend", backend, *chosen, "--out", tmp_path)
    results = json.loads((tmp_path / "photo-dropout-llvm.json").read_text())["results"]
    assert [row["condition"] for row in results["conditions"]] == chosen[1:2]
    for row in results["conditions"]:
        plain, dropout = row["ways"]
        assert plain["decay"] == row["best decay"] == 0 and dropout["dropout"] == 0.1
        assert plain["best"][0] >= plain["last"][0] > 5
        assert row["gains"]["0.1"]["last"][0] == pytest.approx(dropout["last"][0] - plain["best"][0], abs=2e-3)
        assert dropout["area by dropout"][0] > 0


def test_replayed_adjoint(llvm, tmp_path):
    sizes = ["--seeds", 1, 2, "--steps", 4, "--batches", 2, "--log2-samples", 10, "--log2-batch", 10]
    run("replayed_adjoint.py", "--backend", "llvm", *sizes, "--out", tmp_path)
    results = json.loads((tmp_path / "replayed-adjoint-llvm.json").read_text())["results"]
    assert [row["seed"] for row in results["replay"]["each"]] == [1, 2]
    for when in ("before", "after"):
        same, other = (results["replay"]["median"][when][f"{way} masks"] for way in ("same", "other"))
        assert same["largest"] == 0 < other["error"] and other["cosine"] < same["cosine"]
    assert all(0 < v < 10 for way in results["replay"]["median"]["trained"].values() for v in way.values())
    assert results["chunks"]["largest"] < 1e-6 and results["masks"]["different"] == 0
    assert results["memory"]["peak"]["dropout"] > 0 and results["memory"]["byte_masks"] == 3 << 16


def test_whole_jobs(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (40, 30), (200, 100, 50)).save(tmp_path / "image.png")
    jobs = ["--jobs", "config_hash", "16/2^8+5/bias/dropout", "--steps", 40]
    run("whole_jobs.py", "--backend", backend, *jobs, "--image", tmp_path / "image.png", "--out", tmp_path)
    first, second = json.loads((tmp_path / "whole-jobs-llvm.json").read_text())["results"]
    assert first["psnr_db"] > 10 and "psnr_db" not in second
    for row in (first, second):
        assert row["steps"] == 40 and min(row[k] for k in ("wall_ms", "first_step_s", "launches")) > 0
        assert "kernel_ms" in row  # a difference of short runs: below 0 where others use the processor


def test_training_steps(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    sizes = ["--widths", 16, "--log2-samples", 6, "--peers", "coopnet,drjit", "--turns", 2]
    run("training_steps.py", "--backend", backend, *sizes, "--out", tmp_path)
    plain, dropout = json.loads((tmp_path / "training-steps-llvm.json").read_text())["results"]
    assert set(plain["wall_ms"]) == {"coopnet", "drjit"} and set(dropout["wall_ms"]) == {"coopnet"}
    for row in (plain, dropout):
        assert all(len(turns) == 2 and min(turns) > 0 for turns in row["turns_ms"].values())


def test_own_steps(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("for CPUs")
    sizes = ["--widths", 16, "--log2-samples", 6, "--peers", "coopnet", "--turns", 1]
    run("own_steps.py", "--backend", backend, *sizes, "--out", tmp_path)
    rows = json.loads((tmp_path / "own-steps-llvm.json").read_text())["results"]
    assert [row["task"] for row in rows] == ["forward", "gradient", "input gradient", "step", "step, dropout"]
    assert all(row[time]["coopnet"] > 0 for row in rows for time in ("wall_ms", "cpu_ms"))


def test_outer_products(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    run("outer_products.py", "--backend", backend, "--shapes", "16x8", "--out", tmp_path)
    rows = json.loads((tmp_path / "outer-products-llvm.json").read_text())["results"]
    assert len(rows) == 8 and all(row["shape"] == [16, 8] and row["kernel_ms"] > 0 for row in rows)


PRINTED = "Step#0: loss=3 time=9000[µs]\nStep#10: loss=1 time=4500[µs]\nStep#100: loss=1 time=44100[µs]\n"


def test_torch_border(backend, tmp_path):
    pytest.importorskip("torch")
    if backend != "llvm":
        pytest.skip("one backend will do")
    run("torch_border.py", "--backend", backend, "--log2-samples", 6, "--repeat", 1, "--out", tmp_path)
    jobs = json.loads((tmp_path / "torch-border-llvm.json").read_text())["results"]["jobs"]
    assert len(jobs) == 2 and "PyTorch, step, 1 threads" in jobs[1]
    assert all(value > 0 for job in jobs for name, value in job.items() if name != "job")


def test_what_tiny_cuda_nn_prints(tmp_path, monkeypatch):
    """Of its sample, played by a script, times and picture are read; without a source tree, it is left out."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tcnn

    assert "no source tree" in tcnn.missing(tmp_path)
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "mlp_learning_an_image.cu").touch()
    assert "submodules" in tcnn.missing(tmp_path)
    (tmp_path / "dependencies" / "cutlass" / "include").mkdir(parents=True)
    monkeypatch.setattr(tcnn.shutil, "which", lambda name: None if name == "nvcc" else name)
    assert tcnn.missing(tmp_path) == "nvcc is not installed"
    monkeypatch.setattr(tcnn.shutil, "which", lambda name: name)
    assert tcnn.missing(tmp_path) == ""

    program, picture = tmp_path / "program", tmp_path / "image.png"
    image.new("RGB", (16, 16), (100, 100, 100)).save(picture)
    program.write_text(f"#!/bin/sh\nprintf '%b' {json.dumps(PRINTED)}\ncp {tmp_path}/other.png $4\n")
    program.chmod(0o755)
    image.new("RGB", (16, 16), (110, 110, 110)).save(tmp_path / "other.png")
    row = tcnn.measure(program, {}, picture, 101)
    assert row["wall_ms"] == pytest.approx(0.49) and row["samples"] == 2**18
    assert row["psnr_db"] == pytest.approx(28.13, abs=0.01)
    with pytest.raises(RuntimeError, match="printed no times"):
        tcnn.wall("Uncaught exception")

    program.write_text("#!/bin/sh\ngrep -q Identity $1 && echo compiling && echo precompiled 0.2$2$3 && echo jit nan\n")
    monkeypatch.setattr(tcnn, "build", lambda source, target: program)
    found = tcnn.inference(tmp_path, {"encoding": {"otype": "Identity"}}, 3, 1, 256)
    assert found == {"tiny-cuda-nn, precompiled": 0.231}


def test_many_fields(backend, tmp_path):
    peers = ["fit_many", "fit", *(["together", "two processes"] if backend == "llvm" else ["one by one"])]
    sizes = ["--fields", 6, "--widths", 16, "--samples", "64,128", "--steps", 4, "--peers", ",".join(peers)]
    run("many_fields.py", "--backend", backend, *sizes, "--out", tmp_path)
    entries = json.loads((tmp_path / f"many-fields-{backend}.json").read_text())["results"]["entries"]
    assert {e["peer"] for e in entries} == set(peers) and not any("failed" in e for e in entries)
    for e in entries:
        assert e["us_per_field_and_step"] > 0 and e["trained"] == e["fields"]
        assert e.get("error", 0) < (1e-2 if backend == "cuda" else 1e-5)


def test_scaling(backend, tmp_path):
    pytest.importorskip("torch")
    sizes = ["--worlds", 1, "--log2-samples", "8,10", "--log2-hashmap", 8, "--fields", 4, "--steps", 4]
    run("scaling.py", "--backend", backend, *sizes, "--out", tmp_path)
    results = json.loads((tmp_path / f"scaling-{backend}.json").read_text())["results"]
    assert [r["world"] for r in results["runs"]] == [1] and len(results["compared"]) == 4
    assert all(e["ms"] > 0 and e["predicted_ms"] > 0 for e in results["compared"])


def test_products(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    run("products.py", "--quick", "--out", tmp_path)
    (row,) = json.loads((tmp_path / "products-llvm.json").read_text())["results"]
    assert min(value for name, value in row.items() if name.endswith("_ms")) > 0


def test_every_script_finds_what_it_imports(backend):
    """Names of the library move; what is not installed does not matter."""
    if backend != "llvm":
        pytest.skip("one backend will do")
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
    code = f"""
import importlib, sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "benchmarks")!r}]
for name in {names}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name.split(".")[0] not in ("coopnet", *{names}), (name, error)
"""
    done = python("-c", code, timeout=None)
    assert done.returncode == 0, done.stderr


def test_uncertainty_unseen(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    sizes = ["--steps", 2, "--seeds", 1, "--members", 2, "--masks", 2, "--log2-samples", 6, "--encodings", "hash grid"]
    run("uncertainty_unseen.py", "--backend", backend, *sizes, "--out", tmp_path)
    results = json.loads((tmp_path / "uncertainty-unseen-llvm.json").read_text())["results"]
    assert len(results) == 8 and all(0 <= row["auroc"] <= 1 for row in results)


def test_uncertainty_quality(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    pytest.importorskip("matplotlib")
    options = ["--quick", "--encodings", "hash grid", "--backend", backend, "--out", tmp_path]
    run("uncertainty_quality.py", "--tasks", "texture", *options)
    run("uncertainty_quality.py", "--tasks", "levels", *options)  # keeps what is there
    results = json.loads((tmp_path / "uncertainty-quality-llvm.json").read_text())["results"]
    methods = [row["method"] for row in results["texture"]]
    assert len(methods) == len(set(methods)) == 17
    assert {"laplace of 3", "displacements", "Gaussian process"} < set(methods)
    assert all(row["ause"] > 0 and 0 <= row["auroc"] <= 1 and row["train"] > 0 for row in results["texture"])
    assert [row["condition"] for row in results["levels"]] == ["half", "few", "noisy"]
    assert set(results["goals"]) == {"area at most that of 10", "against the best decay"}


SMALL = {
    "mitsuba-media": ["--steps", 20, "--size", 4, "--spp", 8, "--reference", 32, "--repeat", 1],
    "mitsuba-emitters": ["--steps", 20, "--size", 4, "--spp", 2, "--seeds", 2],
    "occupancy": ["--steps", 20, "--size", 8, "--resolution", 16, "--repeat", 1],
    "trace-shapes": ["--width", 16, "--depth", 1],
}


@pytest.mark.parametrize("name", SMALL)
def test_volumes_emitters_and_shapes_of_calls(name, backend, tmp_path):
    if name.startswith("mitsuba"):
        pytest.importorskip("mitsuba")
    run(f"{name.replace('-', '_')}.py", "--backend", backend, "--out", tmp_path, *SMALL[name])
    rows = json.loads((tmp_path / f"{name}-{backend}.json").read_text())["results"]["rows"]
    number = {"mitsuba-media": "wall_ms", "mitsuba-emitters": "mean", "occupancy": "all_to_grid"}.get(name)
    assert len(rows) >= 3
    if number is None:
        assert rows[1]["kernels"] == 0 and rows[-1]["kernels"] > 0
    else:
        assert all(row[number] > 0 for row in rows)
