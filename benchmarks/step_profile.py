"""Where the time of a training step on a GPU goes: what compiles first, every kernel of a step, and the gaps between.

    python benchmarks/step_profile.py --backend cuda --jobs 64 config_hash --image albert.jpg

The jobs are those of ``whole_jobs.py``, with ``coopnet.fit``. ``compiled`` lists the kernels of the first steps that
took more than a tenth of a second to compile, with empty caches; each job finds what jobs before it have compiled.
``kernels`` are the kernels of a step in the order in which they first run, and ``gaps_us`` is the time between them.
Both are from CUPTI, through PyTorch's profiler, over ``--steps``; recording makes a step longer, so ``wall_ms`` is
measured without it, before. CUPTI does not show OptiX launches: their time is a gap, after a copy of parameters.
``optix_us`` is what Dr.Jit's kernel history says of them. Under the profiler, frozen functions may end the process with
a segmentation fault, the more launches are recorded the likelier. Then profile fewer steps, and one job at a time.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import whole_jobs

import drjit as dr  # isort: skip
import coopnet as cn

JOBS = ["config_hash", "config_hash/stratified", "config_oneblob", "32", "64", "128", "64/dropout", "64/2^14"]
#: Steps that are planned, for which compiling outer products pays.
PLANNED = 20_000
#: Activities of the GPU in the profiler's trace.
ACTIVITIES = ("kernel", "gpu_memcpy", "gpu_memset")


def compiled(name: str, path: Path | None) -> dict[str, Any]:
    """Kernels of the first steps that take long to compile, and the time of OptiX launches in later ones."""
    field, batch, options, _ = whole_jobs.make(name, "cuda", path)
    looks: list[list[dict[str, Any]]] = []

    def look(field: Any) -> float:
        looks.append(dr.kernel_history())
        dr.kernel_history_clear()
        return 0.0

    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        dr.kernel_history_clear()
        ends = {"metric": look, "metric_every": 16, "patience": 3}
        cn.fit(field, batch, PLANNED, progress=False, **ends, **options)
    new = [k for k in looks[0] if "cache_hit" in k and not k["cache_hit"] and k["backend_time"] > 100]
    launches = [k["execution_time"] for k in looks[-1] if k.get("uses_optix")]
    return {
        "compiled": [{"seconds": k["backend_time"] / 1e3, "operations": k["operation_count"]} for k in new],
        "optix_launches": len(launches) / 16, "optix_us": 1e3 * sum(launches) / 16,
    }  # fmt: skip


def trace(name: str, path: Path | None, steps: int) -> tuple[float, list[dict[str, Any]]]:
    """Wall milliseconds of a step, and the activities of the GPU in ``steps`` later ones."""
    from torch.profiler import ProfilerActivity, profile

    field, batch, options, _ = whole_jobs.make(name, "cuda", path)
    looks: list[float] = []
    profiler = profile(activities=[ProfilerActivity.CUDA])

    def look(field: Any) -> float:
        dr.sync_thread()
        looks.append(time.perf_counter())
        if len(looks) == 4:  # all kernels are compiled
            profiler.start()
        elif len(looks) == 5:
            profiler.stop()
        return 0.0

    ends = {"metric": look, "metric_every": steps, "patience": 5}
    cn.fit(field, batch, PLANNED, progress=False, **ends, **options)
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(str(Path(folder, "trace.json")))
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    found = [e for e in events if e.get("cat") in ACTIVITIES]
    return (looks[3] - looks[2]) * 1e3 / steps, sorted(found, key=lambda e: e["ts"])


def summarized(events: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Kernels and gaps of a step."""
    times: dict[str, list[float]] = collections.defaultdict(list)
    gaps: dict[str, list[float]] = collections.defaultdict(list)
    for event, after in itertools.pairwise([*events, None]):
        times[event["name"]].append(event["dur"])
        if after is not None:
            gaps[event["name"]].append(max(0.0, after["ts"] - event["ts"] - event["dur"]))
    number = {name: i for i, name in enumerate(times)}
    kernels = [
        {"kernel": number[name], "name": name[:60], "a_step": len(us) / steps, "us": sum(us) / steps,
         "gap_after_us": sum(gaps[name]) / steps}
        for name, us in times.items()
    ]  # fmt: skip
    totals = {"kernels_us": sum(k["us"] for k in kernels), "gaps_us": sum(k["gap_after_us"] for k in kernels)}
    return totals | {"launches": len(events) / steps, "kernels": kernels}


def main() -> None:
    args = common.arguments(
        __doc__,
        jobs=dict(nargs="+", metavar="JOB", help="of whole_jobs.py"),
        image=dict(type=Path, help="what the configurations learn"),
        steps=dict(type=int, default=200, help="steps that are profiled"),
    )
    rows = []
    for name in args.jobs or JOBS:
        row = {"job": name} | compiled(name, args.image)
        wall, events = trace(name, args.image, args.steps)
        rows.append(row | {"steps": args.steps, "wall_ms": wall} | summarized(events, args.steps))
        common.write("step-profile", args.backend, rows, args.out)
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(args.out / f"step-profile-{args.backend}.json", flush=True)
    os._exit(0)  # after it has recorded cuBLAS, the profiler ends the process with an error


if __name__ == "__main__":
    main()
