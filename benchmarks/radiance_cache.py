"""Error over time: paths that end in a radiance cache against Mitsuba's ``path``, on the scenes of the example.

    python benchmarks/radiance_cache.py --backend cuda --size 2048 --seconds 4

Both integrators render pass after pass for as long, and the error of the mean so far, relMSE against a long reference,
is noted after each; the noise of the reference is not part of it (see ``relmse`` of the example). For the cache there
is a curve for each number of training steps and each number of vertices before paths end in it; the time of the
training counts. What does not count is the first call of each, in which code is compiled and steps are recorded: it is
measured apart, with empty caches. Per curve and moment the file has the ratio of the errors of ``path``, at that time,
and of the cache.
"""

from __future__ import annotations

import bisect
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import common

#: Steps of training and vertices before the end of a path, for a curve each.
STEPS, VERTICES = (100, 300, 600), (0, 1)


def example() -> Any:
    path = Path(__file__).parent.parent / "examples" / "radiance_cache.py"
    spec = importlib.util.spec_from_file_location("radiance_cache_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def thinned(moments: list, count: int = 24) -> list:
    """Some of many moments, evenly in the logarithm of their number, with the first and the last."""
    last = len(moments) - 1
    picked = {round((last + 1) ** (i / (count - 1))) - 1 for i in range(count)}
    return [moments[i] for i in sorted(picked | {last})]


def error_at(moments: list, seconds: float) -> float:
    """The error after ``seconds``, between moments as a power of time; beyond the last as that of noise, 1 / time."""
    times = [m.seconds for m in moments]
    i = bisect.bisect_right(times, seconds)
    if i == 0:
        return math.inf
    if i == len(times):
        return moments[-1].error * times[-1] / seconds
    a, b = moments[i - 1], moments[i]
    fraction = math.log(seconds / a.seconds) / math.log(b.seconds / a.seconds)
    return a.error * (b.error / a.error) ** fraction


def measure(ex: Any, name: str, args: Any) -> dict[str, Any]:
    import mitsuba as mi

    scene, samples = ex.make_scene(name, args.size), 1 << args.log2_samples
    cache = ex.make_cache(scene)
    path = ex.Renderer(scene, ex.path_integrator(), args.spp)
    endings = {n: ex.Renderer(scene, cache.integrator(vertices=n), args.spp) for n in VERTICES}
    cold = {"path": ex.timed(lambda: path(0)), "training": ex.timed(lambda: cache.train(3, samples=samples))}
    cold["cache"] = ex.timed(lambda: endings[VERTICES[-1]](0))
    for render in (path, *endings.values()):  # what they compile and record when they are called again
        ex.mean(render, 0, 3)
    print(f"{name}: first calls {cold}", file=sys.stderr, flush=True)
    count = max(1, args.reference // (2 * args.spp))
    halves = tuple(ex.mean(path, ex.REFERENCE + i * count, count) for i in range(2))

    def curve(render: Any, spent: float) -> list:
        return [m for m, _ in ex.progress(render, halves, spent, args.seconds)]

    theirs = curve(path, 0.0)
    print(f"  path: {theirs[-1]}", file=sys.stderr, flush=True)
    curves = []
    for steps in args.steps:
        cache.reset()
        training = ex.timed(lambda steps=steps: cache.train(steps, samples=samples))
        for vertices in VERTICES:
            ours = curve(endings[vertices], training)
            ratios = [error_at(theirs, m.seconds) / m.error for m in ours]
            print(
                f"  cache, {steps:4} steps in {training:5.2f} s, {vertices} vertices: {ours[-1]}; path / cache "
                f"{ratios[0]:.2f} at first, {max(ratios):.2f} at best, {ratios[-1]:.2f} in the end",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            pairs = thinned(list(zip(ours, ratios, strict=True)))
            rows = [m._asdict() | {"path_over_cache": ratio} for m, ratio in pairs]
            curves.append({"steps": steps, "training_s": training, "vertices": vertices, "moments": rows})
    return {
        "scene": name, "size": args.size, "samples": samples, "reference_spp": 2 * count * args.spp,
        "variant": mi.variant(), "first_calls_s": cold,
        "path": [m._asdict() for m in thinned(theirs)], "cache": curves,
    }  # fmt: skip


def main() -> None:
    if "--warm" not in sys.argv:
        common.empty_caches()
    ex = example()
    args = common.arguments(
        __doc__,
        scenes=dict(nargs="+", default=list(ex.SCENES), choices=ex.SCENES, metavar="SCENE"),
        size=dict(type=int, help="of the pictures, 512 on the CPU and 2048 on a GPU"),
        seconds=dict(type=float, help="of each curve, 30 on the CPU and 4 on a GPU"),
        spp=dict(type=int, default=8, help="samples per pixel of a pass"),
        reference=dict(type=int, default=4096, help="samples per pixel of the reference"),
        steps=dict(type=int, nargs="+", default=list(STEPS), help="of the training, a curve each"),
        log2_samples=dict(type=int, help="paths of a training step, 12 on the CPU and 16 on a GPU"),
        warm=dict(action="store_true", help="keep the caches of compiled code"),
        quick=dict(action="store_true", help="small and short, to see that it runs"),
    )
    gpu = args.backend == "cuda"
    if args.quick:
        args.size, args.seconds, args.reference, args.steps, args.log2_samples = 16, 0.2, 64, [4], 8
    args.size = args.size or (2048 if gpu else 512)
    args.seconds = args.seconds or (4.0 if gpu else 30.0)
    args.log2_samples = args.log2_samples or (16 if gpu else 12)
    import mitsuba as mi

    mi.set_variant(f"{args.backend}_ad_rgb")
    rows: list[dict] = []
    for name in args.scenes:  # written after each, which takes minutes
        rows.append(measure(ex, name, args))
        print(common.write("radiance-cache", args.backend, rows, args.out))


if __name__ == "__main__":
    main()
