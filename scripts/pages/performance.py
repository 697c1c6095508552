"""Tables of ``benchmarks/results/*.json``, with machine, date, versions, and the command that measures anew."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .markdown import number, size, table

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"
if str(BENCHMARKS) not in sys.path:
    sys.path.insert(0, str(BENCHMARKS))

import figures  # noqa: E402 - the benchmarks' own: which variant of a peer counts
import table as headline  # noqa: E402

#: Result files whose script has another name than the file.
SCRIPTS = {
    "texture-third": "benchmarks/texture_compression.py",
    "texture-search": "benchmarks/texture_compression.py",
    "texture-unrounded": "benchmarks/texture_compression.py",
    "kills": "tests/slow/kills.py",
    "fuzz": "tests/slow/fuzz.py",
    "mutants": "scripts/mutants.py",
    "mutants-rooms": "scripts/mutants.py",
    "outer-products": "benchmarks/outer_products.py",
    "host-functions": "benchmarks/host_functions.py",
    "waiting": "benchmarks/waiting.py",
    "code-size": "benchmarks/code_size.py",
    "networks-haswell": "benchmarks/networks.py",
    "training-steps-haswell": "benchmarks/training_steps.py",
    "training-steps-activations": "benchmarks/training_steps.py",
    "whole-jobs-h100": "benchmarks/whole_jobs.py",
    "whole-jobs-dropout": "benchmarks/whole_jobs.py",
    "whole-jobs-dropout-h100": "benchmarks/whole_jobs.py",
    "side-by-side": "benchmarks/side_by_side.py",
    "statistics": "benchmarks/mask_statistics.py",
    "export-gallery": "scripts/draw_export_gallery.py",
    "ten-minutes": "scripts/draw_ten_minutes.py",
    "mitsuba_spheres_ablations": "benchmarks/mitsuba_spheres.py",
    "mitsuba_spheres_gradients": "benchmarks/mitsuba_spheres.py",
    "mitsuba_spheres_wavefront": "benchmarks/mitsuba_spheres.py",
    "own-steps-haswell": "benchmarks/own_steps.py",
}


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def place(machine: dict[str, Any]) -> str:
    return figures.place(machine)


def measured(name: str, command: str = "") -> str:
    """Where ``name`` was measured, and what measures it anew."""
    found = f"`benchmarks/results/{name}.json`: {place(load(name)['machine'])}."
    return found + (f" Again: `{command}`." if command else "")


def networks(backend: str) -> str:
    """Training and inference of networks by width, beside peers, at the batch of the headline."""
    return headline.table(load(f"networks-{backend}"))


def ratios(name: str, value: str) -> list[dict[str, Any]]:
    """Each peer's best time over coopnet's, for every network and batch that both were measured with."""
    entries = load(name)["results"]["entries"]
    keys = ("mode", "dropout", "width", "log2_batch")
    found = []
    for where in sorted({tuple(e[k] for k in keys) for e in entries}):
        same = [e for e in entries if tuple(e[k] for k in keys) == where]
        frozen = {"frozen": True} if name.endswith("cuda") else {}
        own = figures.best(same, value, peer="coopnet", **frozen)
        for peer in figures.peers(entries):
            theirs = figures.best(same, value, peer=peer)
            if peer != "coopnet" and own and theirs:
                row = dict(zip(keys, where, strict=True))
                found.append(row | {"peer": peer, "ratio": theirs[value] / own[value], "own": own[value]})
    return found


def behind(name: str, value: str) -> str:
    """Rows in which a peer is at least 3 % faster, the worst first."""
    slower = sorted((r for r in ratios(name, value) if r["ratio"] < 0.97), key=lambda r: r["ratio"])
    if not slower:
        return "No library is faster in any of the rows."
    rows = [
        (
            figures.NAMES[r["peer"]],
            "training" if r["mode"] == "train" else "inference",
            f"{r['dropout']:g}" if r["dropout"] else "–",
            r["width"],
            f"2^{r['log2_batch']}",
            f"{number(r['own'])} ms",
            f"{r['ratio']:.2f}×",
        )
        for r in slower
    ]
    what = {"wall_ms": "wall times", "kernel_ms": "kernel times"}[value]
    count = f"{len(slower)} of {len(ratios(name, value))} rows, {what}. {measured(name)}"
    return f"{count}\n\n" + table(["peer", "", "dropout", "width", "batch", "coopnet", "its relative time"], rows)


def by_batch(name: str, value: str) -> str:
    """Median over widths of a peer's time over coopnet's, by batch."""
    found = ratios(name, value)
    batches = sorted({r["log2_batch"] for r in found})
    rows = []
    for mode, label in (("infer", "inference"), ("train", "training")):
        for dropped in (False, True):
            for peer in figures.NAMES:
                cells: list[object] = []
                for b in batches:
                    of = [
                        r["ratio"]
                        for r in found
                        if r["mode"] == mode and bool(r["dropout"]) == dropped and r["peer"] == peer
                        and r["log2_batch"] == b
                    ]  # fmt: skip
                    cells.append(f"{statistics.median(of):.2f}×" if of else "–")
                if any(c != "–" for c in cells):
                    rows.append([figures.NAMES[peer], label + (", dropout 0.1" if dropped else ""), *cells])
    return measured(name) + "\n\n" + table(["peer", "", *(f"2^{b}" for b in batches)], rows)


def spread(found: list[dict[str, Any]], **where: Any) -> str:
    """Lowest and highest ratio of the rows that have ``where``."""
    of = [r["ratio"] for r in found if all(r[k] == v for k, v in where.items())]
    return f"{min(of):.2f} to {max(of):.2f}"


def in_short() -> str:
    """What a peer takes for what coopnet does in 1, without and with dropout, at the batches of the headlines."""
    rows = []
    for name, value, batch in (("networks-llvm", "wall_ms", 17), ("networks-cuda", "kernel_ms", 20)):
        found = ratios(name, value)
        place_of = "CPU" if name.endswith("llvm") else "GPU"
        for peer, label in (("drjit-coop", "`drjit.nn`, cooperative vectors"), ("torch", "PyTorch")):
            for dropout in (0.0, 0.1) if peer == "torch" else (0.0,):
                where = {"peer": peer, "log2_batch": batch, "dropout": dropout}
                rows.append([
                    label + (", dropout 0.1" if dropout else ""), f"{place_of}, 2^{batch}",
                    spread(found, mode="infer", **where), spread(found, mode="train", **where),
                ])  # fmt: skip
    of = [theirs["wall_ms"] / own["wall_ms"] for _, theirs, own in beside_tiny_cuda_nn()]
    rows.append(["tiny-cuda-nn, its own sample", "GPU, 2^18", "–", f"{min(of):.2f} to {max(of):.2f}"])
    return table(["peer", "batch", "inference", "training"], rows)


def whole_jobs(name: str) -> str:
    """Steps of training with everything in them, tiny-cuda-nn's own sample among them where it ran."""
    rows = []
    for r in load(name)["results"]:
        psnr = f"{r['psnr_db']:.2f} dB" if "psnr_db" in r else None
        job = f"`{r['job']}`"
        if r.get("peer"):
            rows.append([job, r["peer"], f"{r['samples']:,}", f"{number(r['wall_ms'])} ms", None, None, None, psnr])
            continue
        rows.append([
            job, "coopnet", f"{r['samples']:,}", f"{number(r['wall_ms'])} ms", f"{number(r['kernel_ms'])} ms",
            f"{number(r['first_step_s'], 2)} s", size(r["peak_bytes"]), psnr,
        ])  # fmt: skip
    head = ["job", "", "samples", "wall, per step", "kernels", "first step", "peak memory", "after all steps"]
    command = f"python benchmarks/whole_jobs.py --backend {load(name)['machine']['backend']}"
    return measured(name, command) + "\n\n" + table(head, rows)


