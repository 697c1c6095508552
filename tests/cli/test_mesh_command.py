"""Surfaces of fields as meshes: ``coopnet.mesh.extract``, ``coopnet.mesh.save`` and ``coopnet mesh``."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.command_line import fails

import coopnet as cn

pytest.importorskip("typer")
pytest.importorskip("safetensors")
trimesh = pytest.importorskip("trimesh")
igl = pytest.importorskip("igl")

from coopnet import cli, mesh  # noqa: E402
from coopnet.mesh import triangles  # noqa: E402

RADIUS = 0.3


def octahedron(backend, bounds=None):
    """A field of |x - 1/2| + |y - 1/2| + |z - 1/2| - 0.3, which a network of ReLUs has exactly."""
    layers = cn.Linear(3, 6, bias=True), cn.ReLU(), cn.Linear(6, 1, bias=True)
    field = cn.NeuralField(None, cn.Sequential(*layers), bounds=bounds).build(backend, "single")
    axes = np.eye(3, dtype=np.float32)
    field.set_matrix("network.layers.0.weights", np.concatenate([axes, -axes]))
    field.set_matrix("network.layers.0.bias", np.repeat(np.float32([-0.5, 0.5]), 3))
    field.set_matrix("network.layers.2.weights", np.ones((1, 6), np.float32))
    field.set_matrix("network.layers.2.bias", np.float32([-RADIUS]))
    return field


def distance(points):
    return np.abs(points - 0.5).sum(axis=-1) - RADIUS


def as_set(found):
    """The triangles as a set, each from its smallest corner on."""
    corners = np.round(found.vertices, 6)[found.faces]
    first = [min(range(3), key=lambda i: tuple(t[i])) for t in corners]
    return {tuple(map(tuple, np.roll(t, -i, axis=0))) for t, i in zip(corners, first, strict=True)}


def test_an_octahedron(backend):
    found = mesh.extract(octahedron(backend), 32)
    whole = trimesh.Trimesh(found.vertices, found.faces, process=False)
    assert found.watertight and whole.is_winding_consistent
    assert whole.volume == pytest.approx(4 / 3 * RADIUS**3, rel=0.02)  # positive: triangles point outwards
    assert np.abs(distance(found.vertices)).max() < 1 / 32
    np.testing.assert_allclose(whole.bounds, [[0.2] * 3, [0.8] * 3], atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 500])
def test_as_libigl_finds_it_in_the_whole_grid(backend, monkeypatch, chunk):
    """Also in blocks of one plane, or two of 13: neighboring blocks share their corners."""
    monkeypatch.setattr(triangles, "CHUNK", chunk)
    region = (0.1, 0.15, 0.15, 0.9, 0.85, 0.9)  # 16, 14 and 15 cells
    found = mesh.extract(octahedron(backend), 16, region=region, level=0.01)
    axes = [np.linspace(region[i], region[i + 3], n + 1) for i, n in enumerate((16, 14, 15))]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).transpose(2, 1, 0, 3).reshape(-1, 3)
    vertices, faces, _ = igl.marching_cubes(distance(points), points, 17, 15, 16, 0.01)
    expected = mesh.Mesh(vertices, faces, True, (0.5, 0.5, 0.5), 1.0)
    assert len(found.vertices) == len(vertices) and found.watertight
    shared = as_set(found) & as_set(expected)
    assert len(shared) > 0.95 * len(faces) == 0.95 * len(found.faces)  # others differ by rounding


@pytest.mark.parametrize("resolution", [10, 20, 40])
def test_corners_on_the_surface(backend, resolution):
    """Values at corners of cells that are exactly the level, at the tips and in the faces."""
    found = mesh.extract(octahedron(backend), resolution, region=(0, 0, 0, 1, 1, 1), level=-0.05)
    whole = trimesh.Trimesh(found.vertices, found.faces, process=False)
    assert found.watertight and whole.volume == pytest.approx(4 / 3 * 0.25**3, rel=0.1)
    plane = octahedron(backend)
    plane.set_matrix("network.layers.2.weights", np.float32([[1, 0, 0, -1, 0, 0]]))
    plane.set_matrix("network.layers.2.bias", np.float32([0]))  # x - 1/2
    found = mesh.extract(plane, resolution)
    assert trimesh.Trimesh(found.vertices, found.faces).area == pytest.approx(1, rel=1e-5)


def test_small_coordinates_are_kept(tmp_path):
    vertices = 1e-9 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0.123456789]])
    mesh.save(tmp_path / "a.obj", mesh.Mesh(vertices + 0.5, np.array([[0, 1, 2]]), False, (0.0, 0.0, 0.0), 1.0))
    lines = (tmp_path / "a.obj").read_text().splitlines()
    written = [list(map(float, line.split()[1:4])) for line in lines if line.startswith("v ")]
    np.testing.assert_allclose(written, vertices, rtol=1e-6, atol=1e-16)


def test_long_names_in_errors():
    triangle = mesh.Mesh(np.eye(3), np.array([[0, 1, 2]]), False, (0.0, 0.0, 0.0), 1.0)
    for call in (lambda path: mesh.save(path, triangle), mesh.load):
        with pytest.raises((ValueError, OSError)) as error:
            call("a" * 200 + "/" + "b" * 200)
        assert len(str(error.value)) < 400


def test_a_box_that_cuts_it_leaves_a_hole(backend):
    bounds = ((0, 0, 0), (1, 1, 0.5))
    found = mesh.extract(octahedron(backend), 16, region=(0, 0, 0, 1, 1, 0.5))
    assert not found.watertight and found.vertices[:, 2].max() == pytest.approx(0.5)
    of_bounds = mesh.extract(octahedron(backend, bounds), 8)  # its coordinates are mapped: z is twice as fine
    assert of_bounds.vertices.max(axis=0) == pytest.approx([0.8, 0.8, 0.4], abs=1e-3)


def test_coordinates_of_the_learned_file(backend, tmp_path):
    learned = mesh.Mesh(np.zeros((3, 3)), np.array([[0, 1, 2]]), False, (5.0, -2.0, 1.0), 10.0)
    found = mesh.extract(octahedron(backend), 16, like=learned)
    for suffix in (".ply", ".obj", ".stl", ".PLY"):
        mesh.save(tmp_path / f"a{suffix}", found)
        bounds = trimesh.load(tmp_path / f"a{suffix}", file_type=suffix[1:].lower()).bounds
        np.testing.assert_allclose(bounds, [[2, -5, -2], [8, 1, 4]], atol=0.02)
    again = mesh.load(tmp_path / "a.obj")
    mesh.save(tmp_path / "b.obj", again)
    np.testing.assert_allclose(trimesh.load(tmp_path / "b.obj").bounds, [[2, -5, -2], [8, 1, 4]], atol=0.02)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.PLY", "a.obj", "a.ply", "a.stl", "b.obj"]


def test_the_command(backend, tmp_path, capsys):
    cn.save(tmp_path / "f.safetensors", octahedron(backend), metadata={"mesh": {"centre": [1, 1, 1], "scale": 2.0}})
    out = tmp_path / "made" / "a.ply"
    arguments = ["mesh", str(tmp_path / "f.safetensors"), "-o", str(out), "--backend", backend]
    assert cli.main([*arguments, "--resolution", "16", "--region", "0,0,0,1,1,1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"wrote {out} (") and said.endswith(", watertight)\n")
    np.testing.assert_allclose(trimesh.load(out).bounds, [[0.4] * 3, [1.6] * 3], atol=0.01)
    fails(capsys, arguments, 1, "there already", "--force")
    assert cli.main([*arguments, "--resolution", "8", "--force"]) == 0
    fails(capsys, [*arguments, "--force", "--level", "nan"], 2, "--level", "finite")
    fails(capsys, [*arguments, "--force", "--level", "7"], 1, "f.safetensors", "level 7")
    fails(capsys, [*arguments[:3], "x.gltf"], 2, "x.gltf", ".ply, .obj, .stl")
    fails(capsys, [*arguments, "--force", "--region", "0,0,1,1"], 2, "region", "six numbers")
    fails(capsys, [*arguments, "--force", "--resolution", "1"], 2, "--resolution")
    flat = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend)
    cn.save(tmp_path / "flat.safetensors", flat)
    fails(capsys, ["mesh", tmp_path / "flat.safetensors", "-o", tmp_path / "x.ply"], 1, "not the field of a surface")


@pytest.mark.parametrize("noted", [
    "text", {}, {"centre": [1, 2], "scale": 1}, {"centre": [1, 2, "x"], "scale": 1}, {"centre": [1, 2, 3], "scale": -1},
])  # fmt: skip
def test_metadata_of_others(backend, tmp_path, noted):
    """Whatever else is called ``mesh`` in a checkpoint is not a place."""
    cn.save(tmp_path / "f.safetensors", octahedron(backend), metadata={"mesh": json.loads(json.dumps(noted))})
    arguments = [str(tmp_path / "f.safetensors"), "-o", str(tmp_path / "a.ply"), "--backend", backend]
    assert cli.main(["mesh", *arguments, "--resolution", "8"]) == 0
    np.testing.assert_allclose(trimesh.load(tmp_path / "a.ply").bounds, [[0.2] * 3, [0.8] * 3], atol=0.01)


@pytest.mark.parametrize("change, words", [
    (dict(field=3), "field is a int"), (dict(resolution=1), "resolution is 1"), (dict(level="x"), "level is 'x'"),
    (dict(level=float("nan")), "level is nan"), (dict(region=(0, 0, 1, 1)), "region is"),
    (dict(like=3), "like is a int"),
    (dict(level=9), "the field's values in the box go from -0.3 to 1.2, and none of its cells has the level 9"),
])  # fmt: skip
def test_bad_arguments_of_extract(change, words, backend):
    with pytest.raises((TypeError, ValueError), match=f"^mesh.extract: {words}"):
        mesh.extract(**(dict(field=octahedron(backend), resolution=4) | change))


def test_values_that_are_not_finite(backend):
    field = octahedron(backend)
    field.set_matrix("network.layers.2.bias", np.float32([np.nan]))
    with pytest.raises(ValueError, match=r"^mesh.extract: .*not finite"):
        mesh.extract(field, 4)


def test_bad_arguments_of_save(tmp_path):
    found = mesh.Mesh(np.zeros((3, 3)), np.zeros((0, 3), int), False, (0.0, 0.0, 0.0), 1.0)
    for arguments, words in (
        ((tmp_path / "a.ply", 3), "mesh is a int"), ((tmp_path / "a.ply", found), "no triangle"),
        ((tmp_path / "a.gltf", found), "its suffix must be one of .ply, .obj, .stl"), ((3, found), "path is a int"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=f"^mesh.save: .*{words}"):
            mesh.save(*arguments)
    assert not list(tmp_path.iterdir())


def test_missing_packages(monkeypatch, backend):
    for package in ("trimesh", "igl"):
        with monkeypatch.context() as changed:
            changed.setitem(__import__("sys").modules, package, None)
            with pytest.raises(ImportError, match=r"coopnet\[mesh\]"):
                mesh.extract(octahedron(backend), 4)
