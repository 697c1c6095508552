"""Figures in pages that are written by hand are those of ``benchmarks/results``."""

from __future__ import annotations

import math
import re

from support.figures import page, performance, results, sentences_of
from support.machines import ROOT

from coopnet.audit import Audit, LayerAudit
from coopnet.engine import limits

#: Columns of the table in docs/many_fields.md.
PEERS_OF_MANY = ("fit_many", "two processes", "together", "fit", "torch")


def test_errors_of_precision():
    found = results("precision-llvm")
    names = {"relu": "ReLU", "tanh": "tanh", "softplus": "softplus", "silu": "SiLU", "sine": "sine"}
    errors = {(e["activation"], e["precision"]): e for e in found["errors"]}
    for activation, name in names.items():
        pair = [errors[activation, precision] for precision in ("single", "half")]
        row = [f"{e[what]:.1e}".replace("e-0", "e-") for what in ("output", "gradient") for e in pair]
        assert f"| {' | '.join([name, *row])} |" in page("precision")
    layers = tuple(LayerAudit(**layer) for layer in found["audit"]["layers"])
    lines = str(Audit(**(found["audit"] | {"layers": layers}))).split("\n")
    assert "\n".join(f"    {line}".rstrip() for line in lines) in page("precision")


def test_what_came_of_hostile_calls():
    found = results("fuzz-llvm")
    kinds = ("calls", "returned", "clear errors", "unclear errors", "aborts", "hangs")
    assert f"| {' | '.join(f'{found[kind]:,}' for kind in kinds)} |" in page("reliability")


def test_tables_of_mutants():
    for files in results("mutants-rooms"):
        for run in files["runs"]:
            after = 100 * run["noticed_after"] / (run["mutants"] - run["equivalent"])
            cells = [f"`{files['files']}`", run["seed"], run["mutants"], run["equivalent"]]
            row = " | ".join(map(str, [*cells, f"{run['percent_at_first']:.0f} %", f"{after:.0f} %"]))
            assert f"| {row} |" in page("reliability"), row
    assert f"sample of {results('mutants')['summary']['total']['mutants']} mutants" in sentences_of("reliability")


def test_tables_of_dropout_in_memory():
    """On the GPU, both by the time of kernels and by that of a call, in which PyTorch is faster."""
    entries = {(e["peer"], e["rows"], e["dtype"]): e for e in results("memory-cuda")["entries"] if e["log2_size"] == 27}
    peers = ("torch-copy", "coopnet", "coopnet-list", "torch", "triton", "triton-four-words")
    for rows, dtype in ((64, "float32"), (64, "float16"), (8, "float32"), (8, "float16")):
        kernel, wall = (
            {p: entries[p, rows, dtype][f"{time}_gb_per_s"] / 1000 for p in peers} for time in ("kernel", "wall")
        )
        share = f"{100 * kernel['coopnet'] / kernel['torch-copy']:.0f} %"
        cells = " | ".join([*(f"{kernel[p]:.2f}" for p in peers), share])
        assert f"| ({rows}, n) {dtype} | {cells} |" in page("dropout")
        cells = " | ".join(f"{wall[p]:.2f}" for p in ("coopnet", "coopnet-list", "torch"))
        assert f"| ({rows}, n) {dtype} | {cells} |" in page("dropout")
        assert wall["torch"] > max(wall["coopnet"], wall["coopnet-list"])


def test_noise_of_samples():
    transmit = 0
    for row in results("bsdf_sampling-llvm"):
        if "one lobe" in row:
            spreads = [f"{row[kind]['spread']:.2f}" for kind in ("reference", "one lobe", "eight numbers", "network")]
            assert f"| {' | '.join([row['material'], *spreads])} | {row['fewer_samples']:.1f} |" in page("mitsuba")
        else:
            transmit += 1
            numbers = [f"{row['relative_error']:.3f}", f"{row['albedo']:.3f}", f"{row['reference_albedo']:.3f}"]
            numbers += [f"{row[kind]['spread']:.2f}" for kind in ("reference", "fifteen numbers", "network")]
            assert f"| {' | '.join([row['material'], *numbers])} |" in page("mitsuba")
        if row["reference"]["spread"] > 0.1:  # as the page says
            assert row["network"]["spread"] < 1.5 * row["reference"]["spread"]
    assert transmit == 7
    short, long = results("bsdf_sampling-llvm")[:2]
    gpu = [row for row in results("bsdf_sampling-cuda") if row["reference"]["spread"] > 0.1]
    worst = max(row["network"]["spread"] / row["reference"]["spread"] for row in gpu)
    count = len(results("bsdf_sampling-cuda"))
    assert f"all {count} have at most {worst:.2f} times the material's own noise" in sentences_of("mitsuba")
    assert f"a relative error of {short['relative_error']:.2f}, which" in page("mitsuba")
    noise = long["network"]["spread"] / long["reference"]["spread"]
    learned = f"it has {long['relative_error']:.2f}, and the noise is {noise:.1f} times the material's own"
    assert learned in sentences_of("mitsuba")