def step_profile() -> str:
    """What the time of a step on a GPU is spent on."""
    rows = []
    for r in load("step-profile-cuda")["results"]:
        # Dr.Jit's clock and the profiler's differ by some microseconds
        parts = [r["optix_us"], r["kernels_us"], max(r["gaps_us"] - r["optix_us"], 0)]
        spent = [f"{us / 1e3:.2f}" for us in parts]
        launches = [f"{n:.0f}" for n in (r["optix_launches"], r["launches"])]
        rows.append([f"`{r['job']}`", number(r["wall_ms"]), launches[0], *spent, launches[1]])
    head = ["job", "wall", "OptiX launches", "OptiX", "other kernels", "waiting", "other launches"]
    command = "python benchmarks/step_profile.py --backend cuda"
    return measured("step-profile-cuda", command) + "\n\n" + table(head, rows)


def second_run() -> str:
    """First steps in two processes after each other."""
    data = load("second-run-cuda")["results"]
    firsts = {(r["job"], r["planned"], r["process"]): f"{r['first_step_s']:.1f}" for r in data}
    planned = sorted({r["planned"] for r in data})
    rows = [
        [f"`{job}`", *(firsts[job, n, process] for n in planned for process in (1, 2))]
        for job in dict.fromkeys(r["job"] for r in data)
    ]
    head = [
        "job",
        *(f"{n:,} steps planned, {process}" for n in planned for process in ("empty caches", "next process")),
    ]
    command = "python benchmarks/second_run.py --backend cuda"
    return measured("second-run-cuda", command) + "\n\n" + table(head, rows)


