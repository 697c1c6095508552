"""The integrator ``neural_path``: pictures and derivatives against those of Mitsuba's own."""

from __future__ import annotations

import contextlib
import sys

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")

from support.arrays import arrays  # noqa: E402 - needs Mitsuba
from support.spheres import colour, decoder, environment, material, numbers, spheres  # noqa: E402 - needs Mitsuba

from coopnet.mitsuba.keys import key_at  # noqa: E402 - needs Mitsuba
from coopnet.mitsuba.path.scene_decoders import SceneDecoders  # noqa: E402 - needs Mitsuba

DEPTH = 4


pytestmark = pytest.mark.usefixtures("variant")


def tolerance(backend, single):
    """``single``, or what networks in half precision make of it."""
    return 3e-2 if backend == "cuda" else single


@pytest.fixture
def close(backend):
    """Are two arrays equal, but for how networks round on the way?"""

    def compare(got, wanted, single=2e-4):
        got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
        assert np.isfinite(got).all()
        error = np.abs(got - wanted).max() / np.abs(wanted).max()
        assert error < tolerance(backend, single), error

    return compare


@pytest.fixture
def same(backend):
    """Are two pictures made of the same paths? Rounding sends one of a thousand another way."""

    def compare(got, wanted):
        assert got.shape == wanted.shape and np.isfinite(got).all()
        error = np.abs(got - wanted).max(axis=-1) / max(wanted.max(), 1e-6)
        assert np.mean(error > tolerance(backend, 2e-5)) < 0.03, np.sort(error.ravel())[-8:]

    return compare


def mitsubas(kind="path", **options):
    return mi.load_dict({"type": kind, "max_depth": DEPTH} | options)


def ours(**options):
    return cn.mitsuba.NeuralPath(**{"max_depth": DEPTH} | options)


def render(scene, integrator, seed=1, spp=0):
    return numbers(mi.render(scene, integrator=integrator, seed=seed, spp=spp))


# ---- pictures: the same random numbers make the same picture ---------------------------------------------------------


def leaf(*sides, y=0):
    """A square with materials on ``sides``, which turns its back to the camera."""
    to = mi.ScalarTransform4f().translate([0, y, 1]).rotate([1, 0, 0], -80).scale(1.5)
    return {"type": "rectangle", "to_world": to, "bsdf": {"type": "twosided"} | dict(zip("ab", sides, strict=False))}


def mixed():
    """Two decoders with codes of other lengths, both on sides of a square, glass, plastic, and a varying code."""
    first, second = decoder(1), decoder(4, seed=2, directions="rusinkiewicz")
    grid = cn.Grid(2, "dense", n_levels=2, n_features_per_level=2, base_resolution=4)
    textured = cn.mitsuba.NeuralBSDF(second, latent=grid, lobes=(0.2, 0.5))
    more = {"leaf": leaf(material(first), cn.mitsuba.NeuralBSDF(second, latent=[0.1, 0.2, 0.3, 0.4]))}
    return [material(first), {"type": "dielectric"}, textured, {"type": "roughplastic"}], more


def sampled_by_networks():
    """Lobes from two networks, one of them on one side of a leaf, and lobes in two numbers on its other side."""
    first, second = decoder(1), decoder(2, seed=2)
    lobes = [
        cn.mitsuba.build(cn.NeuralField(None, cn.MLP(inputs, 8, width=8, depth=1)), seed=inputs) for inputs in (4, 5)
    ]
    one, other = material(first, lobes=lobes[0]), material(second, code=(0.1, 0.8), lobes=lobes[1])
    return [one, other], {"leaf": leaf(other, material(first))}


def lit():
    """By an environment and the lamp, and seen from behind."""
    return [material(), {"type": "roughconductor"}], {"sky": environment(), "leaf": leaf(material(code=(0.1, 0.9)))}


