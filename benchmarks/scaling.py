"""How training scales over GPUs: one field on larger batches, the same batch on more GPUs, and many fields.

    PYTHONPATH=. python benchmarks/scaling.py --backend cuda --worlds 1,2

starts itself by ``torchrun`` with each number of processes, one GPU for each, and writes what they found to one file:

- ``allreduce``: sums over all processes of buffers of several sizes, alone; that of the field's gradient among them;
- ``weak``: ``cn.fit(distributed="auto")`` with as many samples on each process as ``--log2-samples`` says;
- ``strong``: the same where all processes together have the largest of them;
- ``many``: ``cn.fit_many`` of small fields, shared by the processes.

The field is a hash grid with a network of width 64. A step takes what lies between two steps, after the first ones.
On the CPU, processes reduce by Gloo and share its cores: to be tried, not to be quoted.

A model is fitted to the runs, and compared with them. A step of :math:`n` samples on one GPU takes :math:`a + bn`; on
:math:`P`, a ring's :math:`2(P-1)\\alpha + 2\\frac{P-1}{P} B / \\beta` more for :math:`B` bytes, and at least the
:math:`h` that the host takes. Beyond ``--host`` GPUs, rings of hosts are joined by a tree over a network whose latency
and bandwidth are assumptions: ``--network-latency`` and ``--network-bandwidth``, in seconds and bytes per second. Data
parallelism breaks even at the batch from which a step is shorter on :math:`P` GPUs than on one.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np

#: Steps before the clock is started, those that it runs for, and those that are announced: a long run compiles more.
WARM, TIMED, PLANNED = 40, 200, 20_000
#: Bytes of the buffers that are reduced alone.
SIZES = [1 << k for k in range(10, 27, 2)]
WORLDS = [8, 16, 32, 64, 128, 256, 512, 1024]


# ---- one process ------------------------------------------------------------


class Worker:
    """What one of the processes measures."""

    def __init__(self, args: Any):
        self.args, self.backend = args, args.backend
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if self.world > 1:
            import torch
            import torch.distributed as dist

            self.torch, self.dist = torch, dist
            if self.backend == "cuda":
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            dist.init_process_group("nccl" if self.backend == "cuda" else "gloo")
        import coopnet as cn

        self.cn, self.ns = cn, cn.backend.namespace(self.backend)

    def measure(self) -> dict[str, Any]:
        field = self.field()
        size = sum(int(np.prod(v.shape)) * 4 for v in field.values())  # gradients are reduced in single precision
        found: dict[str, Any] = {"world": self.world, "gradient_bytes": size, "allreduce": [], "weak": [], "strong": []}
        if self.world > 1:
            found["allreduce"] = [self.allreduce(n) for n in sorted({*SIZES, size})]
        largest = 1 << max(self.args.log2_samples)
        for log2 in self.args.log2_samples:
            found["weak"].append(self.fit(self.world << log2))
            if self.world == 1:
                found["strong"].append(found["weak"][-1])
        if self.world > 1:
            found["strong"] = [self.fit(n) for n in sorted({largest >> 4, largest >> 2, largest})]
        found["many"] = self.many()
        return found

    def field(self) -> Any:
        cn = self.cn
        grid = cn.HashGrid(2, hashmap_size=1 << self.args.log2_hashmap)
        return cn.NeuralField(grid, cn.MLP(out_features=3, width=64, depth=2)).build(self.backend)

    def wait(self) -> None:
        import drjit as dr

        dr.sync_thread()
        if self.world > 1:
            self.dist.barrier()

    def allreduce(self, size: int) -> dict[str, Any]:
        torch = self.torch
        buffer = torch.ones(max(1, size // 4), device="cuda" if self.backend == "cuda" else "cpu")

        def run() -> None:
            self.dist.all_reduce(buffer)
            if self.backend == "cuda":
                torch.cuda.synchronize()

        return {"bytes": size, "ms": 1e3 * common.median_seconds(run, repeat=20, warmup=5)}

    def fit(self, total: int) -> dict[str, Any]:
        """Time of a step over ``total`` samples of all processes."""
        import drjit as dr

        cn, ns = self.cn, self.ns

        def batch(key: Any) -> tuple:
            x, y = cn.uniform(2, key, ns.Float, total)
            return [x, y], [dr.sin(40 * x) * y, dr.cos(30 * y) * x, x * y]

        options: dict[str, Any] = {}
        if self.world > 1:
            batch, options = cn.training.by_index(total)(batch), {"distributed": "auto"}
        at: dict[int, float] = {}

        def rate(step: int) -> float:
            if step in (WARM, WARM + TIMED - 1):
                dr.sync_thread()
                at[step] = time.perf_counter()
            return 1e-2

        options |= {"metric": lambda field: 0.0, "metric_every": WARM + TIMED, "patience": 1}  # it ends early
        result = cn.fit(self.field(), batch, PLANNED, lr=rate, progress=False, **options)
        ms = 1e3 * (at[WARM + TIMED - 1] - at[WARM]) / (TIMED - 1)
        return {"samples": total // self.world, "total": total, "ms": ms, "loss": result.losses[-1]}

    def many(self) -> dict[str, Any]:
        cn, ns, count = self.cn, self.ns, self.args.fields
        architecture = cn.NeuralField(cn.Sinusoidal(4, in_features=2), cn.MLP(out_features=3, width=32, depth=2))

        def batch(key: Any, job: Any) -> tuple:
            x, y = cn.uniform(2, key, ns.Float, 1024)
            return [x, y], [x * y, y * (1 + ns.Float(job)) / count, x]

        seconds, trained = 0.0, 0
        with tempfile.TemporaryDirectory() as directory:
            for steps in (3, self.args.steps):  # compiled before
                fields = [architecture.build(self.backend, seed=seed) for seed in range(count)]
                self.wait()
                start = time.perf_counter()
                results = cn.fit_many(fields, batch, steps, directory=Path(directory) / str(steps), progress=False)
                self.wait()
                seconds, trained = time.perf_counter() - start, sum(r is not None for r in results)
        return {"fields": count, "steps": self.args.steps, "seconds": seconds, "trained_by_process_0": trained}


# ---- the model --------------------------------------------------------------


def line(x: list[float], y: list[float]) -> tuple[float, float]:
    """Intercept and slope of the line nearest to the points, relative to their height; neither is negative."""
    weight = 1 / np.asarray(y)
    matrix = np.stack([np.ones(len(x)), np.asarray(x)], 1) * weight[:, None]
    a, b = np.linalg.lstsq(matrix, np.ones(len(x)), rcond=None)[0]
    if a < 0:
        return 0.0, float(np.mean(np.asarray(y) / np.asarray(x)))
    return (float(a), float(b)) if b > 0 else (float(np.mean(y)), 0.0)


class Model:
    """Times in seconds, fitted to runs with 1 and with more processes."""

    def __init__(self, runs: list[dict[str, Any]], host: int, latency: float, bandwidth: float):
        self.host, self.latency, self.bandwidth = host, latency, bandwidth
        one, several = runs[0], runs[1:]
        self.bytes = one["gradient_bytes"]
        self.a, self.b = line([e["samples"] for e in one["weak"]], [1e-3 * e["ms"] for e in one["weak"]])
        # each size and number of processes is an equation for the latency and the inverse bandwidth of the ring
        rows, times = [], []
        for run in several:
            for e in run["allreduce"]:
                rows.append([2 * (run["world"] - 1), 2 * (run["world"] - 1) / run["world"] * e["bytes"]])
                times.append(1e-3 * e["ms"])
        self.alpha, self.per_byte, self.h = 0.0, 0.0, 0.0
        if rows:
            weight = 1 / np.asarray(times)[:, None]
            solved = np.linalg.lstsq(np.asarray(rows) * weight, np.ones(len(rows)), rcond=None)[0]
            self.alpha, self.per_byte = (max(0.0, float(v)) for v in solved)
            # the host's work for a step of several: from the smallest batch alone, so that the others can disagree
            first = [min(run["weak"], key=lambda e: e["samples"]) for run in several]
            self.h = float(np.mean([1e-3 * e["ms"] for e in first]))

    def alone(self, samples: float) -> float:
        return self.a + self.b * samples

    def reduce(self, world: int) -> float:
        """An all-reduce of the gradient: a ring in a host, and a tree over hosts."""
        local = min(world, self.host)
        seconds = 2 * (local - 1) * self.alpha + 2 * (local - 1) / local * self.bytes * self.per_byte
        if world > local:
            hosts = math.ceil(world / local)
            seconds += 2 * math.ceil(math.log2(hosts)) * self.latency + 2 * self.bytes / local / self.bandwidth
        return seconds

    def step(self, world: int, total: float) -> float:
        """A GPU works while the host prepares the next step, so the longer of both counts."""
        alone = self.alone(total / world)
        return alone if world == 1 else max(self.h, alone + self.reduce(world))

    def even(self, world: int) -> float | None:
        """Samples of a batch from which a step is shorter on ``world`` GPUs than on one."""
        if self.b == 0:
            return None
        by_host, by_reduction = (self.h - self.a) / self.b, self.reduce(world) / (self.b * (1 - 1 / world))
        return max(0.0, by_host, by_reduction)

    def described(self) -> dict[str, Any]:
        names = ("a", "b", "h", "alpha", "per_byte", "host", "latency", "bandwidth", "bytes")
        return {name: getattr(self, name) for name in names}


def compared(model: Model, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Measured and predicted times of all steps."""
    entries = []
    for run in runs:
        for kind in ("weak", "strong"):
            for e in run[kind]:
                predicted = 1e3 * model.step(run["world"], e["total"])
                entries.append({"kind": kind, "world": run["world"], "total": e["total"], "ms": e["ms"]})
                entries[-1] |= {"predicted_ms": predicted, "error": predicted / e["ms"] - 1}
    return entries