def test_learned_materials():
    materials: dict[str, dict] = {}
    for row in results("bsdf_fits-llvm"):
        materials.setdefault(row["material"], {})[row["directions"]] = row
    for name, rows in materials.items():
        row, plain = rows["rusinkiewicz"], rows["plain"]
        errors = [f"{found['relative_error']:.3f}" for found in (row, plain)]
        albedos, picture = [f"{row[kind]:.3f}" for kind in ("albedo", "reference_albedo")], row["picture"]
        shares = [f"{100 * picture[kind]:.1f} %" for kind in ("error", "noise")]
        assert f"| {' | '.join([name, *errors, *albedos, *shares])} |" in page("mitsuba")
        assert plain["relative_error"] > row["relative_error"]
        if row["reference_spread"] > 0.1:
            assert row["spread"] < 1.5 * row["reference_spread"], name
    assert {"roughdielectric 0.3", "principled glass", "principledthin"} <= set(materials)


def test_stacks_of_materials():
    found, text = results("material_stack-llvm"), page("mitsuba")
    costs = {(row["layers"], row["kind"]): row for row in found["costs"]}
    for n in {layers for layers, _ in costs}:
        times = [f"{costs[n, kind]['ms']:.1f}" if (n, kind) in costs else "" for kind in ("tree", "chain")]
        assert f"| stack of {n} | {times[0]} | {times[1]} | {costs[n, 'tree']['ms_besides']:.0f} |" in text
    for row in found["networks"]:
        assert f"| {row['what']} | {row['ms']:.1f} | | {row['ms_besides']:.0f} |" in text
    for scene in found["scenes"]:
        for stack, network in zip(*(scene["ways"][way]["equal_time"] for way in ("stack", "network")), strict=True):
            cells = [scene["layers"], f"{stack['ms'] / 1e3:.1f}"]
            cells += [c for row in (stack, network) for c in (row["spp"], f"{row['relmse']:.4f}")]
            ratio = stack["relmse"] / network["relmse"]
            assert f"| {' | '.join(map(str, cells))} | {ratio:.1f} |" in text
        assert f"| {scene['relative_error']:.3f} | {scene['ways']['network']['converged']:.4f} |" in text
        assert f"took {scene['training_s']:.0f} s once its kernels were compiled" in text
    gpu = results("material_stack-cuda")
    costs = {row["what"]: row["ms"] for row in gpu["networks"]}
    for what, ms in costs.items():
        assert f"| {what} | {ms:.2f} |" in text or "no biases" in what, what
    trees = [f"{row['ms']:.2f}" for row in gpu["costs"] if row["kind"] == "tree"]
    assert f"| stack of 1; 2; 4 | {'; '.join(trees)} |" in text
    assert 0.08 < 1 - costs["32 x 3, lobes on a grid, neural_path"] / costs["32 x 3, neural_path"] < 0.12
    for scene in gpu["scenes"]:
        for stack, network in zip(*(scene["ways"][way]["equal_time"] for way in ("stack", "network")), strict=True):
            cells = [scene["layers"], f"{stack['ms']:.1f}"]
            cells += [c for row in (stack, network) for c in (row["spp"], f"{row['relmse']:.4f}")]
            assert f"| {' | '.join(map(str, cells))} | {stack['relmse'] / network['relmse']:.1f} |" in text
        assert f"{scene['training_s']:.1f} s" in sentences_of("mitsuba")
        for way in ("stack", "network"):
            assert f"{scene['ways'][way]['ms']:.2f} ms" in sentences_of("mitsuba")


def test_a_long_run():
    found = results("long-run-cuda")
    times = [row["step_ms"] for row in found["rows"][1:]]
    assert f"between {min(times):.3f} and {max(times):.3f} ms a step after the" in page("reliability")
    peaks = [row["peak_bytes"] for row in found["rows"]]
    assert max(peaks) < 1.01 * min(peaks) and found["steps"] == 100_000
    assert f"at most {max(peaks) / 1e6:.0f} MB of GPU memory, throughout" in page("reliability")


def whole_jobs(name="whole-jobs-cuda"):
    """On a GPU: entries by job, and those of tiny-cuda-nn."""
    entries = results(name)
    own = {}
    for entry in entries:
        if "peer" not in entry:
            own.setdefault(entry["job"], []).append(entry)
    return own, {entry["job"]: entry for entry in entries if entry.get("peer") == "tiny-cuda-nn"}