SCENES = {
    "networks of lobes": sampled_by_networks,
    "mixed": mixed,
    "lit": lit,
    "point": lambda: ([material(code=())] * 2, {"sky": None, "lamp": {"type": "point", "position": [0, -3, 3]}}),
    "nested": lambda: ([{"type": "mask", "opacity": 0.5, "nested": material()}, material(code=(0.1, 0.2))], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_picture_of_path(name, same):
    materials, more = SCENES[name]()
    scene = spheres(materials, **more)
    same(render(scene, ours()), render(scene, mitsubas()))


def test_materials_of_their_own_integrator():
    """Which decoders leave Mitsuba's calls: also those of both sides, not those inside other materials."""
    first, second, third = decoder(1), decoder(1, seed=2), decoder(1, seed=3)
    mask = {"type": "mask", "opacity": 0.5, "nested": material(third)}
    half = {"leaf": leaf(material(third), {"type": "diffuse"})}
    scene = spheres([material(first), material(first), mask], wall=leaf(material(first), material(second)), **half)
    assert SceneDecoders(scene).decoders == [first, second]


@pytest.mark.parametrize("networks", ["mask", "call", "wavefront"])
def test_ways_to_evaluate_agree(networks, same):
    scene = spheres([material(), material(decoder(2, seed=2), (0.1, 0.7))])
    same(render(scene, ours(networks=networks)), render(scene, ours()))


def with_alpha():
    film = {"type": "hdrfilm", "width": 8, "height": 8, "pixel_format": "rgba", "rfilter": {"type": "box"}}
    view = mi.ScalarTransform4f().look_at([0, -6, 3], [0, 0, 0], [0, 0, 1])
    return {"type": "perspective", "film": film, "to_world": view}


@pytest.mark.parametrize(
    "options",
    [{"hide_emitters": True, "max_depth": 2}, {"max_depth": -1, "rr_depth": 2}, {"max_depth": 0}, {"max_depth": 1}],
    ids=str,
)
def test_options_of_path(options, same):
    scene = spheres([{"type": "diffuse"}, {"type": "dielectric"}], sensor=with_alpha())
    same(
        render(scene, mi.load_dict({"type": "neural_path", "max_depth": DEPTH} | options), spp=8),
        render(scene, mitsubas(**options), spp=8),
    )


def test_defaults_are_those_of_path(same):
    scene = spheres([{"type": "dielectric"}, {"type": "diffuse", "reflectance": 0.9}])
    default, path = mi.load_dict({"type": "neural_path"}), mi.load_dict({"type": "path"})
    assert str(default) == str(cn.mitsuba.NeuralPath()) and "max_depth=-1, rr_depth=5" in str(default)
    assert "max_depth = 4294967295" in str(path) and "rr_depth = 5" in str(path)
    same(render(scene, default), render(scene, path))
    assert not np.allclose(render(scene, default), render(scene, ours()), rtol=1e-3)


def test_alpha(same):
    scene = spheres([{"type": "diffuse"}], sensor=with_alpha(), sky=None, floor=None)
    got = render(scene, ours(), spp=4)
    same(got, render(scene, mitsubas(), spp=4))
    assert 0 < got[..., 3].mean() < 1


def test_frozen(close):
    scene = spheres([material()])
    integrator = ours()

    @dr.freeze
    def frozen(scene, seed):
        return mi.render(scene, integrator=integrator, seed=seed)

    def picture(seed):
        return numbers(frozen(scene, dr.opaque(mi.UInt32, seed)))

    pictures = [picture(seed) for seed in (1, 2)]
    recordings = frozen.n_recordings
    for seed in (3, 4, 5):
        pictures.append(picture(seed))
    assert frozen.n_recordings == recordings
    for seed, got in enumerate(pictures, 1):
        close(got, render(scene, integrator, seed=seed))
    params = mi.traverse(scene)
    key = next(k for k in params.keys() if "weights" in k)  # noqa: SIM118 - Mitsuba's own mapping
    params[key] = dr.detach(params[key]) * 0.5
    params.update()
    after = picture(1)
    assert np.abs(after - pictures[0]).max() > 1e-3 * after.max()
    close(after, render(scene, integrator))


# ---- dropout ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def dropping():
    made = decoder(1, dropout=0.3)
    return spheres([material(made), material(made, code=(0.8,))])


def test_key_turns_dropout_on(dropping):
    plain = render(dropping, ours())
    pictures = [render(dropping, ours(key=key)) for key in (cn.Key(1), cn.Key(1), cn.Key(2), cn.Key(1, step=1))]
    assert np.array_equal(pictures[0], pictures[1])
    for a, b in ((plain, pictures[0]), (pictures[0], pictures[2]), (pictures[0], pictures[3])):
        assert np.abs(a - b).max() > 1e-3 * a.max()


def test_index_of_a_key(dropping, close):
    """Without an index, the first vertex of a path has the number of the path."""
    lanes = dr.arange(mi.UInt32, 10 * 10 * 8)
    implicit, explicit, one = (
        render(dropping, ours(max_depth=2, key=key)) for key in (cn.Key(3), cn.Key(3, index=lanes), cn.Key(3, index=0))
    )
    close(implicit, explicit, single=1e-6)
    assert np.abs(implicit - one).max() > 1e-3 * one.max()
    # later vertices have numbers of their own
    implicit, explicit = (render(dropping, ours(max_depth=4, key=k)) for k in (cn.Key(3), cn.Key(3, index=lanes)))
    assert np.abs(implicit - explicit).max() > 1e-4 * explicit.max()
    assert key_at(cn.Key(3), mi.UInt32(2), 5).index.numpy().tolist() == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("index", [np.arange(5), np.arange(10 * 10)])
def test_indices_that_are_not_of_the_paths(dropping, index):
    """A picture of 100 pixels and 8 samples each has 800 paths."""
    words = (
        rf"^NeuralPath: key has an index of {len(index)} numbers for 800 paths \(pixels times samples per pixel\); one,"
    )
    with pytest.raises(RuntimeError) as info:
        render(dropping, ours(max_depth=2, key=cn.Key(3, index=index)))
    assert isinstance(info.value.__cause__, ValueError)  # Dr.Jit's own says where to look only
    with pytest.raises(ValueError, match=words):
        ours(max_depth=2, key=cn.Key(3, index=index)).render(dropping, spp=8)


def test_one_network_of_a_picture(dropping, close):
    """The masks of ``index=0`` are those that Mitsuba's calls draw for a key with that index."""
    key = cn.Key(5, index=0)
    for shape in dropping.shapes():
        if isinstance(shape.bsdf(), cn.mitsuba.NeuralBSDF):
            shape.bsdf().key = key
    wanted = render(dropping, mitsubas())
    close(render(dropping, ours(key=key)), wanted)


# ---- derivatives -----------------------------------------------------------------------------------------------------


@pytest.fixture
def scene():
    made, other = decoder(2), decoder(1, seed=2)
    grid = cn.Grid(2, "dense", n_levels=1, n_features_per_level=2, base_resolution=4)
    textured = cn.mitsuba.NeuralBSDF(made, latent=grid, lobes=(0.2, 0.5))
    plastic = {"type": "roughplastic", "diffuse_reflectance": colour(0.2, 0.3, 0.4)}
    materials = [material(made, (0.2, 0.5)), textured, {"type": "dielectric"}, plastic]
    return spheres(materials, size=8, leaf=leaf(material(other), y=2.2))


@pytest.fixture
def two_decoders():
    """A scene that compiles fast."""
    grid = cn.Grid(2, "dense", n_levels=1, n_features_per_level=2, base_resolution=4)
    textured = cn.mitsuba.NeuralBSDF(decoder(2), latent=grid, lobes=(0.2, 0.5))
    return spheres([textured, material(decoder(1, seed=2))], size=8)


@pytest.fixture
def glass():
    """Two balls of glass that a network knows from both sides."""
    field = cn.NeuralField(None, cn.MLP(12, 3, width=8, depth=1, bias=True))
    made = cn.mitsuba.Decoder(cn.mitsuba.build(field), eta=1.5)
    lobes = (0.1, 0.1, 0.1, 0.2, 0.3, 0.1, *[0.3] * 9)
    return spheres([cn.mitsuba.NeuralBSDF(made, lobes=lobes)] * 2, size=8)


WANTED = ("weights", "latent", "radiance", "floor.bsdf.reflectance", "diffuse_reflectance")


def names(scene):
    return [k for k in mi.traverse(scene).keys() if any(w in k for w in WANTED)]  # noqa: SIM118


def upstream(scene):
    shape = (*scene.sensors()[0].film().crop_size(), 3)
    # in memory of Dr.Jit's own: kernels that read NumPy's are compiled for its every alignment
    return mi.TensorXf(*arrays(mi, np.random.default_rng(0).random((1, np.prod(shape)))), shape)


def gradients(scene, integrator):
    params = mi.traverse(scene)
    found = {}
    for k in names(scene):
        dr.enable_grad(params[k])
        dr.clear_grad(params[k])
    image = mi.render(scene, params, integrator=integrator, seed=1, seed_grad=2)
    dr.backward(image * upstream(scene))
    dr.eval([dr.grad(params[k]) for k in names(scene)])  # one by one, each would be a kernel
    for k in names(scene):
        found[k] = np.array(dr.grad(params[k]), np.float64).ravel()
    for k in names(scene):  # shared decoders have several names
        dr.disable_grad(params[k])
    return found


def test_gradients_of_prb(scene, close):
    got, wanted = (gradients(scene, i) for i in (ours(), mitsubas("prb", rr_depth=100)))
    assert len(got) >= 8
    for name, value in wanted.items():
        assert np.abs(value).max() > 0, name
        close(got[name], value)


def test_gradients_of_paths_of_any_length(close):
    """``prb`` begins roulette one edge later than ``path``, which is followed here.

    Turn by turn, a batch may be a single path, on which Dr.Jit would lay the mask of the loop.
    """
    scene = spheres([material(), {"type": "dielectric"}, material(decoder(1, seed=2))], size=3)
    wanted = gradients(scene, mitsubas("prb", max_depth=-1, rr_depth=4))
    shorter = gradients(scene, ours())
    assert any(np.abs(wanted[name] - v).max() > 1e-2 * np.abs(wanted[name]).max() for name, v in shorter.items())
    for networks in ("branch", "wavefront"):
        for name, value in gradients(scene, ours(networks=networks, max_depth=-1)).items():
            close(value, wanted[name])


def test_gradients_by_banks(two_decoders, close):
    wanted = gradients(two_decoders, ours())
    with cn.gradient_path("banks"):
        got = gradients(two_decoders, ours(banks=3))
    for name, value in wanted.items():
        close(got[name], value)


@pytest.mark.parametrize("neural", [True, False])
def test_banks_of_all_decoders_are_open_on_the_way_back(monkeypatch, two_decoders, neural):
    """Half precision needs them; on LLVM nobody else would notice."""
    opened = []

    def banks(*fields, banks):
        opened.append((fields, banks))
        return contextlib.nullcontext()

    monkeypatch.setattr(sys.modules["coopnet.mitsuba.plugins.path_replay"], "gradient_banks", banks)
    scene = two_decoders if neural else spheres([{"type": "diffuse"}], size=8)
    fields = tuple(d.field for d in SceneDecoders(scene).decoders)
    assert len(fields) == 2 * neural
    for count in (0, 7):
        gradients(scene, ours(banks=count))
    assert opened == [(fields, count) for count in (None, 7) if neural]


@pytest.mark.parametrize(
    ("scene", "part", "networks"),
    [("two_decoders", "decoder", "branch"), ("two_decoders", "latent", "wavefront"), ("glass", "decoder", "branch")],
)
def test_finite_differences(request, backend, scene, part, networks):
    scene, integrator = request.getfixturevalue(scene), ours(networks=networks)
    params = mi.traverse(scene)
    name = next(k for k in names(scene) if part in k)
    value = params[name]
    start = np.array(dr.detach(value), np.float64).ravel()
    direction = np.random.default_rng(1).normal(size=start.size)
    direction /= np.linalg.norm(direction)

    def made(numbers):
        parts = [float(x) for x in numbers]
        return type(value)(*parts) if dr.depth_v(value) > 1 else type(value)(parts)

    def loss(h):
        params[name] = made(start + h * direction)
        params.update()
        return float((render(scene, integrator, seed=2) * numbers(upstream(scene))).sum())

    h = 1e-1 if backend == "cuda" else 3e-3
    finite = (loss(h) - loss(-h)) / (2 * h)
    params[name] = made(start)
    params.update()
    # half-precision weights move by what is left after rounding
    ends = [numbers(made(start + x * direction)).ravel() for x in (h, -h)]
    direction = (ends[0] - ends[1]) / (2 * h)
    reverse = gradients(scene, integrator)[name] @ direction
    forward = numbers(tangent(scene, integrator, name, made(direction)))
    assert reverse == pytest.approx(finite, rel=5e-2 if backend == "cuda" else 1e-2, abs=1e-2)
    along = float((forward * numbers(upstream(scene))).sum())
    assert along == pytest.approx(reverse, rel=5e-2 if backend == "cuda" else 1e-3, abs=1e-3)


def tangent(scene, integrator, name, direction):
    params = mi.traverse(scene)
    dr.enable_grad(params[name])
    dr.set_grad(params[name], direction)
    params.update()
    image = dr.forward_to(mi.render(scene, params, integrator=integrator, seed=1, seed_grad=2))
    dr.disable_grad(params[name])
    return image


def test_the_fastest_way(backend):
    """Derivatives on CUDA are taken turn by turn, if memory and recording allow; keys may say which masks are drawn."""
    scene, cuda = spheres([material()], size=4), backend == "cuda"

    def way(*args):
        return SceneDecoders(scene, "auto", *args).way

    assert way() == ("call" if cuda else "branch")
    assert way(True, 1 << 24) == ("wavefront" if cuda else "branch")
    assert way(True, (1 << 24) + 1) == ("call" if cuda else "branch")
    recorded = []

    @dr.freeze
    def frozen(x):
        recorded.append(way(True, 16))
        return x + 1

    frozen(dr.opaque(mi.Float, 1))
    assert recorded == ["call" if cuda else "branch"]
    assert SceneDecoders(spheres([{"type": "diffuse"}], size=4), "auto", True, 16).way == ("call" if cuda else "branch")
    asked = dr.freeze(lambda scene, seed: mi.render(scene, integrator=ours(networks="wavefront"), seed=seed, spp=1))
    with pytest.raises(RuntimeError) as error:
        asked(scene, dr.opaque(mi.UInt32, 1))
    said = []
    cause = error.value
    while cause is not None:
        said.append(str(cause))
        cause = cause.__cause__
    assert any("networks='wavefront' evaluates one turn after the other" in text for text in said), said


def test_gradients_with_dropout(close):
    """Derivatives see the masks of the picture: a key with an index, against Mitsuba's calls."""
    made = decoder(1, dropout=0.3)
    materials = [material(made), material(made, code=(0.8,))]
    scene, key = spheres(materials, size=8), cn.Key(5, index=0)
    both = [gradients(scene, ours(key=key, networks=networks)) for networks in ("branch", "wavefront")]
    for m in materials:
        m.key = key
    for name, value in gradients(scene, mitsubas("prb", rr_depth=100)).items():
        for got in both:
            close(got[name], value)


def test_training(backend):
    """A decoder learns a picture inside ``cn.fit``'s frozen step."""
    wanted = render(spheres([{"type": "roughplastic"}], size=8), mitsubas(), seed=7, spp=64)
    made = decoder(1)
    scene, integrator, target = spheres([material(made)], size=8), ours(), mi.TensorXf(wanted.astype(np.float32))

    def objective(field, seed, key):
        image = mi.render(scene, mi.traverse(scene), integrator=integrator, seed=seed, spp=8)
        error = dr.square((image - target) / (target + 0.1))
        return error.array

    result = cn.fit(made.field, lambda key: mi.UInt32(key.step) + 1, 30, objective=objective, lr=1e-2, progress=False)
    assert np.mean(result.losses[-5:]) < 0.5 * result.losses[0]


# ---- words -----------------------------------------------------------------------------------------------------------


def test_plugin_from_xml():
    text = '<integrator type="neural_path" version="3.0.0"><integer name="max_depth" value="3"/></integrator>'
    loaded = mi.load_string(text)
    assert isinstance(loaded, cn.mitsuba.NeuralPath) and loaded.max_depth == 3
    assert "max_depth=3" in str(loaded)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_depth": -2}, ValueError, "NeuralPath: max_depth is -2"),
        ({"rr_depth": 0}, ValueError, "NeuralPath: rr_depth is 0"),
        ({"networks": "vector"}, ValueError, "NeuralPath: networks is 'vector'"),
        ({"banks": 5000}, ValueError, "NeuralPath: banks is 5000; an int from 0 to 4096"),
        ({"hide_emitters": 1}, ValueError, "NeuralPath: hide_emitters is 1"),
        ({"key": 7}, TypeError, "NeuralPath: key is a int"),
    ],
)
def test_errors(options, error, words):
    with pytest.raises(error, match=words):
        cn.mitsuba.NeuralPath(**options)
    with pytest.raises(TypeError, match="key is a int"):
        cn.mitsuba.NeuralPath().key = 7
