"""``coopnet uncertainty``: the map of what a checkpoint is unsure of."""

import sys

import numpy as np
import pytest
from support.command_line import fails

pytest.importorskip("typer")
pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")
pytest.importorskip("safetensors")

from PIL import Image

import coopnet as cn
from coopnet import cli
from coopnet import image as images
from coopnet.image.evaluate import box

METADATA = {"image": {"width": 12, "height": 8}}


def built(backend, seed=0, dropout=0.0, outputs=3, inputs=2):
    network = cn.MLP(inputs, outputs, width=16, depth=1, dropout=dropout, activation="sine")
    return cn.NeuralField(None, network).build(backend, seed=seed)


def batch_of(ns):
    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 256)
        return [x, y], [x, y, x * y]

    return batch


def made(kind, backend, ns):
    if kind == "dropout":
        return built(backend, dropout=0.2)
    if kind == "ensemble":
        return cn.ensemble([built(backend, seed) for seed in range(3)])
    return cn.laplace(built(backend), batch_of(ns), steps=2)


@pytest.fixture
def plotted(monkeypatch):
    """What was to be plotted, in place of figures."""
    arguments = []
    monkeypatch.setattr("coopnet.image.plots.uncertainty", lambda *given: arguments.append(given))
    return arguments


@pytest.mark.parametrize("kind", ["dropout", "ensemble", "laplace"])
def test_deviation_of_the_field(kind, tmp_path, backend, ns, plotted, capsys):
    """The map is that of ``mc_dropout`` or of ``std``, over the learned image, and its mean and maximum are said."""
    path = tmp_path / "some.safetensors"
    cn.save(path, made(kind, backend, ns), metadata=METADATA)
    assert cli.main(["uncertainty", str(path), "--mc-samples", "5", "--seed", "3", "--backend", backend]) == 0
    (target, deviation, samples) = plotted[0]
    assert target == tmp_path / "some_uncertainty.png" and deviation.shape == (8, 12, 3)
    field = cn.load(path, backend)
    if kind == "dropout":
        expected = images.render_mc(field, 12, 8, 5, 3, box(12, 8))[1]
    else:
        y, x = np.divmod(np.arange(96), 12)
        at = [ns.Float(0.25 + 0.5 * (x + 0.5) / 12), ns.Float(0.5 + (y + 0.5 - 4) / 24)]
        expected = np.stack([np.array(v) for v in field.std(at)], axis=-1).reshape(8, 12, 3)
    assert samples == (5 if kind == "dropout" else None)
    np.testing.assert_allclose(deviation, expected, rtol=1e-3, atol=1e-5)
    assert deviation.min() >= 0 and deviation.max() > 1e-4
    said = capsys.readouterr().out
    assert f"standard deviation: mean {deviation.mean():.4f}, max {deviation.max():.4f}\n" in said
    assert f"wrote {target}\n" in said


def test_picture(tmp_path, backend, capsys):
    """A PNG beside the checkpoint, which is replaced with --force only."""
    path = tmp_path / "some.safetensors"
    cn.save(path, built(backend, dropout=0.2, outputs=1))
    arguments = ["uncertainty", str(path), "--mc-samples", "2", "--size", "9x5", "--backend", backend]
    assert cli.main(arguments) == 0
    target = tmp_path / "some_uncertainty.png"
    assert Image.open(target).format == "PNG" and {p.name for p in tmp_path.iterdir()} == {path.name, target.name}
    target.write_bytes(b"mine")
    fails(capsys, arguments, 1, target, "is there already", "--force")
    assert target.read_bytes() == b"mine"
    assert cli.main([*arguments, "--force"]) == 0 and Image.open(target).format == "PNG"
    assert cli.main([*arguments, "-o", str(tmp_path / "sub" / "map.png")]) == 0
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["map.png"]


