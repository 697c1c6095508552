"""Figures for pages in a light and in a dark theme, and the pictures of the gallery's cards.

``X.png`` has dark letters, ``X-dark.png`` beside it has light ones; both have no background of their own. Of pictures
in a figure nothing changes, nor do colours; only what is black, white or grey around them is turned round.

    python scripts/pages/themes.py PROGRAM [ARGUMENTS]    # runs a program so that it saves both
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from PIL import Image, ImageOps

CARD = (480, 280)  #: pixels of a card's picture
#: What each card shows: a figure of the tutorial and a panel of it, counted from 1; of others the first.
CARDS = {
    "plot_01_image": (1, 2), "plot_02_encoding": (2, 1), "plot_03_training_loop": (2, 3), "plot_04_dropout": (3, 2),
    "plot_05_eikonal": (1, 2), "plot_06_sphere_tracing": (1, 2), "plot_07_radiance_field": (2, 1),
    "plot_08_neural_material": (2, 2), "plot_09_radiance_cache": (2, 2), "plot_10_texture_compression": (1, 5),
    "plot_11_embeddings": (2, 1), "plot_12_precision": (1, 1), "plot_13_freezing": (1, 1), "plot_14_pytorch": (2, 3),
    "plot_15_backends": (1, 4), "plot_16_checkpoints": (2, 2), "plot_17_unseen": (1, 4),
}  # fmt: skip


def turned(colour: Any) -> Any:
    """A grey from the other end of the scale; colours stay."""
    try:
        red, green, blue, alpha = to_rgba(colour)
    except (TypeError, ValueError):  # several colours, or "none"
        return colour
    if max(red, green, blue) - min(red, green, blue) > 0.02:
        return colour
    grey = 0.9 - 0.8 * red
    return grey, grey, grey, alpha


def shows_picture(axis: Axes) -> bool:
    """Whether its marks lie on a picture or filled areas, on which they have to be seen."""
    return bool(axis.images) or any(c.get_array() is not None for c in axis.collections)


def darken(figure: Figure) -> None:
    """Makes a figure one for a dark page."""
    kept: set[Artist] = set()
    for axis in figure.axes:
        if shows_picture(axis):
            kept.update(a for part in (axis.lines, axis.collections, axis.texts, axis.patches) for a in part)
    for artist in set(figure.findobj()) - kept - {figure.patch, *(axis.patch for axis in figure.axes)}:
        if isinstance(artist, Line2D):
            edge, face = turned(artist.get_markeredgecolor()), turned(artist.get_markerfacecolor())
            artist.set_color(turned(artist.get_color()))
            artist.set_markeredgecolor(edge)  # a tick is a marker, too
            artist.set_markerfacecolor(face)
        elif isinstance(artist, Text):
            artist.set_color(turned(artist.get_color()))
        elif isinstance(artist, Patch):  # spines, too
            edge, face = turned(artist.get_edgecolor()), turned(artist.get_facecolor())
            artist.set_edgecolor(edge)
            artist.set_facecolor(face)
        elif isinstance(artist, Collection) and artist.get_array() is None:
            artist.set_edgecolor([turned(c) for c in artist.get_edgecolor()])
            artist.set_facecolor([turned(c) for c in artist.get_facecolor()])
        elif isinstance(artist, Legend):
            artist.get_frame().set_alpha(0)


def clear(figure: Figure) -> None:
    """Takes the background away."""
    figure.patch.set_alpha(0)
    for axis in figure.axes:
        axis.patch.set_alpha(0)


def dark(path: Path) -> Path:
    """Where the picture for a dark page is."""
    return path.with_name(f"{path.stem}-dark{path.suffix}")


def words(figure: Figure) -> str:
    """What a figure shows, for those who do not see it: its titles and labels."""
    said = [text.get_text() for text in figure.texts]
    for axis in figure.axes:
        title, names = axis.get_title(), [name for name in (axis.get_ylabel(), axis.get_xlabel()) if name]
        said.append(": ".join(part for part in (title, " by ".join(names)) if part))
    return "; ".join(" ".join(part.split()) for part in said if part.strip())


def scrape(block: Any, variables: dict[str, Any], conf: dict[str, Any]) -> str:
    """A scraper for sphinx-gallery: every figure in both themes, and the panel of the card."""
    source = Path(variables["src_file"])
    number, panel = CARDS.get(source.stem, (1, 1))
    said = []
    for figure, name in zip(map(plt.figure, plt.get_fignums()), variables["image_path_iterator"], strict=False):
        path = Path(name)
        if not words(figure):
            raise ValueError(
                f"{source.name}: the figure {path.name} has no title: what is read to those who cannot see?"
            )
        clear(figure)
        for theme, target in (("light", path), ("dark", dark(path))):
            if theme == "dark":
                darken(figure)
            figure.savefig(target, dpi=150)
            if int(path.stem[-3:]) == number:
                save_panel(figure, figure.axes[panel - 1], target.with_name(f"card-{theme}-{source.stem}.png"))
            place = target.relative_to(conf["src_dir"]).as_posix()
            said.append(f".. image:: /{place}\n   :alt: {words(figure)}\n   :class: only-{theme} sphx-glr-single-img\n")
    plt.close("all")
    return "\n\n".join(said)


def save_panel(figure: Figure, axis: Axes, target: Path) -> None:
    """One panel: of a picture what is in its frame, of a plot its labels as well."""
    figure.canvas.draw()
    box = axis.get_window_extent() if shows_picture(axis) else axis.get_tightbbox()
    figure.savefig(target, dpi=200, bbox_inches=box.transformed(figure.dpi_scale_trans.inverted()), pad_inches=0)


def lay_cards(images: Path) -> None:
    """Puts the panels in place of sphinx-gallery's thumbnails, which are whole figures on white."""
    for light in images.glob("card-light-*.png"):
        name = light.stem.removeprefix("card-light-")
        thumbnail = images / "thumb" / f"sphx_glr_{name}_thumb.png"
        for source, target in ((light, thumbnail), (light.with_name(f"card-dark-{name}.png"), dark(thumbnail))):
            picture = Image.open(source).convert("RGBA")
            inner = ImageOps.crop(picture, 4)  # at the frame, pixels are half covered
            if inner.getextrema()[3][0] == 255:  # a picture fills its card, and a plot keeps its labels
                picture = ImageOps.fit(inner, CARD)
            else:
                picture = ImageOps.pad(picture, CARD, color=(0, 0, 0, 0))
            picture.save(target)


def save_both() -> None:
    """From now on figures are saved for both themes."""
    save = Figure.savefig

    def savefig(self: Figure, target: Any, **options: Any) -> None:
        clear(self)
        save(self, target, **options)
        darken(self)
        save(self, dark(Path(target)), **options)

    Figure.savefig = savefig  # type: ignore[method-assign]
    from coopnet.image import plots

    plots._write = savefig  # which would save to a temporary file


if __name__ == "__main__":
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    save_both()
    runpy.run_path(sys.argv[0], run_name="__main__")
