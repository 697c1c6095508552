"""Learn a photograph from 20 % of its pixels, with dropout and without, and draw how sure the field is.

Run by ``make demo``. The photograph comes with matplotlib: Commodore Grace M. Hopper, by James S. Davis, US Navy, in
the public domain.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import coopnet as cn

STEPS = 400
RATES = {"with dropout": 0.1, "without": 0.0}
MASKS = 64


def main() -> int:
    from matplotlib.cbook import get_sample_data

    from coopnet import image as images
    from coopnet.image import plots

    output = Path(sys.argv[1] if len(sys.argv) > 1 else "out/photo")
    start = time.monotonic()
    photo = images.load(get_sample_data("grace_hopper.jpg", asfileobj=False))
    height, width, _ = photo.shape
    backend = cn.backend.require("auto")
    print(f"A photograph of {width} x {height} pixels, learned from 20 % of them on {backend.upper()}.", flush=True)

    results = {}
    for name, p in RATES.items():
        print(f"\n{name}, p = {p}", flush=True)
        results[name] = images.fit_image(
            photo,
            output / name.replace(" ", "-"),
            backend=backend,
            steps=STEPS,
            dropout=p,
            fraction=0.2,
            seed=1,
            progress=sys.stderr.isatty(),
        )
        if results[name].training.stopped == "interrupt":
            return 130

    mean, deviation = images.render_mc(results["with dropout"].field, width, height, MASKS, seed=1)
    images.save(output / "mean.png", mean)
    plots.uncertainty(output / "uncertainty.png", deviation, MASKS)

    print(f"\n{'PSNR in dB':<16}{'training pixels':>16}{'held-out pixels':>17}{'seconds':>9}")
    for name, result in results.items():
        held_out = result.psnr_held_out or float("nan")
        print(f"{name:<16}{result.psnr_training:>16.2f}{held_out:>17.2f}{result.training.seconds:>9.1f}")
    print("\npictures:")
    for result in results.values():
        for key in ("comparison", "reconstruction", "loss"):
            print(f"  {result.files[key]}")
    print(f"  {output / 'mean.png'}  (average of {MASKS} dropout masks)")
    print(f"  {output / 'uncertainty.png'}")
    print(f"\n{time.monotonic() - start:.0f} seconds in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
