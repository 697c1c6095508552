"""A photograph with a hole, learned by a hash grid: who knows that the hole was never seen?

Four uncertainties each hide the pixels where they are largest, as many as cost one in a hundred of the pixels that were
seen: the deviation over dropout masks, the length of the picture's gradient, which costs nothing, a Gaussian process
that is given 1,500 of the pixels, and the posterior of the grid's entries that ``cn.laplace`` makes after training.

    python examples/unseen.py [folder of the picture] [--quick]

Run by ``make demo``. The photograph comes with matplotlib: Commodore Grace M. Hopper, by James S. Davis, US Navy, in
the public domain.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import drjit as dr
import numpy as np

import coopnet as cn

SIDE, STEPS, BATCH, MASKS, KNOWN = 128, 300, 1 << 12, 32, 1500
#: Share of the seen pixels that may be hidden.
LOST = 0.01


def face() -> np.ndarray:
    from matplotlib.cbook import get_sample_data

    from coopnet import image

    photo = image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))[60:316, 130:386]
    return photo.reshape(SIDE, 2, SIDE, 2, 3).mean((1, 3)).astype(np.float32)


def hole() -> np.ndarray:
    """The pixels that no field is shown: a disc, and a strip at the right."""
    row, column = np.mgrid[:SIDE, :SIDE]
    return (np.hypot(row - 84, column - 40) < 24) | (column >= 106)


def learn(ns: Any, backend: str, photo: np.ndarray, unseen: np.ndarray, steps: int, dropout: float = 0.0) -> tuple:
    """A trained field, and the batches that it was trained on."""
    from coopnet import image

    seen = ns.UInt32(np.flatnonzero(~unseen).astype(np.uint32))
    colours = [ns.Float(np.ascontiguousarray(c)) for c in photo.reshape(-1, 3).T]

    def batch(key: cn.Key) -> tuple:
        (u,) = cn.uniform(1, key, ns.Float, BATCH)
        number = dr.minimum(ns.UInt32(u * dr.width(seen)), dr.width(seen) - 1)
        pixel = dr.gather(ns.UInt32, seen, number)
        return image.pixels(pixel, SIDE, SIDE), [dr.gather(ns.Float, c, pixel) for c in colours]

    grid = cn.HashGrid(2, n_levels=8, base_resolution=8, per_level_scale=1.5)
    network = cn.MLP(out_features=3, width=32, depth=2, dropout=dropout, output_activation="sigmoid")
    field = cn.NeuralField(grid, network).build(backend, seed=1)
    cn.fit(field, batch, steps, lr=cn.training.cosine(1e-2, steps), seed=1, progress=False)
    return field, batch


def gaussian_process(unseen: np.ndarray, length: float = 8.0, noise: float = 0.1) -> np.ndarray:
    """The deviation of a Gaussian process, over that of the pixels, given some of the seen ones."""
    place = np.argwhere(np.ones_like(unseen)).astype(np.float32)
    given = np.random.default_rng(1).permutation(np.flatnonzero(~unseen))[:KNOWN]
    r = np.sqrt(3) / length * np.linalg.norm(place[:, None] - place[given], axis=2)
    kernel = (1 + r) * np.exp(-r)
    known = np.sum(kernel * np.linalg.solve(kernel[given] + noise**2 * np.eye(len(given)), kernel.T).T, axis=1)
    return np.sqrt(np.maximum(1 - known, 0)).reshape(unseen.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("out/unseen"), help="of the picture")
    parser.add_argument("--quick", action="store_true", help="few steps: does it run?")
    args = parser.parse_args()
    from coopnet import image
    from coopnet.image import plots

    start, steps = time.monotonic(), 20 if args.quick else STEPS
    backend = cn.backend.require("auto")
    ns = cn.backend.namespace(backend)
    photo, unseen = face(), hole()
    print(f"{SIDE} x {SIDE} pixels, of which {100 * unseen.mean():.0f} % are unseen, on {backend.upper()}.", flush=True)
    plain, batch = learn(ns, backend, photo, unseen, steps)
    dropped, _ = learn(ns, backend, photo, unseen, steps, dropout=0.1)
    drawn = np.clip(image.render(plain, SIDE, SIDE), 0, 1)
    # the library warns that masks do not tell what a grid has not seen: that is what we show
    warnings.filterwarnings("ignore", ".*unseen regions", RuntimeWarning)
    _, masks = image.render_mc(dropped, SIDE, SIDE, samples=MASKS, seed=1)
    posterior = cn.laplace(plain, batch, steps=8)
    p = image.pixels(dr.arange(ns.UInt32, SIDE * SIDE), SIDE, SIDE)
    entries = np.stack([v.numpy() for v in posterior.std(p)], axis=1).reshape(photo.shape)
    deviations = {
        "Dropout": np.sqrt(np.square(masks).mean(axis=2)),
        "Gradient": np.sqrt(sum(np.square(g).sum(axis=2) for g in np.gradient(drawn, axis=(0, 1)))),
        "Gaussian process": gaussian_process(unseen),
        "cn.laplace": np.sqrt(np.square(entries).mean(axis=2)),
    }
    row, column = np.mgrid[:SIDE, :SIDE]
    checks = np.where((row // 4 + column // 4) % 2, 0.82, 0.95)[..., None] * np.ones(3)
    shown = [
        (np.where(unseen[..., None], 1, photo), "Learned from", "the white was never seen"),
        (drawn, "What the field draws", "there, too"),
    ]
    for name, deviation in deviations.items():
        unsure = deviation > np.quantile(deviation[~unseen], 1 - LOST)
        hidden, order = 100 * unsure[unseen].mean(), cn.auroc(deviation, unseen)
        print(f"{name:<18}hides {hidden:5.1f} % of the unseen pixels, and tells them apart with AUROC {order:.3f}")
        shown.append((np.where(unsure[..., None], checks, drawn), name, f"hides {hidden:.0f} % of the unseen"))
    args.folder.mkdir(parents=True, exist_ok=True)
    plots.pictures(args.folder / "unseen.png", shown)
    print(f"picture: {args.folder}/unseen.png\n{time.monotonic() - start:.0f} seconds in all")


if __name__ == "__main__":
    main()
