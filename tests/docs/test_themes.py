"""Figures for dark pages, and the cards of the gallery."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from support.machines import ROOT

pytest.importorskip("matplotlib")
pytest.importorskip("PIL")
sys.path.insert(0, str(ROOT / "scripts"))

import matplotlib.pyplot as plt
from matplotlib.colors import to_rgba
from pages import themes
from PIL import Image

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("plot_*.py"))


@pytest.fixture
def figure():
    figure, (plot, picture) = plt.subplots(1, 2)
    plot.plot([0, 1], [0, 1], "k", label="black")
    plot.plot([0, 1], [1, 0], color="#1f6fb4", label="blue")
    plot.axvspan(0, 1, color="0.95")
    plot.set(title="A plot", xlabel="x", ylabel="y")
    picture.imshow(np.zeros((4, 4)))
    picture.axvline(1, color="k")
    picture.set_title("A picture")
    yield figure
    plt.close(figure)


def test_only_what_is_grey_around_pictures_is_turned_round(figure):
    plot, picture = figure.axes
    themes.darken(figure)
    black, blue = plot.lines
    assert to_rgba(black.get_color())[0] > 0.85 and to_rgba(blue.get_color()) == to_rgba("#1f6fb4")
    assert to_rgba(plot.patches[0].get_facecolor())[0] < 0.2
    assert all(to_rgba(axis.title.get_color())[0] > 0.85 for axis in (plot, picture))
    assert to_rgba(picture.lines[0].get_color()) == to_rgba("k")  # it lies on the picture


def test_words_of_a_figure(figure):
    assert themes.words(figure) == "A plot: y by x; A picture"


def test_both_are_saved_without_a_background(figure, tmp_path):
    themes.clear(figure)
    figure.savefig(tmp_path / "a.png")
    assert np.asarray(Image.open(tmp_path / "a.png"))[0, 0, 3] == 0
    assert themes.dark(tmp_path / "a.png") == tmp_path / "a-dark.png"


def test_cards_are_of_tutorials():
    assert themes.CARDS and set(themes.CARDS) <= {script.stem for script in TUTORIALS}


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_code_is_no_wider_than_its_page(script):
    code = script.read_text(encoding="utf-8").partition('"""\n')[2].partition('"""\n')[2]
    wide = [line for line in code.splitlines() if len(line) > 96 and not line.startswith("#")]
    assert not wide
