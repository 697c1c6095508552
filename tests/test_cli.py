"""The command line: what it makes, and that it fails in one line."""

from __future__ import annotations

import inspect
import io
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import drjit as dr
import numpy as np
import pytest
from support.command_line import fails
from support.machines import environment, python, run

import coopnet as cn

typer = pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("safetensors")
Image = pytest.importorskip("PIL.Image")

from coopnet import cli, command  # noqa: E402
from coopnet import image as images  # noqa: E402
from coopnet.image import folder  # noqa: E402
from coopnet.image.evaluate import box, pixels  # noqa: E402

SMALL = ["--steps", "20", "--width", "16", "--depth", "1", "--batch", "256", "--encoding", "sinusoidal", "--quiet"]


def picture(width=24, height=16, channels=3):
    y, x = np.mgrid[:height, :width]
    values = np.stack([x / width, y / height, 0.5 + 0.5 * np.sin(x / 4)], axis=-1)[..., :channels]
    return (255 * values).astype(np.uint8)


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(picture()).save(path)
    return path


@pytest.fixture
def no_plots(monkeypatch):
    """Files in place of drawings, which take most of the time of a small fit."""
    for name in ("comparison", "loss"):
        monkeypatch.setattr(images.learn.plots, name, lambda path, *_: path.touch())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, backend):
    """A small result of ``coopnet fit``."""
    root = tmp_path_factory.mktemp("fitted")
    Image.fromarray(picture()).save(root / "photo.png")
    arguments = ["fit", str(root / "photo.png"), "-o", str(root / "out"), "--backend", backend, *SMALL]
    assert cli.main([*arguments, "--dropout", "0.1"]) == 0
    return root / "out"


# ---- what it makes ------------------------------------------------------


def test_fit(fitted):
    names = {"reconstruction.png", "comparison.png", "loss.png", "field.safetensors"}
    assert {p.name for p in fitted.iterdir()} == names  # and no temporary file
    assert Image.open(fitted / "reconstruction.png").size == (24, 16)
    assert Image.open(fitted / "comparison.png").size[0] > 1000
    assert cn.io.read(fitted / "field.safetensors").metadata["image"]["width"] == 24


def test_fit_says_quality(photo, tmp_path, backend, capsys):
    assert cli.main(["fit", str(photo), "-o", str(tmp_path / "out"), "--backend", backend, *SMALL]) == 0
    out = capsys.readouterr().out
    assert "PSNR on held-out pixels: " in out and "PSNR on training pixels: " in out
    arguments = ["fit", str(photo), "-o", str(tmp_path / "all"), "--backend", backend, "--pixels", "1", *SMALL]
    assert cli.main(arguments) == 0
    assert "none were held out" in capsys.readouterr().out


@pytest.mark.parametrize("fraction", [0.3, 1])
def test_quality_is_of_the_right_pixels(tmp_path, backend, fraction, monkeypatch, no_plots):
    """Trained on those that were chosen, measured on the others, every metric, too; the pictures are of the field."""
    rng = np.random.default_rng(0)
    image = rng.random((11, 7, 3)).astype(np.float32)  # noise: learned where it is seen alone
    seen = []
    monkeypatch.setattr(images.learn.plots, "loss", lambda *arguments: seen.append(arguments))
    result = images.fit_image(
        image, tmp_path, backend=backend, steps=60, width=32, depth=2, encoding="triangular", dropout=0.0, batch=512,
        fraction=fraction, lr=2e-2, seed=4, progress=False,
    )  # fmt: skip
    chosen = np.zeros(77, bool)
    chosen[images.training_pixels(77, fraction, 4, backend)] = True
    assert chosen.sum() == round(77 * fraction)
    picture = images.render(result.field, 7, 11)
    y, x = np.divmod(np.arange(77), 7)
    ns = cn.backend.namespace(backend)
    left, top, width, height = box(7, 11)
    at = [ns.Float(left + (x + 0.5) * width / 7), ns.Float(top + (y + 0.5) * height / 11)]
    np.testing.assert_allclose(picture.reshape(77, 3), result.field(at).numpy().T, atol=2e-3)
    error = np.square(np.clip(picture, 0, 1) - image).reshape(77, 3)
    assert result.psnr_training == pytest.approx(-10 * math.log10(error[chosen].mean()), abs=0.01)
    if fraction == 1:
        assert result.psnr_held_out is None and result.training.metrics == []
    else:
        expected = -10 * math.log10(error[~chosen].mean())
        assert result.psnr_held_out == pytest.approx(expected, abs=0.01) and expected < result.psnr_training - 1
        assert [step for step, _ in result.training.metrics] == list(range(2, 61, 2))
        assert result.training.metrics[-1][1] == pytest.approx(expected, abs=0.01)
    drawn = np.asarray(Image.open(tmp_path / "reconstruction.png"), np.float32)
    np.testing.assert_allclose(drawn / 255, np.clip(picture, 0, 1), atol=0.51 / 255)
    assert seen == [(tmp_path / "loss.png", result.training)]
    stored = cn.io.read(tmp_path / "field.safetensors")
    assert len(stored.tensors["train.losses"]) == 60
    assert stored.metadata["image"] == {"width": 7, "height": 11, "channels": 3, "colours": "sRGB"}


def test_batches_are_of_the_chosen_pixels(ns):
    """Coordinates and colours of one pixel each, all of the chosen ones and no others."""
    colours = np.random.default_rng(0).random((12, 3)).astype(np.float32)
    chosen = np.array([1, 4, 6, 11])
    table = [*pixels(ns.UInt32(chosen), 4, 3), *(ns.Float(column.copy()) for column in colours[chosen].T)]
    draw = folder.batches(table, 2, 500)
    coordinates, targets = draw(cn.Key(1))
    x, y = (v.numpy() for v in pixels(ns.UInt32(np.arange(12)), 4, 3))
    place = {(x[i], y[i]): i for i in range(12)}
    numbers = np.array([place[c] for c in zip(*(v.numpy() for v in coordinates), strict=True)])
    assert len(numbers) == 500 and np.bincount(numbers, minlength=12)[chosen].min() > 60
    assert set(numbers) == set(chosen)
    np.testing.assert_array_equal(np.stack([v.numpy() for v in targets], -1), colours[numbers])
    assert not np.array_equal(draw(cn.Key(2))[0][0].numpy(), coordinates[0].numpy())


