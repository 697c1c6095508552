"""The README's tables of speed, printed, or with ``--update`` written between the README's markers."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import common
import figures

README = Path(__file__).resolve().parent.parent / "README.md"
MARKERS = {"llvm": "cpu", "cuda": "cuda"}
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


def update(text: str, marker: str, content: str) -> str:
    """``text`` with what stands between ``<!-- bench:marker -->`` and its end replaced."""
    opening, closing = f"<!-- bench:{marker} -->", f"<!-- /bench:{marker} -->"
    found = re.compile(f"({re.escape(opening)}\n).*?({re.escape(closing)})", re.DOTALL)
    if not found.search(text):
        raise ValueError(f"README.md has no {opening} ... {closing}")
    return found.sub(lambda m: f"{m[1]}{content}\n{m[2]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=common.RESULTS, help="folder of the result files")
    parser.add_argument("--update", action="store_true", help="write them into README.md")
    args = parser.parse_args()
    for backend, marker in MARKERS.items():
        data = figures.load(args.results, backend)
        if data is None:
            continue
        content = table(data)
        print(content, end="\n\n")
        if args.update:
            README.write_text(update(README.read_text(encoding="utf-8"), marker, content), encoding="utf-8")


if __name__ == "__main__":
    main()
