"""Tables of speed, printed: coopnet's times and its peers' as ratios, as the site's performance pages have them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import common
import figures

ROWS = [("infer", False, "inference"), ("infer", True, "inference, dropout 0.1")]
ROWS += [("train", False, "training"), ("train", True, "training, dropout 0.1")]


def table(data: dict[str, Any]) -> str:
    """Milliseconds of coopnet, and how many times as long its peers take, at the batch of the headline."""
    entries, machine = data["results"]["entries"], data["machine"]
    cuda = machine["backend"] == "cuda"
    value = "kernel_ms" if cuda else "wall_ms"
    batch = data["results"]["settings"]["log2_batches"][0]
    others = [p for p in figures.peers(entries) if p != "coopnet"]
    head = ["w", "", "coopnet", *(["its wall time"] if cuda else []), *(figures.NAMES[p] for p in others)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for width in sorted({e["width"] for e in entries}):
        for mode, dropped, label in ROWS:
            where = {"mode": mode, "width": width, "log2_batch": batch}
            mine = [e for e in entries if bool(e["dropout"]) == dropped]
            # kernel times can be short where Python takes long: on CUDA coopnet's step is the frozen one
            own = figures.best(mine, value, peer="coopnet", **where, **({"frozen": True} if cuda else {}))
            if own is None:
                continue
            cells = [str(width), label, f"{number(own[value])} ms"]
            cells += [f"{number(own['wall_ms'])} ms"] if cuda else []
            for peer in others:
                theirs = figures.best(mine, value, peer=peer, **where)
                cells.append(f"{theirs[value] / own[value]:.2f}×" if theirs else "–")
            lines.append(f"| {' | '.join(cells)} |")
    what = "kernel times" if cuda else "wall times"
    note = f"Batch 2^{batch}, {data['results']['settings']['precision']} precision, median {what}. "
    return note + figures.place(machine) + ".\n\n" + "\n".join(lines)


def number(milliseconds: float) -> str:
    return f"{milliseconds:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=common.RESULTS, help="folder of the result files")
    args = parser.parse_args()
    for backend in ("llvm", "cuda"):
        data = figures.load(args.results, backend)
        if data is not None:
            print(table(data), end="\n\n")


if __name__ == "__main__":
    main()
