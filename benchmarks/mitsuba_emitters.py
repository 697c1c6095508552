"""A sky with a sun as a field: noise of pictures lit by it, by how directions are sampled, and times.

    python benchmarks/mitsuba_emitters.py --backend llvm
    python benchmarks/mitsuba_emitters.py --backend cuda --size 256 --spp 256

A small network is fitted to a sky with a narrow bright spot. A ball on a floor is rendered by ``path`` under Mitsuba's
``envmap`` of the field, under ``neural_envmap`` with its baked picture, with one that was baked before the network was
trained, and with uniform directions (``floor=1``); and under a square lamp whose radiance is the same field, with
uniform (u, v) and with ``sampling``. ``variance`` is that of pixels between seeds, relative to the squared mean and
times the samples, so that it is noise of one sample; times are wall times of ``mi.render``, medians of several turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import common
import drjit as dr
import mitsuba as mi
import numpy as np

import coopnet as cn

#: Width and exponent of the spot, and how much brighter than the sky it is.
SHARPNESS, BRIGHTNESS = 60.0, 40.0


def sky(d: Any) -> list:
    """Radiance from where the unit vector ``d`` points."""
    spot = dr.exp(SHARPNESS * (0.48 * d[0] + 0.6 * d[1] + 0.64 * d[2] - 1))
    blue = 0.3 + 0.2 * d[1]
    return [blue + BRIGHTNESS * spot, blue + 0.9 * BRIGHTNESS * spot, 1.5 * blue + 0.7 * BRIGHTNESS * spot]


def sphere(u: list) -> list:
    z, (s, c) = 1 - 2 * u[0], dr.sincos(2 * dr.pi * u[1])
    radius = dr.safe_sqrt(1 - z * z)
    return [radius * c, radius * s, z]


def made() -> Any:
    network = cn.MLP(-1, 3, width=32, depth=2, bias=True, output_activation="softplus")
    return cn.mitsuba.build(cn.NeuralField(cn.Sinusoidal(2, in_features=3), network))


def train(field: Any, steps: int) -> None:
    def batch(key: Any) -> tuple:
        d = sphere(cn.uniform(2, key, mi.Float, 1 << 13))
        return d, sky(d)

    cn.fit(field, batch, steps, lr=cn.training.cosine(5e-3, steps), loss="relative_l2", progress=False)


def scene(size: int, emitters: dict) -> Any:
    view = mi.ScalarTransform4f().look_at([0, -6, 3], [0, 0, 0.5], [0, 0, 1])
    film = {"type": "hdrfilm", "width": size, "height": size, "rfilter": {"type": "box"}}
    floor = {"type": "rectangle", "to_world": mi.ScalarTransform4f().scale(10)}
    ball = {"type": "sphere", "center": [0, 0, 1], "bsdf": {"type": "roughconductor", "alpha": 0.3}}
    sensor = {"type": "perspective", "to_world": view, "fov": 35, "film": film}
    return mi.load_dict({"type": "scene", "sensor": sensor, "floor": floor, "ball": ball, **emitters})


def picture(field: Any, height: int) -> Any:
    """What ``envmap`` shows: the field at the texels of a picture."""
    i = dr.arange(mi.UInt32, 2 * height * height)
    v, u = (mi.Float(i // (2 * height)) + 0.5) / height, (mi.Float(i % (2 * height)) + 0.5) / (2 * height)
    (sine, cosine), (s, c) = dr.sincos(dr.pi * v), dr.sincos(2 * dr.pi * u)
    values = field([s * sine, cosine, -c * sine]).numpy().T
    return mi.Bitmap(np.ascontiguousarray(values.reshape(height, 2 * height, 3), np.float32))


def lamp(sampling: int) -> dict:
    """A lamp over the scene whose radiance is a narrow spot of (u, v)."""
    network = cn.MLP(-1, 1, width=16, depth=2, bias=True, output_activation="softplus")
    field = cn.mitsuba.build(cn.NeuralField(cn.Sinusoidal(1, in_features=2), network))

    def batch(key: Any) -> tuple:
        u = cn.uniform(2, key, mi.Float, 1 << 12)
        return u, [0.1 + 20 * dr.exp(-100 * (dr.square(u[0] - 0.3) + dr.square(u[1] - 0.6)))]

    cn.fit(field, batch, 500, lr=5e-3, progress=False)
    radiance = cn.mitsuba.NeuralTexture(field, clamp=False, sampling=sampling)
    place = mi.ScalarTransform4f().translate([0, 0, 4]).rotate([1, 0, 0], 180).scale(2)
    return {"lamp": {"type": "rectangle", "to_world": place, "emitter": {"type": "area", "radiance": radiance}}}


def main() -> None:
    args = common.arguments(
        __doc__,
        size={"type": int, "default": 32},
        spp={"type": int, "default": 32},
        steps={"type": int, "default": 1500},
        seeds={"type": int, "default": 6},
    )
    mi.set_variant(f"{args.backend}_ad_rgb")
    field, untrained = made(), made()
    stale = cn.mitsuba.NeuralEnvmap(untrained)
    train(field, args.steps)
    for name, value in field.items():
        untrained[name] = value  # and its picture stays what it was
    emitters = {
        "envmap": {"sky": {"type": "envmap", "bitmap": picture(field, 256)}},
        "neural_envmap": {"sky": cn.mitsuba.NeuralEnvmap(field)},
        "neural_envmap, picture of the untrained network": {"sky": stale},
        "neural_envmap, uniform": {"sky": cn.mitsuba.NeuralEnvmap(field, floor=1.0)},
        "lamp": lamp(0),
        "lamp, sampling=64": lamp(64),
    }
    scenes = {name: scene(args.size, described) for name, described in emitters.items()}
    integrator = mi.load_dict({"type": "path", "max_depth": 3})
    pictures: dict[str, list] = {name: [] for name in scenes}
    times: dict[str, list] = {name: [] for name in scenes}
    for seed in range(args.seeds):
        for name, s in scenes.items():
            start = time.perf_counter()
            pictures[name].append(mi.render(s, integrator=integrator, spp=args.spp, seed=seed).numpy())
            times[name].append(1e3 * (time.perf_counter() - start))
    rows = []
    for name, found in pictures.items():
        mean, variance = np.mean(found), np.mean(np.var(found, axis=0, ddof=1)) * args.spp
        row = {"emitter": name, "mean": float(mean), "variance": float(variance / mean**2)}
        rows.append(row | {"wall_ms": statistics.median(times[name])})
        print(f"{name:48} mean {mean:.4f}, variance {rows[-1]['variance']:9.3f}", file=sys.stderr)
    settings = {name: getattr(args, name) for name in ("size", "spp", "steps", "seeds")}
    common.write("mitsuba-emitters", args.backend, {**settings, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