def training_steps(name: str, command: str) -> str:
    """Milliseconds of a whole step by coopnet, and how many times as long peers take."""
    data = load(name)["results"]
    peers = [p for p in ("drjit", "torch", "torch-compile") if any(p in r["wall_ms"] for r in data)]
    labels = {"drjit": "`drjit.nn`", "torch": "PyTorch", "torch-compile": "PyTorch, compiled"}
    rows, several = [], any(r.get("activation", "relu") != "relu" for r in data)
    for r in sorted(data, key=lambda r: (r["dropout"], r["width"], r["log2_samples"])):
        own = r["wall_ms"]["coopnet"]
        others = [f"{r['wall_ms'][p] / own:.2f}×" if p in r["wall_ms"] else "–" for p in peers]
        dropout = f"{r['dropout']:g}" if r["dropout"] else "–"
        activation = [r["activation"]] if several else []
        rows.append([r["width"], f"2^{r['log2_samples']}", *activation, dropout, f"{number(own)} ms", *others])
    head = ["width", "batch", *(["activation"] if several else []), "dropout", "coopnet", *(labels[p] for p in peers)]
    return measured(name, command) + "\n\n" + table(head, rows)


def beside_tiny_cuda_nn() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """For each of tiny-cuda-nn's samples: the file that has it, its row, and coopnet's from the same run."""
    found: dict[str, tuple] = {}
    name = "whole-jobs-cuda"
    rows = load(name)["results"]
    for theirs in (r for r in rows if r.get("peer") == "tiny-cuda-nn"):
        own = next(r for r in rows if r["job"] == theirs["job"] and "peer" not in r)
        found[theirs["job"]] = name, theirs, own
    return list(found.values())


def tiny_cuda_nn() -> str:
    """tiny-cuda-nn's own sample beside the same job here, in one sentence a job."""
    said = []
    for name, theirs, own in beside_tiny_cuda_nn():
        said.append(
            f"- `{theirs['job']}`: tiny-cuda-nn {number(theirs['wall_ms'])} ms per step, "
            f"coopnet {number(own['wall_ms'])} ms, {own['wall_ms'] / theirs['wall_ms']:.2f} times as long; "
            f"after {own['steps']:,} steps {theirs['psnr_db']:.2f} and {own['psnr_db']:.2f} dB "
            f"({load(name)['machine']['found']['GPU']})."
        )
    return "\n".join(said) + "\n\n" + measured("whole-jobs-cuda", "python benchmarks/whole_jobs.py --backend cuda")


def torch_border() -> str:
    """What a PyTorch module around a field costs."""
    data = load("torch-border-llvm")["results"]["jobs"]
    names = sorted({k for job in data for k in job} - {"job", "samples"})
    rows = [[n, *(number(job[n]) if n in job else "–" for job in data)] for n in names]
    head = ["milliseconds", *(f"{job['job']}, {job['samples']:,} samples" for job in data)]
    return measured("torch-border-llvm", "python benchmarks/torch_border.py") + "\n\n" + table(head, rows)


