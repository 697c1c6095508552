"""The mean of pictures whose paths end in a radiance cache, against that of ``path``: how far it is off, and why.

    python benchmarks/radiance_cache_bias.py

A box with one ball, matte, of smooth or of rough glass. Paths end after one vertex (``vertices=1``). First they end in
an oracle, which answers with the radiance of one more path instead of the field's: what is off then would be an error
of the paths. After that they end in caches, trained with tails of different lengths, for several seeds. Only the part
of the picture that the ends bring is rendered again for each; the rest is the same for all, and rendered once. For
rough glass there is a larger field, too.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import common

#: Vertices of the tails of training paths.
TAILS = (3, 6, 16)


class Oracle:
    """Answers in place of a cache's field: the radiance of one path that goes on from the point it is asked about."""

    seed = 0

    def __init__(self, scene: Any):
        self.scene = scene

    def __call__(self, field: Any, si: Any, active: Any, key: Any = None) -> Any:
        import drjit as dr
        import mitsuba as mi

        from coopnet.mitsuba.cache.short_paths import LONGEST, Ending, trace

        towards = si.to_world(si.wi)
        ray = mi.Ray3f(si.spawn_ray(towards).o, -towards)  # comes back to the same point
        sampler = mi.load_dict({"type": "independent"})
        sampler.seed(1 << 20 | self.seed, dr.width(ray.d))
        asked = active & si.is_valid()
        paths = trace(self.scene, sampler, ray, Ending(LONGEST), asked, mi.UInt32(0), longest=2 * LONGEST)
        return dr.select(paths.query.valid, paths.radiance, 0)


def wide_field() -> Any:
    """As the field of a cache that is given none, with 64 units in three layers and finer directions of view."""
    import coopnet as cn

    grid = cn.HashGrid(3, n_levels=6, hashmap_size=2**16, base_resolution=8, per_level_scale=1.7)
    parts = [grid, cn.SphericalHarmonics(5), cn.SphericalHarmonics(2), cn.OneBlob(4), cn.Identity()]
    network = cn.MLP(out_features=3, width=64, depth=3)
    return cn.NeuralField(cn.Composite(parts, [3, 3, 3, 1, 6]), network, in_features=16)


class Nothing:
    """An answer of no light: what is left is what paths gather before they end."""

    def __call__(self, field: Any, si: Any, active: Any, key: Any = None) -> Any:
        import mitsuba as mi

        return mi.Color3f(0)


def brightness(scene: Any, integrator: Any, args: Any, first: int, passes: int) -> list[float]:
    """Means of pictures of successive seeds."""
    import mitsuba as mi
    import numpy as np

    found = []
    for seed in range(first, first + passes):
        Oracle.seed = seed
        picture = mi.render(scene, integrator=integrator, spp=args.spp, seed=seed).numpy()
        found.append(float(np.mean(picture, dtype=np.float64)))
    return found


def summary(values: list[float], scale: float = 1.0) -> tuple[float, float]:
    """The mean, and its standard deviation."""
    return statistics.fmean(values) * scale, scale * statistics.stdev(values) / len(values) ** 0.5


def measure(name: str, args: Any) -> dict[str, Any]:
    import mitsuba as mi
    import radiance_scenes

    import coopnet as cn

    scene = radiance_scenes.make(name, args.size)
    cache = cn.mitsuba.RadianceCache(scene)
    path = mi.load_dict({"type": "path", "max_depth": 64})
    truth, noise = summary(brightness(scene, path, args, 1000, args.passes))
    ended = cache.integrator(vertices=1)
    ended.output = Nothing()
    rest, noise_of_rest = summary(brightness(scene, ended, args, 2000, args.passes))
    ended.output = Oracle(scene)
    found, sigma = summary(brightness(scene, ended, args, 3000, args.passes))
    percent = 100 / truth
    row = {
        "ball": name, "path": truth, "path_sigma_percent": noise * percent, "ends_percent": 100 - rest * percent,
        "oracle_percent": found * percent - 100, "oracle_sigma": (sigma**2 + noise**2) ** 0.5 * percent, "tails": [],
    }  # fmt: skip
    print(row, file=sys.stderr, flush=True)
    ended.output = Nothing()
    alone = brightness(scene, ended, args, 0, 2)
    kinds = [(tail, None) for tail in args.tails] + ([(3, wide_field)] if name == "rough glass" else [])
    for tail, field in kinds:
        off = []
        for seed in range(args.seeds):
            made = None if field is None else field().build(args.backend, seed=seed)
            cache = cn.mitsuba.RadianceCache(scene, made, seed=seed)
            cache.train(args.steps, samples=args.samples, tail=tail)
            ended = cache.integrator(vertices=1)
            ends = [a - b for a, b in zip(brightness(scene, ended, args, 0, 2), alone, strict=True)]
            off.append((rest + statistics.fmean(ends)) * percent - 100)
        mean, sigma = summary(off)
        common_noise = (noise**2 + noise_of_rest**2) ** 0.5 * percent
        found = {
            "tail": tail, "percent": mean, "sigma": (sigma**2 + common_noise**2) ** 0.5,
            "spread": statistics.stdev(off), "each": off,
        }  # fmt: skip
        if field is None:
            row["tails"].append(found)
        else:
            row["wide"] = found
        print(
            f"  tail {tail}, {'wide' if field else 'default'} field: {mean:+.2f} %, {off}", file=sys.stderr, flush=True
        )
    return row


def main() -> None:
    args = common.arguments(
        __doc__,
        size=dict(type=int, default=24, help="of the pictures"),
        spp=dict(type=int, default=1024, help="samples per pixel of a pass"),
        passes=dict(type=int, default=10, help="of the reference, of the rest and of the oracle"),
        steps=dict(type=int, default=600, help="of the training"),
        samples=dict(type=int, default=2**12, help="paths of a step"),
        seeds=dict(type=int, default=3, help="of the training"),
        balls=dict(nargs="+", default=["matte", "glass", "rough glass"], help="materials of the ball"),
        tails=dict(type=int, nargs="*", default=list(TAILS), help="vertices of tails"),
        quick=dict(action="store_true", help="small and short, to see that it runs"),
    )
    if args.quick:
        args.size, args.spp, args.passes, args.steps, args.samples, args.seeds = 8, 16, 2, 3, 256, 2
    import mitsuba as mi

    mi.set_variant(f"{args.backend}_ad_rgb")
    rows = [measure(name, args) for name in args.balls]
    kept = {name: getattr(args, name) for name in ("size", "spp", "passes", "steps", "samples", "seeds")}
    print(common.write("radiance-cache-bias", args.backend, {**kept, "rows": rows}, args.out))


if __name__ == "__main__":
    main()
