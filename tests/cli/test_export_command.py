"""``coopnet export``: checkpoints as source code."""

import ctypes
import json
import subprocess

import numpy as np
import pytest
from support.command_line import fails
from support.pages import page_data

import coopnet as cn

pytest.importorskip("typer")
pytest.importorskip("safetensors")

from coopnet import cli


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "sdf.safetensors"
    net = cn.MLP(out_features=1, width=16, depth=2, activation="softplus", dropout=0.1)
    cn.save(path, cn.NeuralField(cn.Frequency(4, in_features=3), net).build("llvm", "half", seed=3))
    return path


@pytest.mark.parametrize("target", ["slang", "slang-coopvec", "glsl", "wgsl", "c", "numpy"])
def test_every_language(checkpoint, tmp_path, target, capsys):
    arguments = ["--to", target, "--name", "sdf", "--derivatives", "--no-inline"]
    assert cli.main(["export", str(checkpoint), "-o", str(tmp_path / "new"), *arguments]) == 0
    said = capsys.readouterr().out
    stem = "sdf_coopvec" if target == "slang-coopvec" else "sdf"  # whose weights would replace another target's
    files = sorted(tmp_path.rglob(f"{stem}.*"))
    assert len(files) == 2 and all(str(path) in said for path in files)
    source = next(path for path in files if path.suffix != ".weights").read_text()
    assert "sdf_jacobian" in source and "weights in half precision" in source


def test_the_program_gives_the_field(checkpoint, tmp_path):
    assert cli.main(["export", str(checkpoint), "-o", str(tmp_path), "--to", "c", "--inline"]) == 0
    source, library = tmp_path / "field.c", tmp_path / "field.so"
    assert [p.name for p in tmp_path.iterdir()] == ["field.c"]
    subprocess.run(["cc", "-O2", "-std=c99", "-shared", "-fPIC", source, "-o", library, "-lm"], check=True)
    x, y = np.array([0.1, 0.2, 0.7], np.float32), np.zeros(1, np.float32)
    ctypes.CDLL(str(library)).field(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data))
    field = cn.load(checkpoint, "llvm", "single")
    single = cn.backend.namespace("llvm").Float
    assert abs(y[0] - field([single(v) for v in x])[0][0]) < 1e-5


