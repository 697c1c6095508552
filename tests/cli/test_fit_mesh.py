"""``coopnet fit`` of meshes and ``coopnet render`` of surfaces."""

from __future__ import annotations

import math
import shlex
import sys

import numpy as np
import pytest
from support.command_line import fails

import coopnet as cn

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("safetensors")
trimesh = pytest.importorskip("trimesh")
pytest.importorskip("igl")
Image = pytest.importorskip("PIL.Image")

from coopnet import cli, mesh  # noqa: E402
from coopnet.mesh import distances, files, learn, view  # noqa: E402

SMALL = ["--steps", "1000", "--width", "32", "--depth", "2", "--batch", "2048", "--points", "20000", "--quiet"]
SMALL += ["--encoding", "identity", "--lr", "0.003"]


def ball():
    """A ball of radius 3 around (5, -2, 1), fine enough to be taken for one."""
    made = trimesh.creation.icosphere(subdivisions=4, radius=3.0)
    made.apply_translation([5, -2, 1])
    return made


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, backend):
    """A small result of ``coopnet fit`` of a mesh."""
    root = tmp_path_factory.mktemp("fitted-mesh")
    ball().export(root / "ball.ply")
    assert cli.main(["fit", str(root / "ball.ply"), "-o", str(root / "out"), "--backend", backend, *SMALL]) == 0
    return root / "out"


# ---- files and distances --------------------------------------------------------


@pytest.mark.parametrize("suffix", [".obj", ".ply", ".stl", ".STL"])
def test_files(tmp_path, suffix):
    """In the unit cube, as one solid, also from formats that name no shared vertices."""
    path = tmp_path / f"ball{suffix}"
    ball().export(path, file_type=suffix[1:].lower())
    found = mesh.load(path)
    assert found.watertight and len(found.faces) == 20 * 4**4
    low, high = found.vertices.min(axis=0), found.vertices.max(axis=0)
    np.testing.assert_allclose(low, 0.1, atol=2e-3)
    np.testing.assert_allclose(high, 0.9, atol=2e-3)
    np.testing.assert_allclose(found.centre, [5, -2, 1], atol=1e-3)
    assert found.scale == pytest.approx(6 / 0.8, rel=1e-3)


@pytest.mark.parametrize("turned", [slice(None), slice(0, None, 3)])
def test_triangles_that_point_inwards(tmp_path, turned):
    """All of them, or some: those of a solid are turned outwards, since the sign of the distance is theirs."""
    ball = trimesh.creation.icosphere(subdivisions=3)
    faces = ball.faces.copy()
    faces[turned] = faces[turned, ::-1]
    trimesh.Trimesh(ball.vertices, faces, process=False).export(tmp_path / "ball.ply")
    drawn = mesh.draw_samples(mesh.load(tmp_path / "ball.ply"), 2000)
    radius = np.linalg.norm(drawn.points - 0.5, axis=1)
    clear = abs(radius - 0.4) > 0.01
    assert ((drawn.distances < 0) == (radius < 0.4))[clear].all() and clear.sum() > 200


@pytest.mark.parametrize("second", ["beside", "cavity"])
def test_every_closed_surface_is_turned(tmp_path, second):
    """Two bodies of which one is inside out, and a cavity with a triangle that points the other way."""
    first, other = trimesh.creation.icosphere(subdivisions=3), trimesh.creation.icosphere(subdivisions=3)
    other.apply_scale(0.5)
    if second == "beside":
        other.apply_translation([3, 0, 0])
        other.invert()
    else:
        faces = other.faces.copy()
        faces[7] = faces[7, ::-1]
        other = trimesh.Trimesh(other.vertices, faces, process=False)
    trimesh.util.concatenate([first, other]).export(tmp_path / "two.ply")
    found = mesh.load(tmp_path / "two.ply")
    volumes = [part.volume for part in trimesh.Trimesh(found.vertices, found.faces, process=False).split()]
    assert sorted(np.sign(volumes)) == ([1, 1] if second == "beside" else [-1, 1])


