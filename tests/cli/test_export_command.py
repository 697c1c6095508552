"""``coopnet export``: checkpoints as source code."""

import ctypes
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
        (["--to", "c", "--title", "t"], 2, "--title is for web pages"),
        (["--to", "html", "--region", "1,a"], 2, "'1,a'; numbers with commas"),
        (["--to", "html", "--region", "0,0,1,1"], 1, "region of view has 4 numbers; 6 numbers are needed"),
        (["--to", "hlsl"], 2, "'hlsl' is not one of"),
        (["--to", "c", "--name", "a b"], 1, "name is 'a b'"),
        (["--to", "slang-coopvec", "--precision", "single"], 1, "cooperative vectors have half precision"),
    ],
)
def test_what_cannot_be(checkpoint, tmp_path, more, code, said, capsys):
    fails(capsys, ["export", checkpoint, "-o", tmp_path / "out", *more], code, said)
    assert not list(tmp_path.rglob("*.*"))