def test_size(tmp_path, backend, plotted):
    path = tmp_path / "some.safetensors"
    for noted, options, shape in (
        (METADATA, [], (8, 12, 3)), (METADATA, ["--size", "7x5"], (5, 7, 3)), ({}, [], (256, 256, 3)),
        ({"image": {"width": "wide", "height": 8}}, [], (256, 256, 3)),
    ):  # fmt: skip
        cn.save(path, built(backend, dropout=0.2), metadata=noted)
        assert cli.main(["uncertainty", str(path), "--mc-samples", "2", "--backend", backend, *options]) == 0
        assert plotted[-1][1].shape == shape


def test_method(tmp_path, backend, plotted):
    """An ensemble of fields with dropout has both; ``auto`` takes the deviation without draws."""
    path = tmp_path / "both.safetensors"
    cn.save(path, cn.ensemble([built(backend, seed, dropout=0.2) for seed in range(2)]), metadata=METADATA)
    for method, samples in (("auto", None), ("std", None), ("dropout", 4)):
        arguments = ["uncertainty", str(path), "--method", method, "--mc-samples", "4", "--backend", backend]
        assert cli.main(arguments) == 0
        assert plotted[-1][2] == samples


def test_grids_and_masks(tmp_path, backend, plotted, capsys, monkeypatch):
    """That masks say little about a grid is said in one line."""
    monkeypatch.setattr(sys.modules["coopnet.uncertainty.mc_dropout"], "_warned", False)
    grid = cn.HashGrid(2, n_levels=2, hashmap_size=64)
    field = cn.NeuralField(grid, cn.MLP(out_features=3, width=16, depth=1, dropout=0.2)).build(backend)
    cn.save(tmp_path / "some.safetensors", field, metadata=METADATA)
    assert cli.main(["uncertainty", str(tmp_path / "some.safetensors"), "--backend", backend]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("coopnet: warning: ") and "laplace" in line


def test_errors(tmp_path, backend, ns, capsys):
    dry, end = tmp_path / "dry.safetensors", ["--backend", backend]
    cn.save(dry, built(backend))
    fails(capsys, ["uncertainty", dry, *end], 2, dry, "cn.laplace", "cn.ensemble", "--dropout")
    fails(capsys, ["uncertainty", dry, *end, "--method", "std"], 2, dry, "--method std", "cn.laplace")
    wet = tmp_path / "wet.safetensors"
    cn.save(wet, built(backend, dropout=0.2))
    fails(capsys, ["uncertainty", wet, *end, "--method", "std"], 2, wet, "--method std", "cn.ensemble")
    members = tmp_path / "members.safetensors"
    cn.save(members, made("ensemble", backend, ns))
    fails(capsys, ["uncertainty", members, *end, "--method", "dropout"], 2, members, "--method dropout", "--dropout")
    fails(capsys, ["uncertainty", wet, *end, "-o", tmp_path / "x.jpg"], 2, "x.jpg", ".png")
    fails(capsys, ["uncertainty", wet, *end, "--mc-samples", 1], 2, "--mc-samples")
    fails(capsys, ["uncertainty", wet, *end, "--method", "guess"], 2, "--method")
    fails(capsys, ["uncertainty", tmp_path / "none.safetensors", *end], 1, "none.safetensors")
    (tmp_path / "wet_uncertainty.png").mkdir()
    fails(capsys, ["uncertainty", wet, *end], 1, "is a directory")
    cn.save(tmp_path / "solid.safetensors", built(backend, inputs=3, dropout=0.2))
    fails(capsys, ["uncertainty", tmp_path / "solid.safetensors", *end], 1, "not the field of an image")
    broken = built(backend, dropout=0.2)
    broken.set_matrix("layers.0.weights", np.full(broken.matrix("layers.0.weights").shape, np.nan))
    cn.save(tmp_path / "nan.safetensors", broken)
    fails(capsys, ["uncertainty", tmp_path / "nan.safetensors", *end, "--size", "4x3"], 1, "36 of 36 values")
    assert not [p for p in tmp_path.iterdir() if p.is_file() and p.suffix == ".png"]