def test_polygons_and_groups_of_obj(tmp_path):
    """A cube of quadrilaterals in two groups, whose material file is not there."""
    corners = [f"v {x} {y} {z}" for x in (0, 2) for y in (0, 1) for z in (0, 1)]
    sides = ["f 1 2 4 3", "f 5 7 8 6", "f 1 5 6 2", "g second", "usemtl gold", "f 3 4 8 7", "f 1 3 7 5", "f 2 6 8 4"]
    (tmp_path / "box.obj").write_text("\n".join(["mtllib none.mtl", *corners, *sides]))
    found = mesh.load(tmp_path / "box.obj")
    assert len(found.faces) == 12 and found.watertight
    np.testing.assert_allclose(np.ptp(found.vertices, axis=0), [0.8, 0.4, 0.4])


def test_samples_of_a_ball(tmp_path):
    """Where points lie, in which shares, and distances that are right on both sides."""
    ball().export(tmp_path / "ball.ply")
    found = mesh.load(tmp_path / "ball.ply")
    samples = mesh.draw_samples(found, 8000, seed=3)
    assert samples.points.shape == (8000, 3) and samples.points.dtype == samples.distances.dtype == np.float32
    assert samples.points.min() >= 0 and samples.points.max() <= 1
    radius = np.linalg.norm(samples.points - 0.5, axis=1)
    np.testing.assert_allclose(samples.distances, radius - 0.4, atol=2e-3)  # facets
    assert samples.uniform.sum() == 2000 and not samples.uniform[:6000].any()
    assert np.abs(samples.distances[:2000]).max() < 1e-5
    assert np.abs(samples.distances[2000:4000]).mean() == pytest.approx(0.002 * math.sqrt(2 / math.pi), rel=0.1)
    assert np.abs(samples.distances[4000:6000]).mean() == pytest.approx(0.02 * math.sqrt(2 / math.pi), rel=0.1)
    again, other = mesh.draw_samples(found, 8000, seed=3), mesh.draw_samples(found, 8000, seed=4)
    np.testing.assert_array_equal(samples.points, again.points)
    assert not np.array_equal(samples.points, other.points)


def test_points_are_even_over_the_area(tmp_path):
    """Large triangles get more, and every part of a triangle its share."""
    vertices = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [3, 0, 0], [0, 3, 0], [0, 0, 1.0]])
    found = files.Mesh(vertices, np.array([[0, 1, 2], [0, 3, 4]]), False, (0, 0, 0), 1.0)
    points = distances._on_surface(found, 20000, np.random.default_rng(0))
    small = points.sum(axis=1) < 1
    assert small.mean() == pytest.approx(0.2, abs=0.02)  # (1 + 1) of 10 tenths
    np.testing.assert_allclose(points[~small].mean(axis=0), [13 / 12, 13 / 12, 0], atol=0.02)


def test_holes_leave_an_inside(tmp_path):
    """A ball without one of its triangles in 40: winding numbers still tell where its inside is."""
    whole = ball()
    whole.update_faces(np.arange(len(whole.faces)) % 40 != 0)
    whole.export(tmp_path / "holes.ply")
    found = mesh.load(tmp_path / "holes.ply")
    assert not found.watertight
    samples = mesh.draw_samples(found, 4000)
    radius = np.linalg.norm(samples.points - 0.5, axis=1)
    far = np.abs(radius - 0.4) > 0.03
    assert ((samples.distances < 0) == (radius < 0.4))[far].mean() > 0.999


@pytest.mark.parametrize("damage", ["cap", "twice"])
def test_distances_to_meshes_that_are_not_watertight_are_exact(tmp_path, damage):
    """A ball without its upper cap, and one of which every triangle is there twice."""
    whole = ball()
    if damage == "cap":
        height = whole.triangles_center[:, 2]
        whole.update_faces(height < height.min() + 0.8 * np.ptp(height))
        whole.remove_unreferenced_vertices()
    else:
        whole = type(whole)(whole.vertices, np.concatenate([whole.faces, whole.faces]), process=False)
    whole.export(tmp_path / "damaged.ply")
    found = mesh.load(tmp_path / "damaged.ply")
    assert not found.watertight
    samples, centre = mesh.draw_samples(found, 4000), [0.5, 0.5, found.vertices[:, 2].min() + 0.4]
    radius, far = np.linalg.norm(samples.points - centre, axis=1), samples.points[:, 2] <= centre[2]
    np.testing.assert_allclose(samples.distances[far], radius[far] - 0.4, atol=2e-3)
    assert far.sum() > 1000


