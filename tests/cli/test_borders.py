"""Where the command line meets the system: buffered output, directories in the way, files that are something else."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from support.machines import environment

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("PIL")
pytest.importorskip("safetensors")

import coopnet
from coopnet.cli import main

ENVIRONMENT = environment(PYTHONUNBUFFERED=None)
COMMAND = [sys.executable, "-m", "coopnet"]


@pytest.fixture
def picture(tmp_path):
    from coopnet.image import files

    path = tmp_path / "picture.png"
    files.save(path, np.linspace(0, 1, 8 * 8 * 3).reshape(8, 8, 3))
    return path


def failed(capsys, *words):
    """The error in one line."""
    assert main([str(word) for word in words]) == 1
    said = capsys.readouterr().err
    assert said.startswith("coopnet: error: ") and said.count("\n") == 1
    return said


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"coopnet {coopnet.__version__}\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_of_buffered_output():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (1, "coopnet: error: No space left on device\n")


def test_buffered_output_that_nobody_reads():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, "--help"], stdout=write, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_nothing_to_resume_leaves_no_directory(picture, tmp_path, capsys):
    said = failed(capsys, "fit", picture, "-o", tmp_path / "new", "--resume")
    assert "to resume from; run without --resume first" in said and not (tmp_path / "new").exists()


def test_an_empty_folder_is_a_variable_that_was_not_set(picture, capsys):
    assert main(["fit", str(picture), "-o", ""]) == 2
    assert "--output" in (said := capsys.readouterr().err) and "the name is empty" in said


def test_the_share_of_pixels_is_that_of_whole_pixels(picture, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(coopnet.image, "fit_image", lambda *arguments, **options: 1 / 0)
    for share, said in (("1e-9", "1.56 %"), ("1", "100 %")):
        with pytest.raises(ZeroDivisionError):
            main(["fit", str(picture), "-o", str(tmp_path / "out"), "--pixels", share])
        assert f"8 x 8 pixels, RGB; training on {said} of them" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["comparison.png", "field.safetensors"])
def test_directories_in_the_way_are_found_before_the_training(picture, tmp_path, capsys, name):
    (tmp_path / "out" / name).mkdir(parents=True)
    said = failed(capsys, "fit", picture, "-o", tmp_path / "out")
    assert f"{name}' is a directory; move it" in said and os.listdir(tmp_path / "out") == [name]


@pytest.mark.parametrize("package", ["safetensors"])
def test_a_missing_package_leaves_no_directory(picture, tmp_path, capsys, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    said = failed(capsys, "fit", picture, "-o", tmp_path / "new")
    assert "pip install safetensors, or coopnet[train]" in said and not (tmp_path / "new").exists()


def test_parameters_that_are_python_objects(tmp_path, capsys):
    config, numbers = tmp_path / "c.json", tmp_path / "p.npy"
    config.write_text('{"network": {"otype": "FullyFusedMLP", "n_neurons": 16, "n_hidden_layers": 1}}')
    np.save(numbers, np.array([{}], object))
    words = ("convert", config, "-o", tmp_path / "f.safetensors", "--inputs", 2, "--outputs", 1, "--params", numbers)
    assert "is not a .npy file of numbers" in failed(capsys, *words)
    assert not (tmp_path / "f.safetensors").exists()


@pytest.mark.parametrize("name, says", [
    ("text.obj", "has no triangles, or is not a valid OBJ file; a surface of triangles or polygons is needed"),
    ("text.ply", "is not a valid PLY mesh; export it again"),
    ("text.json", "for a configuration, use coopnet convert"),
    ("text.off", "is not an image that Pillow can read; meshes are those with the suffix of OBJ, PLY, STL"),
])  # fmt: skip
def test_what_is_no_mesh(tmp_path, capsys, name, says):
    pytest.importorskip("trimesh")
    (tmp_path / name).write_text("ply\nhello\n")
    assert says in failed(capsys, "fit", tmp_path / name, "-o", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_distances_in_parts_are_those_of_the_whole(monkeypatch, tmp_path):
    trimesh, igl = pytest.importorskip("trimesh"), pytest.importorskip("igl")
    from coopnet import mesh
    from coopnet.mesh import distances

    trimesh.creation.box().export(tmp_path / "box.ply")
    box, points = mesh.load(tmp_path / "box.ply"), np.random.default_rng(0).random((50, 3)).astype(np.float32)
    whole = distances.signed_distances(igl, box, points)
    monkeypatch.setattr(distances, "CHUNK", 7)
    np.testing.assert_array_equal(distances.signed_distances(igl, box, points), whole)
