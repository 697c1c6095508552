"""Two balls of rough glass beside each other: Mitsuba's ``roughdielectric``, and a network that has learned it.

    python scripts/draw_glass.py [docs/images/glass.png]

The scene is that of ``benchmarks/bsdf_fits.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mitsuba as mi
import numpy as np
from PIL import Image

import coopnet as cn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import bsdf_fits  # noqa: E402 - it is found there

SIDE, SPP = 280, 128


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "glass.png"
    mi.set_variant("llvm_ad_rgb")
    cn.mitsuba.register()
    reference = mi.load_dict({"type": "roughdielectric", "alpha": 0.1})
    learned = cn.mitsuba.fit_bsdf(None, reference)
    print(learned)
    bsdfs = ((reference, "path"), (learned.bsdf, "neural_path"))
    balls = [bsdf_fits.render(bsdf, kind, seed=1, spp=SPP, size=SIDE) for bsdf, kind in bsdfs]
    shown = np.clip(np.concatenate(balls, axis=1), 0, 1) ** (1 / 2.2)
    Image.fromarray((255 * shown).astype(np.uint8)).save(out, optimize=True)


if __name__ == "__main__":
    main()
