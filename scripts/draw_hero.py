"""The picture of the README and the landing page: one painted metal, three times.

    python scripts/draw_hero.py [docs/images/hero.png]

The material of the tutorial on neural materials, in Mitsuba; its colours on ``docs/_static/export/paint.html``; and
how unsure a field is that has learned these colours from a scan with holes, on the same ball. Letters are large
enough for a telephone.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import drjit as dr
import mitsuba as mi
import numpy as np
from draw_export_gallery import colours, ns, painted_metal, train
from matplotlib import colormaps, font_manager
from PIL import Image, ImageDraw, ImageFont

import coopnet as cn
from coopnet import image

ROOT = Path(__file__).resolve().parent.parent
SIDE, GAP, LETTERS = 500, 14, 46
BACK, WORDS = (22, 24, 29), (240, 240, 240)
CAPTIONS = ("a neural material\nin Mitsuba 3", "its colours, live\non a web page", "unsure where its\nscan had holes")
#: Holes of the scan: row, column and radius, as parts of the map's side. The camera sees the column 0.75.
HOLES = ((0.40, 0.72, 0.055), (0.56, 0.81, 0.04), (0.33, 0.84, 0.03))


def deviation(colour: np.ndarray) -> np.ndarray:
    """How unsure a field is of each texel that has not seen those in holes."""
    side = len(colour)
    row, column = (np.mgrid[:side, :side] + 0.5) / side
    unseen = np.any([np.hypot(row - r, column - c) < radius for r, c, radius in HOLES], axis=0)
    grid = cn.HashGrid(2, n_levels=8, base_resolution=8, per_level_scale=1.5)
    field = cn.NeuralField(grid, cn.MLP(-1, 3, width=32, depth=2, output_activation="sigmoid")).build("llvm", seed=1)
    region = (0.0, 0.0, 1.0, 1.0)
    batch = colours(colour, np.flatnonzero(~unseen), region)
    train(field, batch, 400, 1e-2)
    texels = image.pixels(dr.arange(ns.UInt32, side * side), side, side, region)
    std = cn.laplace(field, batch, steps=8).std(texels).numpy().T.reshape(colour.shape)
    std = np.sqrt(np.mean(np.square(std), axis=2))
    print(f"AUROC {cn.auroc(std, unseen):.3f}")
    return std


def heat(colour: np.ndarray) -> np.ndarray:
    """The deviation in colours, with a little of the material, so that one sees where it is."""
    std = deviation(colour)
    low, high = np.quantile(std, [0.02, 0.995])
    glow = colormaps["inferno"](np.clip((std - low) / (high - low), 0, 1))[..., :3] ** 2.2
    grey = colour.mean(axis=2, keepdims=True)
    return (glow + 0.25 * grey * (1 - glow.max(axis=2, keepdims=True))).astype(np.float32)


def ball(names: dict[str, Any], material: dict[str, Any], spp: int) -> Image.Image:
    """The tutorial's scene, closer and brighter."""
    scene = names["scene"](material)
    params = mi.traverse(scene)
    params["sensor.film.size"] = [SIDE, SIDE]
    params["sensor.x_fov"] = 35.0
    params["sky.radiance.value"] = [0.55, 0.6, 0.7]
    params.update()
    picture = mi.render(scene, integrator=names["integrator"], spp=spp, seed=1).numpy()
    return Image.fromarray((255 * np.clip(picture, 0, 1) ** (1 / 2.2)).astype(np.uint8))


def page(picture: Image.Image) -> Image.Image:
    """A picture as a browser shows it."""
    bar = 52
    window = Image.new("RGB", (SIDE, SIDE), (222, 225, 230))
    draw = ImageDraw.Draw(window)
    for i, colour in enumerate(((237, 106, 94), (245, 191, 79), (98, 197, 84))):
        draw.ellipse((18 + 34 * i, 15, 40 + 34 * i, 37), fill=colour)
    draw.rounded_rectangle((134, 10, SIDE - 16, bar - 10), 16, fill="white")
    draw.text((152, bar // 2), "paint.html", font=letters(26), fill=(60, 60, 60), anchor="lm")
    side = max(SIDE, SIDE - bar)
    window.paste(picture.resize((side, side), Image.Resampling.BICUBIC).crop((0, 0, SIDE, SIDE - bar)), (0, bar))
    return window


def letters(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size)


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "hero.png"
    colour = painted_metal()
    names = runpy.run_path(str(ROOT / "docs" / "tutorials" / "plot_08_neural_material.py"))
    glowing = {"type": "bitmap", "bitmap": mi.Bitmap(heat(colour)), "raw": True}
    panels = (
        ball(names, names["neural"], 160),
        page(Image.open(ROOT / "docs" / "images" / "export-paint.png")),
        ball(names, {"type": "diffuse", "reflectance": glowing}, 48),
    )
    strip = int(2.9 * LETTERS)
    hero = Image.new("RGB", (3 * SIDE + 2 * GAP, SIDE + strip), BACK)
    draw = ImageDraw.Draw(hero)
    for i, (panel, caption) in enumerate(zip(panels, CAPTIONS, strict=True)):
        left = i * (SIDE + GAP)
        hero.paste(panel, (left, 0))
        place = (left + SIDE // 2, SIDE + strip // 2)
        draw.multiline_text(place, caption, font=letters(LETTERS), fill=WORDS, anchor="mm", align="center", spacing=6)
    hero.save(out, optimize=True)


if __name__ == "__main__":
    main()