def test_web_pages(checkpoint, tmp_path, capsys):
    more = ["--title", "A </script>", "--view", "40,-10", "--up", "z", "--smooth", "--region", "0,0,0,1,2,1"]
    assert cli.main(["export", str(checkpoint), "-o", str(tmp_path), "--to", "html", *more]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["field.html"] and "field.html" in capsys.readouterr().out
    data = page_data(tmp_path / "field.html")
    seen = {name: data[name] for name in ("title", "view", "angles", "up", "smooth", "region")}
    region = [0, 0, 0, 1, 2, 1]
    assert seen == dict(title="A </script>", view="surface", angles=[40, -10], up="z", smooth=True, region=region)


def test_web_pages_of_images_show_what_was_learned(tmp_path):
    field = cn.NeuralField(None, cn.MLP(2, 3, width=16, depth=1, dropout=0.1)).build("llvm")
    cn.save(tmp_path / "photo.safetensors", field, metadata={"image": {"width": 300, "height": 150}})
    assert cli.main(["export", str(tmp_path / "photo.safetensors"), "-o", str(tmp_path), "--to", "html"]) == 0
    data = page_data(tmp_path / "field.html")
    assert (data["title"], data["view"], data["region"]) == ("photo", "image", [0.25, 0.375, 0.5, 0.25])
    assert data["samples"] == 32  # dropout masks


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--to", "html", "--dropout"], 2, "--dropout: not for web pages"),
        (["--to", "html", "--no-inline"], 2, "--no-inline: not for web pages"),
        (["--to", "c", "--title", "t"], 2, "--title is for web pages"),
        (["--to", "c", "--smooth"], 2, "--smooth is for web pages"),
        (["--to", "c", "--grids", "uint8"], 2, "grids is 'uint8', but the field has no grids"),
        (["--to", "slang-coopvec", "--inline"], 2, "reads weights from a buffer"),
        (["--to", "html", "--name", "../b"], 2, "name is '../b'"),
        (["--to", "html", "--region", "1,a"], 2, "'1,a'; numbers with commas"),
        (["--to", "html", "--region", "0,0,0,0,1,1"], 2, "region"),
        (["--to", "html", "--region", "0,0,1,1"], 2, "region of view has 4 numbers; 6 numbers are needed"),
        (["--to", "hlsl"], 2, "'hlsl' is not one of"),
        (["--to", "c", "--name", "a b"], 2, "name is 'a b'"),
        (["--to", "slang-coopvec", "--precision", "single"], 2, "cooperative vectors have half precision"),
    ],
)
def test_what_cannot_be(checkpoint, tmp_path, more, code, said, capsys):
    fails(capsys, ["export", checkpoint, "-o", tmp_path / "out", *more], code, said)
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--to", "html", "--up", "y"], "--up: only for surfaces, but"),  # though y is what it is anyway
        (["--to", "html", "--view", "1,2", "--smooth"], "--view and --smooth: only for surfaces, but"),
        (["--to", "html", "--region", "0,0,0,1,1,1"], "region of view has 6 numbers; 4 numbers are needed"),
        (["--to", "c", "--dropout"], "dropout is True, but the field has no dropout"),
    ],
)
def test_what_means_nothing_for_an_image(tmp_path, more, said, capsys):
    field = cn.NeuralField(None, cn.MLP(2, 3, width=8, depth=1)).build("llvm")
    cn.save(tmp_path / "photo.safetensors", field)
    fails(capsys, ["export", tmp_path / "photo.safetensors", "-o", tmp_path / "out", *more], 2, said)
    assert [p.name for p in tmp_path.iterdir()] == ["photo.safetensors"]


def test_large_weights_in_the_source_are_warned_of(tmp_path, capsys):
    field = cn.NeuralField(None, cn.MLP(2, 3, width=528, depth=2)).build("llvm")
    cn.save(tmp_path / "wide.safetensors", field)
    arguments = ["export", str(tmp_path / "wide.safetensors"), "-o", str(tmp_path), "--to", "glsl"]
    assert cli.main(arguments) == 0 and not capsys.readouterr().err
    assert cli.main([*arguments, "--inline"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("coopnet: warning: export: inline puts 11") and "leave inline out" in line


def test_info_prints_the_hash_that_sources_name(checkpoint, tmp_path, capsys):
    assert cli.main(["info", str(checkpoint)]) == 0
    facts, _, table = capsys.readouterr().out.partition("\n\n")
    rows = dict(line.split(None, 1) for line in facts.splitlines())
    assert table.splitlines()[0].split() == ["layer", "type", "shapes", "parameters", "bytes"]
    assert table.splitlines()[-1].split()[1] == f"{int(rows['parameters']):,}"
    assert (rows["coordinates"], rows["precision"], rows["dropout"]) == ("3", "half", "yes")
    assert cli.main(["info", str(checkpoint), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sha256"] == rows["sha256"] and found["parameters"] == int(rows["parameters"])
    assert sum(layer["parameters"] for layer in found["layers"]) == found["parameters"]
    assert found["versions"]["coopnet"] == cn.__version__ and found["metadata"] == {}
    for target in ("c", "wgsl"):
        for precision in ("half", "single"):
            arguments = ["-o", str(tmp_path), "--to", target, "--precision", precision]
            assert cli.main(["export", str(checkpoint), *arguments]) == 0
            assert f"Field {rows['sha256'][:32]} (" in (tmp_path / f"field.{target}").read_text()
    fails(capsys, ["info", tmp_path / "none.safetensors"], 1, "none.safetensors")
