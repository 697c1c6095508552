"""Bake a textured material of several layers into a latent texture and one small network, and render both.

The material is Mitsuba's ``principled`` with four textures: paint under a clear coat, rusted in places. The network
sees none of them. It learns eight numbers for each texel of a grid, and how to read a reflection off them (in the
spirit of Kuznetsov et al. 2021, *NeuMIP*, and Zeltner et al. 2024, *Real-time neural appearance models*). Writes the
pictures side by side, a web page that shows the material under a light, and what the error is when all methods get the
same time.

    python examples/neural_material.py [--quick] [--backend llvm|cuda] [--out out/neural_material]
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path

import drjit as dr
import mitsuba as mi
import numpy as np

import coopnet as cn
from coopnet.interop.export import View

LATENT = 8
#: texels a side, steps, samples of each, width of the picture, samples per pixel of the reference and to time by
FULL = dict(texels=256, steps=4000, samples=1 << 15, width=384, converged=2048, spp=64)
QUICK = dict(texels=16, steps=60, samples=1 << 10, width=32, converged=16, spp=4)

#: centre, radius and radiance
LAMPS = (([-2.5, -2.5, 4], 0.5, [18, 17, 15]), ([3, 0, 2.5], 0.3, [9, 12, 18]))


def noise(n: int, slope: float, seed: int) -> np.ndarray:
    """Periodic noise of ``n x n`` texels with a power spectrum that falls with ``slope``, from 0 to 1."""
    rng = np.random.default_rng(seed)
    f = np.hypot(*np.meshgrid(np.fft.fftfreq(n) * n, np.fft.fftfreq(n) * n))
    spectrum = np.fft.fft2(rng.normal(size=(n, n))) / np.maximum(f, 1) ** slope
    spectrum[0, 0] = 0
    rank = np.argsort(np.argsort(np.fft.ifft2(spectrum).real, axis=None)).reshape(n, n)
    return rank / (n * n - 1)  # evenly distributed, so that thresholds are areas


def smooth(x: np.ndarray, edge: float, width: float) -> np.ndarray:
    return np.clip((x - edge) / width + 0.5, 0, 1)


def textures(n: int) -> dict[str, np.ndarray]:
    """Maps of the material, ``n x n`` texels: paint in two tones with scratches, and rust."""
    rough, fine, tone = noise(n, 1.6, 1), noise(n, 0.6, 2), noise(n, 1.5, 3)
    rust = smooth(rough + 0.08 * fine, 0.78, 0.03)[..., None]
    stripe = smooth(np.abs((np.arange(n) * 4 / n) % 1 - 0.5), 0.3, 0.04)[:, None, None]
    scratch = smooth(np.abs(noise(n, 1.2, 4) - 0.5), 0.006, 0.004)[..., None]
    paint = stripe * np.array([0.02, 0.08, 0.25]) + (1 - stripe) * np.array([0.6, 0.55, 0.45])
    paint = scratch * paint + (1 - scratch) * 0.35
    brown = np.array([0.28, 0.09, 0.03]) * (0.4 + 1.2 * tone[..., None] * fine[..., None])
    return {
        "base_color": (1 - rust) * paint + rust * brown,
        "roughness": (1 - rust) * (0.3 + 0.25 * (1 - scratch)) + rust * (0.65 + 0.3 * fine[..., None]),
        "metallic": (1 - rust) * (0.8 * stripe + 0.2 * (1 - scratch)),
        "clearcoat": (1 - rust) * scratch,
    }


def principled(n: int) -> dict:
    """The material as Mitsuba has it."""
    maps = {
        name: {"type": "bitmap", "bitmap": mi.Bitmap(x.astype(np.float32)), "raw": True}
        for name, x in textures(n).items()
    }
    return {"type": "principled", "clearcoat_gloss": 0.85, **maps}


def scene(material: dict, width: int):
    """A ball on a floor of the same material, two lamps and a dim sky."""
    at = mi.ScalarTransform4f
    film = {"type": "hdrfilm", "width": width, "height": width * 3 // 4, "pixel_format": "rgb"}
    view = at().look_at(origin=[0, -4.2, 2.0], target=[0, 0, 0.75], up=[0, 0, 1])
    lamps = {
        f"lamp{i}": {
            "type": "sphere", "center": place, "radius": radius,
            "emitter": {"type": "area", "radiance": {"type": "rgb", "value": light}},
        }
        for i, (place, radius, light) in enumerate(LAMPS)
    }  # fmt: skip
    same = {"type": "ref", "id": "material"}
    return mi.load_dict({
        "type": "scene",
        "sensor": {"type": "perspective", "fov": 40, "to_world": view, "film": film},
        "sky": {"type": "constant", "radiance": {"type": "rgb", "value": [0.25, 0.28, 0.33]}},
        "material": material,
        **lamps,
        "ball": {"type": "sphere", "radius": 1, "to_world": at().translate([0, 0, 1]), "bsdf": same},
        "floor": {"type": "rectangle", "to_world": at().scale(4), "bsdf": same},
    })  # fmt: skip


def bake(reference, size: dict, path: Path) -> None:
    """Write the neural twin of ``reference`` to ``path``, and print the figures of its training."""
    n = size["texels"] + 1
    code = cn.Grid(2, "dense", n_levels=1, n_features_per_level=LATENT, base_resolution=n, init_scale=0.05)
    options = {name: size[name] for name in ("steps", "samples")}
    start = time.monotonic()
    found = cn.mitsuba.fit_bsdf(None, reference, latent=code, **options)
    print(f"baked in {time.monotonic() - start:.0f} s: {found}", flush=True)
    found.bsdf.save(path)
    print(f"{path}: {path.stat().st_size / 2**20:.2f} MiB", flush=True)
    view = View("Painted metal with rust", moving=True)
    page = cn.export(found.bsdf, "html", path.with_suffix(".html"), grids="half", view=view).source
    print(f"{page}: the material under a light that moves", flush=True)


def error(image: np.ndarray, truth: np.ndarray) -> float:
    """Relative mean squared error, without the brightest thousandth of the pixels."""
    e = (np.square(image - truth) / (np.square(truth) + 1e-2)).mean(axis=-1).ravel()
    return float(np.sort(e)[: max(1, int(0.999 * e.size))].mean())


def render(s, integrator, spp: int, seed: int) -> tuple[np.ndarray, float]:
    """Picture and seconds."""
    dr.sync_thread()
    start = time.monotonic()
    image = mi.render(s, integrator=integrator, spp=spp, seed=seed).numpy()
    return image, time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small and rough, in seconds")
    parser.add_argument("--backend", choices=cn.backend.BACKENDS, default="auto")
    parser.add_argument("--out", type=Path, default=Path("out/neural_material"))
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    mi.set_variant(f"{cn.backend.require(options.backend)}_ad_rgb")
    cn.mitsuba.register()
    options.out.mkdir(parents=True, exist_ok=True)

    described, file = principled(size["texels"]), options.out / "material.safetensors"
    bake(mi.load_dict(described), size, file)
    learned = {"type": "neural_bsdf", "filename": str(file)}
    ways = {
        "principled, path": (described, "path"),
        "neural, path": (learned, "path"),
        "neural, neural_path": (learned, "neural_path"),
    }
    title = f"{'':20} {'ms per sample':>14} {'samples':>8} {'relMSE in equal time':>21} {'relMSE, same samples':>21}"
    print(f"\n{title} {'relMSE, converged':>18}")
    pictures, budget = {}, 0.0
    for name, (material, kind) in ways.items():
        gc.collect()  # Dr.Jit traces the materials of all scenes that are alive
        s, integrator = scene(material, size["width"]), mi.load_dict({"type": kind, "max_depth": 4})
        parts = [min(256, size["converged"])] * -(-size["converged"] // 256)
        picture = np.mean([render(s, integrator, spp, 100 + i)[0] for i, spp in enumerate(parts)], axis=0)
        truth = pictures.setdefault("reference", picture)
        pictures["neural"] = picture
        seconds = min(render(s, integrator, size["spp"], 1 + i)[1] for i in range(3)) / size["spp"]
        budget = budget or seconds * size["spp"]
        spp = max(1, round(budget / seconds))
        equal, same = (error(render(s, integrator, n, 7)[0], truth) for n in (spp, size["spp"]))
        row = f"{name:20} {1000 * seconds:14.2f} {spp:8d} {equal:21.4f} {same:21.4f} {error(picture, truth):18.4f}"
        print(row, flush=True)
        del s

    pictures["difference x 4"] = 4 * np.abs(pictures["neural"] - truth)
    for name, image in pictures.items():
        mi.util.write_bitmap(str(options.out / f"{name.replace(' ', '-')}.png"), mi.TensorXf(image), write_async=False)
    row = np.concatenate(list(pictures.values()), axis=1)
    mi.util.write_bitmap(str(options.out / "neural_material.png"), mi.TensorXf(row), write_async=False)
    print(f"reference | neural | difference x 4: {options.out / 'neural_material.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
