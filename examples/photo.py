"""Where dropout pays: a photograph learned from few, noisy pixels; and does the field know where it is wrong?

The face in a photograph, 128 x 128 pixels, is learned from a random part of them with Gaussian noise added, and
compared with all other pixels, without noise. The network has more weights than there are numbers to learn, so it can
learn the noise by heart. What keeps it from that?

- Nothing, weight decay, or dropout: each with several seeds (of weights, choice of pixels, noise, masks).
- Without dropout the field of the *best* step is taken and the best decay, both chosen on the very pixels that it is
  then judged by: better than what early stopping could find. With dropout it is the field of the *last* step.

The standard deviation over dropout masks is then compared with the true error: the sparsification curve
(``cn.sparsification``; Ilg et al. 2018) is the error that is left when the most uncertain pixels are taken out.

    python examples/photo.py [folder of the pictures] [--quick]

The photograph comes with matplotlib: Commodore Grace M. Hopper, by James S. Davis, US Navy, in
the public domain.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import drjit as dr
import numpy as np

import coopnet as cn

FRACTION, NOISE = 0.1, 0.1  # share of the pixels to train on; standard deviation of their noise
WIDTH, DEPTH, OCTAVES = 128, 3, 6
STEPS, LOOKS, RATE, MASKS = 500, 24, 5e-3, 64
SEEDS = (1, 2, 3)  # p and the decays were chosen with others
DECAYS, DROPOUT = (0.0, 1.0, 2.0, 4.0), 0.3
SIDE = 128


@dataclass
class Task:
    """Pixels to learn, and those to be judged by."""

    truth: np.ndarray  # (height, width, 3)
    chosen: np.ndarray  # numbers of the pixels to train on
    held_out: np.ndarray
    noisy: np.ndarray  # colours of all pixels with noise; only those of the chosen ones are looked at

    def psnr(self, picture: np.ndarray) -> float:
        from coopnet import image

        return image.psnr(picture.reshape(-1, 3)[self.held_out], self.truth.reshape(-1, 3)[self.held_out])

    def error(self, picture: np.ndarray) -> np.ndarray:
        """Root mean square over colours."""
        return np.sqrt(np.mean(np.square(np.clip(picture, 0, 1) - self.truth), axis=2))


@dataclass
class Fit:
    """Pictures, and their PSNR by name: of the best and the last step, and the mean over masks."""

    result: cn.FitResult
    psnr: dict[str, float]
    best: np.ndarray
    mean: np.ndarray | None = None
    deviation: np.ndarray | None = None  # over masks, root mean square over colours


def face(side: int = SIDE) -> np.ndarray:
    from matplotlib.cbook import get_sample_data

    from coopnet import image

    photo = image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))[60:316, 130:386]
    step = len(photo) // side
    return photo.reshape(side, step, side, step, 3).mean((1, 3)).astype(np.float32)


def task(truth: np.ndarray, fraction: float, noise: float, seed: int) -> Task:
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(truth.shape[0] * truth.shape[1])
    chosen, held_out = np.split(numbers, [round(fraction * len(numbers))])
    noisy = truth + rng.normal(0, noise, truth.shape)
    return Task(truth, np.sort(chosen), np.sort(held_out), noisy.astype(np.float32))


def make(dropout: float = 0.0, width: int = WIDTH) -> cn.NeuralField:
    network = cn.MLP(out_features=3, width=width, depth=DEPTH, dropout=dropout, output_activation="sigmoid", bias=True)
    return cn.NeuralField(cn.Sinusoidal(OCTAVES, in_features=2), network)


def learn(backend: str, task: Task, field: cn.NeuralField, seed: int, decay: float = 0.0, steps: int = STEPS) -> Fit:
    """Train on all chosen pixels in every step, and look at the held-out ones ``LOOKS`` times."""
    from coopnet import image, uncertainty

    ns, (height, columns, _) = cn.backend.namespace(backend), task.truth.shape
    field = field.build(backend, seed=seed)
    coordinates = image.pixels(ns.UInt32(task.chosen.astype(np.uint32)), columns, height)
    colours = [ns.Float32(np.ascontiguousarray(c)) for c in task.noisy.reshape(-1, 3)[task.chosen].T]
    dr.eval(coordinates, colours)
    best: list[Any] = [-np.inf, None]

    def quality(field: cn.NeuralField) -> float:
        picture = image.render(field, columns, height)
        if (value := task.psnr(picture)) > best[0]:
            best[:] = value, picture
        return value

    result = cn.fit(
        field, lambda key: (coordinates, colours), steps, lr=cn.training.cosine(RATE, steps), weight_decay=decay,
        seed=seed, metric=quality, metric_every=max(1, steps // LOOKS), progress=False,
    )  # fmt: skip
    fit = Fit(result, {"best": best[0], "last": result.metrics[-1][1]}, best[1])
    if uncertainty.has_dropout(field):
        fit.mean, deviation = image.render_mc(field, columns, height, MASKS, seed)
        fit.psnr["mean"] = task.psnr(fit.mean)
        fit.deviation = np.sqrt(np.mean(np.square(deviation), axis=2))
    return fit


def edges(picture: np.ndarray) -> np.ndarray:
    """Length of the picture's gradient: an uncertainty that needs no dropout, since errors gather along edges."""
    rows, columns = np.gradient(picture, axis=(0, 1))
    return np.sqrt(np.sum(rows**2 + columns**2, axis=2))