def to_torch(name, **where):
    """Lowest and highest of coopnet's times over PyTorch's, of whole steps, as pages print them."""
    ratios = [
        entry["wall_ms"]["coopnet"] / entry["wall_ms"]["torch"]
        for entry in results(name)
        if "torch" in entry["wall_ms"] and all(entry[k] == v for k, v in where.items())
    ]
    assert len(ratios) > 5
    return f"{min(ratios):.2f}", f"{max(ratios):.2f}"


def over_own(width, dropout):
    """PyTorch's kernel time over coopnet's for gradients of 2^20 samples on the GPU."""
    (ratio,) = (
        r["ratio"]
        for r in performance.ratios("networks-cuda", "kernel_ms")
        if (r["mode"], r["width"], r["log2_batch"], r["peer"]) == ("train", width, 20, "torch")
        and r["dropout"] == dropout
    )
    return ratio


def by_torch(width, dropout):
    return f"{over_own(width, dropout):.2f}"


def first_step(job):
    """Seconds of the first step of a job on the GPU."""
    (entry,) = whole_jobs()[0][job]
    return entry["first_step_s"]


def of_programs_and_masks():
    """What README.md says of the program of ten minutes, of runs that were killed, and of replayed masks."""
    drawn, found = results("ten-minutes-llvm"), results("replayed-adjoint-llvm")
    side, count, ms = (drawn[name] for name in ("size", "parameters", "frame_ms"))
    yield f"a signed distance with {count:,} parameters, and draws {side} x {side} pixels of it in {ms:.0f} ms on two"
    runs = sum(row.get("runs", 0) for row in results("kills-llvm")["tally"].values())
    yield f"In a test, {runs} runs were killed or interrupted and then resumed, and all ended with the same bits"
    before, after = (found["replay"]["median"][when]["other masks"]["error"] for when in ("before", "after"))
    yield f"gradient was off by {100 * before:.0f} % at the start and by {100 * after:.0f} % after training"
    same, other = (way["deviation"] for way in found["replay"]["median"]["trained"].values())
    yield f"the deviation over masks became {other / same:.1f} times as large"
    memory = found["memory"]
    sizes = (memory["peak"]["dropout"], memory["peak"]["plain"], memory["byte_masks"])
    masked, plain, stored = (f"{n / 1e6:.0f} MB" for n in sizes)
    yield f"step of 2^{memory['samples'].bit_length() - 1} samples takes {masked} with dropout and {plain} without"
    yield f"masks of one byte for each element would take {stored}"


def test_sentences_with_figures():
    """Sentences of README.md and of pages, made anew from the files; every decimal number of README.md is in one."""
    own, theirs = whole_jobs()
    blob = own["config_oneblob"][0]
    uniform, stratified = (own[job][0]["wall_ms"] for job in ("config_hash", "config_hash/stratified"))
    uniform, stratified = (wall / theirs["config_hash"]["wall_ms"] for wall in (uniform, stratified))
    alike = blob["wall_ms"] / theirs["config_oneblob"]["wall_ms"]
    lowest, highest = to_torch("training-steps-llvm", dropout=0.0)
    lowest_avx2, highest_avx2 = to_torch("training-steps-haswell-llvm", dropout=0.0)
    small = [
        r["ratio"]
        for r in performance.ratios("networks-cuda", "kernel_ms")
        if r["peer"] == "drjit-coop" and r["mode"] == "train" and r["width"] in (32, 64) and 12 <= r["log2_batch"] <= 16
    ]
    exported = [row["ns"] for row in results("export-cuda")["rows"]]
    inferred = sorted(ns["tiny-cuda-nn, jit"] / ns["drjit"] for ns in exported)
    times = [e["wall_ms"] for e in results("training-steps-cuda")]
    assert len(times) == 16
    compiled = sorted(t["coopnet"] / t["torch-compile"] for t in times if "torch-compile" in t)
    assert max(t["coopnet"] / t["torch"] for t in times) < 1  # as docs/limits.md says
    measured = [e["wall_ms"] for e in results("training-steps-llvm") if "torch" in e["wall_ms"]]
    faster = sum(times["coopnet"] < times["torch"] for times in measured)
    frozen = [1 / over_own(128, dropout) for dropout in (0.0, 0.1)]
    expected = {
        "README": [
            f"less time than PyTorch's in {faster} of {len(measured)} cases: {len(measured) // 2} sizes, with",
            f"| whole step, tiny-cuda-nn's hash-grid image | {uniform:.2f} (tiny-cuda-nn), {stratified:.2f} with ",
            f"| whole step, its 128-wide OneBlob network | {alike:.2f} (tiny-cuda-nn) | H200 |",
            f"| inference of three fields, 2^20 samples | {1 / inferred[-1]:.2f} to {1 / inferred[0]:.2f} "
            "(tiny-cuda-nn) | H200 |",
            f"with ReLU, 16 to 128 units | {compiled[0]:.2f} to {compiled[-1]:.2f} (PyTorch, compiled) | H200 |",
            f"you freeze, 128 wide | {frozen[0]:.2f} (PyTorch), {frozen[1]:.2f} with dropout 0.1 | H200 |",
            f"| whole step without dropout | {lowest} to {highest} (PyTorch) | two CPU cores, AVX-512 |",
            f"| the same | {lowest_avx2} to {highest_avx2} (PyTorch) | two CPU cores, AVX2 alone |",
            *of_programs_and_masks(),
        ],
        "limits": [
            f"PyTorch takes {by_torch(128, 0.0)} of coopnet's time for layers of 128 units in large batches, and "
            f"{by_torch(128, 0.1)} with dropout",
            f"a network 64 wide takes about {first_step('64'):.0f} seconds to compile the first time, and with dropout "
            f"{first_step('64/dropout'):.0f} seconds",
            f"A network 96 wide takes {first_step('96'):.0f} seconds",
            f"in {inferred[0]:.2f} to {inferred[-1]:.2f} of the time of coopnet's kernel",
        ],
        "coming_from/drjit_nn": [f"in {min(small):.2f} to {max(small):.2f} of coopnet's time"],
    }
    for name, sentences in expected.items():
        text = sentences_of(name)
        for sentence in sentences:
            assert sentence in text, (name, sentence)
    prose = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)
    checked = re.findall(r"\d+\.\d+", " ".join(expected["README"]))
    assert set(re.findall(r"\d+\.\d+", prose)) <= set(checked)


