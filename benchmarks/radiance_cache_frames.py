"""A radiance cache that is kept while camera and light move, against ``path`` with as much time for each frame.

    python benchmarks/radiance_cache_frames.py

The kitchen of ``radiance_scenes.py``: the camera travels through it, and the light behind the window moves along it.
For every frame the scene's parameters are changed, the cache is trained for a few more steps (``kept``), and a picture
with paths of one vertex is rendered. ``path`` then adds up passes until it has had at least as much time as both
together. ``anew`` is a cache that forgets everything before each frame. Both are also shown without a path between
(``vertices=0``), which takes less time. No cache is trained before the first frame. What is compiled and recorded is so
in three frames before, of which nothing is kept. Time is that of the process on the CPU.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import common
from radiance_cache import example
from radiance_cache_rooms import clock

#: Samples per pixel of a pass of ``path``.
PASS = 8
#: Caches, and the vertices before paths end in them.
SHOWN = [(name, vertices) for name in ("kept", "anew") for vertices in (1, 0)]


class Motion:
    """Moves camera and light of the kitchen; ``part`` runs from 0 to 1."""

    def __init__(self, scene: Any):
        import drjit as dr
        import mitsuba as mi

        self.params = mi.traverse(scene)
        self.corners = dr.copy(self.params["window.vertex_positions"])

    def to(self, part: float) -> None:
        import drjit as dr
        import mitsuba as mi

        origin = [0.5 - 0.7 * part, 0.3 - 0.1 * part, 0.95]
        view = mi.ScalarTransform4f().look_at(origin=origin, target=[-0.25 + 0.3 * part, -0.25, -1], up=[0, 1, 0])
        self.params["sensor.to_world"] = mi.Transform4f(view)
        corners = dr.unravel(mi.Point3f, self.corners)
        corners.z += 0.6 * part - 0.3
        self.params["window.vertex_positions"] = dr.ravel(corners)
        self.params.update()


def measure(ex: Any, args: Any) -> dict[str, Any]:
    import drjit as dr
    import radiance_scenes

    import coopnet as cn

    scene, now = radiance_scenes.make("kitchen", args.size), clock(args.backend)
    motion = Motion(scene)
    parts = [i / (args.frames - 1) for i in range(args.frames)]

    def timed(work: Any) -> tuple[float, Any]:
        dr.sync_thread()
        begin, made = now(), work()
        dr.eval(made)
        dr.sync_thread()
        return now() - begin, made

    path, fine = (ex.Renderer(scene, ex.path_integrator(), spp) for spp in (PASS, args.reference))
    names = ("path", *(f"{name}_{vertices}" for name, vertices in SHOWN), "seconds", "path_spp")
    rows: list[dict] = [{name: [] for name in names} for _ in parts]
    for run in range(args.runs):
        caches = {name: cn.mitsuba.RadianceCache(scene, average=args.average, seed=run) for name in ("kept", "anew")}
        renders = {
            (name, n): ex.Renderer(scene, caches[name].integrator(vertices=n), args.spp) for name, n in SHOWN
        }  # fmt: skip

        def train(name: str, caches: dict = caches) -> None:
            if name == "anew":
                caches[name].reset()
            caches[name].train(args.steps, samples=args.samples)

        for part in parts[:3]:
            motion.to(part)
            for name in caches:
                train(name)
            dr.eval([render(0) for render in (*renders.values(), path, fine)])
        caches["kept"].reset()
        for i, (part, row) in enumerate(zip(parts, rows, strict=True)):
            motion.to(part)
            seed = (run << 20) + (i << 10)
            halves = tuple(timed(lambda j=j, seed=seed: fine(ex.REFERENCE + seed + j))[1] for j in (0, 1))
            spent = 0.0
            for name, n in SHOWN:
                training = timed(lambda name=name: train(name))[0] if n == 1 else 0.0
                rendering, picture = timed(lambda render=renders[name, n], seed=seed: render(seed))
                row[f"{name}_{n}"].append(ex.relmse(picture, halves))
                spent = training + rendering if (name, n) == SHOWN[0] else spent
            row["seconds"].append(spent)
            total, theirs, passes = None, 0.0, 0
            while theirs < spent:
                more, total = timed(lambda t=total, s=seed + passes: path(s) if t is None else t + path(s))
                theirs, passes = theirs + more, passes + 1
            row["path"].append(ex.relmse(total / passes, halves))
            row["path_spp"].append(PASS * passes)

    def means(of: list[dict]) -> dict[str, float]:
        return {name: statistics.fmean(value for row in of for value in row[name]) for name in names}

    frames = [{"frame": i, **means([row]), "runs": row} for i, row in enumerate(rows)]
    last = means(rows[len(rows) // 3 :])
    ahead = next((row["frame"] for row in frames if row["kept_1"] < row["path"]), None)
    print({"last two thirds": last, "first ahead": ahead}, file=sys.stderr)
    kept = {name: getattr(args, name) for name in ("size", "frames", "steps", "samples", "spp", "average", "runs")}
    return {
        **kept, "reference_spp": 2 * args.reference, "first_frame_ahead": ahead,
        "mean_of_last_two_thirds": last, "curve": frames,
    }  # fmt: skip


def main() -> None:
    args = common.arguments(
        __doc__,
        size=dict(type=int, default=96, help="of the pictures"),
        frames=dict(type=int, default=30, help="of the sequence"),
        steps=dict(type=int, default=8, help="of the training, for a frame"),
        samples=dict(type=int, default=2**12, help="paths of a step"),
        spp=dict(type=int, default=16, help="samples per pixel of the picture with the cache"),
        average=dict(type=float, default=0.9, help="decay of the average of the weights"),
        reference=dict(type=int, default=64, help="samples per pixel of one of two references of a frame"),
        runs=dict(type=int, default=1, help="of the sequence"),
        quick=dict(action="store_true", help="small and short, to see that it runs"),
    )
    if args.quick:
        args.size, args.frames, args.steps, args.samples, args.spp, args.reference = 12, 4, 2, 256, 4, 8
    import mitsuba as mi

    mi.set_variant(f"{args.backend}_ad_rgb")
    print(common.write("radiance-cache-frames", args.backend, measure(example(), args), args.out))


if __name__ == "__main__":
    main()