def test_rate_and_metric_of_a_run(tmp_path, monkeypatch, backend):
    """What fit is asked for: a rate that falls from lr to 0 over the steps, and 25 metrics."""
    asked = {}

    def fit(field, batch, steps, **options):
        asked.update(options, steps=steps, field=field, batch=batch)
        raise InterruptedError

    monkeypatch.setattr(folder, "fit", fit)
    image = picture().astype(np.float32) / 255
    for steps, every in ((100, 4), (10, 1)):
        with pytest.raises(InterruptedError):
            images.fit_image(
                image, tmp_path, backend=backend, steps=steps, lr=0.02, seed=9, batch=123, width=24, depth=3,
                dropout=0.25, fraction=0.5, encoding="sinusoidal", progress=False,
            )  # fmt: skip
        rate = asked["lr"]
        assert rate(0) == 0.02 and rate(steps // 2) == pytest.approx(0.01) and rate(steps) == 0
        assert (asked["steps"], asked["metric_every"], asked["seed"]) == (steps, every, 9)
        assert asked["checkpoint"] == tmp_path / "field.safetensors"
        assert (asked["resume"], asked["progress"]) == (False, False)
    field, options = asked["field"], dict(units=24, depth=3, dropout=0.25, fraction=0.5, encoding="sinusoidal")
    expected = images.make_field(24, 16, 3, **options).build(backend, seed=9)
    assert repr(field) == repr(expected)
    np.testing.assert_array_equal(field.matrix("layers.0.weights"), expected.matrix("layers.0.weights"))
    coordinates, targets = asked["batch"](cn.Key(0))
    assert [dr.width(v) for v in (*coordinates, *targets)] == [123] * 5
    monkeypatch.setattr(images.learn, "METRIC_PIXELS", 10)
    seen = []
    monkeypatch.setattr(images.learn, "evaluate", lambda field, index, *size: seen.append((index, size)) or 0)
    monkeypatch.setattr(images.learn.files, "psnr", lambda a, b: seen.append(b) or 3.0)
    with pytest.raises(InterruptedError):
        images.fit_image(image, tmp_path, backend=backend, steps=10, seed=9, progress=False)
    assert asked["metric"](None) == 3.0
    (index, size), truth = seen
    held_out = np.setdiff1d(np.arange(384), images.training_pixels(384, 0.2, 9, backend))
    assert size == (24, 16) and 5 <= len(index) <= 10 and set(index) <= set(held_out)
    assert np.diff(index).min() >= 30  # from everywhere
    np.testing.assert_array_equal(truth, image.reshape(384, 3)[index])


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(image=[[0.5]]), "image is a list; an array"),
        (dict(image=np.zeros((4, 4), np.float32)), "image is of shape (4, 4)"),
        (dict(image=np.zeros((4, 4, 2), np.float32)), "image is of shape (4, 4, 2)"),
        (dict(image=np.zeros((4, 4, 3), np.uint8)), "image is of uint8; floating point"),
        (dict(image=np.full((4, 4, 3), np.nan)), "image is not finite everywhere"),
        (dict(image=np.zeros((1, 1, 3))), "no pixel or a single one"),
        (dict(image=np.zeros((0, 5, 3))), "no pixel or a single one"),
        (dict(fraction=0), "fraction is 0; a number in (0, 1]"),
        (dict(fraction="x"), "fraction is 'x'"),
        (dict(fraction=1.01), "fraction is 1.01"),
        (dict(batch=0), "batch is 0; an int from 1 to 16777216"),
        (dict(batch=2**24 + 1), "batch is 16777217"),
        (dict(batch=1.5), "batch is 1.5"),
        (dict(steps=0), "steps is 0"),
        (dict(steps=2**32), "steps is 4294967296"),
        (dict(steps=None), "steps is None"),
        (dict(lr=0), "lr is 0"),
        (dict(lr="1"), "lr is '1'"),
        (dict(encoding="fourier"), "encoding is 'fourier'; accepted are 'sinusoidal', 'triangular'"),
    ],
)
def test_bad_arguments_of_fit_image(tmp_path, change, words):
    arguments = dict(image=np.zeros((4, 4, 3), np.float32), directory=tmp_path / "out") | change
    with pytest.raises(ValueError, match=r"^fit_image: ") as info:
        images.fit_image(**arguments)
    assert words in str(info.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("shape", [(1, 2, 3), (2, 1, 1)])
def test_the_smallest_images(tmp_path, backend, shape):
    """In a directory that is made; with a progress bar unless told otherwise."""
    image = np.linspace(0, 1, math.prod(shape), dtype=np.float32).reshape(shape)
    options = dict(steps=2, width=8, depth=1, batch=4, encoding="sinusoidal", progress=False)
    result = images.fit_image(image, tmp_path / "a" / "b", backend=backend, **options)
    assert result.training.steps == 2 and all(path.exists() for path in result.files.values())
    assert math.isfinite(result.psnr_held_out) and math.isfinite(result.psnr_training)
    assert inspect.signature(images.fit_image).parameters["progress"].default is True


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["triangular", "hashgrid", "identity"])
def test_encodings_learn(encoding, backend, tmp_path):
    image = picture().astype(np.float32) / 255
    options = dict(steps=150, width=16, depth=1, encoding=encoding, batch=256, lr=2e-2, dropout=0.0)
    result = images.fit_image(image, tmp_path, backend=backend, fraction=0.5, progress=False, **options)
    assert result.psnr_held_out > 15
    assert result.training.losses[-1] < 0.2 * result.training.losses[0]


def test_grey_image(tmp_path, backend, no_plots):
    Image.fromarray(picture(channels=1)[..., 0]).save(tmp_path / "grey.png")
    assert cli.main(["fit", str(tmp_path / "grey.png"), "-o", str(tmp_path), "--backend", backend, *SMALL]) == 0
    assert Image.open(tmp_path / "reconstruction.png").mode == "L"


