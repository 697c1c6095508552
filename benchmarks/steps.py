"""What a training step of ``coopnet.fit`` takes, everything included: batch, grid, network, optimizer, Python.

    python benchmarks/steps.py --backend cuda

Wall time between evaluations of a metric that only looks at the clock, divided by the steps in between; the median of
several, after warming up.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import common
import drjit as dr

import coopnet as cn

#: Steps between two looks at the clock, and how many looks.
STEPS, LOOKS = 25, 9


def eikonal(field: Any, points: Any, key: Any) -> Any:
    _, gradient = field.value_and_grad(points, key)
    return dr.square(dr.norm(gradient) - 1)


#: Name -> (field, outputs, samples on the CPU and on a GPU as powers of two, options of fit).
JOBS: dict[str, tuple[Callable[[], Any], int, tuple[int, int], dict[str, Any]]] = {
    "hash grid": (
        lambda: cn.NeuralField(cn.HashGrid(2, n_levels=16, hashmap_size=2**15), cn.MLP(out_features=3, depth=2)),
        3, (14, 18), {},
    ),
    "permutohedral": (
        lambda: cn.NeuralField(cn.Permutohedral(3, n_levels=8, hashmap_size=2**15), cn.MLP(out_features=1, width=32)),
        1, (13, 17), {},
    ),
    "network": (lambda: cn.NeuralField(None, cn.MLP(16, 3, depth=3)), 3, (14, 18), {}),
    "network with biases and dropout": (
        lambda: cn.NeuralField(cn.Frequency(6, in_features=2), cn.MLP(out_features=3, bias=True, dropout=0.1)),
        3, (14, 18), {"clip_norm": 1.0, "weight_decay": 1e-3},
    ),
    "residual": (
        lambda: cn.NeuralField(
            cn.OneBlob(16, in_features=2),
            cn.Sequential(
                cn.Linear(-1, 32), cn.Residual(cn.Sequential(cn.SiLU(), cn.Linear(32, 32))), cn.Linear(-1, 3)
            ),
        ),
        3, (14, 18), {},
    ),
    "eikonal": (
        lambda: cn.NeuralField(None, cn.MLP(3, 1, width=32, depth=3, activation="softplus", bias=True)),
        1, (13, 17), {"objective": eikonal},
    ),
}  # fmt: skip


def measure(name: str, backend: str, log2_samples: int | None = None) -> dict[str, Any]:
    make, outputs, sizes, options = JOBS[name]
    samples = 1 << (log2_samples or sizes[backend == "cuda"])
    module = cn.backend.namespace(backend)
    field = make().build(backend, seed=1)
    looks: list[float] = []

    def batch(key: Any) -> Any:
        p = cn.uniform(field.in_features, key, module.Float32, samples)
        return p if "objective" in options else (p, [dr.sin(6 * p[0] + i) for i in range(outputs)])

    def clock(field: Any) -> float:
        dr.sync_thread()
        looks.append(time.perf_counter())
        return 0.0

    result = cn.fit(
        field, batch, STEPS * (LOOKS + 2), metric=clock, metric_every=STEPS, progress=False, lr=1e-3, **options
    )
    times = [(b - a) * 1e3 / STEPS for a, b in itertools.pairwise(looks[1:])]
    row = {"job": name, "samples": samples, "wall_ms": statistics.median(times), "best_ms": min(times)}
    return row | {"loss": result.losses[-1]}


def main() -> None:
    args = common.arguments(
        __doc__,
        jobs=dict(nargs="+", default=list(JOBS), choices=list(JOBS), metavar="JOB"),
        log2_samples=dict(type=int, help="of a batch, for all jobs"),
    )
    rows = []
    for name in args.jobs:
        rows.append(measure(name, args.backend, args.log2_samples))
        print(f"{name:35} {rows[-1]['wall_ms']:.3f} ms", file=sys.stderr)
    print(common.write("steps", args.backend, rows, args.out))


if __name__ == "__main__":
    main()
