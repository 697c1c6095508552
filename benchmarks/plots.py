"""One plot per question from the results of ``networks.py``: ``docs/images/bench-<question>-<backend>.png``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import figures
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
#: Colours that stay apart for colour-blind readers, and markers for print.
STYLE = {
    "coopnet": ("#D55E00", "o"),
    "drjit-coop": ("#0072B2", "s"),
    "drjit-tensor": ("#56B4E9", "^"),
    "torch": ("#555555", "D"),
    "torch-compile": ("#999999", "v"),
}
WIDTHS = {16: ("#E69F00", "o"), 32: ("#009E73", "s"), 64: ("#0072B2", "^"), 128: ("#CC79A7", "D")}


class Results:
    """Measurements of one backend; time is that of the faster variant, frozen or not.

    On the GPU it is the time of kernels, as in the tables; wall times there also tell how busy the machine was.
    """

    def __init__(self, data: dict[str, Any]):
        self.machine, self.entries = data["machine"], data["results"]["entries"]
        self.measure, self.unit = "wall_ms", "ms per call"
        if self.machine["backend"] == "cuda":
            self.measure, self.unit = "kernel_ms", "ms per call, kernels"
        self.widths = sorted({e["width"] for e in self.entries})
        self.batches = sorted({e["log2_batch"] for e in self.entries})
        self.peers = figures.peers(self.entries)

    def curve(self, value: Callable[[int], float | None]) -> tuple[list[int], list[float]]:
        """Batches and values, where there is one; ``value`` takes log2 of the batch."""
        points = [(1 << b, v) for b in self.batches if (v := value(b)) is not None]
        return [p[0] for p in points], [p[1] for p in points]

    def time(self, **where: Any) -> float | None:
        entry = figures.best(self.entries, self.measure, **where)
        return entry and entry[self.measure]

    def panels(self, count: int, title: str, ylabel: str) -> tuple[Any, list[Any]]:
        """Axes in rows of two: as wide as a page, with letters that can be read there."""
        rows = -(-count // 2)
        size = (7.6, 2.6 * rows + 1.5)
        figure, axes = plt.subplots(rows, 2, figsize=size, sharex=True, sharey=True, squeeze=False)
        figure.suptitle(title, fontsize=13, y=1 - 0.12 / size[1], va="top")
        where = {"ha": "center", "va": "top", "fontsize": 9, "color": "#555555"}
        figure.text(0.5, 1 - 0.42 / size[1], figures.place(self.machine), **where)
        for axis in axes.flat:
            axis.set_xscale("log", base=2)
            axis.grid(alpha=0.3, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
        for axis in axes[-1]:
            axis.set_xlabel("batch")
        for axis in axes[:, 0]:
            axis.set_ylabel(ylabel)
        return figure, list(axes.flat)[:count]


def times(results: Results, mode: str) -> Any:
    """Time against batch, a panel per width."""
    title = {"train": "Training: forward, loss, weight gradients", "infer": "Inference"}[mode]
    figure, axes = results.panels(len(results.widths), title, results.unit)
    for width, axis in zip(results.widths, axes, strict=True):
        axis.set_title(f"w = {width}", fontsize=10)
        axis.set_yscale("log")
        for peer in results.peers:
            color, marker = STYLE[peer]
            where = {"peer": peer, "mode": mode, "width": width, "dropout": 0.0}
            xs, ys = results.curve(lambda b, w=where: results.time(**w, log2_batch=b))
            axis.plot(xs, ys, marker=marker, color=color, label=figures.NAMES[peer], linewidth=1.5, markersize=4)
    return legend(figure, axes)


def ratios(results: Results) -> Any:
    """Time of coopnet over that of the fastest peer, a line per width."""
    figure, axes = results.panels(2, "coopnet against the fastest peer", "time / fastest peer's time")
    others = [p for p in results.peers if p != "coopnet"]

    def ratio(mode: str, width: int, b: int) -> float | None:
        where = {"mode": mode, "width": width, "dropout": 0.0, "log2_batch": b}
        own = results.time(peer="coopnet", **where)
        theirs = [t for p in others if (t := results.time(peer=p, **where)) is not None]
        return own / min(theirs) if own is not None and theirs else None

    for mode, title, axis in zip(("train", "infer"), ("training", "inference"), axes, strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_yscale("log", base=2)
        axis.axhline(1, color="black", linewidth=0.8)
        for width in results.widths:
            color, marker = WIDTHS.get(width, ("black", "x"))
            xs, ys = results.curve(lambda b, m=mode, w=width: ratio(m, w, b))
            axis.plot(xs, ys, marker=marker, color=color, label=f"w = {width}", linewidth=1.5, markersize=4)
        axis.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    return legend(figure, axes)


def dropout(results: Results) -> Any:
    """Time with dropout over time without."""
    peers = [p for p in results.peers if any(e["peer"] == p and e["dropout"] for e in results.entries)]
    figure, axes = results.panels(len(results.widths), "What dropout costs", "time with dropout / without")

    def cost(b: int, **where: Any) -> float | None:
        rate = max(e["dropout"] for e in results.entries)
        on, off = (results.time(**where, dropout=p, log2_batch=b) for p in (rate, 0.0))
        return on / off if on is not None and off is not None else None

    for width, axis in zip(results.widths, axes, strict=True):
        axis.set_title(f"w = {width}", fontsize=10)
        axis.axhline(1, color="black", linewidth=0.8)
        for peer in peers:
            color, marker = STYLE[peer]
            for mode, line, title in (("train", "-", "training"), ("infer", ":", "inference")):
                xs, ys = results.curve(lambda b, p=peer, m=mode, w=width: cost(b, peer=p, mode=m, width=w))
                label = f"{figures.NAMES[peer]}, {title}"
                axis.plot(xs, ys, line, marker=marker, color=color, label=label, linewidth=1.5, markersize=4)
    axes[0].set_ylim(bottom=0)  # only now: it also stops the axes from growing
    return legend(figure, axes)


def gradients(results: Results) -> Any:
    """Relative error of weight gradients against batch; of the variants of a peer, the worst."""
    figure, axes = results.panels(len(results.widths), "Error of weight gradients", "relative to float64, worst layer")
    for width, axis in zip(results.widths, axes, strict=True):
        axis.set_title(f"w = {width}", fontsize=10)
        axis.set_yscale("log")
        for peer in results.peers:
            color, marker = STYLE[peer]
            where = {"peer": peer, "width": width, "dropout": 0.0}

            def error(b: int, where: dict = where) -> float | None:
                here = where | {"log2_batch": b}
                found = [e["gradient_error"] for e in results.entries if all(e[k] == v for k, v in here.items())]
                return max((v for v in found if v), default=None)

            xs, ys = results.curve(error)
            axis.plot(xs, ys, marker=marker, color=color, label=figures.NAMES[peer], linewidth=1.5, markersize=4)
    return legend(figure, axes)


def legend(figure: Any, axes: list[Any]) -> Any:
    handles, labels = axes[0].get_legend_handles_labels()
    height = figure.get_size_inches()[1]
    rows = -(-len(labels) // 4)
    figure.tight_layout(rect=(0, (0.1 + 0.25 * rows) / height, 1, 1 - 0.2 / height))
    figure.legend(handles, labels, loc="lower center", ncols=-(-len(labels) // rows), frameon=False, fontsize=10)
    return figure


PLOTS: dict[str, Callable[[Results], Any]] = {
    "train": lambda r: times(r, "train"),
    "infer": lambda r: times(r, "infer"),
    "ratio": ratios,
    "dropout": dropout,
    "gradient": gradients,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=common.RESULTS, help="folder of the result files")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder of the plots")
    args = parser.parse_args()
    args.images.mkdir(parents=True, exist_ok=True)
    for backend in ("llvm", "cuda"):
        data = figures.load(args.results, backend)
        if data is None or not data["results"]["entries"]:
            continue
        results = Results(data)
        for name, draw in PLOTS.items():
            path = args.images / f"bench-{name}-{backend}.png"
            figure = draw(results)
            figure.savefig(path, dpi=110)
            plt.close(figure)
            print("written to", path)


if __name__ == "__main__":
    main()