# ---- fit and render ---------------------------------------------------------------


def test_fit(fitted, backend):
    assert {p.name for p in fitted.iterdir()} == {"picture.png", "loss.png", "field.safetensors"}
    assert Image.open(fitted / "picture.png").size == (512, 512)
    field = cn.load(fitted / "field.safetensors", backend)
    points = np.random.default_rng(0).random((500, 3)).astype(np.float32)
    truth = np.linalg.norm(points - 0.5, axis=1) - 0.4
    found = learn.evaluate(field, points)
    assert np.abs(found - truth).mean() < 0.03
    noted = cn.io.read(fitted / "field.safetensors").metadata["mesh"]
    np.testing.assert_allclose(noted["centre"], [5, -2, 1], atol=1e-3)


def test_fit_says_quality_and_resumes(tmp_path, backend, capsys, monkeypatch):
    monkeypatch.setattr(learn, "SIZE", 64)
    ball().export(tmp_path / "ball.obj")
    source, out = str(tmp_path / "ball.obj"), tmp_path / "out"
    options = [*SMALL[2:], "--backend", backend]
    assert cli.main(["fit", source, "-o", str(out), *options, "--steps", "20"]) == 0
    said = capsys.readouterr().out
    assert "5120 triangles, watertight" in said and "mean error of the distance: " in said
    assert "correct sign (inside or outside): " in said and f"wrote {out / 'field.safetensors'}" in said
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = [word for word in options if word != "--quiet"]
    assert cli.main(["fit", source, "-o", str(out), *shown, "--steps", "25", "--resume"]) == 0
    said = capsys.readouterr()
    assert "25 steps in" in said.out and said.err.endswith("drawing picture.png\n")
    arguments = ["fit", source, "-o", out, *options, "--steps", "30", "--resume"]
    fails(capsys, [*arguments, "--points", "3000"], 1, "cannot resume", "points")
    trimesh.creation.box().export(tmp_path / "ball.obj")
    fails(capsys, arguments, 1, "it is of another mesh, not this one")


def test_an_interrupted_fit_goes_on(tmp_path, backend, capsys, monkeypatch):
    """With the options of meshes, and none of images."""
    ball().export(tmp_path / "ball.stl")
    (tmp_path / "field.safetensors").touch()
    real, checkpoint = mesh.fit_mesh, {"field": tmp_path / "field.safetensors"}
    stopped = mesh.MeshFit(None, cn.FitResult(steps=4, stopped="interrupt"), files=checkpoint)
    monkeypatch.setattr(mesh, "fit_mesh", lambda *arguments, **options: stopped)
    out = ["-o", str(tmp_path), "--backend", backend]
    assert cli.main(["fit", str(tmp_path / "ball.stl"), *out, "--points", "5000", "--force"]) == 130
    said = capsys.readouterr().out
    _, *words = shlex.split(said.split("resume with: ")[1])
    assert words[words.index("--points") + 1] == "5000" and "--pixels" not in words
    asked = {}
    monkeypatch.setattr(mesh, "fit_mesh", lambda *arguments, **options: asked.update(options) or stopped)
    assert cli.main(words) == 130
    assert asked["steps"] == 1000 and asked["dropout"] == 0 and asked["points"] == 5000 and asked["resume"]
    assert asked.keys() <= real.__kwdefaults__.keys()


def test_interrupted_while_it_draws(tmp_path, backend, capsys, monkeypatch):
    """Ctrl-C after the training: in Python, in Dr.Jit, and other errors, which are not Ctrl-C."""
    ball().export(tmp_path / "ball.stl")
    out = tmp_path / "out"
    in_drjit = RuntimeError("Caught an exception")
    in_drjit.__cause__ = KeyboardInterrupt()
    words = ["fit", str(tmp_path / "ball.stl"), "-o", str(out), "--backend", backend]

    def ends(error, *more, written=True):
        def trained(*arguments, **options):
            if written:
                (out / "field.safetensors").write_bytes(b"trained")
            raise error

        monkeypatch.setattr(mesh, "fit_mesh", trained)
        code, said = cli.main([*words, *more]), capsys.readouterr().out
        assert ("stopped before all pictures were drawn" in said) == ("--resume" in said)
        return code, "--resume" in said

    assert ends(KeyboardInterrupt()) == (130, True)
    assert ends(in_drjit, "--force") == (130, True)
    assert ends(RuntimeError("another"), "--force") == (1, False)
    assert ends(KeyboardInterrupt(), "--force", written=False) == (130, False)  # the checkpoint is of another run
    assert ends(KeyboardInterrupt(), "--resume", written=False) == (130, True)  # it was complete