def test_functions_that_users_freeze_on_a_gpu():
    keys = ("peer", "frozen", "mode", "width", "log2_batch")
    entries = [
        e for e in results("networks-cuda")["entries"] if [e[k] for k in keys] == ["coopnet", True, "train", 64, 20]
    ]
    plain, masked = (e["first_call_s"] for e in sorted(entries, key=lambda e: e["dropout"]))
    text = sentences_of("performance/gradients")
    assert f"for {plain:.0f} s with 64 units, and for {masked:.0f} s with dropout (`networks-cuda.json`)" in text
    assert 0.45 < float(by_torch(128, 0.0)) < 0.55  # PyTorch takes half of the time


def test_launches_of_exported_fields():
    """A line through the times of 2^22 and 2^24 samples: its value at 0, and its slope."""
    times = [row["drjit_us"] for row in results("export-cuda")["rows"]]
    slopes = [(us["24"] - us["22"]) / (2**24 - 2**22) for us in times]
    fixed = sorted(us["24"] - slope * 2**24 for us, slope in zip(times, slopes, strict=True))
    text = sentences_of("performance/rendering")
    assert f"takes {fixed[0]:.0f} to {fixed[-1]:.0f} µs for any number of samples" in text
    each = [f"{1e3 * slope:.3f}" for slope in slopes]
    assert f"takes {each[0]}, {each[1]} and {each[2]} ns" in text
    for us, slope in list(zip(times, slopes, strict=True))[:2]:  # about half, as docs/limits.md says
        assert 0.4 < 1 - slope * 2**20 / us["20"] < 0.6


def test_what_first_steps_are_spent_on():
    took = {row["job"]: max(k["seconds"] for k in row["compiled"]) for row in results("step-profile-cuda")}
    narrow, wide, dropout = (f"{took[job]:.1f} s" for job in ("32", "64", "64/dropout"))
    said = f"took it {narrow} with 32 units, {wide} with 64, and {dropout} with 64 and dropout"
    assert said in sentences_of("performance/gradients")


def test_whole_jobs_on_another_gpu():
    own, theirs = whole_jobs("whole-jobs-h100-cuda")
    text = sentences_of("performance/gradients")

    def took(row):
        runs = f"{min(row['psnr_db_of_runs']):.2f} to {max(row['psnr_db_of_runs']):.2f}"
        return f"{row['wall_ms']:.3f} ms ({'{}'}{row['psnr_db']:.2f} dB, {runs})"

    uniform, stratified = (took(own[job][0]) for job in ("config_hash", "config_hash/stratified"))
    said = f"`config_hash` took {uniform.format('picture ')}, with `cn.stratified` points {stratified.format('')}, and"
    assert f"{said} tiny-cuda-nn {took(theirs['config_hash']).format('')}" in text
    ours, other = (f"{row['wall_ms']:.2f} ms" for row in (own["config_oneblob"][0], theirs["config_oneblob"]))
    assert f"`config_oneblob` took {ours} and tiny-cuda-nn {other}" in text
    took = {job: row[0]["wall_ms"] for job, row in own.items()}
    widths = [f"{took[job]:.2f}" for job in ("16", "32", "64", "128")]
    assert f"take {', '.join(widths[:3])} and {widths[3]} ms with 16, 32, 64 and 128 units" in text
    longer = [f"{took[f'{width}/bias'] / took[width]:.2f}" for width in ("32", "64")]
    assert f"Biases make them {longer[0]} times as long with 32 units, and {longer[1]} times with 64" in text


