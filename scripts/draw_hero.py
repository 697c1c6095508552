"""The picture of the README and the landing page: what four tutorials draw.

    python scripts/draw_hero.py [docs/images/hero.png]

Runs the tutorials, each in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
#: A tutorial, the expression for its picture in sRGB, and what is below it.
PANELS = {
    "plot_17_unseen": ("list(pictures.values())[1]", "a field that hides what it has not seen"),
    "plot_06_sphere_tracing": ("pictures['learned field']", "a signed distance, sphere-traced"),
    "plot_07_radiance_field": ("np.clip(seen, 0, 1) ** (1 / 2.2)", "a radiance field from thirty pictures"),
    "plot_08_neural_material": (
        "np.clip(pictures['neural'], 0, 1) ** (1 / 2.2)",
        "a material, in Mitsuba's path tracer",
    ),
}
RUN = """
import runpy, sys
import matplotlib; matplotlib.use("Agg")
import numpy as np

script, expression, out = sys.argv[1:]
names = runpy.run_path(script)
np.save(out, eval(expression, {**names, "np": np}))
"""


def square(picture: np.ndarray) -> np.ndarray:
    """The middle of a picture."""
    height, width, _ = picture.shape
    side = min(height, width)
    y, x = (height - side) // 2, (width - side) // 2
    return picture[y : y + side, x : x + side]


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "hero.png"
    figure, axes = plt.subplots(1, len(PANELS), figsize=(12, 3.4), layout="constrained")
    for axis, (name, (expression, caption)) in zip(axes, PANELS.items(), strict=True):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "picture.npy")
            script = ROOT / "docs" / "tutorials" / f"{name}.py"
            subprocess.run(
                [sys.executable, "-W", "ignore", "-c", RUN, script, expression, file], check=True, cwd=folder
            )
            axis.imshow(square(np.load(file)))
        axis.set_title(caption, fontsize=10, y=-0.12)
        axis.axis("off")
        print(f"{name}: {time.perf_counter() - start:.0f} s")
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main()