def test_resume(photo, tmp_path, backend, capsys, monkeypatch, no_plots):
    options = [str(photo), "--backend", backend, *SMALL[2:], "--steps", "30"]
    assert cli.main(["fit", *options, "-o", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:  # the first part of a run of 30 steps, as its learning rate shows
        patch.setattr(folder, "fit", lambda field, batch, steps, **more: cn.fit(field, batch, 12, **more))
        assert cli.main(["fit", *options, "-o", str(tmp_path / "parts")]) == 0
    parts = cn.io.read(tmp_path / "parts" / "field.safetensors")
    assert len(parts.tensors["train.losses"]) == 12
    assert cli.main(["fit", *options, "-o", str(tmp_path / "parts"), "--resume"]) == 0
    assert "30 steps" in capsys.readouterr().out
    whole, parts = (cn.io.read(tmp_path / n / "field.safetensors") for n in ("whole", "parts"))
    assert len(parts.tensors["train.losses"]) == 30 and parts.tensors.keys() == whole.tensors.keys()
    for name, value in whole.tensors.items():
        if backend == "llvm":
            np.testing.assert_array_equal(parts.tensors[name], value)
        elif name == "train.losses":  # sums on CUDA depend on the order of threads
            np.testing.assert_allclose(parts.tensors[name], value, rtol=0.2, atol=1e-3)
    progress = [json.loads(found.metadata["training"])["progress"] | {"seconds": 0} for found in (whole, parts)]
    assert progress[0]["steps"] == progress[1]["steps"] == 30 and len(progress[0]["metrics"]) == 30
    assert backend == "cuda" or progress[0] == progress[1]
    options = options[:-2]
    out = ["-o", tmp_path / "parts", "--resume"]
    fails(
        capsys,
        ["fit", *options, *out, "--steps", 30, "--pixels", "0.5"],
        1,
        "cannot resume",
        "fraction",
        "another folder",
    )
    fails(capsys, ["fit", *options, *out, "--steps", 30, "--seed", "5"], 1, "cannot resume", "seed", "another file")
    fails(capsys, ["fit", *options, *out, "--steps", 20], 1, "is at step 30 already; steps=20 is less")
    Image.fromarray(picture()[::-1].copy()).save(photo)
    fails(capsys, ["fit", *options, *out, "--steps", 30], 1, "another image")
    fails(capsys, ["fit", *options, "-o", tmp_path / "new", "--resume", "--steps", 30], 1, "to resume from")


@pytest.mark.parametrize("size", ["24x16", "7x5", "1x1", "100x3"])
def test_render_sizes(fitted, tmp_path, size, backend):
    target = tmp_path / "sub" / "picture.png"
    checkpoint = str(fitted / "field.safetensors")
    assert cli.main(["render", checkpoint, "-o", str(target), "--size", size, "--backend", backend]) == 0
    assert "{}x{}".format(*Image.open(target).size) == size
    # stretched: pixel centres spread over the box that the learned image, 24 x 16, had
    columns, rows = (int(n) for n in size.split("x"))
    y, x = np.divmod(np.arange(columns * rows), columns)
    ns = cn.backend.namespace(backend)
    at = [ns.Float(0.25 + 0.5 * (x + 0.5) / columns), ns.Float(0.5 + (y + 0.5 - rows / 2) / rows / 3)]
    expected = cn.load(fitted / "field.safetensors", backend)(at).numpy().T.reshape(rows, columns, 3)
    drawn = np.asarray(Image.open(target), np.float32) / 255
    np.testing.assert_allclose(drawn, np.clip(expected, 0, 1), atol=1.01 / 255)
    assert size == "1x1" or np.ptp(drawn) > 0.1
    if size == "24x16":
        np.testing.assert_array_equal(Image.open(target), Image.open(fitted / "reconstruction.png"))


def test_the_region_of_a_picture(fitted, tmp_path, backend, capsys):
    target, checkpoint = tmp_path / "picture.png", fitted / "field.safetensors"
    draw = ["render", str(checkpoint), "--size", "12x16", "--backend", backend, "-o", str(target), "--region"]
    assert cli.main([*draw, "0,0,0.5,1"]) == 0
    expected = np.clip(images.render(cn.load(checkpoint, backend), 12, 16, (0, 0, 0.5, 1)), 0, 1)
    np.testing.assert_allclose(np.asarray(Image.open(target), np.float32) / 255, expected, atol=1.01 / 255)
    for wrong in ("0,0,0,1,1,1", "0,0,0,1"):
        fails(capsys, [*draw, wrong], 2, "region", "(left, top, width, height) with a positive width and height")


def test_render_uncertainty(fitted, tmp_path, backend):
    arguments = ["render", str(fitted / "field.safetensors"), "--size", "12x8", "--backend", backend]
    arguments += ["--mc-samples", "8", "-o"]
    assert cli.main([*arguments, str(tmp_path / "mean.png")]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"mean.png", "uncertainty.png"}
    assert cli.main([*arguments, str(tmp_path / "uncertainty.png")]) == 0
    assert (tmp_path / "uncertainty_uncertainty.png").exists()
    assert Image.open(tmp_path / "uncertainty.png").size == (12, 8)
    before = (tmp_path / "uncertainty.png").read_bytes()
    assert cli.main([*arguments, str(tmp_path / "other.png")]) == 0
    assert (tmp_path / "uncertainty.png").read_bytes() == before and (tmp_path / "other_uncertainty.png").exists()
    (tmp_path / "other_uncertainty.png").write_bytes(b"old")
    assert cli.main([*arguments, str(tmp_path / "other.png")]) == 0  # as often as one likes
    assert Image.open(tmp_path / "other_uncertainty.png").size
    assert (tmp_path / "uncertainty.png").read_bytes() == before


def test_masks_of_a_seed(fitted, tmp_path, backend, capsys, monkeypatch):
    """The picture is the mean over the masks of --seed, and what is said and plotted their deviation."""
    plotted = []
    monkeypatch.setattr("coopnet.image.plots.uncertainty", lambda *arguments: plotted.append(arguments))
    field = cn.load(fitted / "field.safetensors", backend)
    for seed in (0, 7):
        target = tmp_path / f"{seed}.png"
        arguments = ["render", str(fitted / "field.safetensors"), "--size", "12x8", "--backend", backend]
        assert cli.main([*arguments, "--mc-samples", "3", "--seed", str(seed), "-o", str(target)]) == 0
        mean, deviation = images.render_mc(field, 12, 8, 3, seed, box(24, 16))
        np.testing.assert_allclose(np.asarray(Image.open(target)) / 255, np.clip(mean, 0, 1), atol=1.01 / 255)
        path, values, samples = plotted[-1]
        assert path == tmp_path / "uncertainty.png" and samples == 3
        np.testing.assert_allclose(values, deviation, atol=1e-5)
        assert f"mean standard deviation {deviation.mean():.4f}" in capsys.readouterr().out
    assert not np.array_equal(Image.open(tmp_path / "0.png"), Image.open(tmp_path / "7.png"))


def test_region_and_pieces(backend, monkeypatch):
    """Any part of the plane, on pictures that are not square, however they are cut up."""
    field = cn.NeuralField(None, cn.MLP(2, 1, width=16, depth=1, activation="sine")).build(backend)
    ns, region = cn.backend.namespace(backend), (0.125, -0.5, 2.0, 0.75)
    x = 0.125 + (np.arange(9) + 0.5) * 2 / 9
    y = -0.5 + (np.arange(5) + 0.5) * 0.75 / 5
    at = [ns.Float(v.ravel()) for v in np.meshgrid(x, y)]
    expected = field(at).numpy().reshape(5, 9, 1)
    pictures = [images.render(field, 9, 5, region)]
    monkeypatch.setattr("coopnet.image.evaluate.CHUNK", 16)
    pictures += [images.render(field, 9, 5, region)]
    for result in pictures:
        assert result.shape == (5, 9, 1)
        np.testing.assert_allclose(result, expected, atol=5e-3 if backend == "cuda" else 1e-5)
    index = np.array([3, 44, 0, 17, *range(30)])
    some = images.evaluate.evaluate(field, index, 9, 5)
    np.testing.assert_allclose(some, images.render(field, 9, 5).reshape(45, 1)[index], atol=1e-6)


def test_mc_equals_separate_evaluations(backend, ns, monkeypatch):
    monkeypatch.setattr("coopnet.image.evaluate.CHUNK", 64)  # pieces must not repeat masks
    network = cn.MLP(out_features=3, width=16, depth=2, dropout=0.2)
    field = cn.NeuralField(cn.Sinusoidal(3, in_features=2), network).build(backend)
    mean, deviation = images.render_mc(field, 15, 10, samples=9, seed=2**40 + 3)
    index = dr.arange(ns.UInt32, 150)
    p = pixels(index, 15, 10)
    values = np.stack([field(p, cn.Key(2**40 + 3, index, i)).numpy().T for i in range(9)]).reshape(9, 10, 15, 3)
    np.testing.assert_allclose(mean, values.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(deviation, values.std(axis=0), atol=1e-5)
    assert deviation.min() > 0


def asked_for(monkeypatch):
    """What the library is asked for by ``coopnet fit``, which stops there."""
    asked = {}

    def fit_image(image, directory, **options):
        asked.update(options, directory=directory, image=image)
        raise ValueError("enough")

    monkeypatch.setattr(images, "fit_image", fit_image)
    return asked


def test_two_pixels_are_enough(tmp_path, monkeypatch, capsys, backend):
    asked = asked_for(monkeypatch)
    for width, height in ((2, 1), (1, 2), (4, 2)):
        Image.fromarray(picture(width, height)).save(tmp_path / "x.png")
        fails(capsys, ["fit", tmp_path / "x.png", "-o", tmp_path, "--backend", backend], 1, "enough")
        assert asked["image"].shape == (height, width, 3)


def test_progress_is_for_terminals(photo, tmp_path, monkeypatch, capsys, backend):
    asked = asked_for(monkeypatch)
    arguments = ["fit", photo, "-o", tmp_path, "--backend", backend]
    for words, terminal, expected in (([], True, True), (["-q"], True, False), ([], False, False)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        fails(capsys, [*arguments, *words], 1, "enough")
        assert asked["progress"] is expected


@pytest.mark.parametrize(("text", "expected"), [
    ("640x480", (640, 480)), (" 3X4 ", (3, 4)), ("7×5", (7, 5)), ("10000x10000", (10**4, 10**4)), ("1x1", (1, 1)),
    ("1x100000000", (1, 10**8)), ("010x002", (10, 2)),
])  # fmt: skip
def test_sizes(text, expected):
    assert cli.parse_size(text) == expected


def test_info(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "Dr.Jit" in out and "kernel cache" in out


def test_help_and_module(capsys):
    assert cli.main([]) == 0
    assert "render" in capsys.readouterr().out
    done = python("-m", "coopnet", "fit", "--help")
    assert done.returncode == 0
    assert "--dropout" in done.stdout


# ---- images -------------------------------------------------------------


def test_choice_of_pixels_is_portable(backend):
    """The numbers are those of the generator evaluated by NumPy."""
    words = cn.philox4x32((0, np.arange(1000, dtype=np.uint32), 0, 2**31 + 1), (77, 0), rounds=10)
    expected = np.sort(np.argsort(words[0] >> 8, kind="stable")[:200])
    np.testing.assert_array_equal(images.training_pixels(1000, 0.2, 77, backend), expected)
    assert len(images.training_pixels(2, 0.999, 0, backend)) == 1  # something is always held out
    assert len(images.training_pixels(10, 1, 0, backend)) == 10


def test_coordinates(ns):
    x, y = (v.numpy() for v in pixels(dr.arange(ns.UInt32, 12), 4, 3))
    np.testing.assert_allclose(x[:4], 0.25 + 0.5 * (np.arange(4) + 0.5) / 4)
    np.testing.assert_allclose(y[::4], 0.5 + 0.5 * (np.arange(3) - 1) / 4)
    assert box(4, 3) == (0.25, 0.3125, 0.5, 0.375)


def test_image_kinds(tmp_path):
    rgb = picture()

    def load(image, name, **options):
        image.save(tmp_path / name, **options)
        values = images.load(tmp_path / name)
        assert values.dtype == np.float32 and 0 <= values.min() <= values.max() <= 1
        return values

    image = Image.fromarray(rgb)
    np.testing.assert_array_equal(load(image, "rgb.png"), rgb.astype(np.float32) / 255)
    assert load(image.convert("P"), "palette.png").shape == (16, 24, 3)
    assert load(image.convert("L"), "grey.png").shape == (16, 24, 1)
    assert load(image.convert("1"), "bits.png").shape == (16, 24, 1)
    assert load(image.convert("CMYK"), "cmyk.jpg").shape == (16, 24, 3)
    deep = (np.arange(24 * 16, dtype=np.uint16) * 170).reshape(16, 24)
    np.testing.assert_allclose(load(Image.fromarray(deep), "deep.png")[..., 0], deep / 65535, atol=1e-6)
    # transparent pixels are white
    clear = image.copy()
    clear.putalpha(0)
    assert load(clear, "clear.png").min() == 1
    grey = Image.merge("LA", (image.convert("L"), Image.new("L", image.size, 0)))
    assert load(grey, "clear-grey.png").shape == (16, 24, 1)
    # turned by a quarter
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = load(image, "turned.png", exif=exif)
    np.testing.assert_array_equal(turned, np.rot90(rgb.astype(np.float32) / 255, -1))


def test_colour_profiles(tmp_path, monkeypatch):
    """Converted to sRGB where there is one that can be, by what Pillow offers; a broken one changes nothing."""
    cms, asked = images.files.ImageCms, []
    profile = cms.ImageCmsProfile(cms.createProfile("sRGB")).tobytes()

    def convert(image, source, target, outputMode):
        asked.append((image.mode, outputMode))
        return Image.new(outputMode, image.size, "red")

    monkeypatch.setattr(cms, "profileToProfile", convert)
    image = Image.fromarray(picture())
    plain = picture().astype(np.float32) / 255
    for mode, name, options, red in (
        ("RGB", "a.png", {"icc_profile": profile}, True), ("RGBA", "b.png", {"icc_profile": profile}, True),
        ("CMYK", "c.tif", {"icc_profile": profile}, True), ("RGB", "d.png", {}, False),
        ("RGB", "e.png", {"icc_profile": b"junk"}, False), ("L", "f.png", {"icc_profile": profile}, False),
    ):  # fmt: skip
        image.convert(mode).save(tmp_path / name, **options)
        values = images.load(tmp_path / name)
        if red:
            np.testing.assert_array_equal(values, np.broadcast_to(np.float32([1, 0, 0]), plain.shape))
        elif mode == "RGB":
            np.testing.assert_array_equal(values, plain)
    assert asked == [("RGB", "RGB"), ("RGBA", "RGBA"), ("CMYK", "RGB"), ("L", "RGB")]


def test_detail_follows_the_training_pixels():
    """What encodings resolve: the distance between training pixels, along the longer side."""
    for size in ((100, 60), (60, 100)):
        grid = images.make_field(*size, encoding="hashgrid", fraction=0.25).encoding
        assert (grid.n_levels, grid.base_resolution, grid.hashmap_size) == (32, 12, 8192)
        assert grid.per_level_scale == pytest.approx((55 / 12) ** (1 / 31))
        assert images.make_field(*size, encoding="triangular", fraction=0.25).encoding.octaves == 6
    for size, octaves, coarse, entries in (((2, 2), 2, 2, 128), ((10**5, 9), 12, 48, 2**22)):
        assert images.make_field(*size, encoding="sinusoidal", fraction=0.25).encoding.octaves == octaves
        grid = images.make_field(*size, encoding="hashgrid", fraction=0.25).encoding
        assert (grid.base_resolution, grid.hashmap_size) == (coarse, entries)


# ---- errors -------------------------------------------------------------


def test_bad_images(tmp_path, photo, capsys):
    out = ["-o", tmp_path / "out", *SMALL]
    fails(capsys, ["fit", tmp_path / "none.png", *out], 1, "no file", "none.png")
    fails(capsys, ["fit", tmp_path, *out], 1, "is a directory")
    (tmp_path / "text.png").write_text("no image")
    fails(capsys, ["fit", tmp_path / "text.png", *out], 1, "not an image", "text.png")
    (tmp_path / "empty.png").touch()
    fails(capsys, ["fit", tmp_path / "empty.png", *out], 1, "not an image")
    (tmp_path / "cut.png").write_bytes(photo.read_bytes()[:-40])
    fails(capsys, ["fit", tmp_path / "cut.png", *out], 1, "damaged", "cut.png")
    Image.new("RGB", (1, 1)).save(tmp_path / "one.png")
    fails(capsys, ["fit", tmp_path / "one.png", *out], 1, "single pixel")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "size",
    [
        "0x5",
        "5x0",
        "1x100000001",
        "10001x10000",
        "axb",
        "-1x2",
        "5",
        "5x",
        "1e3x2",
        "3x4x5",
        "",
        "100000x100000",
        "9" * 30 + "x1",
    ],
)
def test_bad_sizes(size, tmp_path, capsys):
    fails(capsys, ["render", tmp_path / "x.safetensors", "-o", tmp_path / "x.png", f"--size={size}"], 2, "--size")


def test_bad_directories(tmp_path, photo, capsys):
    (tmp_path / "file").touch()
    fails(capsys, ["fit", photo, "-o", tmp_path / "file", *SMALL], 1, "is a file")
    fails(capsys, ["fit", photo, "-o", tmp_path / "file" / "below", *SMALL], 1, "below a file")
    if sys.platform == "linux":
        fails(capsys, ["fit", photo, "-o", "/proc/coopnet", *SMALL], 1, "cannot write", "/proc/coopnet")
    if hasattr(os, "geteuid") and os.geteuid() != 0:  # nothing is unwritable for root
        (tmp_path / "locked").mkdir(mode=0o500)
        fails(capsys, ["fit", photo, "-o", tmp_path / "locked", *SMALL], 1, "cannot write")


@pytest.mark.parametrize(
    "option",
    [
        "--steps=0", "--steps=-3", "--steps=many", "--width=0", "--width=1000000", "--depth=0", "--batch=0",
        "--dropout=1", "--dropout=-0.1", "--dropout=nan", "--dropout=0.9999999", "--pixels=0", "--pixels=1.5",
        "--pixels=nan", "--lr=0", "--lr=inf", "--lr=nan", "--seed=-1", f"--seed={2**64}", "--encoding=fourier",
        "--backend=metal", "--unknown=1",
    ],
)  # fmt: skip
def test_bad_numbers(option, photo, tmp_path, capsys):
    fails(capsys, ["fit", photo, "-o", tmp_path / "out", option], 2, option.split("=")[0])
    assert not (tmp_path / "out").exists()


def test_bad_usage(capsys, photo):
    fails(capsys, ["fit"], 2, "FILE")
    fails(capsys, ["paint"], 2, "paint")


def test_names_that_need_not_be_given(photo, tmp_path, backend, capsys, monkeypatch):
    """The folder of a fit, the checkpoint in it, and the size of its picture."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["fit", str(photo), "--backend", backend, *SMALL]) == 0
    checkpoint = tmp_path / photo.stem / "field.safetensors"
    assert checkpoint.is_file()
    assert cli.main(["render", photo.stem, "-o", "again.png", "--backend", backend]) == 0
    assert Image.open("again.png").size == Image.open(photo).size
    capsys.readouterr()
    for name, *options in (["info"], ["export", "-o", "out", "--to", "numpy"]):
        assert cli.main([name, photo.stem, *options]) == 0
    (tmp_path / "empty").mkdir()
    fails(capsys, ["render", "empty", "-o", "x.png"], 1, "empty")


def test_bad_checkpoints(tmp_path, photo, fitted, backend, capsys):
    end = ["-o", tmp_path / "x.png", "--size", "4x4", "--backend", backend]
    fails(capsys, ["render", tmp_path / "none.safetensors", *end], 1, "none.safetensors")
    fails(capsys, ["render", tmp_path, *end], 1, str(tmp_path))
    fails(capsys, ["render", photo, *end], 1, "photo.png")
    data = (fitted / "field.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(data[: len(data) // 2])
    fails(capsys, ["render", tmp_path / "cut.safetensors", *end], 1, "cut.safetensors")
    for inputs, outputs in ((3, 3), (2, 2)):
        network = cn.MLP(in_features=inputs, out_features=outputs, width=16, depth=1, dropout=0.1)
        cn.save(tmp_path / "other.safetensors", cn.NeuralField(None, network).build(backend))
        fails(
            capsys,
            ["render", tmp_path / "other.safetensors", *end],
            1,
            f"not the field of {'a surface' if inputs == 3 else 'an image'}: it has {inputs} coord",
        )
    checkpoint = fitted / "field.safetensors"
    fails(capsys, ["render", checkpoint, "-o", tmp_path / "x.xyz", "--size", "4x4"], 2, "x.xyz")
    fails(capsys, ["render", checkpoint, "-o", tmp_path / "x", "--size", "4x4"], 2, "suffix")
    (tmp_path / "dir.png").mkdir()
    fails(capsys, ["render", checkpoint, "-o", tmp_path / "dir.png", "--size", "4x4"], 1, "is a directory")
    fails(capsys, ["render", checkpoint, *end, "--mc-samples", 1], 2, "--mc-samples")
    fails(capsys, ["fit", photo, "-o", tmp_path / "out", "--resume", *SMALL], 1, "to resume from")


def test_mc_needs_dropout(tmp_path, backend, capsys):
    network = cn.MLP(in_features=2, out_features=3, width=16, depth=1)
    cn.save(tmp_path / "dry.safetensors", cn.NeuralField(None, network).build(backend))
    arguments = ["render", tmp_path / "dry.safetensors", "-o", tmp_path / "x.png", "--size", "4x4"]
    fails(capsys, [*arguments, "--mc-samples", "4", "--backend", backend], 1, "no dropout", "--mc-samples")
    assert cli.main([*map(str, arguments), "--backend", backend]) == 0  # also without a noted size


def test_no_backend(photo, tmp_path, capsys, monkeypatch):
    def require(name="auto"):
        raise cn.BackendError("No backend is usable.\nLLVM: none. Cure: apt-get install libllvm19.")

    monkeypatch.setattr(cn.backend, "require", require)
    fails(capsys, ["fit", photo, "-o", tmp_path / "out", *SMALL], 1, "No backend is usable", "libllvm19")


@pytest.mark.parametrize("package", ["typer", "PIL", "matplotlib", "safetensors"])
def test_missing_package(package, photo, tmp_path):
    code = f"import sys; sys.modules[{package!r}] = None; from coopnet.cli import main; sys.exit(main(sys.argv[1:]))"
    done = python("-c", code, "fit", photo, "-o", tmp_path / "out", *SMALL)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("coopnet: error: "), lines
    assert f"coopnet[{'train' if package == 'safetensors' else 'cli'}]" in lines[0]


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(("error", "code", "said"), [
    (typer.BadParameter("so\n  not"), 2, "Invalid value: so not"), (cli.Stopped(), 130, None),
    (ValueError("bad"), 1, "bad"), (TypeError(), 1, "TypeError"), (ImportError("none"), 1, "none"),
    (MemoryError("raw"), 1, "not enough memory."), (cn.BackendError("no GPU"), 1, "no GPU"),
    (OSError(28, "No space left", "x.png"), 1, "No space left: 'x.png'"), (OSError(5, "Lost"), 1, "Lost"),
    (OSError("plain"), 1, "plain"),
    (typer.Abort(), 130, "interrupted."), (KeyboardInterrupt(), 130, "interrupted."),
    (RuntimeError("jit"), 1, "jit"), (caused(RuntimeError("jit"), KeyboardInterrupt()), 130, "interrupted."),
    (BrokenPipeError(), 1, None), (130, 130, "interrupted."), (3, 3, None), (0, 0, None), (None, 0, None),
])  # fmt: skip
def test_ends(monkeypatch, capsys, error, code, said):
    """Exit codes, and the line that is printed, for all that may come out of a command."""

    def app(**options):
        if isinstance(error, BaseException):
            raise error
        return error

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # put back after a broken pipe
    assert cli.main(["info"]) == code
    assert capsys.readouterr().err == ("" if said is None else f"coopnet: error: {said}\n")


def test_other_errors_are_shown_whole(monkeypatch):
    def app(**options):
        raise KeyError("a mistake")

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(KeyError, match="a mistake"):
        cli.main(["info"])


def test_a_closed_pipe(monkeypatch):
    """What is left in the buffers goes nowhere: Python's own flush at exit would complain."""

    def app(**options):
        raise BrokenPipeError

    before = sys.stdout
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "stdout", before)
    assert cli.main(["info"]) == 1
    assert sys.stdout is not before and sys.stdout.name == os.devnull
    print("nothing")
    sys.stdout.close()


def test_a_pipe_without_the_letters(monkeypatch):
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(cli, "app", lambda **options: print("3 × 4"))
    assert cli.main(["info"]) == 0
    pipe.flush()
    assert pipe.buffer.getvalue().split() == [b"3", b"\\xd7", b"4"]


def test_arguments_of_the_process(monkeypatch):
    """Taken where none are given; without any, there is help."""
    asked = []
    monkeypatch.setattr(cli, "app", lambda **options: asked.append(options))
    monkeypatch.setattr(sys, "argv", ["coopnet", "info"])
    for arguments in (None, ["fit"], []):
        assert cli.main(arguments) == 0
    assert [options["args"] for options in asked] == [["info"], ["fit"], ["--help"]]
    assert all(o["prog_name"] == "coopnet" and o["standalone_mode"] is False for o in asked)


# ---- Ctrl-C ------------------------------------------------------------------------------------------------

# says when a step is being recorded: the first draw is a check of what a batch is
TALKATIVE = """
import sys
from coopnet import cli
from coopnet.image import learn
real, calls = learn.batches, []
def batches(*arguments):
    draw = real(*arguments)
    def batch(key):
        calls.append(0)
        if len(calls) == 3:  # the first two calls only look at what it returns
            print("in the loop", flush=True)
        return draw(key)
    return batch
learn.batches = batches
sys.exit(cli.main(sys.argv[1:]))
"""
LONG = 120  # seconds, on a machine that does other things


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.usefixtures("ctrl_c_works")
@pytest.mark.parametrize(
    ("sent", "ignored"),
    [(signal.SIGINT, None), (signal.SIGTERM, None), (signal.SIGTERM, signal.SIGINT)],
    ids=["Ctrl-C", "SIGTERM", "SIGTERM in a background job, where Ctrl-C is ignored"],
)
def test_interrupt_keeps_a_checkpoint(photo, tmp_path, backend, capsys, no_plots, sent, ignored):
    """And prints the command that goes on, which does."""
    out: Path = tmp_path / "out"
    options = ["--steps", "1000000", "--backend", backend, *SMALL[2:], "--lr", "0.01", "--seed", "3"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", TALKATIVE, "fit", str(photo), "-o", str(out), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=ignored and (lambda: signal.signal(ignored, signal.SIG_IGN)),
    )  # fmt: skip
    assert "training on" in process.stdout.readline()
    assert process.stdout.readline() == "in the loop\n"
    process.send_signal(sent)
    said, errors = process.communicate(timeout=LONG)
    assert process.returncode == 130, errors
    assert not errors
    steps = len(cn.io.read(out / "field.safetensors").tensors["train.losses"])
    assert steps >= 1 and f"after step {steps} of 1000000" in said and str(out / "field.safetensors") in said
    (command,) = (line.removeprefix("resume with: ") for line in said.splitlines() if "resume with" in line)
    program, *arguments = shlex.split(command)
    assert program == "coopnet" and arguments[-1] == "--resume"
    arguments[arguments.index("--steps") + 1] = str(steps + 2)
    assert cli.main(arguments) == 0
    assert f"{steps + 2} steps in" in capsys.readouterr().out


def test_a_checkpoint_is_replaced_with_force_only(photo, tmp_path, capsys, monkeypatch, backend):
    """Days of training may be in it; it stays, to the bit, whatever else is wrong or right."""
    file = tmp_path / "out" / "field.safetensors"
    file.parent.mkdir()
    file.write_bytes(b"trained")
    calls = []
    monkeypatch.setattr(images, "fit_image", lambda *a, **options: calls.append(options["resume"]) or 1 / 0)
    arguments = ["fit", photo, "-o", tmp_path / "out", "--backend", backend]
    fails(capsys, arguments, 1, file, "is there already", "--resume", "--force", "another --output")
    picture = file.with_name("loss.png")
    picture.write_bytes(b"drawn")
    fails(capsys, arguments, 1, f"{str(file)!r} and {str(picture)!r} are there already", "to replace them")
    picture.unlink()
    fails(capsys, [*arguments, "--resume", "--force"], 2, "--resume", "--force")
    assert not calls and file.read_bytes() == b"trained"
    for option, resume in (("--force", False), ("--resume", True)):
        with pytest.raises(ZeroDivisionError):
            cli.main([str(a) for a in [*arguments, option]])
        assert calls.pop() == resume
    file.unlink()
    with pytest.raises(ZeroDivisionError):
        cli.main([str(a) for a in arguments])


def test_every_option_is_in_the_command_that_goes_on(photo, tmp_path, capsys, monkeypatch, backend):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "field.safetensors").touch()
    checkpoint = {"field": tmp_path / "out" / "field.safetensors"}
    given = dict(
        steps="77", width="24", depth="3", encoding="triangular", dropout="0.25", pixels="0.5", batch="99", lr="0.02",
        seed="5", backend=backend,
    )  # fmt: skip
    asked = {}

    def fit_image(image, directory, **options):
        asked.update(options, directory=directory, image=image)
        return images.ImageFit(None, cn.FitResult(steps=4, stopped="interrupt"), files=checkpoint)

    monkeypatch.setattr(images, "fit_image", fit_image)
    words = [f"--{name}={value}" for name, value in given.items()]
    assert cli.main(["fit", str(photo), "-o", str(tmp_path / "out"), *words, "-q", "--resume"]) == 130
    # what the library is asked for
    expected = {k: type(asked[k])(v) for k, v in given.items() if k != "pixels"}
    expected |= dict(fraction=0.5, resume=True, progress=False, directory=tmp_path / "out")
    np.testing.assert_array_equal(asked.pop("image"), images.load(photo))
    assert asked == expected
    # and what is printed
    said = capsys.readouterr().out
    assert "stopped after step 4 of 77" in said
    _, command, path, *printed = shlex.split(said.split("resume with: ")[1])
    assert (command, path, printed[-1]) == ("fit", str(photo), "--resume")
    pairs = dict(zip(printed[:-1:2], printed[1:-1:2], strict=True))
    assert pairs == {f"--{name}": value for name, value in given.items()} | {"-o": str(tmp_path / "out")}
    # without a checkpoint, there is nothing to go on from
    checkpoint["field"].unlink()
    assert cli.main(["fit", str(photo), "-o", str(tmp_path / "out"), "-q"]) == 130
    said = capsys.readouterr().out
    assert "no checkpoint was written" in said and "resume with" not in said


def test_defaults(photo, tmp_path, monkeypatch, backend, capsys):
    """Those of the command are those of the function."""
    asked = {}

    def fit_image(image, directory, **options):
        asked.update(options)
        raise ValueError("enough")

    monkeypatch.setattr(images, "fit_image", fit_image)
    fails(capsys, ["fit", photo, "-o", tmp_path], 1, "enough")
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(images.learn.fit_image).parameters.items()
        if parameter.default is not parameter.empty
    }
    assert asked | {"backend": "auto", "progress": True} == defaults


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.usefixtures("ctrl_c_works")
@pytest.mark.parametrize("way", ["script", "module"])
@pytest.mark.parametrize("package", ["numpy", "drjit", "typer"])
def test_interrupt_while_importing(tmp_path, way, package):
    """One line and 130, wherever it comes: here from a package that stands in for the real one."""
    (tmp_path / "stand-in" / package).mkdir(parents=True)
    trap = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    (tmp_path / "stand-in" / package / "__init__.py").write_text(trap)
    script = tmp_path / "coopnet"
    script.write_text("import sys\nfrom coopnet.cli import main\nsys.exit(main())\n")
    stand_in = tmp_path / "stand-in"
    path = os.pathsep.join([str(stand_in), environment()["PYTHONPATH"]])
    program = [script] if way == "script" else ["-m", "coopnet"]
    done = python(*program, "info", cwd=stand_in, PYTHONPATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "coopnet: error: interrupted.\n")


@pytest.mark.usefixtures("ctrl_c_works")
def test_other_programs_keep_their_ctrl_c():
    code = "import signal, coopnet; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("argument, words, expected", [
    ("/usr/bin/coopnet", [], True), ("coopnet.exe", [], True), ("/x/train.py", ["python", "-m", "coopnet"], False),
    ("-m", ["python", "-m", "coopnet", "info"], True), ("-m", ["python", "-m", "coopnet.cli"], True),
    ("-m", ["python", "-m", "pytest", "coopnet"], False), ("", [], False),
])  # fmt: skip
def test_which_program_runs(monkeypatch, argument, words, expected):
    monkeypatch.setattr(sys, "argv", [argument])
    monkeypatch.setattr(sys, "orig_argv", words)
    assert command.is_running() == expected