def test_what_dropout_costs_on_another_gpu():
    text, took = sentences_of("performance/gradients"), took_by_job("whole-jobs-dropout-h100-cuda")
    narrow, wide = (f"{took[f'{width}/dropout'] / took[width]:.2f}" for width in ("32", "64"))
    fast = f"{took['64/dropout 7 8'] / took['64']:.2f}"
    said = f"dropout 0.1 made steps {narrow} times as long with 32 units and {wide} times with 64, and {fast} times"
    assert f"{said} with 64, `rounds=7` and `bits=8`" in text
    took = took_by_job("whole-jobs-dropout-cuda")
    usual, fast = (f"{took[f'64/{dropout}'] / took['64']:.2f}" for dropout in ("dropout", "dropout 7 8"))
    said = f"took {usual} times as long with dropout, and {fast} times with `rounds=7` and `bits=8`"
    assert said in text


def test_how_long_runs_are_stored():
    rows = [row for row in results("whole-jobs-dropout-h100-cuda") if row["job"] == "64/dropout/2^14"]
    text, (store, banks) = sentences_of("performance/gradients"), sorted(rows, key=lambda row: row["planned"])
    first = f"took {store['first_step_s']:.1f} s with activations stored and {banks['first_step_s']:.1f} s with banks"
    assert f"{first}, and the others {store['wall_ms']:.2f} and {banks['wall_ms']:.2f} ms" in text
    even = 1e3 * (banks["first_step_s"] - store["first_step_s"]) / (store["wall_ms"] - banks["wall_ms"])
    least = limits.COMPILED_SAMPLES[1] / (2**14 + limits.LIBRARY_CALL_SAMPLES)
    assert f"Runs of up to {least / 1000:.0f},000 such steps are stored" in text and 0.9 < even / least < 1.2


def test_first_steps_of_the_next_process():
    found = {(r["job"], r["planned"], r["process"]): r for r in results("second-run-cuda")}
    later = [r["first_step_s"] for (_, _, process), r in found.items() if process == 2]
    assert f"its first step takes [{min(later):.1f} to {max(later):.1f} s]" in sentences_of("installation")
    assert all(r["misses"] == 0 for (_, _, process), r in found.items() if process == 2)
    slowest = max((r for r in found.values() if r["process"] == 2), key=lambda r: r["first_step_s"])
    assert slowest["job"] == "64/dropout"  # "With dropout and large batches it traces longest"


def took_by_job(name):
    return {row["job"]: row["wall_ms"] for row in results(name)}


def test_table_beside_tiny_cuda_nn():
    own, theirs = whole_jobs()
    rows = {
        "tiny-cuda-nn": theirs["config_hash"], "`cn.fit`": own["config_hash"][0],
        "`cn.fit`, `cn.stratified` points": own["config_hash/stratified"][0],
    }  # fmt: skip
    for label, row in rows.items():
        kernels = f"{row['kernel_ms']:.3f} ms" if "kernel_ms" in row else ""
        runs = f"{min(row['psnr_db_of_runs']):.2f} to {max(row['psnr_db_of_runs']):.2f}"
        cells = [label, f"{row['wall_ms']:.3f} ms", kernels, f"{row['psnr_db']:.2f} dB, {runs}"]
        assert re.sub(" +", " ", f"| {' | '.join(cells)} |") in page("performance/gradients")


def test_derivatives_turn_by_turn():
    rows = {row["row"]: row for row in results("mitsuba_spheres_gradients-cuda")["rows"]}
    one, four = (rows[f"neural_path, {n}, gradient"] for n in ("one network", "four networks"))
    text, analytic = sentences_of("rendering"), rows["prb, analytic, gradient"]
    assert f"takes {four['wall_ms']:.0f} ms with four networks and {one['wall_ms']:.0f} ms with one" in text
    assert f"{four['kernel_ms']:.0f} and {one['kernel_ms']:.0f} ms of it in kernels; `prb` takes" in text
    assert f"takes {analytic['wall_ms']:.0f} ms with analytic materials" in text
    memory = sorted(row["bytes_per_path"] for row in results("mitsuba_spheres_wavefront-llvm")["rows"])
    assert f"{memory[0]:,.0f} to {memory[1]:,.0f} bytes in single precision" in text
    errors = {row["row"]: row["error"] for row in results("path_gradients-cuda")["rows"]}
    assert f"`neural_path` {errors['neural_path']:.1e}".replace("e-0", "e-") in text
    assert f"`prb` {errors['prb']:.2f}." in text


