"""Draws all of ``docs/images``, each picture by the program that a reader can run, and says how long each took.

    python scripts/draw_site.py        # make pictures

Plots of benchmarks are drawn from ``benchmarks/results``; nothing is measured again.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = "docs/images"
#: Programs with their arguments, and what they draw.
PROGRAMS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("scripts/draw_ten_minutes.py",): ("ten-minutes.png",),
    ("scripts/draw_export_gallery.py",): tuple(
        f"export-{name}.png" for name in ("photo", "unsure", "spot", "melted", "paint", "metal")
    ),
    ("scripts/draw_hero.py",): ("hero.png",),
    ("scripts/draw_glass.py",): ("glass.png",),
    ("benchmarks/material_stack.py", "--pictures", IMAGES): ("material_stack.png",),
}
#: The same for plots, which are drawn for dark pages, too: ``X-dark.png``.
PLOTS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("examples/photo.py", IMAGES): ("photo.png", "photo-uncertainty.png"),
    ("examples/unseen.py", IMAGES): ("unseen.png",),
    ("examples/uncertainty.py", f"{IMAGES}/uncertainty.png"): ("uncertainty.png",),
    ("examples/replayed_adjoint.py", f"{IMAGES}/replayed-adjoint.png"): ("replayed-adjoint.png",),
    ("benchmarks/plots.py",): tuple(
        f"bench-{question}-{backend}.png"
        for question in ("dropout", "gradient", "infer", "ratio", "train")
        for backend in ("cuda", "llvm")
    ),
}


def main() -> None:
    for command, names in (PROGRAMS | PLOTS).items():
        start = time.perf_counter()
        both = ["scripts/pages/themes.py"] if command in PLOTS else []
        subprocess.run([sys.executable, *both, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        print(f"{time.perf_counter() - start:5.0f} s  {', '.join(names)}", flush=True)


if __name__ == "__main__":
    main()