def judge(task: Task, fit: Fit) -> dict[str, Any]:
    """How well dropout, and edges, predict the error of the mean over masks on the held-out pixels."""
    error, by = task.error(fit.mean), {"dropout": fit.deviation, "edges": edges(fit.mean)}
    pick = task.held_out
    return {name: cn.sparsification(error.flat[pick], u.flat[pick], norm="rms") for name, u in by.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("out/photo"), help="of the pictures")
    parser.add_argument("--quick", action="store_true", help="one seed, few steps: does it run?")
    args = parser.parse_args()
    seeds, decays, steps = (SEEDS[:1], DECAYS[1:2], 48) if args.quick else (SEEDS, DECAYS, STEPS)
    start = time.monotonic()
    backend = cn.backend.require("auto")
    truth = face()
    share = f"{100 * FRACTION:.0f} % of them with noise of {NOISE}"
    print(f"{SIDE} x {SIDE} pixels, learned from {share}, on {backend.upper()}.", flush=True)
    ways = {f"decay {decay:g}": (0.0, decay) for decay in decays} | {f"dropout {DROPOUT}": (DROPOUT, 0.0)}
    tasks = {seed: task(truth, FRACTION, NOISE, seed) for seed in seeds}
    fits: dict[str, list[Fit]] = {name: [] for name in ways}
    print(
        f"\n{'PSNR in dB, held out':<22}{'last step':>15}{'best step':>15}{'mean of masks':>15}{'seconds':>9}",
        flush=True,
    )
    for name, (p, decay) in ways.items():
        found = fits[name]
        for seed in seeds:
            found.append(learn(backend, tasks[seed], make(p), seed, decay, steps))
            if found[-1].result.stopped != "steps":
                return 130
        cells = [spread([f.psnr[k] for f in found]) if k in found[0].psnr else "" for k in ("last", "best", "mean")]
        seconds = sum(f.result.seconds for f in found)
        print(f"{name:<22}" + "".join(f"{c:>15}" for c in cells) + f"{seconds:>9.1f}", flush=True)
    *others, dropout = fits.values()
    best = max(others, key=lambda found: np.mean([f.psnr["best"] for f in found]))
    gains = [a.psnr["last"] - b.psnr["best"] for a, b in zip(dropout, best, strict=True)]
    print(f"\nlast step with dropout against the best one of the best decay: {spread(gains)} dB (seed by seed)")

    judged = [judge(tasks[seed], fit) for seed, fit in zip(seeds, dropout, strict=True)]
    for name in judged[0]:
        areas = [curves[name].ause / curves[name].random for curves in judged]
        print(f"AUSE of {name}: {spread(areas)} of that of a random order")
    args.folder.mkdir(parents=True, exist_ok=True)
    draw(args.folder, tasks[seeds[0]], best[0], dropout[0], judged[0])
    print(f"pictures: {args.folder}/photo.png, photo-uncertainty.png\n{time.monotonic() - start:.0f} seconds in all")
    return 0


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def draw(folder: Path, task: Task, without: Fit, fit: Fit, curves: dict[str, Any]) -> None:
    from coopnet.image import plots

    samples = np.ones_like(task.truth)
    samples.reshape(-1, 3)[task.chosen] = task.noisy.reshape(-1, 3)[task.chosen]
    shown = [
        (samples, "Learned from", f"{100 * FRACTION:.0f} % of the pixels, with noise"),
        (without.best, "Without dropout", f"best step, best decay: {without.psnr['best']:.2f} dB"),
        (fit.mean, "With dropout", f"last step, {MASKS} masks: {fit.psnr['mean']:.2f} dB"),
        (task.truth, "Truth", "compared on the other pixels"),
    ]
    plots.pictures(folder / "photo.png", shown)
    plots.sparsification(folder / "photo-uncertainty.png", task.error(fit.mean), fit.deviation, curves)


if __name__ == "__main__":
    sys.exit(main())