def test_table_of_frozen_functions():
    """PyTorch's time over coopnet's, by width, over all batches that were measured."""
    text = page("performance/gradients")
    for name, label in (("own-steps-llvm", "AVX-512"), ("own-steps-haswell-llvm", "AVX2")):
        ratios: dict[int, dict[str, list[float]]] = {}
        for row in results(name):
            times = row["cpu_ms"]
            ratios.setdefault(row["width"], {}).setdefault(row["task"], []).append(times["torch"] / times["coopnet"])
        for width, tasks in ratios.items():
            columns = ("forward", "gradient", "input gradient", "step", "step, dropout")
            cells = [f"{min(tasks[task]):.2f} to {max(tasks[task]):.2f}" for task in columns]
            assert f"| {label} | {width} | {' | '.join(cells)} |" in text


def test_tables_of_settings():
    """The page that advises on encodings, widths and dropouts."""
    text = page("which_settings")
    cost = {e["layer"]: e for e in results("layers-llvm")}
    for name in ("Identity", "Sinusoidal", "OneBlob", "SphericalHarmonics", "Fourier", "HashGrid", "Permutohedral"):
        cells = [f"{cost[name][key]:#.2g}".rstrip(".") for key in ("forward_ns", "backward_ns")]
        cells = [c if "e" not in c else f"{float(cost[name]['backward_ns']):.0f}" for c in cells]
        assert f"| `{name}` | {' | '.join(cells)} |" in text, cells
    networks = [
        r for r in performance.ratios("networks-llvm", "wall_ms") if r["log2_batch"] == 17 and r["mode"] == "train"
    ]
    steps = {(r["width"], r["dropout"]): r["own"] for r in networks}
    jobs = whole_jobs()[0]
    for width in (16, 32, 64, 128):
        (step,) = jobs[str(width)]
        assert f"| {width} | {steps[width, 0.0]:.3g} | {step['wall_ms']:#.3g} |" in text
    assert f"{steps[64, 0.1]:.0f} instead of {steps[64, 0.0]:.1f} ms at width 64" in text
    conditions = results("photo-dropout-llvm")["conditions"]
    for row, where in {
        "10 % of the pixels, noise 0.1": (0.1, 0.1, 128, "sinusoidal"),
        "50 %, noise 0.2": (0.5, 0.2, 128, "sinusoidal"),
        "20 %, noise 0.1, network 32 wide": (0.2, 0.1, 32, "sinusoidal"),
        "20 %, noise 0.1, hash grid and 64 wide": (0.2, 0.1, 64, "hashgrid"),
    }.items():
        (gains,) = (c["gains"] for c in conditions if (c["fraction"], c["noise"], c["width"], c["encoding"]) == where)
        cells = [f"{gains[p]['last'][0]:+.2f}".replace("-", "−") for p in ("0.1", "0.3")]
        assert f"| {row} | {' | '.join(cells)} |" in text, cells


def test_tables_of_derivatives():
    text = page("derivatives")
    steps = {e["width"]: e for e in results("derivatives-llvm") if e["field"] == "sinusoidal, softplus"}
    columns = (
        "call", "value_and_grad", "numerical_gradient", "value step", "eikonal step", "eikonal step, built-in path",
        "eikonal step, numerical_gradient",
    )  # fmt: skip
    for width, step in steps.items():
        assert f"| {width} | {' | '.join(f'{step[column]:.3g}' for column in columns)} |" in text
    rows = 0
    for name, machine in (("derivatives-llvm", "CPU, 2^16"), ("derivatives-cuda", "H100, 2^20")):
        for entry in results(name):
            if entry["field"] == "sinusoidal, softplus":
                continue
            ratios = [f"{entry[k] / entry['call']:.1f}" if k in entry else "–" for k in ("value_and_grad", "jvp")]
            eikonal = entry.get("eikonal step / value step")
            if "eikonal step" in entry:
                eikonal = entry["eikonal step"] / entry["value step"]
            cells = [machine, entry["field"], entry["width"], f"{entry['call']:.2g} ms", *ratios]
            row = " | ".join(map(str, cells)) + (f" | {eikonal:.1f} |" if eikonal else " | |")
            assert row in text, row
            rows += 1
    assert rows == len(re.findall(r"^\| (?:CPU|H100), 2\^\d+ \|", text, re.M))
    again = results("input-gradient-cuda")
    for entry in again:
        activation, width, depth, rate = entry["network"].split(",")
        name = activation + (f", dropout {rate}" if float(rate) else "")
        ratios = " | ".join(f"{entry[way] / entry['call']:.1f}" for way in ("next", "again"))
        power = f"2^{int(math.log2(entry['samples']))}"
        assert f"| {name} | {width} | {depth} | {power} | {entry['call']:.3f} ms | {ratios} |" in text
    assert len(again) == len(re.findall(r"^\| [^|]+ \| \d+ \| \d+ \| 2\^\d+ \|", text, re.M))


