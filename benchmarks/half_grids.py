"""Hash grids with features in half precision beside single precision: evaluation, training, and what is learned.

``image`` is tiny-cuda-nn's ``config_hash``, ``volume`` a grid in three dimensions with 2^19 entries a level, both with
a network of two hidden layers of 64 units. They learn a sum of waves of many lengths. ``rays`` are the points at which
a picture's rays hit a surface, pixel by pixel; neighbouring ones read the same entries.
"""

from __future__ import annotations

import itertools
import statistics
import time

import common
import numpy as np

import coopnet as cn  # isort: skip
import drjit as dr

JOBS = {
    "image": (2, dict(hashmap_size=2**15, per_level_scale=1.5)),
    "volume": (3, dict(hashmap_size=2**19, per_level_scale=1.5)),
}
PRECISIONS = ("single", "half")


def built(job: str, precision: str, backend: str, seed: int) -> cn.NeuralField:
    dimension, options = JOBS[job]
    grid = cn.Grid(dimension, **options, precision=precision)
    return cn.NeuralField(grid, cn.MLP(-1, 3, width=64, depth=2)).build(backend, seed=seed)


def waves(p: list) -> list:
    """Three channels of waves, the shortest of which is a hundredth of the unit cube long."""
    total = sum(dr.sin(40 * v + 3 * k) + dr.sin(600 * v) * 0.3 for k, v in enumerate(p))
    return [0.5 + 0.2 * dr.sin(total + c) for c in range(3)]


def rays(ns: object, dimension: int, count: int) -> list:
    """A point on a curved surface for every pixel of a square picture."""
    side = int(count**0.5)
    pixel = dr.arange(ns.UInt32, side * side)
    x, y = ns.Float(pixel % side) / side, ns.Float(pixel // side) / side
    return [x, y, 0.4 + 0.2 * dr.sin(5 * x) * dr.cos(4 * y)][:dimension]


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        log2_points=dict(type=int, default=20, help="points of an evaluation"),
        log2_batch=dict(type=int, default=18, help="samples of a step"),
        steps=dict(type=int, default=2000),
        seeds=dict(type=int, default=3),
    )
    ns, rows = cn.backend.namespace(args.backend), []
    for job, (dimension, _) in JOBS.items():

        def batch(key: cn.Key, dimension: int = dimension) -> tuple:
            p = cn.uniform(dimension, key, ns.Float, 1 << args.log2_batch)
            return p, waves(p)

        scattered = cn.uniform(dimension, cn.Key(1), ns.Float, 1 << args.log2_points)
        points = {"uniform": scattered, "rays": rays(ns, dimension, 1 << args.log2_points)}
        dr.eval(points)
        row: dict = {"job": job, "log2_points": args.log2_points, "log2_batch": args.log2_batch, "steps": args.steps}
        fields = {name: [built(job, name, args.backend, seed) for seed in range(args.seeds)] for name in PRECISIONS}
        seconds: dict = {name: [] for name in PRECISIONS}
        losses: dict = {name: [] for name in PRECISIONS}
        for seed in range(args.seeds):  # in turn, as machines change their speed
            for name in PRECISIONS:
                looks: list[float] = []

                def clock(field: object, looks: list[float] = looks) -> float:
                    dr.sync_thread()
                    looks.append(time.perf_counter())
                    return 0.0

                every, field = args.steps // 10, fields[name][seed]
                result = cn.fit(field, batch, args.steps, lr=1e-2, metric=clock, metric_every=every, progress=False)
                seconds[name] += [(b - a) / every for a, b in itertools.pairwise(looks)]
                losses[name].append(float(np.mean(result.losses[-args.steps // 10 :])))
        for name in PRECISIONS:
            field = fields[name][0]
            data = field["encoding.data"]
            row[name] = {
                "parameters_mib": dr.width(data) * dr.itemsize_v(data) / 2**20,
                "step_ms": 1e3 * statistics.median(seconds[name]),
                "losses": losses[name],
                "loss": statistics.median(losses[name]),
            }
            for kind, p in points.items():
                times = common.kernel_times(lambda field=field, p=p: dr.eval(field(p)))
                row[name][f"{kind}_ms"] = times["kernel_ms"]
        rows.append(row)
        print(row, flush=True)
    print("written to", common.write("half-grids", args.backend, rows, args.out))


if __name__ == "__main__":
    main()