def test_ctrl_c_ends_the_process_at_once(monkeypatch):
    done = []
    monkeypatch.setattr(os, "write", lambda *arguments: done.append(arguments))
    monkeypatch.setattr(os, "_exit", lambda code: done.append(code))
    command._end(signal.SIGINT, None)
    assert done == [(2, b"coopnet: error: interrupted.\n"), 130]


def test_ctrl_c_of_other_programs_and_threads_stays(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        monkeypatch.setattr(sys, "argv", ["train.py"])
        command.importing()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        monkeypatch.setattr(sys, "argv", ["coopnet"])
        thread = threading.Thread(target=command.importing)  # where signals cannot be set
        thread.start()
        thread.join(LONG)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        command.imported()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        command.importing()
        assert signal.getsignal(signal.SIGINT) is command._end
        command.imported()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_given_back(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["coopnet"])
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        command.importing()
        assert signal.getsignal(signal.SIGINT) is command._end
        assert cli.main(["info"]) == 0
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # somebody else's
        command.importing()
        command.imported()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), "traversal"])
def test_interrupt_inside_the_command(photo, tmp_path, monkeypatch, capsys, error):
    """Dr.Jit makes RuntimeErrors of exceptions in what it traverses."""

    def fit_image(*arguments, **options):
        if error == "traversal":
            raise RuntimeError("traverse(): error") from KeyboardInterrupt()
        raise error

    monkeypatch.setattr(images, "fit_image", fit_image)
    fails(capsys, ["fit", photo, "-o", tmp_path], 130, "interrupted.")


