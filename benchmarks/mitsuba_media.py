"""A cloud in Mitsuba: a field of its density against a grid of the same memory, pictures and times.

    python benchmarks/mitsuba_media.py --backend llvm
    python benchmarks/mitsuba_media.py --backend cuda --size 256 --spp 256

The reference is a grid of ``--reference`` cells a side, scattering. A hash grid with a small network is fitted to it,
and rendered as ``sigma_t`` of Mitsuba's ``heterogeneous`` medium by ``volpath`` and as a ``neural_medium`` by both
integrators; the grids are the reference averaged over cells, of the field's memory and of eight times that. Errors are
of pictures, relative to the reference's mean square and without the noise, which is uncorrelated between two pictures
of each: the mean of (a1 - r1)(a2 - r2). Times are wall times of ``mi.render`` of a loaded scene with an eighth of the
samples, medians of several turns.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import common
import drjit as dr
import mitsuba as mi
import numpy as np

import coopnet as cn

SCALE, ALBEDO = 40.0, 0.9
#: The field: tables of 2^11 entries.
LEVELS, FEATURES, ENTRIES, WIDTH = 6, 2, 1 << 11, 16


def cloud(n: int) -> np.ndarray:
    """Densities in [0, 1] of a cube of ``n`` cells a side: seven octaves of waves inside a ball."""
    x = (np.arange(n) + 0.5) / n
    z, y, x = np.meshgrid(x, x, x, indexing="ij")
    rng, value = np.random.default_rng(0), np.zeros_like(x)
    for octave in range(28):
        k = rng.normal(size=3) * 2.0 ** (1 + octave / 7)
        value += 2.0 ** (-octave / 14) * np.sin(2 * np.pi * (k[0] * x + k[1] * y + k[2] * z + rng.random()))
    radius = np.sqrt((x - 0.5) ** 2 + (y - 0.5) ** 2 + (z - 0.5) ** 2)
    return np.clip(1.6 * (1 - 2.4 * radius) + 0.25 * value, 0, 1).astype(np.float32)


def averaged(values: np.ndarray, n: int) -> np.ndarray:
    """``values`` on ``n`` cells a side: means over the samples of each."""
    cell = np.minimum(np.arange(len(values)) * n // len(values), n - 1)
    for axis in range(3):
        sums = np.zeros((*values.shape[:axis], n, *values.shape[axis + 1 :]))
        np.add.at(sums, (slice(None),) * axis + (cell,), values)
        counts = np.bincount(cell, minlength=n).reshape([-1 if a == axis else 1 for a in range(3)])
        values = sums / counts
    return values.astype(np.float32)


def fitted(values: np.ndarray, steps: int) -> Any:
    """A field of the density, and the seconds of fitting it."""
    grid = cn.Grid(3, n_levels=LEVELS, n_features_per_level=FEATURES, hashmap_size=ENTRIES, base_resolution=4,
                   per_level_scale=1.7)  # fmt: skip
    network = cn.MLP(-1, 1, width=WIDTH, depth=2, output_activation="softplus")
    field = cn.mitsuba.build(cn.NeuralField(grid, network))
    count = 1 << 20
    u = np.random.default_rng(1).random((3, count)).astype(np.float32)
    lookup = dr.auto.ad.Texture3f(mi.TensorXf(values[..., None]), wrap_mode=dr.WrapMode.Clamp)
    p = mi.Point3f(*map(mi.Float, u))
    wanted = lookup.eval(p)[0]
    dr.eval(wanted)

    def batch(key: Any) -> tuple:
        i = mi.UInt32(cn.uniform(1, key, mi.Float, 1 << 14)[0] * count)
        return dr.gather(mi.Point3f, p, i), [dr.gather(mi.Float, wanted, i)]

    start = time.perf_counter()
    cn.fit(field, batch, steps, lr=cn.training.cosine(1e-2, steps), progress=False)
    return field, time.perf_counter() - start


def scene(medium: Any, size: int) -> Any:
    view = mi.ScalarTransform4f().look_at([0.5, 0.7, 3.2], [0.5, 0.5, 0.5], [0, 1, 0])
    film = {"type": "hdrfilm", "width": size, "height": size, "rfilter": {"type": "box"}}
    cube = mi.ScalarTransform4f().translate([0.5] * 3).scale(0.5)
    return mi.load_dict({
        "type": "scene", "sky": {"type": "constant", "radiance": 0.3},
        "sun": {"type": "directional", "direction": [-1, -1, -0.5], "irradiance": 5.0},
        "sensor": {"type": "perspective", "to_world": view, "fov": 22, "film": film},
        "cube": {"type": "cube", "to_world": cube, "bsdf": {"type": "null"}, "interior": medium},
    })  # fmt: skip


def heterogeneous(volume: Any) -> dict:
    return {"type": "heterogeneous", "sigma_t": volume, "albedo": ALBEDO, "scale": SCALE}


def gridvolume(values: np.ndarray) -> dict:
    return {"type": "gridvolume", "grid": mi.VolumeGrid(values[..., None]), "filter_type": "trilinear"}


def picture(s: Any, integrator: Any, spp: int, seed: int) -> np.ndarray:
    return mi.render(s, integrator=integrator, spp=spp, seed=seed).numpy()


def main() -> None:
    args = common.arguments(
        __doc__,
        size={"type": int, "default": 64},
        spp={"type": int, "default": 512},
        steps={"type": int, "default": 3000},
        reference={"type": int, "default": 128},
        repeat={"type": int, "default": 5},
    )
    mi.set_variant(f"{args.backend}_ad_rgb")
    values = cloud(args.reference)
    field, seconds = fitted(values, args.steps)
    size_of = {name: dr.width(value) * dr.itemsize_v(value) for name, value in field.items()}
    memory = sum(size_of.values())
    same = round((memory / 4) ** (1 / 3))
    volpath, ours = mi.load_dict({"type": "volpath", "max_depth": 32}), cn.mitsuba.NeuralVolpath(max_depth=32)
    volume = cn.mitsuba.NeuralVolume(field)

    def medium() -> Any:
        return cn.mitsuba.NeuralMedium(field, density="none", scale=SCALE, albedo=ALBEDO)

    ways: dict[str, tuple[Callable[[], Any], Any, int]] = {
        "reference": (lambda: heterogeneous(gridvolume(values)), volpath, 4 * values.size),
        "grid": (lambda: heterogeneous(gridvolume(averaged(values, same))), volpath, 4 * same**3),
        "grid, eight times the memory": (
            lambda: heterogeneous(gridvolume(averaged(values, 2 * same))), volpath, 4 * (2 * same) ** 3,
        ),
        "field in volpath": (lambda: heterogeneous(volume), volpath, memory),
        "field, neural_medium in volpath": (medium, volpath, memory),
        "field, neural_medium in neural_volpath": (medium, ours, memory),
    }  # fmt: skip
    scenes = {name: scene(made(), args.size) for name, (made, _, _) in ways.items()}
    integrators = {name: integrator for name, (_, integrator, _) in ways.items()}
    pairs = {name: [picture(s, integrators[name], args.spp, seed) for seed in (1, 2)] for name, s in scenes.items()}
    first, second = pairs["reference"]
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(args.repeat):
        for name, s in scenes.items():
            start = time.perf_counter()
            dr.eval(mi.render(s, integrator=integrators[name], spp=args.spp // 8, seed=turn))
            dr.sync_thread()
            times[name].append(1e3 * (time.perf_counter() - start))
    rows = []
    for name, (a, b) in pairs.items():
        error = 0.0 if name == "reference" else float(np.mean((a - first) * (b - second)) / np.mean(first * second))
        row = {"medium": name, "bytes": ways[name][2], "relative_mse": error, "wall_ms": statistics.median(times[name])}
        rows.append(row)
        print(f"{name:40} {row['bytes']:9} bytes, error {error:.2e}, {row['wall_ms']:8.1f} ms", file=sys.stderr)
    found = {"rows": rows, "fit_seconds": seconds, "exceeded": volume.exceeded(), "majorant": volume.max()}
    common.write("mitsuba-media", args.backend, {**vars(args), "out": None, **found}, args.out)
    del scenes
    gc.collect()


if __name__ == "__main__":
    main()
