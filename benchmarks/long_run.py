"""A long run of ``coopnet.fit``: do steps stay as fast, and memory as small, as at the start?

    python benchmarks/long_run.py --backend cuda --steps 100000 --image albert.jpg
    python benchmarks/long_run.py --backend llvm --job 32/dropout --steps 2000

Any job of ``whole_jobs.py``. The run is cut into ten parts. A row has the wall time of a step of its part, the most
memory that Dr.Jit handed out during it, and the memory of the process at its end (Linux). The first part includes
compiling.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import common
import whole_jobs

import drjit as dr  # isort: skip
import coopnet as cn  # isort: skip

PARTS = 10


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        job=dict(default="config_hash", help="as in whole_jobs.py"),
        steps=dict(type=int, default=100_000),
        image=dict(type=Path, help="what the configurations learn"),
    )
    field, batch, options, samples = whole_jobs.make(args.job, args.backend, args.image)
    backend = dr.backend_v(type(field["network.weights"]))
    rows: list[dict[str, Any]] = []
    looks = [time.perf_counter()]

    def look(field: Any) -> float:
        dr.sync_thread()
        looks.append(time.perf_counter())
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        rows.append(
            {"peak_bytes": dr.detail.malloc_watermark(backend), "process_bytes": pages * os.sysconf("SC_PAGESIZE")}
        )
        dr.detail.malloc_clear_statistics()
        return 0.0

    result = cn.fit(field, batch, args.steps, metric=look, metric_every=args.steps // PARTS, progress=False, **options)
    for row, (start, end) in zip(rows, itertools.pairwise(looks), strict=True):
        row["step_ms"] = 1e3 * (end - start) / (args.steps // PARTS)
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, file=sys.stderr)
    found = {"job": args.job, "samples": samples, "steps": result.steps, "recordings": result.recordings}
    found |= {"skipped": result.skipped, "loss": result.losses[-1], "rows": rows}
    print("written to", common.write("long-run", args.backend, found, args.out))


if __name__ == "__main__":
    main()