# ---- divergence --------------------------------------------------------------------------------------------


def test_divergence_is_an_error(photo, tmp_path, backend, capsys, no_plots):
    if backend == "cuda":
        pytest.skip("a loss scaler keeps half-precision parameters finite")
    options = ["--steps", "20", "--width", "16", "--depth", "2", "--batch", "256", "--encoding", "identity", "-q"]
    options += ["--dropout", "0.1"]
    arguments = ["fit", photo, "-o", tmp_path / "out", "--backend", backend, *options]
    fails(capsys, [*arguments, "--lr", "1e30"], 1, "training diverged", "from step 1 on", "smaller --lr than 1e+30")
    assert not list((tmp_path / "out").iterdir())
    assert cli.main([str(a) for a in arguments]) == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    fails(capsys, [*arguments, "--lr", "1e30", "--force"], 1, "training diverged")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


def test_warnings_are_a_line_each(photo, tmp_path, monkeypatch, capsys):
    def fit_image(*arguments, **options):
        warnings.warn("half of\nit", RuntimeWarning, stacklevel=2)
        for none_of_the_user_s in (ResourceWarning, DeprecationWarning):
            warnings.warn("a file was left open", none_of_the_user_s, stacklevel=2)
        result = cn.FitResult(1, [0.5])
        return images.ImageFit(None, result, 20.0, None, {"field": tmp_path / "x"})

    monkeypatch.setattr(images, "fit_image", fit_image)
    assert cli.main(["fit", str(photo), "-o", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err == "coopnet: warning: half of it\n"
    assert "1 steps in 0.0 s, final loss 0.5\n" in said.out and "PSNR on training pixels: 20.00 dB\n" in said.out
    assert "none were held out" in said.out and f"wrote {tmp_path / 'x'}" in said.out


def test_pictures_that_are_not_finite_are_refused(tmp_path, backend, capsys):
    name = "layers.0.weights"
    broken = cn.NeuralField(None, cn.MLP(2, 3, width=8, depth=1, activation="tanh")).build(backend)
    broken.set_matrix(name, np.full(broken.matrix(name).shape, np.nan))
    cn.save(tmp_path / "nan.safetensors", broken)
    arguments = [
        "render",
        tmp_path / "nan.safetensors",
        "-o",
        tmp_path / "x.png",
        "--size",
        "4x3",
        "--backend",
        backend,
    ]
    fails(capsys, arguments, 1, "nan.safetensors", "36 of 36 values that are not finite")
    assert not (tmp_path / "x.png").exists()


def test_psnr():
    a, b = np.zeros((4, 4, 1)), np.full((4, 4, 1), 0.1)
    assert images.psnr(a, b) == pytest.approx(20)
    assert images.psnr(a - 5, b) == pytest.approx(20) and images.psnr(b, a + 2) == pytest.approx(-20 * np.log10(1.9))
    assert images.psnr(a, a) == np.inf
    for bad in (np.where(np.arange(16).reshape(4, 4, 1) == 3, np.nan, a), a * np.nan):
        assert np.isnan(images.psnr(bad, b))


def test_names_are_printed_as_they_are(tmp_path, capsys, backend):
    fails(capsys, ["fit", tmp_path / "two  spaces.png", "-o", tmp_path / "out"], 1, "two  spaces.png")


def test_a_region_that_is_none(photo, fitted, tmp_path, backend):
    """Metadata of other programs, such as an empty region, count as none."""
    from coopnet.commands.render import learned_region

    for region in ([0, 0, 0, 0], [0, 0, 1, -1], [0, 0, 1, float("inf")], "whole"):
        assert learned_region({"region": region}) is None
        assert learned_region({"region": region, "width": 24, "height": 16}) is not None


def test_a_name_like_an_option_in_the_command_that_goes_on(photo, tmp_path, monkeypatch, capsys, backend):
    monkeypatch.chdir(tmp_path)
    shutil.copy(photo, tmp_path / "-x.png")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "field.safetensors").touch()
    found = images.ImageFit(
        None, cn.FitResult(steps=4, stopped="interrupt"), files={"field": Path("out/field.safetensors")}
    )
    monkeypatch.setattr(images, "fit_image", lambda *a, **options: found)
    assert cli.main(["fit", "-o", "out", "-q", "--resume", "--", "-x.png"]) == 130
    assert "coopnet fit ./-x.png -o out" in capsys.readouterr().out