def test_table_of_compressed_textures():
    names, rows = ("psnr", "albedo", "surface", "physical"), page("textures")
    codecs = [row for name in ("compression", "third") for row in results(f"texture-{name}-llvm")["codecs"]]
    lines = [f"| {c['codec']} | {c['bits']:.2f} | {' | '.join(f'{c[n]:.2f}' for n in names)} |" for c in codecs]
    printed = re.findall(r"^\| (?:neural|JPEG|BC).*\|$", rows, re.M)
    assert len(printed) > 10 and set(printed) <= set(lines)


def test_codes_that_were_searched():
    rows, text = {row["codec"]: row for row in results("texture-search-llvm")}, page("textures")
    for name in ("as it was", *(f"searched {i}" for i in range(1, 10))):
        cells = [f"{rows[name][part]:.2f}" for part in ("psnr", "albedo", "surface", "physical")]
        cells.append(f"{rows[name]['cpu_s']:.0f}")
        assert f"| {' | '.join([name, *cells])} |" in text
    (bc7,) = [row for row in results("texture-third-llvm")["codecs"] if row["codec"] == "BC7"]
    ahead, surface = rows["searched 9"]["psnr"] - bc7["psnr"], rows["searched 9"]["surface"] - bc7["surface"]
    said = sentences_of("textures")
    assert f"the file is {ahead:.1f} dB ahead" in said and f"map is {surface:.1f} dB better than BC7" in said
    (third,) = [row for row in results("texture-third-llvm")["codecs"] if row["codec"] == "neural, third"]
    assert f"where it was {bc7['psnr'] - third['psnr']:.1f} dB behind" in sentences_of("textures")
    assert f"24,000, reach {rows['as it was']['psnr']:.2f} dB with rounding" in sentences_of("textures")
    (exact,) = results("texture-unrounded-llvm")
    assert f"reaches {exact['psnr']:.2f} dB (`--unrounded`" in text and exact["steps"] == 6000


def test_table_of_many_fields():
    entries = results("many-fields-llvm")["entries"]
    times = {(e["peer"], e["width"], e["samples"]): e["us_per_field_and_step"] for e in entries}
    printed = re.findall(r"^\| (\d+), ([\d,]+) \|(.*)\|$", page("many_fields"), re.M)
    assert len(printed) == 9
    for width, samples, cells in printed:
        of = [times.get((p, int(width), int(samples.replace(",", "")))) for p in PEERS_OF_MANY]
        assert [c.strip() for c in cells.split("|")] == [f"{t:,.0f}" if t else "" for t in of]


