"""A radiance field from posed images, and how sure it is of what no camera saw.

Mitsuba renders a sphere, a cube and a cylinder on a table from cameras on one side of it. A field of density and color
learns from those images (``cn.render.ray_march`` inside ``cn.fit``, with an occupancy grid). It is then compared with
Mitsuba's own images from new cameras: between the known ones, and on the other side, which none of them looked from.
Monte Carlo dropout draws several networks; the deviation of their images is set against the true error.

    python examples/radiance_field.py [--quick] [--out folder]

Needs Mitsuba, the extra ``mitsuba`` of coopnet (docs/installation.md).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import drjit as dr
import mitsuba as mi
import numpy as np

import coopnet as cn

FULL = SimpleNamespace(pixels=128, spp=256, views=40, rays=4096, samples=96, steps=3000, cells=64, masks=32, levels=12)
QUICK = SimpleNamespace(pixels=32, spp=32, views=12, rays=256, samples=32, steps=120, cells=16, masks=6, levels=4)
#: Azimuths of the cameras that are trained on; the other side is never seen.
SEEN = (-100.0, 100.0)


def scene() -> Any:
    """Things inside the cube from 0 to 1, below a white sky."""

    def thing(kind: str, color: list, transform: Any) -> dict:
        diffuse = {"type": "diffuse", "reflectance": {"type": "rgb", "value": color}}
        return {"type": kind, "bsdf": diffuse, "to_world": transform}

    t = mi.ScalarTransform4f
    cube = t().translate([0.68, 0.62, 0.34]).rotate([0, 0, 1], 30).scale(0.14)
    can = t().translate([0.62, 0.26, 0.2]).scale([0.1, 0.1, 0.28])
    return mi.load_dict({
        "type": "scene",
        "integrator": {"type": "path", "max_depth": 4},
        "sky": {"type": "constant", "radiance": 1.0},
        "table": thing("cube", [0.7, 0.7, 0.65], t().translate([0.5, 0.5, 0.17]).scale([0.44, 0.44, 0.03])),
        "sphere": thing("sphere", [0.85, 0.2, 0.15], t().translate([0.32, 0.45, 0.38]).scale(0.18)),
        "cube": thing("cube", [0.15, 0.35, 0.8], cube),
        "can": thing("cylinder", [0.2, 0.65, 0.25], can),
    })  # fmt: skip


def camera(azimuth: float, height: float, pixels: int) -> Any:
    a, h = math.radians(azimuth), math.radians(height)
    eye = [0.5 + 1.7 * math.cos(a) * math.cos(h), 0.5 + 1.7 * math.sin(a) * math.cos(h), 0.35 + 1.7 * math.sin(h)]
    film = {"type": "hdrfilm", "width": pixels, "height": pixels, "rfilter": {"type": "box"}}
    look = mi.ScalarTransform4f().look_at(origin=eye, target=[0.5, 0.5, 0.35], up=[0, 0, 1])
    return mi.load_dict({"type": "perspective", "fov": 38, "to_world": look, "film": film})


def posed(world: Any, view: tuple[float, float], size: Any, seed: int) -> tuple[Any, Any, Any]:
    """Origins, directions and colors, ``(3, pixels)`` each, of the image that Mitsuba renders."""
    sensor = camera(*view, size.pixels)
    image = mi.render(world, sensor=sensor, spp=size.spp, seed=seed).numpy()
    y, x = np.mgrid[: size.pixels, : size.pixels].reshape(2, -1)
    place = mi.Point2f((mi.Float(x) + 0.5) / size.pixels, (mi.Float(y) + 0.5) / size.pixels)
    ray, _ = sensor.sample_ray(0.0, 0.5, place, mi.Point2f(0.5))
    o, d = (np.broadcast_to(np.array(v), (3, len(x))) for v in (ray.o, ray.d))
    return o, d, np.clip(image.reshape(-1, 3).T, 0, 1)


def views(size: Any) -> list[tuple[float, float]]:
    """Azimuths and heights of the cameras to train on: low and high by turns."""
    return [(a, (15.0, 35.0, 55.0)[i % 3]) for i, a in enumerate(np.linspace(*SEEN, size.views))]


def train(ns: Any, backend: str, images: list, size: Any) -> tuple[Any, Any]:
    """The field and its occupancy grid."""
    encoding = cn.HashGrid(3, n_levels=size.levels, hashmap_size=2**15)
    network = cn.MLP(out_features=4, width=64, depth=2, dropout=0.1)
    field = cn.NeuralField(encoding, network).build(backend, seed=1)
    grid = cn.render.OccupancyGrid(size.cells, 0, 1, backend)
    o, d, color = ([ns.Float(np.ascontiguousarray(row, np.float32)) for row in np.concatenate(v, axis=1)]
                   for v in zip(*images, strict=True))  # fmt: skip
    count = dr.width(o[0])

    def batch(key: cn.Key) -> tuple:
        (u,) = cn.uniform(1, key, ns.Float, size.rays)
        i = dr.minimum(ns.UInt32(u * count), count - 1)
        return tuple(ns.Array3f([dr.gather(ns.Float, v, i) for v in table]) for table in (o, d, color))

    def objective(field: Any, drawn: tuple, key: cn.Key) -> Any:
        o, d, wanted = drawn
        return dr.squared_norm(march(field, grid, o, d, size, key=key).color - wanted)

    looks = 0

    def metric(field: Any) -> float:
        nonlocal looks
        grid.update(field, cn.Key(2, step=looks), density="exp", threshold=0.5)
        looks += 1
        return 0.0

    result = cn.fit(
        field, batch, size.steps, objective=objective, lr=cn.training.cosine(1e-2, size.steps), metric=metric,
        metric_every=16, progress=sys.stderr.isatty(),
    )  # fmt: skip
    print(f"loss {np.mean(result.losses[-20:]):.5f}; {grid.share():.1%} of the cells are occupied")
    return field, grid


def march(field: Any, grid: Any, o: Any, d: Any, size: Any, **options: Any) -> Any:
    near, far = grid.interval(o, d)
    return cn.render.ray_march(
        field, o, d, near, far, size.samples, density="exp", occupancy=grid, background=1, termination=1e-3, **options
    )


def render(ns: Any, field: Any, grid: Any, o: Any, d: Any, size: Any, **options: Any) -> np.ndarray:
    """An image, ``(3, pixels)``."""
    rays = (ns.Array3f(np.ascontiguousarray(v, np.float32)) for v in (o, d))
    with dr.suspend_grad():
        return march(field, grid, *rays, size, **options).color.numpy()


def uncertain(ns: Any, field: Any, grid: Any, o: Any, d: Any, size: Any) -> np.ndarray:
    """Deviation of each pixel over dropout masks. One index for all rays: a mask is one network for the whole image."""
    images = []
    for step in range(size.masks):
        key = cn.Key(3, ns.UInt32(0), ns.UInt32(step))
        images.append(render(ns, field, grid, o, d, size, key=key, jitter=False, dropout="ray"))
    return np.std(images, axis=0).mean(axis=0)


def ranks(x: np.ndarray) -> np.ndarray:
    """Ranks, those of equal numbers averaged."""
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def picture(path: Path, rows: list[list[np.ndarray]], pixels: int) -> None:
    tiles = [[np.broadcast_to(v.reshape(-1, pixels, pixels), (3, pixels, pixels)) for v in row] for row in rows]
    image = np.concatenate([np.concatenate(row, axis=2) for row in tiles], axis=1)
    mi.util.write_bitmap(str(path), np.ascontiguousarray(image.transpose(1, 2, 0), np.float32), write_async=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small images, few steps")
    parser.add_argument("--backend", default="auto", help="llvm, cuda or auto")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture")
    args = parser.parse_args()
    size, start = QUICK if args.quick else FULL, time.monotonic()
    backend = cn.backend.require(args.backend)
    ns = cn.backend.namespace(backend)
    mi.set_variant(f"{backend}_ad_rgb")
    world = scene()
    images = [posed(world, view, size, seed) for seed, view in enumerate(views(size))]
    field, grid = train(ns, backend, images, size)
    rows, errors, deviations = [], [], []
    for name, azimuths in (("between known cameras", (-40.0, 35.0)), ("from the other side", (150.0, 180.0, 215.0))):
        found = []
        for azimuth in azimuths:
            o, d, truth = posed(world, (azimuth, 28.0), size, 1000 + int(azimuth))
            image = render(ns, field, grid, o, d, size)
            error = np.abs(image - truth).mean(axis=0)
            deviation = uncertain(ns, field, grid, o, d, size)
            found.append(np.mean((image - truth) ** 2))
            # sky that the field leaves empty is right and certain, and would make any two maps look alike
            matter = ((truth < 0.999) | (image < 0.999)).any(axis=0)
            errors.append(error[matter])
            deviations.append(deviation[matter])
            rows.append([truth, image, np.clip(4 * error, 0, 1), np.clip(8 * deviation, 0, 1)])
        print(f"{name}: PSNR {-10 * math.log10(np.mean(found)):.2f} dB")
    print("where there is anything to see:")
    for name, part in (("known side", slice(0, 2)), ("other side", slice(2, None)), ("all views", slice(None))):
        e, s = np.concatenate(errors[part]), np.concatenate(deviations[part])
        plain, rank = np.corrcoef(e, s)[0, 1], np.corrcoef(ranks(e), ranks(s))[0, 1]
        print(f"{name}: error {e.mean():.4f}, deviation {s.mean():.4f}, correlation {plain:.3f}, of ranks {rank:.3f}")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "radiance_field.png"
    picture(path, rows, size.pixels)
    print(f"{path}: truth, field, 4 x error, 8 x deviation; {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
