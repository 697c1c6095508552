"""The command line: what it makes, and that it fails in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("safetensors")
Image = pytest.importorskip("PIL.Image")

from coopnet import cli  # noqa: E402
from coopnet import image as images  # noqa: E402
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


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, backend):
    """A small result of ``coopnet fit``."""
    root = tmp_path_factory.mktemp("fitted")
    Image.fromarray(picture()).save(root / "photo.png")
    assert cli.main(["fit", str(root / "photo.png"), "-o", str(root / "out"), "--backend", backend, *SMALL]) == 0
    return root / "out"


def fails(capsys, arguments, code, *words):
    """The command must end with ``code`` and one line on standard error that holds ``words``."""
    capsys.readouterr()
    assert cli.main([str(a) for a in arguments]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("coopnet: error: ")
    for word in words:
        assert str(word) in lines[0], lines[0]


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


@pytest.mark.parametrize("encoding", ["triangular", "hashgrid", "identity"])
def test_encodings_learn(encoding, backend, tmp_path):
    image = picture().astype(np.float32) / 255
    options = dict(steps=150, width=16, depth=1, encoding=encoding, batch=256, lr=2e-2, dropout=0.0)
    result = images.fit_image(image, tmp_path, backend=backend, fraction=0.5, progress=False, **options)
    assert result.psnr_held_out > 15
    assert result.training.losses[-1] < 0.2 * result.training.losses[0]


def test_grey_image(tmp_path, backend):
    Image.fromarray(picture(channels=1)[..., 0]).save(tmp_path / "grey.png")
    assert cli.main(["fit", str(tmp_path / "grey.png"), "-o", str(tmp_path), "--backend", backend, *SMALL]) == 0
    assert Image.open(tmp_path / "reconstruction.png").mode == "L"


def test_resume(photo, tmp_path, backend, capsys, monkeypatch):
    options = [str(photo), "--backend", backend, *SMALL[2:], "--steps", "30"]
    assert cli.main(["fit", *options, "-o", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:  # the first part of a run of 30 steps, as its learning rate shows
        patch.setattr(images.learn, "fit", lambda field, batch, steps, **more: cn.fit(field, batch, 12, **more))
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
    options = options[:-2]
    out = ["-o", tmp_path / "parts", "--resume"]
    fails(capsys, ["fit", *options, *out, "--steps", 30, "--pixels", "0.5"], 1, "cannot resume", "fraction")
    fails(capsys, ["fit", *options, *out, "--steps", 30, "--seed", "5"], 1, "cannot resume", "seed")
    Image.fromarray(picture()[::-1].copy()).save(photo)
    fails(capsys, ["fit", *options, *out, "--steps", 30], 1, "another image")
    fails(capsys, ["fit", *options, "-o", tmp_path / "new", "--resume", "--steps", 30], 1, "to resume from")


@pytest.mark.parametrize("size", ["24x16", "7x5", "1x1", "100x3"])
def test_render_sizes(fitted, tmp_path, size, backend):
    target = tmp_path / "sub" / "picture.png"
    checkpoint = str(fitted / "field.safetensors")
    assert cli.main(["render", checkpoint, "-o", str(target), "--size", size, "--backend", backend]) == 0
    assert "{}x{}".format(*Image.open(target).size) == size
    if size == "24x16":
        np.testing.assert_array_equal(Image.open(target), Image.open(fitted / "reconstruction.png"))


def test_render_uncertainty(fitted, tmp_path, backend):
    arguments = ["render", str(fitted / "field.safetensors"), "--size", "12x8", "--backend", backend]
    arguments += ["--mc-samples", "8", "-o"]
    assert cli.main([*arguments, str(tmp_path / "mean.png")]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"mean.png", "uncertainty.png"}
    assert cli.main([*arguments, str(tmp_path / "uncertainty.png")]) == 0
    assert (tmp_path / "uncertainty_uncertainty.png").exists()
    assert Image.open(tmp_path / "uncertainty.png").size == (12, 8)


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


def test_info(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "Dr.Jit" in out and "kernel cache" in out


def test_help_and_module(capsys):
    assert cli.main([]) == 0
    assert "render" in capsys.readouterr().out
    done = subprocess.run([sys.executable, "-m", "coopnet", "fit", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--dropout" in done.stdout


# ---- images -------------------------------------------------------------


def test_choice_of_pixels_is_portable(backend):
    """The numbers are those of the generator evaluated by NumPy."""
    words = cn.philox4x32(
        (0, np.arange(1000, dtype=np.uint32), 0, 2**31 + images.learn.SELECTION_STREAM), (77, 0), rounds=10
    )
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
    "size", ["0x5", "axb", "-1x2", "5", "5x", "1e3x2", "3x4x5", "", "100000x100000", "9" * 30 + "x1"]
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
    fails(capsys, ["fit", photo], 2, "--output")
    fails(capsys, ["fit"], 2, "IMAGE")
    fails(capsys, ["paint"], 2, "paint")


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
        fails(capsys, ["render", tmp_path / "other.safetensors", *end], 1, "not the field of an image")
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
    arguments = [sys.executable, "-c", code, "fit", str(photo), "-o", str(tmp_path / "out"), *SMALL]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("coopnet: error: "), lines
    assert "coopnet[cli]" in lines[0]


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_interrupt_keeps_a_checkpoint(photo, tmp_path, backend):
    out: Path = tmp_path / "out"
    options = ["--steps", "1000000", "--backend", backend, *SMALL[2:]]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "coopnet", "fit", str(photo), "-o", str(out), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert "training on" in process.stdout.readline()
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "--resume" in said and not errors
    steps = len(cn.io.read(out / "field.safetensors").tensors["train.losses"])
    assert f"after step {steps} of" in said
