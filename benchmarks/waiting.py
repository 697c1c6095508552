"""What a training step takes if the GPU waits for the functions by which Dr.Jit frees memory, and if it does not.

    python benchmarks/waiting.py --backend cuda --jobs 64 config_hash --image albert.jpg

Dr.Jit passes the parameters of an OptiX launch in memory that it frees by a function of the host, which the stream of
the GPU waits for (``host_functions.py``). ``coopnet.fit`` postpones such frees until it waits for the GPU anyway
(``coopnet/jit/native/frees.py``). Here, half of the runs do not. The jobs are those of ``whole_jobs.py``. Times are
medians of stretches of steps; the shorter one of two runs counts, which take turns.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import time
from pathlib import Path

import common
import whole_jobs

import drjit as dr  # isort: skip
import coopnet as cn
from coopnet.jit.native.frees import find, postponed_frees
from coopnet.training import run

JOBS = ["16", "32", "64", "64/2^14", "64/dropout", "128", "config_hash", "config_hash/stratified", "config_oneblob"]
#: Steps that are planned, steps between two looks at the clock, looks, and runs of each kind.
PLANNED, STRETCH, LOOKS, RUNS = 20_000, 200, 7, 2
KINDS = {"waiting_ms": contextlib.nullcontext, "postponed_ms": postponed_frees}


def wall_ms(name: str, path: Path | None) -> float:
    field, batch, options, _ = whole_jobs.make(name, "cuda", path)
    looks: list[float] = []

    def clock(field: object) -> float:
        dr.sync_thread()
        looks.append(time.perf_counter())
        return 0.0

    ends = {"metric": clock, "metric_every": STRETCH, "patience": LOOKS}
    cn.fit(field, batch, PLANNED, progress=False, **ends, **options)
    return statistics.median((b - a) * 1e3 / STRETCH for a, b in itertools.pairwise(looks))


def main() -> None:
    args = common.arguments(
        __doc__,
        jobs=dict(nargs="+", metavar="JOB", help="of whole_jobs.py"),
        image=dict(type=Path, help="what the configurations learn"),
    )
    if find() is None:
        sys.exit("waiting: coopnet does not know this Dr.Jit, and postpones nothing")
    rows = []
    for name in args.jobs or JOBS:
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        wall_ms(name, args.image)  # compiles
        for _ in range(RUNS):
            for kind, block in KINDS.items():
                run.postponed_frees = block
                found[kind].append(wall_ms(name, args.image))
        rows.append({"job": name} | {kind: min(times) for kind, times in found.items()})
        print(rows[-1], file=sys.stderr, flush=True)
        common.write("waiting", args.backend, rows, args.out)
    print(args.out / f"waiting-{args.backend}.json")


if __name__ == "__main__":
    main()
