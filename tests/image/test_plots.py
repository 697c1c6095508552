"""Figures: what stands in them, read from the figure itself before it becomes pixels."""

from __future__ import annotations

import numpy as np
import pytest

import coopnet as cn

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

from coopnet.image import plots  # noqa: E402


@pytest.fixture
def figures(monkeypatch):
    """The figures that are written, which are written, too."""
    seen, real = [], plots._write
    monkeypatch.setattr(plots, "_write", lambda figure, path: seen.append(figure) or real(figure, path))
    return seen


def shown(axes):
    """The picture in ``axes``."""
    (image,) = axes.images
    return np.asarray(image.get_array())


def bare(axes):
    """A picture in ``axes`` without ticks and frame, and its title in bold."""
    ticks = [*axes.get_xticks(), *axes.get_yticks()]
    framed = any(spine.get_visible() for spine in axes.spines.values())
    return not ticks and not framed and axes.title.get_fontweight() == "bold"


def beside(figure, axes):
    """The last axes are a scale of the picture in ``axes``: close to its right side, with small numbers, unframed."""
    figure.draw_without_rendering()
    bar, picture = figure.axes[-1], axes.get_position()
    gap = (bar.get_position().x0 - picture.x1) * figure.get_size_inches()[0]
    small = {label.get_fontsize() for label in bar.get_yticklabels()} == {8}
    return 0 < gap < 0.5 and small and not bar.spines["outline"].get_visible()


def look(line):
    return line.get_color(), line.get_alpha(), line.get_linewidth(), line.get_marker()


