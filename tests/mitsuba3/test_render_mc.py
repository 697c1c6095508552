"""Pictures of mean and deviation over dropout masks."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")


pytestmark = pytest.mark.usefixtures("variant")


def field(backend, inputs, dropout=0.3, outputs=3):
    net = cn.MLP(inputs, outputs, width=8, depth=2, dropout=dropout)
    return cn.NeuralField(None, net).build(backend, seed=3)


def make_scene(bsdf, integrator="direct"):
    """A square that fills the picture, lit by the sky: a pixel is what its material says."""
    film = {"type": "hdrfilm", "width": 6, "height": 6, "rfilter": {"type": "box"}, "pixel_format": "rgb"}
    to_world = mi.ScalarTransform4f().look_at([0, 0, 3], [0, 0, 0], [0, 1, 0])
    return mi.load_dict({
        "type": "scene",
        **({} if integrator is None else {"integrator": {"type": integrator}}),
        "square": {"type": "rectangle", "bsdf": bsdf},
        "sky": {"type": "constant", "radiance": 1.0},
        "sensor": {"type": "perspective", "fov": 30, "to_world": to_world, "film": film},
    })  # fmt: skip


def textured(backend, dropout=0.3, **options):
    """A diffuse square whose texture is a network: the texture is a child of the BSDF, found by traversal."""
    texture = cn.mitsuba.NeuralTexture(field(backend, 2, dropout))
    return make_scene({"type": "twosided", "bsdf": {"type": "diffuse", "reflectance": texture}}, **options), texture


def neural(backend, dropout=0.3):
    decoder = cn.mitsuba.Decoder(field(backend, 8, dropout))
    return make_scene(cn.mitsuba.NeuralBSDF(decoder))


def by_hand(scene, nodes, keys, **options):
    images = []
    for key in keys:
        for node in nodes:
            node.key = key
        images.append(mi.render(scene, **options).numpy().astype(np.float64))
    for node in nodes:
        node.key = None
    return np.mean(images, axis=0), np.std(images, axis=0)


def test_it_is_the_mean_and_deviation_of_passes(backend):
    scene, texture = textured(backend)
    mean, deviation = cn.mitsuba.render_mc(scene, 5, cn.Key(7, step=2), spp=4, seed=11)
    keys = [cn.Key(7, index=0, step=2 * 5 + i) for i in range(5)]
    expected = by_hand(scene, [texture], keys, spp=4, seed=11)
    np.testing.assert_allclose(mean.numpy(), expected[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(deviation.numpy(), expected[1], rtol=1e-2, atol=1e-3)
    assert mean.shape == deviation.shape == (6, 6, 3) and texture.key is None
    assert expected[1].mean() > 0.01


def test_noise_of_path_tracing_does_not_enter(backend):
    """Of a scene whose masks change nothing in the picture, the deviation is 0, however noisy that is."""
    scene, texture = textured(backend)
    weights = texture.field.matrix("layers.6.weights")
    texture.field.set_matrix("layers.6.weights", np.zeros(weights.shape))
    mean, deviation = cn.mitsuba.render_mc(scene, 4, cn.Key(0), spp=1)
    np.testing.assert_array_equal(deviation.numpy(), 0)
    np.testing.assert_allclose(mean.numpy(), mi.render(scene, spp=1, seed=0).numpy(), rtol=1e-6)


def test_nothing_is_recorded_or_compiled_after_the_first_pass(backend, monkeypatch):
    scene, _ = textured(backend)
    renders, frozen = [], []
    render, freeze = mi.render, dr.freeze
    monkeypatch.setattr(mi, "render", lambda *a, **k: renders.append(1) or render(*a, **k))
    monkeypatch.setattr(dr, "freeze", lambda f, **k: frozen.append(freeze(f, **k)) or frozen[-1])
    cn.mitsuba.render_mc(scene, 2, cn.Key(1), spp=4)
    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        dr.kernel_history_clear()
        dr.eval(cn.mitsuba.render_mc(scene, 12, cn.Key(1 << 33, step=5), spp=4))
        history = [k for k in dr.kernel_history() if "cache_hit" in k]
    # once a call, and once more for a scene that was never rendered before
    assert [f.n_recordings for f in frozen] == [2, 1] and len(renders) == 3
    assert history and all(k["cache_hit"] for k in history)


def test_keys_make_pictures(backend):
    scene, _ = textured(backend)
    keys = {"a": cn.Key(1), "again": cn.Key(1), "seed": cn.Key(2), "index": cn.Key(1, 5), "step": cn.Key(1, step=1)}
    found = {
        name: np.concatenate([v.numpy() for v in cn.mitsuba.render_mc(scene, 3, key, spp=2)])
        for name, key in keys.items()
    }
    np.testing.assert_array_equal(found["a"], found["again"])
    for name in ("seed", "index", "step"):
        assert np.abs(found[name] - found["a"]).max() > 1e-3, name


def test_a_pass_is_one_function(backend):
    """All pixels of a constant texture see one network per pass; with masks of each path they average over many."""
    scene = neural(backend)
    integrator = cn.mitsuba.NeuralPath(max_depth=2)
    mean, one = cn.mitsuba.render_mc(scene, 8, cn.Key(3), integrator=integrator, spp=64)
    other, many = cn.mitsuba.render_mc(scene, 8, cn.Key(3), integrator=integrator, spp=64, masks="path")
    assert many.numpy().mean() < 0.3 * one.numpy().mean()
    np.testing.assert_allclose(other.numpy().mean(), mean.numpy().mean(), rtol=0.3)
    assert integrator.key is None


def test_integrators_agree(backend):
    """The same functions in virtual calls and outside of them."""
    scene, key = neural(backend), cn.Key(5)
    path = mi.load_dict({"type": "path", "max_depth": 2, "rr_depth": 9})
    integrators = path, cn.mitsuba.NeuralPath(max_depth=2, rr_depth=9)
    a, b = (cn.mitsuba.render_mc(scene, 6, key, integrator=i, spp=256) for i in integrators)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x.numpy().mean(), y.numpy().mean(), rtol=0.1)


def test_a_radiance_cache_with_dropout(backend):
    scene, _ = textured(backend, dropout=0.0)
    cache = cn.mitsuba.RadianceCache(scene, field(backend, 16))
    cache.train(3, samples=256)
    integrator = cache.integrator(vertices=0)
    _, deviation = cn.mitsuba.render_mc(scene, 4, cn.Key(0), integrator=integrator, spp=2)
    assert deviation.numpy().mean() > 1e-4
    expected = by_hand(
        scene, [integrator], [cn.Key(0, index=0, step=i) for i in range(4)], integrator=integrator, spp=2
    )
    np.testing.assert_allclose(deviation.numpy(), expected[1], rtol=1e-2, atol=1e-4)


def test_keys_come_back(backend, monkeypatch):
    """Also after an error in the middle of a pass."""
    scene, texture = textured(backend)
    own = texture.key = cn.Key(9, index=1)
    cn.mitsuba.render_mc(scene, 2, cn.Key(0), spp=1)
    assert texture.key is own

    def fail(*args, **kwargs):
        assert texture.key is not own
        raise OSError

    monkeypatch.setattr(mi, "render", fail)
    with pytest.raises(RuntimeError):
        cn.mitsuba.render_mc(scene, 2, cn.Key(0), spp=1)
    assert texture.key is own


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(scene=3), TypeError, "render_mc: scene is a int"),
        (dict(samples=1), ValueError, "render_mc: samples is 1"),
        (dict(samples=2.5), ValueError, "render_mc: samples is 2.5"),
        (dict(key=None), TypeError, "render_mc: key is a NoneType"),
        (dict(key=cn.Key(0, index=np.arange(3))), ValueError, "render_mc: key has an index of several numbers"),
        (dict(integrator="path"), TypeError, "render_mc: integrator is a str"),
        (dict(spp=0), ValueError, "render_mc: spp is 0"),
        (dict(sensor=1), ValueError, "render_mc: sensor is 1; an int from 0 to 0 is needed"),
        (dict(sensor=None), ValueError, "render_mc: sensor is None"),
        (dict(seed=-1), ValueError, "render_mc: seed is -1"),
        (dict(masks="pixel"), ValueError, "render_mc: masks is 'pixel'; accepted are 'pass', 'path'"),
        (dict(masks="path"), ValueError, "render_mc: masks is 'path', but "),
    ],
)
def test_bad_arguments(backend, change, error, words):
    arguments = {"scene": textured(backend)[0], "samples": 2, "key": cn.Key(0)} | change
    with pytest.raises(error) as info:
        cn.mitsuba.render_mc(**arguments)
    assert words in str(info.value), str(info.value)


def test_a_scene_without_integrator(backend):
    scene, _ = textured(backend, integrator=None)
    with pytest.raises(ValueError, match=r"^render_mc: the scene has no integrator; pass one\.$"):
        cn.mitsuba.render_mc(scene, 2, cn.Key(0))
    mean, _ = cn.mitsuba.render_mc(scene, 2, cn.Key(0), integrator=mi.load_dict({"type": "direct"}), spp=1)
    assert mean.shape == (6, 6, 3)


def test_textures_have_no_masks_by_path(backend):
    with pytest.raises(ValueError, match="masks is 'path', but textures are evaluated in virtual calls"):
        cn.mitsuba.render_mc(textured(backend)[0], 2, cn.Key(0), integrator=cn.mitsuba.NeuralPath(), masks="path")


def test_a_dropout_is_needed(backend):
    scene, _ = textured(backend, dropout=0.0)
    with pytest.raises(ValueError, match="render_mc: no network of scene or integrator has a Dropout with p > 0"):
        cn.mitsuba.render_mc(scene, 2, cn.Key(0))


@pytest.mark.filterwarnings("ignore:render_mc. dropout cannot reveal")
@pytest.mark.parametrize("kind", ["laplace", "displaced", "ensemble", "posthoc", "concrete", "levels"])
def test_whatever_draws(backend, kind):
    """Posteriors, ensembles, dropout put in later or with a rate of its own, and levels of a grid, in a texture."""
    plain = field(backend, 2, 0)

    def batch(key):
        p = cn.uniform(2, key, mi.Float, 100)
        return p, [p[0], p[1], 0.3 * p[0]]

    concrete = cn.Linear(2, 8), cn.Tanh(), cn.ConcreteDropout(0.3), cn.Linear(8, 3), cn.Sigmoid()
    grid = cn.HashGrid(2, n_levels=2, hashmap_size=64, init_scale=1.0)
    made = {
        "laplace": lambda: cn.laplace(plain, batch, 2),
        "ensemble": lambda: cn.ensemble([plain, field(backend, 2, 0)]),
        "displaced": lambda: cn.laplace(plain, batch, 2, spatial=4, prior=0.3),
        "posthoc": lambda: cn.posthoc_dropout(plain, batch, batches=1)[0],
        "concrete": lambda: cn.NeuralField(None, cn.Sequential(*concrete)).build(backend),
        "levels": lambda: cn.NeuralField(grid, cn.Sequential(cn.DropLevels(0.5), cn.Linear(-1, 3))).build(backend),
    }[kind]()
    if kind == "ensemble":
        weights = made.matrix("encoding.networks.1.layers.4.weights")
        made.set_matrix("encoding.networks.1.layers.4.weights", 0.5 * weights)
    texture = cn.mitsuba.NeuralTexture(made)
    scene = make_scene({"type": "twosided", "bsdf": {"type": "diffuse", "reflectance": texture}})
    mean, deviation = cn.mitsuba.render_mc(scene, 4, cn.Key(7), spp=2)
    expected = by_hand(scene, [texture], [cn.Key(7, index=0, step=i) for i in range(4)], spp=2)
    np.testing.assert_allclose(mean.numpy(), expected[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(deviation.numpy(), expected[1], rtol=2e-2, atol=1e-3)
    assert expected[1].max() > 1e-3