def half_grids(backend: str) -> str:
    """Grids in half precision beside single precision."""
    rows = []
    for r in load(f"half-grids-{backend}")["results"]:
        for name in ("single", "half"):
            held, times = r[name], [r[name][f"{kind}_ms"] for kind in ("uniform", "rays", "step")]
            rows.append(
                [r["job"], name, f"{held['parameters_mib']:.1f} MiB", *map(number, times), f"{held['loss']:.2e}"]
            )
    what = f"Evaluations of 2^{r['log2_points']} points, steps of 2^{r['log2_batch']}, {r['steps']:,} of them. "
    head = ["grid", "features", "memory", "uniform points, ms", "along rays, ms", "step, ms", "loss"]
    command = f"python benchmarks/half_grids.py --backend {backend} --steps {r['steps']}"
    return what + measured(f"half-grids-{backend}", command) + "\n\n" + table(head, rows)


def neural_textures() -> str:
    """Neural textures in Mitsuba, in symbolic and in evaluated calls."""
    found = {backend: load(f"neural-textures-{backend}")["results"] for backend in ("llvm", "cuda")}
    rows = []
    for llvm, cuda in zip(*(r["rows"] for r in found.values()), strict=True):
        times = [f"{number(r[f'{mode}_s'])} ({number(r[f'{mode}_first_s'])})" for r in (llvm, cuda) for mode in _MODES]
        rows.append([llvm["texture"], *times])
    cases = [f"{b.upper()}, {r['size']} x {r['size']} x {r['spp']}" for b, r in found.items()]
    head = ["seconds (first picture)", *(f"{case}, {mode}" for case in cases for mode in _MODES)]
    places = [measured(f"neural-textures-{backend}") for backend in found]
    return table(head, rows) + "\n\n" + " ".join(places) + " Again: `python benchmarks/neural_textures.py`."


_MODES = ("symbolic", "evaluated")


def spheres(backend: str) -> str:
    """Neural materials in Mitsuba."""
    data = load(f"mitsuba_spheres-{backend}")["results"]
    rows = [(r["row"], f"{number(r['kernel_ms'])} ms", f"{number(r['wall_ms'])} ms") for r in data["rows"]]
    what = f"{data['resolution']} x {data['resolution']} pixels, {data['spp']} samples, depth {data['max_depth']}. "
    command = f"python benchmarks/mitsuba_spheres.py --backend {backend}"
    note = what + measured(f"mitsuba_spheres-{backend}", command)
    return note + "\n\n" + table(["", "kernels", "wall"], rows)


def derivatives(backend: str) -> str:
    """Derivatives with respect to coordinates, in evaluations of the field."""
    rows = []
    for r in load(f"derivatives-{backend}")["results"]:
        step = r.get("eikonal step / value step")
        if step is None and r.get("eikonal step") and r.get("value step"):
            step = r["eikonal step"] / r["value step"]
        ratio = [f"{r[k] / r['call']:.1f}" if r.get(k) and r.get("call") else "–" for k in ("value_and_grad", "jvp")]
        call = f"{number(r['call'])} ms" if r.get("call") else "–"
        rows.append([r["field"], r["width"], f"{r['samples']:,}", call, *ratio, f"{step:.1f}" if step else "–"])
    head = ["field", "width", "samples", "call", "`value_and_grad`", "`jvp`", "eikonal step"]
    command = f"python benchmarks/derivatives.py --backend {backend}"
    return measured(f"derivatives-{backend}", command) + "\n\n" + table(head, rows)