@pytest.mark.parametrize("shape", [(12, 16, 3), (30, 8, 1), (4, 20, 3)])
def test_comparison(figures, tmp_path, shape):
    rng = np.random.default_rng(0)
    target, result = rng.random(shape), rng.random(shape) * 1.4 - 0.2
    result[0, 0] = np.nan
    height, width, _ = shape
    chosen = np.sort(rng.permutation(height * width)[: height * width // 4])
    plots.comparison(tmp_path / "x.png", target, chosen, np.nan_to_num(result), 31.234, 20.5)
    (figure,) = figures
    axes = figure.axes
    assert [a.get_title() for a in axes[:4]] == ["Target", "Training samples", "Neural field", "Absolute error"]
    assert figure._suptitle.get_text() == "PSNR 20.50 dB on held-out pixels"
    assert axes[0].get_xlabel() == f"{width} × {height} pixels"
    assert axes[1].get_xlabel() == "25 % of the pixels" and axes[2].get_xlabel() == "training pixels 31.23 dB"
    rgb = np.broadcast_to(target, (height, width, 3))
    np.testing.assert_allclose(shown(axes[0]), rgb)
    samples = np.ones((height * width, 3))
    samples[chosen] = rgb.reshape(-1, 3)[chosen]
    np.testing.assert_allclose(shown(axes[1]), samples.reshape(height, width, 3), rtol=1e-6)
    np.testing.assert_allclose(shown(axes[2]), np.broadcast_to(np.clip(np.nan_to_num(result), 0, 1), rgb.shape))
    error = np.abs(np.clip(np.nan_to_num(result), 0, 1) - target).mean(axis=2)
    np.testing.assert_allclose(shown(axes[3]), error)
    assert axes[3].get_xlabel() == f"mean {error.mean():.3f}"
    low, high = axes[3].images[0].get_clim()
    assert low == 0 and high == pytest.approx(np.percentile(error, 99.5))
    for a in axes[:4]:
        assert bare(a)
        assert (a.title.get_fontsize(), a.xaxis.label.get_fontsize(), a.xaxis.label.get_color()) == (11, 9, plots.GREY)
    assert beside(figure, axes[3]) and figure._suptitle.get_fontsize() == 13
    # beside each other, or in two rows if they are wide
    rows = {round(a.get_position().y0, 2) for a in axes[:4]}
    figure.draw_without_rendering()
    wide = height / width <= 0.6
    assert (len(rows) == 2) == wide
    # room for the pictures, their titles and the scale
    inches = {(12, 16, 3): (13.7, 3.475), (30, 8, 1): (4 * 1.76 + 0.5, 7.6), (4, 20, 3): (13.7, 4.24)}[shape]
    assert tuple(figure.get_size_inches()) == pytest.approx(inches)
    drawn = Image.open(tmp_path / "x.png").size
    assert drawn == tuple(round(v * 150) for v in figure.get_size_inches())


def test_comparison_without_held_out_pixels(figures, tmp_path):
    image = np.full((3, 3, 3), 0.5)
    plots.comparison(tmp_path / "x.png", image, np.arange(9), image, None, None)
    assert figures[0]._suptitle.get_text() == "no held-out pixels"
    assert figures[0].axes[2].get_xlabel() == "training pixels none"
    assert figures[0].axes[1].get_xlabel() == "100 % of the pixels"
    assert figures[0].axes[3].images[0].get_clim() == (0, 1e-3)  # no error has a scale, too


def test_pictures_that_fit_are_shown_whole(figures, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "SIDE", 25)
    image = np.random.default_rng(0).random((25, 5, 3))
    plots.comparison(tmp_path / "x.png", image, np.arange(125), image, 1.0, 1.0)
    assert [shown(a).shape[:2] for a in figures[0].axes[:4]] == [(25, 5)] * 4
    plots.uncertainty(tmp_path / "y.png", image, 4)
    assert shown(figures[1].axes[0]).shape == (25, 5)
    picture = figures[0].axes[3]
    assert picture.images[0].get_cmap().name == "magma" and picture.images[0].get_interpolation() == "antialiased"


def test_large_pictures_are_thinned_out(figures, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "SIDE", 10)
    image = np.random.default_rng(0).random((5, 25, 3))
    plots.comparison(tmp_path / "x.png", image, np.arange(125), image * 0.5, 1.0, 1.0)
    np.testing.assert_allclose(shown(figures[0].axes[0]), image[::3, ::3])
    np.testing.assert_allclose(shown(figures[0].axes[3]), (image * 0.5).mean(axis=2)[::3, ::3])
    plots.uncertainty(tmp_path / "y.png", image, 4)
    assert shown(figures[1].axes[0]).shape == (2, 9)


def test_loss(figures, tmp_path):
    losses = list(np.exp(np.random.default_rng(0).normal(size=200)))
    result = cn.FitResult(200, losses, [(50, 10.0), (100, 12.5), (200, 15.0)])
    plots.loss(tmp_path / "x.png", result)
    left, right = figures[0].axes
    each, mean = left.lines
    np.testing.assert_array_equal(each.get_xdata(), np.arange(1, 201))
    np.testing.assert_allclose(each.get_ydata(), losses)
    # the mean of 4 steps, at their middle
    np.testing.assert_allclose(mean.get_xdata(), np.arange(1, 198) + 1.5)
    np.testing.assert_allclose(mean.get_ydata(), [np.mean(losses[i : i + 4]) for i in range(197)])
    assert left.get_yscale() == "log" and left.get_title() == "Training" and left.get_xlabel() == "step"
    assert "squared error" in left.get_ylabel() and "PSNR" in right.get_ylabel()
    assert tuple(figures[0].get_size_inches()) == (7, 4)
    visible = [{side for side, spine in a.spines.items() if spine.get_visible()} for a in (left, right)]
    assert visible == [{"left", "bottom"}, {"right", "bottom"}]
    (metric,) = right.lines
    assert (left.title.get_fontsize(), left.title.get_fontweight()) == (11, "bold")
    assert all(line.get_visible() and line.get_alpha() == 0.25 for line in left.yaxis.get_gridlines())
    assert not any(line.get_visible() for line in left.xaxis.get_gridlines())
    assert look(each) == (plots.BLUE, 0.25, 0.8, "None") and look(mean) == (plots.BLUE, None, 1.8, "None")
    assert look(metric) == (plots.ORANGE, None, 1.8, "o") and metric.get_markersize() == 3
    assert left.yaxis.label.get_color() == plots.BLUE and right.yaxis.label.get_color() == plots.ORANGE
    for axes, hidden in ((left, {"top", "right"}), (right, {"top", "left"})):
        assert {name for name, spine in axes.spines.items() if not spine.get_visible()} == hidden
    assert list(metric.get_xdata()) == [50, 100, 200] and list(metric.get_ydata()) == [10.0, 12.5, 15.0]
    plots.loss(tmp_path / "x.png", cn.FitResult(1, [0.5]))
    (only,) = figures[1].axes
    assert [list(line.get_ydata()) for line in only.lines] == [[0.5], [0.5]]


def test_uncertainty(figures, tmp_path):
    deviation = np.random.default_rng(0).random((6, 9, 3))
    plots.uncertainty(tmp_path / "x.png", deviation, 32)
    axes = figures[0].axes[0]
    expected = np.sqrt((deviation**2).mean(axis=2))
    np.testing.assert_allclose(shown(axes), expected)
    assert axes.get_title() == "Standard deviation over 32 dropout masks"
    low, high = axes.images[0].get_clim()
    assert low == 0 and high == pytest.approx(np.percentile(expected, 99.5))
    plots.uncertainty(tmp_path / "y.png", np.zeros((9, 3, 1)), 2)
    assert figures[1].axes[0].images[0].get_clim() == (0, 1e-6)
    plots.uncertainty(tmp_path / "z.png", np.zeros((1, 99, 1)), 2)
    plots.uncertainty(tmp_path / "z.png", np.zeros((99, 1, 1)), 2)
    plots.uncertainty(tmp_path / "z.png", np.zeros((5, 5, 1)), 2)
    # the longer side of the picture is 6 inches; one that is very wide or tall has more room than it needs
    expected = [(7.2, 4.6), (3.7, 6.6), (7.2, 2.1), (3.7, 6.6), (7.2, 6.6)]
    assert [tuple(f.get_size_inches()) for f in figures] == [pytest.approx(v) for v in expected]
    for f in figures:
        picture, _ = f.axes
        assert bare(picture) and beside(f, picture)
        assert picture.images[0].get_cmap().name == "viridis"


def test_pictures_in_a_row(figures, tmp_path):
    grey, colour = np.full((6, 4, 1), 0.25, np.float32), np.full((6, 4, 3), 0.5, np.float32)
    plots.pictures(tmp_path / "row.png", [(grey, "A", "first"), (colour + 1, "B", "second")])
    (figure,) = figures
    a, b = figure.axes
    assert (a.get_title(), a.get_xlabel(), b.get_title(), b.get_xlabel()) == ("A", "first", "B", "second")
    assert bare(a) and bare(b)
    np.testing.assert_array_equal(shown(a), np.full((6, 4, 3), 0.25, np.float32))
    np.testing.assert_array_equal(shown(b), np.ones((6, 4, 3), np.float32))  # clipped
    plots.pictures(tmp_path / "one.png", [(colour, "A", "")])
    assert len(figures[1].axes) == 1


def test_sparsification(figures, tmp_path):
    rng = np.random.default_rng(0)
    error, by = rng.random((5, 8)), rng.random((5, 8))
    curves = {"ours": cn.sparsification(error, by), "theirs": cn.sparsification(error, 1 - by)}
    plots.sparsification(tmp_path / "curves.png", error, by, curves)
    (figure,) = figures
    left, middle, right = figure.axes[:3]
    np.testing.assert_array_equal(shown(left), by)
    np.testing.assert_array_equal(shown(middle), error)
    random, ours, theirs, oracle = right.get_lines()
    assert list(random.get_ydata()) == [1, 1]
    for line, curve in ((ours, curves["ours"]), (theirs, curves["theirs"])):
        np.testing.assert_array_equal(line.get_xdata(), curve.removed)
        np.testing.assert_array_equal(line.get_ydata(), curve.remaining)
        assert line.get_label().endswith(f"AUSE {curve.ause:.3f}")
    np.testing.assert_array_equal(oracle.get_ydata(), curves["ours"].oracle)
    assert right.get_legend().get_texts()[0].get_text() == "random order"