def test_pictures(fitted, tmp_path, backend):
    """A disk of the size that the camera makes of a ball, in the middle, on white, of any shape of picture."""
    for size in ("64x64", "96x48"):
        target = tmp_path / f"{size}.png"
        arguments = ["render", str(fitted / "field.safetensors"), "-o", str(target), "--size", size]
        assert cli.main([*arguments, "--backend", backend]) == 0
        drawn = np.asarray(Image.open(target), np.float32)
        width, height = Image.open(target).size
        assert f"{width}x{height}" == size and (drawn[0, 0] == 255).all()
        inside = drawn.min(axis=2) < 250
        tangent = 0.4 / math.sqrt(view.DISTANCE**2 - 0.4**2) / view.ANGLE * min(width, height) / 2
        assert inside.sum() == pytest.approx(math.pi * tangent**2, rel=0.1)
        y, x = np.nonzero(inside)
        assert abs(x.mean() - (width - 1) / 2) < 1.5 and abs(y.mean() - (height - 1) / 2) < 1.5


def test_cameras():
    """Where they are and which way is up, for all three axes."""
    for axis, up in enumerate("xyz"):
        _, forward, right, down = view._camera(30, 20, view.AXES[up])
        assert forward[axis] == pytest.approx(-math.sin(math.radians(20))) and right[axis] == pytest.approx(0)
        assert down[axis] < 0
        np.testing.assert_allclose(np.cross(forward, right), down, atol=1e-12)  # no mirror
        eye = view._camera(0, 0, view.AXES[up])[0] - 0.5
        assert np.count_nonzero(eye) == 1 and eye.max() == pytest.approx(view.DISTANCE)


def test_sides_of_a_picture(backend, tmp_path):
    """What lies in the direction that is called right is on the right, and what is up is up."""
    from drjit import norm

    centre = [0.65, 0.72, 0.5]  # above, and to the side of the camera at azimuth 0 around y

    network = cn.MLP(3, 1, width=32, depth=2, bias=True)
    field = cn.NeuralField(None, network).build(backend)
    ns = cn.backend.namespace(backend)

    def batch(key):
        p = cn.uniform(3, key, ns.Float, 4096)
        return p, [norm(ns.Array3f(*p) - ns.Array3f(*centre)) - 0.15]

    cn.fit(field, batch, 400, lr=cn.training.cosine(1e-2, 400), progress=False)
    picture = view.render(field, 64, 64, 0, 0, "y")
    y, x = np.nonzero(picture.min(axis=2) < 0.98)
    _, _, right, _ = view._camera(0, 0, view.AXES["y"])
    side = np.sign(np.dot(np.subtract(centre, 0.5), right))
    assert y.mean() < 27 and np.sign(x.mean() - 31.5) == side


# ---- errors -----------------------------------------------------------------------


