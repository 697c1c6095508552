"""What all benchmarks share: medians, the description of the machine, and the result files."""

from __future__ import annotations

import argparse
import atexit
import datetime
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
#: Processors that can be played, by LLVM's name: lanes of a vector, and what makes other libraries play along.
TARGETS: dict[str, tuple[int, dict[str, str]]] = {
    "haswell": (8, {
        "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    }),
    "skylake-avx512": (16, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "OPENBLAS_CORETYPE": "SkylakeX"}),
}  # fmt: skip


def median_seconds(run: Callable[[], Any], repeat: int = 9, warmup: int = 2) -> float:
    """Median wall time of ``run``, which must wait for its own results.

    Python's cyclic garbage collector is off while ``run`` warms up: what it frees while Dr.Jit records a frozen
    function may be memory of NumPy or PyTorch, which ends the process.
    """
    from coopnet.jit.collection import no_collection  # caches may be emptied after this file was imported

    with no_collection():
        for _ in range(warmup):
            run()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def kernel_times(run: Callable[[], Any], repeat: int = 9, warmup: int = 3) -> dict[str, float]:
    """Milliseconds of ``run``, which must wait for its own results: kernels and wall, medians without ``warmup`` calls.

    ``compile_ms`` is what the first call spent on making machine code, 0 if all kernels were in a cache.
    """
    import drjit as dr

    kernels, walls, compiled = [], [], 0.0
    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        for i in range(warmup + repeat):
            dr.kernel_history_clear()
            start = time.perf_counter()
            run()
            walls.append(1e3 * (time.perf_counter() - start))
            history = dr.kernel_history()
            kernels.append(sum(k["execution_time"] for k in history))
            if i == 0:
                new = [k for k in history if "cache_hit" in k and not k["cache_hit"]]
                compiled = sum(k["codegen_time"] + k["backend_time"] for k in new)
        dr.kernel_history_clear()
    found = {"kernel_ms": statistics.median(kernels[warmup:]), "wall_ms": statistics.median(walls[warmup:])}
    return found | {"compile_ms": compiled}


def chosen_peers(parser: argparse.ArgumentParser, args: argparse.Namespace, defaults: dict, known: Any) -> list[str]:
    """What ``--peers`` names, separated by commas, else the ``defaults`` of the backend; only ``known`` ones."""
    peers = args.peers.split(",") if args.peers else defaults[args.backend]
    if unknown := set(peers) - set(known):
        parser.error(f"--peers: {', '.join(sorted(unknown))}; accepted are {', '.join(known)}")
    return peers


def empty_caches() -> None:
    """Let Dr.Jit and the driver begin with no compiled kernels; to be called before Dr.Jit is imported."""
    folder = tempfile.TemporaryDirectory(prefix="coopnet-")
    atexit.register(folder.cleanup)
    os.environ |= cache_places(folder.name)


def cache_places(folder: str) -> dict[str, str]:
    """Environment variables by which all caches of compiled kernels are in ``folder``."""
    places = {"HOME": "", "OPTIX_CACHE_PATH": "optix", "CUDA_CACHE_PATH": "cuda", "DRJIT_CACHE_DIR": "drjit"}
    return {name: os.path.join(folder, place) for name, place in places.items()}


def machine(backend: str) -> dict[str, Any]:
    """Processor, GPU, versions and date, to be written beside every figure."""
    from coopnet import backend as b
    from coopnet.bench.compare import processor

    rows = {name: found for name, found, _ in b.info()}
    versions = {}
    for package in ("coopnet", "drjit", "numpy", "torch"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "backend": backend,
        "cpu": processor(),
        "cores": os.cpu_count(),
        "found": {k: v for k, v in rows.items() if any(w in k for w in ("LLVM", "CUDA", "GPU", "OptiX"))},
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def write(name: str, backend: str, results: Any, directory: Path = RESULTS) -> Path:
    """Write ``results`` with the machine they came from to ``<directory>/<name>-<backend>.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{backend}.json"
    path.write_text(json.dumps({"machine": machine(backend), "results": results}, indent=1) + "\n")
    return path


def arguments(description: str, **more: dict[str, Any]) -> argparse.Namespace:
    """The options of every benchmark, where to run and where to write, and ``more``: arguments of ``add_argument``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--backend", default="auto", help="llvm, cuda or auto")
    for name, options in more.items():
        parser.add_argument("--" + name.replace("_", "-"), **options)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result files")
    args = parser.parse_args()
    from coopnet.backend import require

    args.backend = require(args.backend)
    return args