def predicted(model: Model, log2_samples: list[int]) -> list[dict[str, Any]]:
    """For more GPUs than are here: time of a reduction, efficiency at some batches, and where it breaks even."""
    entries = []
    for world in WORLDS:
        efficiency = {2**k: model.alone(2**k) / model.step(world, world * 2**k) for k in log2_samples}
        entry = {"world": world, "reduce_ms": 1e3 * model.reduce(world), "breaks_even_at": model.even(world)}
        entries.append(entry | {"weak_efficiency": efficiency})
    return entries


# ---- all of them ------------------------------------------------------------


def launch(args: Any, world: int, own: list[str]) -> dict[str, Any] | None:
    """Run ``world`` processes; what process 0 found, ``None`` if they failed."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "found.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--virtual-local-rank"]
        command += ["--nproc-per-node", str(world), __file__, *own, "--worker", str(file)]
        environment = dict(os.environ)
        if args.backend == "llvm":
            environment |= {"OMP_NUM_THREADS": "1"}
        start = time.perf_counter()
        done = subprocess.run(command, env=environment, check=False)
        if done.returncode or not file.exists():
            print(f"{world} processes failed with {done.returncode}", file=sys.stderr)
            return None
        return json.loads(file.read_text()) | {"wall_s": time.perf_counter() - start}


def main() -> None:
    numbers = {"type": lambda text: [int(v) for v in text.split(",")]}
    args = common.arguments(
        __doc__.splitlines()[0],
        worlds=numbers | {"default": [1, 2]}, log2_samples=numbers | {"default": [18, 20, 22]},
        log2_hashmap={"type": int, "default": 15}, fields={"type": int, "default": 256},
        steps={"type": int, "default": 200}, host={"type": int, "default": 8},
        network_latency={"type": float, "default": 2e-5}, network_bandwidth={"type": float, "default": 4e10},
        worker={"default": "", "help": "file of a worker's results; for the processes themselves"},
    )  # fmt: skip
    if args.worker:
        worker = Worker(args)
        found = worker.measure()
        if worker.rank == 0:
            Path(args.worker).write_text(json.dumps(found))
        if worker.world > 1:
            worker.dist.destroy_process_group()
        return
    own = ["--backend", args.backend, "--log2-samples", ",".join(map(str, args.log2_samples)), "--log2-hashmap"]
    own += [str(args.log2_hashmap), "--fields", str(args.fields), "--steps", str(args.steps)]
    runs = [found for world in sorted({1, *args.worlds}) if (found := launch(args, world, own)) is not None]
    if not runs or runs[0]["world"] != 1:
        sys.exit("scaling: the run on one process failed")
    model = Model(runs, args.host, args.network_latency, args.network_bandwidth)
    results = {"runs": runs, "model": model.described(), "compared": compared(model, runs)}
    results["predicted"] = predicted(model, args.log2_samples) if len(runs) > 1 else []
    report(results, print)
    common.write("scaling", args.backend, results, args.out)


def report(results: dict[str, Any], say: Callable[[str], None]) -> None:
    for e in results["compared"]:
        say(f"{e['kind']:6} {e['world']} x {e['total'] // e['world']:8} {e['ms']:9.3f} ms, model {e['error']:+.0%}")
    for run in results["runs"]:
        many = run["many"]
        say(f"many   {run['world']} x {many['fields']} fields, {many['steps']} steps: {many['seconds']:.2f} s")
    for e in results["predicted"]:
        efficiency = ", ".join(f"{float(v):.0%} at {k}" for k, v in e["weak_efficiency"].items())
        say(f"{e['world']:5} GPUs: {e['reduce_ms']:.2f} ms to reduce, even at {e['breaks_even_at']:.3g}; {efficiency}")


if __name__ == "__main__":
    main()