def test_media_emitters_and_empty_space():
    text = sentences_of("mitsuba_light")
    media = {row["medium"]: row for row in results("mitsuba-media-llvm")["rows"]}
    grid, large = media["grid"], media["grid, eight times the memory"]
    ours, calls = media["field, neural_medium in neural_volpath"], media["field, neural_medium in volpath"]
    errors = [f"{row['relative_mse'] * 1e3:.1f}e-3" for row in (ours, grid, large)]
    sizes = [f"{row['bytes'] / 1e3:.0f} kB" for row in (ours, grid, large)]
    said = f"relative error is {errors[0]} with the field's {sizes[0]}, {errors[1]} with a grid of {sizes[1]}, and"
    assert f"{said} {errors[2]} with one of {sizes[2]}" in text
    times = [row["wall_ms"] / grid["wall_ms"] for row in (ours, calls)]
    assert f"`neural_volpath` needed {times[0]:.1f} times that of the grid, `volpath`" in text
    assert f"which evaluates the network in calls, {times[1]:.0f} times" in text
    noise = {row["emitter"]: row["variance"] for row in results("mitsuba-emitters-llvm")["rows"]}
    names = ("neural_envmap", "envmap", "neural_envmap, uniform")
    said = "variance of a sample is {:.2f} under `neural_envmap`, {:.2f} under `envmap` and {:.1f} with"
    assert said.format(*map(noise.get, names)) in text
    assert f"from {noise['lamp']:.0f} to {noise['lamp, sampling=64']:.1f}" in text
    media = {row["medium"]: row for row in results("mitsuba-media-cuda")["rows"]}
    grid, large = media["grid"], media["grid, eight times the memory"]
    ours, calls = media["field, neural_medium in neural_volpath"], media["field, neural_medium in volpath"]
    times = [row["wall_ms"] / grid["wall_ms"] for row in (ours, calls)]
    errors = [f"{row['relative_mse'] * 1e3:.1f}e-3" for row in (ours, grid, large)]
    assert (
        f"these are {times[0]:.1f} and {times[1]:.1f} times, and the errors {errors[0]} with the field, {errors[1]}"
        in text
    )
    assert f"of the same memory and {errors[2]} with the large one" in text
    lit = {row["emitter"]: row["wall_ms"] for row in results("mitsuba-emitters-cuda")["rows"]}
    assert f"takes {lit['neural_envmap']:.0f} ms under `neural_envmap` and {lit['envmap']:.0f} ms under" in text
    empty, text = results("occupancy-cuda"), sentences_of("rendering")
    picture, *gradients = (row["all_to_grid"] for row in empty["rows"])
    said = "the picture is {:.1f} times as fast, gradients {:.1f} and {:.1f} times"
    assert said.format(picture, *gradients) in text
    assert f"on the CPU and {empty['difference']:.3f} on the GPU" in text
    spent = {row["call"]: row["compile_ms"] / 1e3 for row in results("trace-shapes-cuda")["rows"]}
    assert f"there the first takes {spent['first']:.1f} s and the gradient {spent['gradient']:.1f} s" in text
    empty, text = results("occupancy-llvm"), sentences_of("rendering")
    picture, replay, wide = (row["all_to_grid"] for row in empty["rows"])
    assert f"a grid makes a picture {picture:.0f} times as fast as marching through everything" in text
    assert f'gradients {replay:.0f} times (`"replay"`) and {wide:.0f} times (`"wide"`, not frozen)' in text
    assert f"since {100 * empty['samples']:.1f} % of the samples are evaluated" in text
    assert f"difference of a color is {empty['difference']:.3f}" in text
    again = {row["call"]: row["operations"] for row in results("trace-shapes-llvm")["rows"]}
    assert f"| {again['bisections=0'] / 1e3:.0f},000 / {again['silhouette'] / 1e3:.0f},000 |" in text
    assert f"| the gradient of the weights | {again['gradient'] / 1e3:.0f},000 |" in text


def test_radiance_caches_in_rooms_with_glass_and_in_motion():
    text, lines = sentences_of("mitsuba_light"), page("mitsuba_light")
    for row in results("radiance-cache-rooms-llvm")["rows"]:
        of = [[r and f"{r:.1f}" for r in cache["path_over_cache"]] for cache in row["cache"]]
        cells = [" / ".join(r or "-" for r in ratios) for ratios in of]
        scene = f"`{row['scene']}`, {row['size']} x {row['size']}"
        assert f"| {' | '.join([scene, *cells])} |" in lines
    balls = {row["ball"]: row for row in results("radiance-cache-bias-llvm")["rows"]}
    for ball, row in balls.items():
        assert abs(row["oracle_percent"]) < 3 * row["oracle_sigma"]
        pairs = [(row["oracle_percent"], row["oracle_sigma"])] + [(t["percent"], t["sigma"]) for t in row["tails"]]
        assert f"| {' | '.join([ball, *(f'{mean:+.1f} ± {sigma:.1f}' for mean, sigma in pairs)])} |" in lines
    worst = max(abs(off) for tail in balls["glass"]["tails"] for off in tail["each"])
    assert f"no seed's mean was off by more than {worst:.1f} %" in text
    wide = balls["rough glass"]["wide"]
    assert f"A larger field loses less, too: {wide['percent']:+.1f} % with `tail={wide['tail']}`" in text
    frames = results("radiance-cache-frames-llvm")
    mean = frames["mean_of_last_two_thirds"]
    said = f"two thirds is {mean['kept_1']:.3f}, that of `path` {mean['path']:.3f}."
    assert said in text and f"before the cache: {mean['kept_0']:.3f}. A cache" in text
    assert f"in each frame has {mean['anew_1']:.3f} and {mean['anew_0']:.3f} (" in text
    assert "In every frame the error is smaller" in text
    assert all(row["kept_1"] < row["path"] for row in frames["curve"]) and len(frames["curve"]) == frames["frames"]


def test_the_longest_first_step():
    rows = results("whole-jobs-cuda")
    longest = f"up to {max(row.get('first_step_s', 0) for row in rows):.0f} s"
    assert longest in sentences_of("README") and longest in sentences_of("installation")


def test_when_the_power_of_adam_underflows():
    """At 2^-1023.5: ``tests/jit/test_optimizers.py`` has what happens there."""
    first, later = (int(1023.5 / -math.log2(beta)) for beta in (0.99, 0.999))
    text = sentences_of("reliability")
    assert f"after {first:,} others if `beta_2` is 0.99, and after about {round(later, -3):,} if it is 0.999" in text
