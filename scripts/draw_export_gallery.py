"""Trains the fields of ``docs/export_gallery.md`` and writes their pages and pictures of them.

    python scripts/draw_export_gallery.py --mesh spot.obj [photo unsure spot melted paint metal]

Pages go to ``docs/_static/export``, pictures to ``docs/images``, what is said of them to ``benchmarks/results``. The
mesh is Keenan Crane's Spot, from his model repository, in the public domain; every other closed mesh serves as
well. The photograph comes with matplotlib: Commodore Grace M. Hopper, by James S. Davis, US Navy, in the public domain.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import drjit as dr
import numpy as np

import coopnet as cn
from coopnet import image, mesh
from coopnet.interop.export import View

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import common  # noqa: E402 - the benchmarks' own

PAGES, PICTURES = ROOT / "docs" / "_static" / "export", ROOT / "docs" / "images"
SIDE, THUMBNAIL, BATCH = 256, 320, 1 << 14
ns = cn.backend.namespace("llvm")


def face() -> np.ndarray:
    """The face in the photograph."""
    from matplotlib.cbook import get_sample_data

    return image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))[60 : 60 + SIDE, 130 : 130 + SIDE]


def colours(photo: np.ndarray, chosen: np.ndarray, region: Any) -> Callable:
    """Batches of the chosen pixels, with their places in the region."""
    height, width, _ = photo.shape
    table = [ns.Float(np.ascontiguousarray(c)) for c in photo.reshape(-1, 3).T]
    numbers = ns.UInt32(chosen.astype(np.uint32))
    dr.eval(table, numbers)

    def batch(key: cn.Key) -> tuple[list, list]:
        u = cn.uniform(1, key, ns.Float, BATCH)[0]
        pixel = dr.gather(ns.UInt32, numbers, dr.minimum(ns.UInt32(u * len(chosen)), len(chosen) - 1))
        return image.pixels(pixel, width, height, region), [dr.gather(ns.Float, c, pixel) for c in table]

    return batch


def train(field: cn.NeuralField, batch: Callable, steps: int, rate: float, **options: Any) -> None:
    cn.fit(field, batch, steps, lr=cn.training.cosine(rate, steps), progress=False, **options)


def photo(args: argparse.Namespace) -> tuple[cn.NeuralField, View, dict, str]:
    """A photograph in a hash grid of 8 bits."""
    grid = cn.HashGrid(2, n_levels=8, base_resolution=16, hashmap_size=2**13, per_level_scale=16 ** (1 / 7))
    field = cn.NeuralField(grid, cn.MLP(-1, 3, width=32, depth=2, output_activation="sigmoid")).build("llvm", seed=1)
    truth, region = face(), (0.0, 0.0, 1.0, 1.0)
    train(field, colours(truth, np.arange(SIDE * SIDE), region), 1500, 1e-2)
    seen = image.render(field, SIDE, SIDE, region)
    said = f"{SIDE} x {SIDE} pixels, {image.psnr(seen, truth):.1f} dB"
    return field, View("A photograph", region), {"precision": "half", "grids": "uint8"}, said


def unsure(args: argparse.Namespace) -> tuple[cn.NeuralField, View, dict, str]:
    """The same photograph from a tenth of its pixels, with noise, and how unsure the field is."""
    network = cn.MLP(-1, 3, width=64, depth=2, dropout=0.05, output_activation="sigmoid")
    field = cn.NeuralField(cn.Sinusoidal(6, in_features=2), network).build("llvm", seed=1)
    truth, region = face(), image.evaluate.box(SIDE, SIDE)
    noisy = truth + np.random.default_rng(1).normal(0, 0.1, truth.shape).astype(np.float32)
    chosen = image.training_pixels(SIDE * SIDE, 0.1, seed=1)
    train(field, colours(noisy, chosen, region), 1500, 5e-3)
    held_out = np.delete(np.arange(SIDE * SIDE), chosen)
    seen = image.render(field, SIDE, SIDE, region).reshape(-1, 3)[held_out]
    said = f"{image.psnr(seen, truth.reshape(-1, 3)[held_out]):.1f} dB of the pixels that it was not shown"
    view = View("A face from a tenth of its pixels, and how unsure the field is", region, show="deviation", masks=16)
    return field, view, {"precision": "half"}, said


def spot(args: argparse.Namespace) -> tuple[cn.NeuralField, View, dict, str]:
    """The signed distance of a mesh in a hash grid of 8 bits."""
    grid = cn.HashGrid(3, n_levels=8, base_resolution=8, hashmap_size=2**14, per_level_scale=16 ** (1 / 7))
    field = cn.NeuralField(grid, cn.MLP(-1, 1, width=32, depth=2)).build("llvm", seed=1)
    shape = mesh.load(args.mesh)
    samples = mesh.draw_samples(shape, 1 << 18, seed=1)
    table = [ns.Float(np.ascontiguousarray(c)) for c in (*samples.points.T, samples.distances)]
    dr.eval(table)

    def batch(key: cn.Key) -> tuple[list, list]:
        number = ns.UInt32(cn.uniform(1, key, ns.Float, BATCH)[0] * (1 << 18))
        values = [dr.gather(ns.Float, v, number) for v in table]
        return values[:3], values[3:]

    train(field, batch, 2000, 1e-2, loss="l1")
    said = f"a mesh of {len(shape.faces):,} triangles"
    view = View("Spot, a signed distance", azimuth=220, elevation=15, smooth=True)
    return field, view, {"precision": "half", "grids": "uint8"}, said


def melted(args: argparse.Namespace) -> tuple[cn.NeuralField, View, dict, str]:
    """A ring around a ball, melted together (the smooth minimum of Quilez), in a network of softplus alone."""
    field = cn.NeuralField(cn.Frequency(2, in_features=3), cn.MLP(-1, 1, width=24, depth=3, activation="softplus"))
    field = field.build("llvm", seed=1)

    def distance(p: Any) -> Any:
        ring = dr.norm(ns.Array2f(dr.norm(ns.Array2f(p.x, p.z)) - 0.3, p.y)) - 0.075
        ball = dr.norm(p - ns.Array3f(0.025, 0.05, -0.05)) - 0.19
        h = dr.maximum(0.075 - abs(ring - ball), 0) / 0.075
        return dr.minimum(ring, ball) - 0.25 * 0.075 * h * h

    def batch(key: cn.Key) -> tuple[list, list]:
        u = cn.uniform(3, key, ns.Float, BATCH)
        return list(u), [distance(ns.Array3f(*u) - 0.5)]

    train(field, batch, 4000, 1e-2, loss="l1")
    return (
        field,
        View("A ring and a ball, melted together", azimuth=35, elevation=30),
        {"precision": "half"},
        "a network alone",
    )


def paint(args: argparse.Namespace) -> tuple[cn.NeuralField, View, dict, str]:
    """The colours of the material of the tutorial on neural materials."""
    colour = painted_metal() ** (1 / 2.2)
    side, region = len(colour), (0.0, 0.0, 1.0, 1.0)
    grid = cn.HashGrid(2, n_levels=6, base_resolution=16, hashmap_size=2**13, per_level_scale=1.5)
    field = cn.NeuralField(grid, cn.MLP(-1, 3, width=32, depth=2, output_activation="sigmoid")).build("llvm", seed=1)
    train(field, colours(colour, np.arange(side * side), region), 1500, 1e-2)
    said = f"{side} x {side} texels, {image.psnr(image.render(field, side, side, region), colour):.1f} dB"
    return field, View("Painted metal with rust", region), {"precision": "half", "grids": "uint8"}, said


def metal(args: argparse.Namespace) -> tuple[Any, View, dict, str]:
    """The material of the tutorial on neural materials."""
    import mitsuba as mi

    mi.set_variant("llvm_ad_rgb")
    reference = mi.load_dict(of_tutorial("figure, axes", mi=mi)["layered"])
    code = cn.Grid(2, "dense", n_levels=1, n_features_per_level=8, base_resolution=129, init_scale=0.05)
    found = cn.mitsuba.fit_bsdf(None, reference, latent=code, steps=3000, samples=1 << 14, seed=1)
    said = f"128 x 128 texels, relative error {found.relative_error:.3f}"
    view = View("Painted metal with rust, under a light", light=(75.0, 45.0), moving=True)
    return found.bsdf, view, {"grids": "half"}, said


def painted_metal() -> np.ndarray:
    """The map of base colours that the tutorial draws, linear."""
    return of_tutorial("layered = ")["maps"]["base_color"].astype(np.float32)


def of_tutorial(end: str, **names: Any) -> dict[str, Any]:
    """What the tutorial on neural materials defines until it says ``end``."""
    script = (ROOT / "docs" / "tutorials" / "plot_08_neural_material.py").read_text(encoding="utf-8")
    names["np"] = np
    exec(script[script.index("N = 128") : script.index(end)], names)
    return names


FIELDS: dict[str, Callable] = {f.__name__: f for f in (photo, unsure, spot, melted, paint, metal)}


def lit(bsdf: Any, view: View) -> np.ndarray:
    """A sphere of the material on white, by Mitsuba, as the page shows it."""
    import mitsuba as mi

    def towards(azimuth: float, elevation: float) -> list[float]:
        a, e = np.radians([azimuth, elevation])
        return [float(4 * v) for v in (np.cos(a) * np.cos(e), np.sin(a) * np.cos(e), np.sin(e))]

    seen_from = mi.ScalarTransform4f().look_at(towards(view.azimuth, view.elevation), [0, 0, 0], [0, 0, 1])
    film = {"type": "hdrfilm", "width": THUMBNAIL, "height": THUMBNAIL, "pixel_format": "rgba"}
    power = {"type": "rgb", "value": view.intensity}
    scene = mi.load_dict({
        "type": "scene", "shape": {"type": "sphere", "bsdf": bsdf},
        "light": {"type": "point", "position": towards(*view.light), "intensity": power},
        "sensor": {"type": "perspective", "fov": 33.4, "to_world": seen_from, "film": film},
    })  # fmt: skip
    picture = mi.render(scene, integrator=mi.load_dict({"type": "direct"}), spp=16).numpy()
    linear = picture[..., :3] + 1 - picture[..., 3:]
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * np.maximum(linear, 0.0031308) ** (1 / 2.4) - 0.055)


def thumbnail(field: Any, view: View) -> np.ndarray:
    """What the page shows at first."""
    if not isinstance(field, cn.NeuralField):
        return lit(field, view)
    if field.in_features == 3:
        return mesh.render(field, THUMBNAIL, THUMBNAIL, view.azimuth, view.elevation, view.up)
    if view.show == "field":
        return image.render(field, THUMBNAIL, THUMBNAIL, view.region)
    from matplotlib import colormaps

    deviation = image.render_mc(field, THUMBNAIL, THUMBNAIL, view.masks, 0, view.region)[1]
    values = np.sqrt(np.mean(np.square(deviation), axis=2))
    return colormaps["viridis"](values / np.quantile(values, 0.98))[..., :3].astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fields", nargs="*", default=list(FIELDS), metavar="FIELD")
    parser.add_argument("--mesh", type=Path)
    args = parser.parse_args()
    PAGES.mkdir(parents=True, exist_ok=True)
    notes = common.RESULTS / "export-gallery-llvm.json"
    found = json.loads(notes.read_text("utf-8"))["results"] if notes.exists() else {}
    for name in args.fields:
        if name == "spot" and args.mesh is None:
            print("spot stays as it is: --mesh is missing", flush=True)
            continue
        start = time.perf_counter()
        field, view, options, said = FIELDS[name](args)
        seconds = time.perf_counter() - start
        page = cn.export(field, "html", PAGES / f"{name}.html", view=view, **options).source
        image.files.save(PICTURES / f"export-{name}.png", thumbnail(field, view))
        found[name] = {"title": view.title, "seconds": round(seconds), "bytes": page.stat().st_size, "said": said}
        print(name, found[name], flush=True)
        common.write("export-gallery", "llvm", found)


if __name__ == "__main__":
    main()
