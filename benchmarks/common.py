"""What all benchmarks share: medians, the description of the machine, and the result files."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def median_seconds(run: Callable[[], Any], repeat: int = 9, warmup: int = 2) -> float:
    """Median wall time of ``run``, which must wait for its own results."""
    for _ in range(warmup):
        run()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def machine(backend: str) -> dict[str, Any]:
    """Processor, GPU, versions and date, to be written beside every figure."""
    from coopnet import backend as b

    rows = {name: found for name, found, _ in b.info()}
    versions = {}
    for package in ("coopnet", "drjit", "numpy", "torch"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "backend": backend,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "found": {k: v for k, v in rows.items() if any(w in k for w in ("LLVM", "CUDA", "GPU", "OptiX"))},
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write(name: str, backend: str, results: Any, directory: Path = RESULTS) -> Path:
    """Write ``results`` with the machine they came from to ``<directory>/<name>-<backend>.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{backend}.json"
    path.write_text(json.dumps({"machine": machine(backend), "results": results}, indent=1) + "\n")
    return path


def arguments(description: str) -> argparse.Namespace:
    """The options of every benchmark: where to run and where to write."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--backend", default="auto", help="llvm, cuda or auto")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result files")
    args = parser.parse_args()
    from coopnet.backend import require

    args.backend = require(args.backend)
    return args