def test_bad_meshes(tmp_path, capsys):
    out = ["-o", tmp_path / "out", *SMALL]
    fails(capsys, ["fit", tmp_path / "none.obj", *out], 1, "no file", "none.obj")
    (tmp_path / "dir.ply").mkdir()
    fails(capsys, ["fit", tmp_path / "dir.ply", *out], 1, "is a directory")
    for name, text in (
        ("empty.obj", ""), ("text.obj", "no mesh"), ("text.ply", "no mesh"), ("text.stl", "no mesh"),
        ("points.obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\n"), ("flat.obj", "v 0 0 0\nv 1 0 0\nv 2 0 0\nf 1 2 3\n"),
        ("nan.obj", "v 0 0 nan\nv 1 0 0\nv 0 1 0\nf 1 2 3\n"), ("one.obj", "v 1 1 1\nf 1 1 1\n"),
        ("far.obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 9\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        fails(capsys, ["fit", tmp_path / name, *out], 1, name)
    assert not (tmp_path / "out").exists()


def test_options_of_the_other_kind(tmp_path, fitted, backend, capsys):
    ball().export(tmp_path / "ball.ply")
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png")
    fails(capsys, ["fit", tmp_path / "ball.ply", "-o", tmp_path, "--pixels", "0.5"], 2, "--pixels", "--points")
    fails(capsys, ["fit", tmp_path / "ball.ply", "-o", tmp_path, "--encoding", "sinusoidal"], 2, "--encoding")
    fails(capsys, ["fit", tmp_path / "x.png", "-o", tmp_path, "--points", "5000"], 2, "--points", "--pixels")
    draw = ["render", fitted / "field.safetensors", "-o", tmp_path / "y.png", "--size", "8x8", "--backend", backend]
    fails(capsys, [*draw, "--mc-samples", "4"], 2, "--mc-samples", "surface")
    for bad in ("30", "30,95", "a,b", "nan,0", "1,2,3", ""):
        fails(capsys, [*draw, f"--view={bad}"], 2, "--view")
    fails(capsys, [*draw, "--up", "w"], 2, "--up")
    flat = cn.NeuralField(None, cn.MLP(2, 3, width=16, depth=1)).build(backend)
    cn.save(tmp_path / "flat.safetensors", flat)
    fails(capsys, ["render", tmp_path / "flat.safetensors", *draw[2:], "--view", "1,2"], 2, "--view", "an image")


@pytest.mark.parametrize("package, command", [("trimesh", "load"), ("igl", "signed_distances")])
def test_missing_packages(tmp_path, monkeypatch, capsys, package, command, backend):
    ball().export(tmp_path / "ball.ply")
    monkeypatch.setitem(__import__("sys").modules, package, None)
    arguments = ["fit", tmp_path / "ball.ply", "-o", tmp_path / "out", "--backend", backend, *SMALL]
    fails(capsys, arguments, 1, "coopnet[mesh]")


@pytest.mark.parametrize("change, words", [
    (dict(mesh=3), "mesh is a int"), (dict(steps=0), "steps is 0"), (dict(points=10), "points is 10"),
    (dict(batch=1.5), "batch is 1.5"), (dict(lr=0), "lr is 0"), (dict(encoding="fourier"), "encoding is 'fourier'"),
])  # fmt: skip
def test_bad_arguments_of_fit_mesh(tmp_path, change, words):
    cube = files.Mesh(np.zeros((3, 3)), np.zeros((1, 3), int), True, (0, 0, 0), 1.0)
    arguments = dict(mesh=cube, directory=tmp_path / "out") | change
    with pytest.raises((ValueError, TypeError), match=r"^fit_mesh: ") as info:
        mesh.fit_mesh(**arguments)
    assert words in str(info.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(field=3), "field is a int"), (dict(width=0), "width is 0"), (dict(height=1.5), "height is 1.5"),
        (dict(azimuth="left"), "azimuth is 'left'"), (dict(elevation=91), "elevation is 91"),
        (dict(up="w"), "up is 'w'"), (dict(region=(0, 0, 1, 1)), "region is"),
        (dict(region=(0, 0, 0, 1, 1, 0)), "region is"),
        (dict(field=cn.NeuralField(None, cn.MLP(3, 1))), ".*not built yet"),
    ],
)  # fmt: skip
def test_bad_arguments_of_render(change, words, backend):
    field = cn.NeuralField(None, cn.MLP(3, 1, width=8, depth=1)).build(backend)
    with pytest.raises((TypeError, ValueError), match=f"^mesh.render: {words}"):
        mesh.render(**(dict(field=field, width=4, height=4) | change))


def test_bad_arguments_of_draw_samples(tmp_path):
    trimesh.creation.box().export(tmp_path / "box.obj")
    box = mesh.load(tmp_path / "box.obj")
    for change, words in (
        (dict(mesh=3), "mesh is a int"),
        (dict(count=0), "count is 0"),
        (dict(seed=-1), "seed is -1"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^mesh.draw_samples: {words}"):
            mesh.draw_samples(**(dict(mesh=box, count=8) | change))