def exported(backend: str) -> str:
    """Nanoseconds per evaluation of exported fields, beside Dr.Jit's kernel."""
    data = load(f"export-{backend}")["results"]
    ways = list(dict.fromkeys(way for r in data["rows"] for way in r["ns"]))
    rows = [[way, *(number(r["ns"][way]) if way in r["ns"] else "–" for r in data["rows"])] for way in ways]
    devices = "; ".join(f"{target}: {device}" for target, device in data["devices"].items())
    command = f"python benchmarks/export.py --backend {backend}"
    head = ["ns per evaluation", *(r["field"] for r in data["rows"])]
    return "\n\n".join(
        [measured(f"export-{backend}", command), table(head, rows), f"Compilers and devices: {devices}."]
    )


def dropouts() -> str:
    """Steps with each kind of dropout, relative to the same network without, of those runs that have both."""
    kinds = {
        "dropout": "`Dropout`", "dropout 7 8": "`Dropout`, `rounds=7`, `bits=8`", "gaussian": "`GaussianDropout`",
        "concrete": "`ConcreteDropout`, relaxed",
    }  # fmt: skip
    columns, head = [], ["kind"]
    for name in ("whole-jobs-dropout-llvm", "whole-jobs-dropout-cuda", "whole-jobs-dropout-h100-cuda"):
        data = load(name)
        where = "two cores" if data["machine"]["backend"] == "llvm" else data["machine"]["found"]["GPU"].split()[1]
        for width in ("32", "64"):
            jobs = {row["job"]: row for row in data["results"]}
            columns.append((width, jobs))
            head.append(f"{where}, {width} units")
    rows = []
    for kind, label in kinds.items():
        cells: list[str | None] = [label]
        for width, jobs in columns:
            row = jobs.get(f"{width}/{kind}")
            times = row and row["wall_ms"] / jobs[width]["wall_ms"]
            cells.append(None if row is None else f"{times:.2f}×; {row['first_step_s']:.1f} s")
        rows.append(cells)
    return table(head, rows)


def sources() -> str:
    """Every result file: where, when, with which versions, and by which script."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        machine = load(path.stem)["machine"]
        name = path.stem.removesuffix(f"-{machine['backend']}")
        script = SCRIPTS.get(name, f"benchmarks/{name.replace('-', '_')}.py")
        if not (BENCHMARKS.parent / script).exists():
            script = ""
        where = place(machine)
        rows.append([f"`{path.name}`", where, f"`{script}`" if script else None])
    return table(["file", "machine; versions; date", "script"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "networks_llvm": lambda: networks("llvm"),
    "networks_cuda": lambda: networks("cuda"),
    "by_batch_llvm": lambda: by_batch("networks-llvm", "wall_ms"),
    "by_batch_haswell": lambda: by_batch("networks-haswell-llvm", "wall_ms"),
    "by_batch_cuda": lambda: by_batch("networks-cuda", "kernel_ms"),
    "behind_llvm": lambda: behind("networks-llvm", "wall_ms"),
    "behind_haswell": lambda: behind("networks-haswell-llvm", "wall_ms"),
    "behind_cuda": lambda: behind("networks-cuda", "kernel_ms"),
    "whole_jobs_llvm": lambda: whole_jobs("whole-jobs-llvm"),
    "whole_jobs_cuda": lambda: whole_jobs("whole-jobs-cuda"),
    "activations_cuda": lambda: training_steps(
        "training-steps-activations-cuda",
        "python benchmarks/training_steps.py --backend cuda --activations relu,silu,sine --widths 64 --log2-samples 20",
    ),
    "training_steps_llvm": lambda: training_steps("training-steps-llvm", "python benchmarks/training_steps.py"),
    "tiny_cuda_nn": tiny_cuda_nn,
    "neural_textures": neural_textures,
    "dropouts": dropouts,
    "half_grids_cuda": lambda: half_grids("cuda"),
    "half_grids_llvm": lambda: half_grids("llvm"),
    "step_profile": step_profile,
    "second_run": second_run,
    "torch_border": torch_border,
    "spheres_llvm": lambda: spheres("llvm"),
    "spheres_cuda": lambda: spheres("cuda"),
    "derivatives_llvm": lambda: derivatives("llvm"),
    "derivatives_cuda": lambda: derivatives("cuda"),
    "exported_llvm": lambda: exported("llvm"),
    "exported_cuda": lambda: exported("cuda"),
    "in_short": in_short,
    "sources": sources,
}
