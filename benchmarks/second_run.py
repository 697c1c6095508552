"""The first step of a training run, by ``coopnet.fit``, in two processes after each other that share kernel caches.

    python benchmarks/second_run.py --backend cuda --jobs 64 64/dropout/2^14

The jobs are those of ``whole_jobs.py``. The caches of Dr.Jit and the driver are empty when the first process of a pair
starts, and the second process finds what the first has compiled. Each pair is measured with each number of
``--planned`` steps: what is compiled depends on it. ``compiler_s`` is the time that the kernels of the first step took
to compile, and ``longest_s`` that of the slowest, by Dr.Jit's kernel history; ``hits`` and ``misses`` are how many of
the kernels were in a cache on disk and how many were not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common

JOBS = {
    "cuda": ["32", "64", "64/2^14", "64/dropout", "64/dropout/2^14", "config_hash"], "llvm": ["32", "64", "64/dropout"],
}  # fmt: skip


def first_step(name: str, backend: str, planned: int) -> dict[str, Any]:
    """Seconds of the first step in this process, and what its kernels took the compiler."""
    import drjit as dr
    import whole_jobs

    import coopnet as cn  # isort: skip

    field, batch, options, _ = whole_jobs.make(name, backend, None)
    row: dict[str, Any] = {}

    def look(seconds: float) -> None:
        row["first_step_s"] = seconds
        kernels = [k for k in dr.kernel_history() if "cache_hit" in k]
        new = [k for k in kernels if not k["cache_hit"] or k["cache_disk"]]
        row["compiler_s"] = sum(k["backend_time"] for k in new) / 1e3
        row["longest_s"] = max((k["backend_time"] for k in new), default=0.0) / 1e3
        row["hits"], row["misses"] = sum(k["cache_hit"] for k in new), sum(not k["cache_hit"] for k in new)

    whole_jobs.time_first_step(look)
    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        dr.kernel_history_clear()
        ends = {"metric": lambda field: 0.0, "metric_every": 3, "patience": 1}
        cn.fit(field, batch, planned, progress=False, **ends, **options)
    return row


def in_process(name: str, backend: str, planned: int, folder: str) -> dict[str, Any]:
    """The same in a new process, whose caches are in ``folder``."""
    command = [sys.executable, __file__, "--backend", backend, "--jobs", name, "--planned", str(planned), "--here"]
    start = time.perf_counter()
    done = subprocess.run(
        command, env=os.environ | common.cache_places(folder), check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1]) | {"process_s": time.perf_counter() - start}


def main() -> None:
    args = common.arguments(
        __doc__,
        jobs=dict(nargs="+", metavar="JOB", help="of whole_jobs.py"),
        planned=dict(nargs="+", type=int, default=[1_000, 100_000], metavar="N", help="steps to announce"),
        here=dict(action="store_true", help="measure one job in this process, with the caches that there are"),
    )
    jobs = args.jobs or JOBS[args.backend]
    if args.here:
        common.empty_caches = lambda: None  # which whole_jobs.py would call
        print(json.dumps(first_step(jobs[0], args.backend, args.planned[0])))
        return
    rows: list[dict[str, Any]] = []
    for name in jobs:
        for planned in args.planned:
            with tempfile.TemporaryDirectory(prefix="coopnet-") as folder:
                for process in (1, 2):
                    row = {"job": name, "planned": planned, "process": process}
                    rows.append(row | in_process(name, args.backend, planned, folder))
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                    common.write("second-run", args.backend, rows, args.out)
    print(Path(args.out, f"second-run-{args.backend}.json"))


if __name__ == "__main__":
    main()
