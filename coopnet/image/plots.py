"""Figures: the learned image, the training, and the uncertainty."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..io import atomic_write
from ..sparsification import Sparsification
from ..training import FitResult

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError:
    raise ImportError("Figures need the package matplotlib; pip install matplotlib, or coopnet[cli].") from None

SIDE = 1200  #: pictures are shown with at most this many pixels along a side
BLUE, ORANGE, GREY = "#1f6fb4", "#d9702b", "#666666"


def _shown(values: np.ndarray) -> np.ndarray:
    """``values`` thinned out to at most :data:`SIDE` pixels along a side, as RGB in [0, 1]."""
    values = np.clip(np.nan_to_num(_thinned(values)), 0, 1)
    return np.repeat(values, 3, axis=2) if values.shape[2] == 1 else values


def _thinned(values: np.ndarray) -> np.ndarray:
    stride = max(1, -(-max(values.shape[:2]) // SIDE))
    return values[::stride, ::stride]


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # no display needed
    return figure


def _write(figure: Figure, path: str | os.PathLike[str]) -> None:
    atomic_write(path, figure.savefig)


def _image(axes: Any, values: np.ndarray, title: str, note: str = "", **options: Any) -> Any:
    # pictures are reduced by averaging, because leaving pixels out would cause aliasing
    shown = axes.imshow(values, interpolation="antialiased", **options)
    axes.set_title(title, fontsize=11, fontweight="bold")
    axes.set_xlabel(note, fontsize=9, color=GREY)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    return shown


def _map(figure: Figure, axes: Any, values: np.ndarray, title: str, least: float, cmap: str, note: str = "") -> None:
    """Values as colours, with a colour bar from 0 to their 99.5th percentile, or to ``least`` if that is larger."""
    limit = max(float(np.percentile(values, 99.5)), least)
    shown = _image(axes, _thinned(values), title, note, cmap=cmap, vmin=0, vmax=limit)
    bar = figure.colorbar(shown, ax=axes, fraction=0.05, pad=0.02, extend="max")
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def _db(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} dB"


def comparison(
    path: str | os.PathLike[str],
    target: np.ndarray,
    chosen: np.ndarray,
    result: np.ndarray,
    psnr_training: float | None,
    psnr_held_out: float | None,
) -> None:
    """Target, training samples, result and error, side by side (in two rows if the image is wide)."""
    height, width, _ = target.shape
    taken = np.zeros(height * width, bool)
    taken[chosen] = True
    samples = np.where(_thinned(taken.reshape(height, width, 1)), _shown(target), 1)
    error = np.empty((height, width), np.float32)
    for row, y, t in zip(error, result, target, strict=True):
        row[:] = np.abs(np.clip(y, 0, 1) - t).mean(axis=1)
    aspect = min(max(height / width, 0.1), 10)
    rows, columns = (1, 4) if aspect > 0.6 else (2, 2)
    cell = 3.3 if aspect <= 2 else 6.6 / aspect
    cell = cell if rows == 1 else 2 * cell
    figure = _figure(columns * cell + 0.5, rows * (cell * aspect + 0.6) + 0.4)
    axes = figure.subplots(rows, columns).ravel()
    _image(axes[0], _shown(target), "Target", f"{width} × {height} pixels")
    share = f"{100 * len(chosen) / (width * height):.3g} % of the pixels"
    _image(axes[1], samples, "Training samples", share)
    _image(axes[2], _shown(result), "Neural field", f"training pixels {_db(psnr_training)}")
    _map(figure, axes[3], error, "Absolute error", 1e-3, "magma", f"mean {error.mean():.3f}")
    held_out = f"PSNR {_db(psnr_held_out)} on held-out pixels" if psnr_held_out is not None else "no held-out pixels"
    figure.suptitle(held_out, fontsize=13)
    _write(figure, path)


def loss(path: str | os.PathLike[str], result: FitResult) -> None:
    """Training loss of every step on a logarithmic scale, its running mean, and the held-out PSNR."""
    figure = _figure(7, 4)
    axes = figure.subplots()
    losses = np.asarray(result.losses)
    steps = np.arange(1, len(losses) + 1)
    axes.semilogy(steps, losses, color=BLUE, alpha=0.25, linewidth=0.8)
    window = max(1, len(losses) // 50)
    smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
    axes.semilogy(steps[: len(smooth)] + (window - 1) / 2, smooth, color=BLUE, linewidth=1.8)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss (mean squared error)", color=BLUE)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if result.metrics:
        right = axes.twinx()
        right.plot(*zip(*result.metrics, strict=True), color=ORANGE, linewidth=1.8, marker="o", markersize=3)
        right.set_ylabel("PSNR on held-out pixels (dB)", color=ORANGE)
        right.spines[["top", "left"]].set_visible(False)
    axes.set_title("Training", fontsize=11, fontweight="bold")
    _write(figure, path)


def uncertainty(path: str | os.PathLike[str], deviation: np.ndarray, samples: int | None) -> None:
    """Standard deviation, over ``samples`` dropout masks if a number, channels combined as root mean square."""
    values = np.sqrt(np.mean(np.square(deviation), axis=2))
    height, width = values.shape
    aspect = min(max(height / width, 0.2), 5)
    side = 6.0
    w, h = (side, side * aspect) if aspect <= 1 else (side / aspect, side)
    figure = _figure(max(w, 2.5) + 1.2, max(h, 1.5) + 0.6)
    title = "Standard deviation" + (f" over {samples} dropout masks" if samples else "")
    _map(figure, figure.subplots(), values, title, 1e-6, "viridis")
    _write(figure, path)


def pictures(path: str | os.PathLike[str], shown: list[tuple[np.ndarray, str, str]]) -> None:
    """Pictures of one size in a row, each with a title and a note below it."""
    height, width = shown[0][0].shape[:2]
    aspect = min(max(height / width, 0.2), 5)
    cell = 3.0 if aspect <= 2 else 6.0 / aspect
    figure = _figure(len(shown) * cell, cell * aspect + 0.7)
    for axes, (values, title, note) in zip(np.ravel(figure.subplots(1, len(shown))), shown, strict=True):
        _image(axes, _shown(values), title, note)
    _write(figure, path)


def sparsification(
    path: str | os.PathLike[str], error: np.ndarray, uncertainty: np.ndarray, curves: dict[str, Sparsification]
) -> None:
    """Maps of uncertainty and error, shape ``(height, width)``, and the sparsification ``curves``.

    The first of ``curves`` is the one whose oracle and area are shown.
    """
    figure = _figure(11, 3.6)
    left, middle, right = figure.subplots(1, 3)
    _map(figure, left, uncertainty, "Uncertainty", 1e-6, "viridis")
    _map(figure, middle, error, "Error", 1e-3, "magma")
    first = next(iter(curves.values()))
    right.axhline(1, color=GREY, linestyle=":", label="random order")
    for (name, curve), color in zip(curves.items(), [ORANGE, BLUE, "#4d9a52", "#8a5fb0"], strict=False):
        right.plot(curve.removed, curve.remaining, color=color, label=f"{name}: AUSE {curve.ause:.3f}")
    right.plot(first.removed, first.oracle, color="black", linestyle="--", linewidth=1, label="the errors themselves")
    right.fill_between(first.removed, first.oracle, first.remaining, color=ORANGE, alpha=0.15, linewidth=0)
    right.set_xlim(0, 1)
    right.set_ylim(0, 1.1)
    right.set_xlabel("fraction of pixels removed")
    right.set_title("Error of the pixels that remain", fontsize=11, fontweight="bold")
    right.legend(fontsize=8, frameon=False, loc="lower left")
    right.spines[["top", "right"]].set_visible(False)
    _write(figure, path)
