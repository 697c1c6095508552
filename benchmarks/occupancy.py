"""``ray_march`` through a field where 95 % of the box is empty: with an occupancy grid, and through everything.

    python benchmarks/occupancy.py --backend llvm

A field learns a ball of radius 0.229 in the middle of the unit cube, of 5 % of its volume, with nothing around it. The
grid is made of the field by :meth:`OccupancyGrid.update`. Peers take turns in one process; times are medians of frozen
calls, and ratios medians of those within a turn. *Picture* has no gradients (mode ``"loop"``), *gradient* those of the
weights in mode ``"replay"``, and in mode ``"wide"``, which is not frozen: a grid helps it only there. ``samples`` is
the share of a picture's samples that are evaluated, and ``difference`` the largest of a color.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import common
import drjit as dr

import coopnet as cn

RADIUS, STEPS = 0.229, 128


def learned(backend: str, steps: int) -> Any:
    ns = cn.backend.namespace(backend)
    grid = cn.HashGrid(3, n_levels=8, hashmap_size=2**15)
    field = cn.NeuralField(grid, cn.MLP(out_features=4, width=32, depth=2)).build(backend, seed=1)

    def batch(key: Any) -> tuple:
        p = cn.uniform(3, key, ns.Float, 1 << 14)
        edge = dr.norm(ns.Array3f(*p) - 0.5) - RADIUS
        return p, [dr.select(edge < 0, 4.0, -8.0), *(dr.sin(6 * v) for v in p)]

    cn.fit(field, batch, steps, lr=1e-2, progress=False)
    return field


def rays(ns: Any, size: int) -> tuple[Any, Any]:
    """A camera in front of the cube, which fills the picture."""
    x, y = dr.meshgrid(dr.linspace(ns.Float, -1, 1, size), dr.linspace(ns.Float, -1, 1, size))
    o, d = ns.Array3f(0.5, 0.5, -1.5), dr.normalize(ns.Array3f(0.3 * x, 0.3 * y, 1))
    return o + ns.Array3f(dr.zeros(ns.Float, size * size)), d


def main() -> None:
    args = common.arguments(
        __doc__,
        size={"type": int, "default": 64},
        resolution={"type": int, "default": 64},
        steps={"type": int, "default": 500},
        repeat={"type": int, "default": 7},
    )
    ns = cn.backend.namespace(args.backend)
    field = learned(args.backend, args.steps)
    grid = cn.render.OccupancyGrid(args.resolution, 0, 1, args.backend)
    for step in range(8):
        grid.update(field, cn.Key(0, step=step), threshold=0.01)
    o, d = rays(ns, args.size)
    near, far = grid.interval(o, d)
    dr.eval(o, d, near, far, grid.bits)

    def march(o: Any, d: Any, near: Any, far: Any, grid: Any, field: Any, mode: str) -> Any:
        return cn.render.ray_march(field, o, d, near, far, STEPS, occupancy=grid, background=1, mode=mode).color

    def gradient(o: Any, d: Any, near: Any, far: Any, grid: Any, field: Any, mode: str) -> Any:
        dr.enable_grad(*field.values())
        color = march(o, d, near, far, grid, field, mode)
        dr.backward(dr.mean(dr.squared_norm(color - 0.5)) * (128 if field.precision == "half" else 1))
        found = [dr.grad(v) for v in field.values()]
        dr.disable_grad(*field.values())
        return found

    jobs: dict[str, tuple[Callable, str]] = {
        "picture": (dr.freeze(march), "loop"),
        "gradient, replay": (dr.freeze(gradient), "replay"),
        "gradient, wide": (gradient, "wide"),
    }

    def milliseconds(job: Callable, occupancy: Any, mode: str) -> float:
        start = time.perf_counter()
        dr.eval(job(o, d, near, far, occupancy, field, mode))
        dr.sync_thread()
        return 1e3 * (time.perf_counter() - start)

    rows = []
    for name, (job, mode) in jobs.items():
        times: dict[str, list[float]] = {"all": [], "grid": []}
        for _ in range(args.repeat + 2):
            for peer, occupancy in (("all", None), ("grid", grid)):
                times[peer].append(milliseconds(job, occupancy, mode))
        found = {peer: series[2:] for peer, series in times.items()}
        ratio = statistics.median(a / b for a, b in zip(found["all"], found["grid"], strict=True))
        row = {"job": name, "all_ms": statistics.median(found["all"]), "grid_ms": statistics.median(found["grid"])}
        rows.append(row | {"all_to_grid": ratio})
        print(
            f"{name:18} all {row['all_ms']:8.1f} ms, grid {row['grid_ms']:8.1f} ms, ratio {ratio:.2f}", file=sys.stderr
        )
    whole, skipped = (march(o, d, near, far, occupancy, field, "loop") for occupancy in (None, grid))
    difference = float(dr.max(dr.max(abs(whole - skipped)))[0])
    i = dr.arange(ns.UInt32, STEPS * args.size**2)
    ray = i // STEPS
    met = dr.gather(ns.Bool, far > near, ray)
    length = (far - near) / STEPS
    t = dr.gather(ns.Float, near + 0 * o.x, ray) + (ns.Float(i % STEPS) + 0.5) * dr.gather(ns.Float, length, ray)
    p = dr.gather(ns.Array3f, o, ray) + t * dr.gather(ns.Array3f, d, ray)
    share = float(dr.count(grid.occupied(p) & met)[0] / dr.count(met)[0])
    settings = {name: getattr(args, name) for name in ("size", "resolution", "steps", "repeat")}
    found = {"occupied": grid.share(), "samples": share, "difference": difference, "rows": rows}
    print(f"occupied {found['occupied']:.3f}, samples {share:.3f}, difference {difference:.1e}", file=sys.stderr)
    common.write("occupancy", args.backend, {**settings, "march_steps": STEPS, **found}, args.out)


if __name__ == "__main__":
    main()
