"""Two hundred small images, each a field of its own, trained together by ``cn.fit_many`` and drawn on one sheet.

The images are square crops of a photograph. ``--latent`` trains latent textures in place of hash grids: codes for every
4 x 4 texels in an embedding, which a network decodes at the place within.

    python examples/many_images.py [folder of fields and sheet] [--latent] [--count 200] [--steps 300]

Stopped or killed, it goes on where it was. On several GPUs, or with several processes on a CPU, they share the images:

    torchrun --nproc-per-node 4 --virtual-local-rank examples/many_images.py

and what was trained is drawn by running it once more, without ``torchrun``. The photograph comes with matplotlib:
Commodore Grace M. Hopper, by James S. Davis, US Navy, in the public domain.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import drjit as dr
import numpy as np

import coopnet as cn

SIDE, SAMPLES, TEXELS = 64, 1024, 4  # pixels of an image; samples of a step; texels that share a code, a side


def crops(count: int) -> np.ndarray:
    """Squares of the photograph, ``(count, SIDE, SIDE, 3)``, of several sizes."""
    from matplotlib.cbook import get_sample_data

    from coopnet import image

    photo = image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))
    rng, found = np.random.default_rng(0), []
    for zoom in rng.integers(1, 4, count):
        y, x = (int(rng.integers(0, n - zoom * SIDE + 1)) for n in photo.shape[:2])
        square = photo[y : y + zoom * SIDE, x : x + zoom * SIDE]
        found.append(square.reshape(SIDE, zoom, SIDE, zoom, 3).mean((1, 3)))
    return np.stack(found).astype(np.float32)


def architecture(latent: bool) -> cn.NeuralField:
    network = cn.MLP(out_features=3, width=16, depth=2, output_activation="sigmoid")
    if latent:
        codes = cn.Embedding((SIDE // TEXELS) ** 2, 8, init_scale=0.1)
        return cn.NeuralField(cn.Composite([codes, cn.Sinusoidal(2, in_features=2)]), network)
    return cn.NeuralField(cn.HashGrid(2, n_levels=5, hashmap_size=2**11, base_resolution=4), network)


def coordinates(latent: bool, x: Any, y: Any) -> list:
    """What the field takes at the place ``x, y`` in [0, 1)."""
    if not latent:
        return [x, y]
    cells = SIDE // TEXELS
    column, row = dr.floor(x * cells), dr.floor(y * cells)
    return [row * cells + column, x * cells - column, y * cells - row]


def make_batch(ns: Any, images: np.ndarray, latent: bool) -> Callable:
    pixels = ns.Float(images.ravel())

    def batch(key: cn.Key, job: Any) -> tuple:
        x, y = cn.uniform(2, key, ns.Float, SAMPLES)
        pixel = (job * SIDE + ns.UInt32(y * SIDE)) * SIDE + ns.UInt32(x * SIDE)
        return coordinates(latent, x, y), [dr.gather(ns.Float, pixels, 3 * pixel + c) for c in range(3)]

    return batch


def drawn(ns: Any, field: cn.NeuralField, latent: bool) -> np.ndarray:
    lane = dr.arange(ns.UInt32, SIDE * SIDE)
    x, y = ((ns.Float(v) + 0.5) / SIDE for v in (lane % SIDE, lane // SIDE))
    return np.ascontiguousarray(field(coordinates(latent, x, y)).numpy().T).reshape(SIDE, SIDE, 3)


def sheet(images: np.ndarray) -> np.ndarray:
    """All images in rows, twice as many in one as there are rows."""
    columns = max(1, round((2 * len(images)) ** 0.5))
    rows = -(-len(images) // columns)
    whole = np.ones((rows * columns, SIDE, SIDE, 3), np.float32)
    whole[: len(images)] = np.clip(images, 0, 1)
    return whole.reshape(rows, columns, SIDE, SIDE, 3).swapaxes(1, 2).reshape(rows * SIDE, columns * SIDE, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=None, help="of the fields and the sheet")
    parser.add_argument("--latent", action="store_true", help="latent textures in place of hash grids")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    for name, value, least in (("--count", args.count, 1), ("--steps", args.steps, 0)):
        if value < least:
            parser.error(f"argument {name}: {value} is too few; at least {least} is needed")
    from coopnet import image

    folder = args.folder or Path("out") / ("many-textures" if args.latent else "many-images")
    backend = cn.backend.require("auto")
    ns = cn.backend.namespace(backend)
    images, start = crops(args.count), time.monotonic()
    fields = [architecture(args.latent).build(backend, seed=number) for number in range(args.count)]
    batch, rate = make_batch(ns, images, args.latent), cn.training.cosine(2e-2, args.steps)
    try:
        results = cn.fit_many(fields, batch, args.steps, lr=rate, directory=folder)
    except (OSError, ValueError) as error:  # the folder has fields of the other kind, or cannot be written
        print(f"many_images: {error}", file=sys.stderr)
        return 2
    seconds = time.monotonic() - start
    print(f"{sum(r is not None for r in results)} of {args.count} images, {seconds:.1f} s on {backend.upper()}")
    if any(r is None or r.stopped == "interrupt" for r in results):
        return 0  # the others are in the folder when their processes have ended
    pictures = np.stack([drawn(ns, field, args.latent) for field in fields])
    quality = [image.psnr(picture, truth) for picture, truth in zip(pictures, images, strict=True)]
    image.save(folder / "sheet.png", sheet(pictures))
    image.save(folder / "sheet-truth.png", sheet(images))
    print(f"PSNR {np.mean(quality):.1f} dB on average, {min(quality):.1f} to {max(quality):.1f}; {folder}/sheet.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
