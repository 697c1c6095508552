"""A radiance cache against ``path`` in three rooms, at equal time and with its training counted.

    python benchmarks/radiance_cache_rooms.py --seeds 3

The scenes are those of ``radiance_scenes.py``. On the CPU, time is that of the process on all its cores, which other
programs on the machine disturb less than the clock does. The training comes first, then passes of a few samples per
pixel; those of ``path`` and of the caches take turns. The error is relMSE, as in the example. What is not counted are
first calls, in which code is compiled and steps are recorded. Every run has its own seeds; the ratio at a moment is
that of the mean errors of the runs. The last row of the result file is that of another call, with
``--scenes glossy --size 256 --reference 768``.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import common
from radiance_cache import example

#: Steps of training and vertices before the end of a path, for a row each.
SETTINGS = ((100, 0), (100, 1), (200, 1))


def clock(backend: str) -> Any:
    return time.perf_counter if backend == "cuda" else time.process_time


class Progress:
    """The mean of all passes so far, and its error at given moments."""

    def __init__(self, ex: Any, render: Any, seed: int, spent: float, args: Any):
        self.ex, self.render, self.seed, self.spent, self.now = ex, render, seed << 12, spent, clock(args.backend)
        self.moments, self.total, self.passes = args.moments, None, 0
        self.errors: list[float | None] = [None for moment in args.moments if moment <= spent]  # there was no picture

    def step(self, halves: tuple) -> bool:
        """One more pass, unless the last moment has come."""
        import drjit as dr

        if self.spent >= self.moments[-1]:
            return False
        dr.sync_thread()
        begin = self.now()
        picture = self.render(self.seed + self.passes)
        self.total = picture if self.total is None else self.total + picture
        dr.eval(self.total)
        dr.sync_thread()
        self.spent += self.now() - begin
        self.passes += 1
        passed = sum(moment <= self.spent for moment in self.moments)
        if passed > len(self.errors):
            error = self.ex.relmse(self.total / self.passes, halves)
            self.errors += [error] * (passed - len(self.errors))
        return True


def measure(ex: Any, name: str, args: Any) -> dict[str, Any]:
    import drjit as dr
    import radiance_scenes

    import coopnet as cn

    scene, now = radiance_scenes.make(name, args.size), clock(args.backend)

    def timed(work: Any) -> float:
        dr.sync_thread()
        begin = now()
        work()
        dr.sync_thread()
        return now() - begin

    path = ex.Renderer(scene, ex.path_integrator(), args.spp)
    first = {"path": timed(lambda: path(0))}
    count = max(2, args.reference // (2 * args.spp))
    halves = tuple(ex.mean(path, ex.REFERENCE + i * count, count) for i in range(2))
    runs: dict[Any, list[Progress]] = {"path": []}
    training: dict[Any, list[float]] = {}
    for seed in range(args.seeds):
        runs["path"].append(Progress(ex, path, seed, 0.0, args))
        for steps, vertices in SETTINGS:
            cache = cn.mitsuba.RadianceCache(scene, seed=seed)
            render = ex.Renderer(scene, cache.integrator(vertices=vertices), args.spp)
            cold = timed(lambda cache=cache, render=render: (cache.train(3, samples=args.samples), render(0)))
            first.setdefault("cache", cold)
            ex.mean(render, 0, 2)  # what is recorded again in later calls
            cache.reset()
            cache.train(2, samples=args.samples)
            cache.reset()
            steps = 4 if args.quick else steps
            spent = timed(lambda cache=cache, steps=steps: cache.train(steps, samples=args.samples))
            training.setdefault((steps, vertices), []).append(spent)
            runs.setdefault((steps, vertices), []).append(Progress(ex, render, seed, spent, args))
    going = [run for of in runs.values() for run in of]
    while going:
        going = [run for run in going if run.step(halves)]

    def summary(of: list[Progress]) -> dict[str, Any]:
        columns = list(zip(*(run.errors for run in of), strict=True))
        means = [None if None in errors else statistics.fmean(errors) for errors in columns]
        return {"spp": [run.passes * args.spp for run in of], "errors": [run.errors for run in of], "mean": means}

    row: dict[str, Any] = {
        "scene": name, "size": args.size, "runs": args.seeds, "reference_spp": 2 * count * args.spp,
        "seconds": args.moments, "first_calls_s": first, "path": summary(runs.pop("path")), "cache": [],
    }  # fmt: skip
    for (steps, vertices), of in runs.items():
        found = summary(of)
        pairs = zip(row["path"]["mean"], found["mean"], strict=True)
        ratios = [None if b is None else a / b for a, b in pairs]
        spent = statistics.fmean(training[steps, vertices])
        kind = {"steps": steps, "vertices": vertices, "training_s": spent}
        row["cache"].append({**kind, **found, "path_over_cache": ratios})
        shown = ", ".join("-" if r is None else f"{r:.2f}" for r in ratios)
        print(f"{name}: {steps} steps in {spent:.2f} s, {vertices} vertices: path / cache {shown}", file=sys.stderr)
    return row


def main() -> None:
    args = common.arguments(
        __doc__,
        scenes=dict(nargs="+", default=["ajar", "kitchen", "glossy"], help="of radiance_scenes.py", metavar="SCENE"),
        size=dict(type=int, default=128, help="of the pictures"),
        moments=dict(type=float, nargs="+", default=[2.0, 3.0, 4.0, 5.0], help="seconds after which errors are noted"),
        spp=dict(type=int, default=16, help="samples per pixel of a pass"),
        reference=dict(type=int, default=2048, help="samples per pixel of the reference"),
        samples=dict(type=int, default=2**12, help="paths of a training step"),
        seeds=dict(type=int, default=2, help="runs of each"),
        quick=dict(action="store_true", help="small and short, to see that it runs"),
    )
    if args.quick:
        args.size, args.moments, args.reference, args.samples = 16, [0.02, 0.1], 64, 256
    import mitsuba as mi

    mi.set_variant(f"{args.backend}_ad_rgb")
    ex = example()
    rows = []
    for name in args.scenes:  # written after each, which takes minutes
        rows.append(measure(ex, name, args))
        kept = {"samples": args.samples, "spp_of_a_pass": args.spp}
        print(common.write("radiance-cache-rooms", args.backend, {**kept, "rows": rows}, args.out), flush=True)


if __name__ == "__main__":
    main()
