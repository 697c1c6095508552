"""Materials that are in no scene, as references and fits are, do not end the recording of frozen functions."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

mi = pytest.importorskip("mitsuba")

import coopnet as cn  # noqa: E402


@pytest.fixture
def loose(backend):
    mi.set_variant(f"{backend}_ad_rgb")
    colour = {"type": "bitmap", "bitmap": mi.Bitmap(np.full((4, 4, 3), 0.5, np.float32)), "raw": True}
    return mi.load_dict({"type": "principled", "base_color": colour})


@pytest.fixture
def field():
    mlp = cn.MLP(2, 3, width=8, depth=1, dropout=0.2, output_activation="sigmoid")
    return cn.mitsuba.build(cn.NeuralField(cn.Identity(2), mlp))


def scene(reflectance):
    film = {"type": "hdrfilm", "width": 8, "height": 8, "sample_border": False}
    camera = mi.ScalarTransform4f().look_at([0, 0, 3], [0, 0, 0], [0, 1, 0])
    return mi.load_dict({
        "type": "scene",
        "integrator": {"type": "path", "max_depth": 3},
        "sensor": {"type": "perspective", "to_world": camera, "film": film},
        "light": {"type": "constant"},
        "square": {"type": "rectangle", "bsdf": {"type": "diffuse", "reflectance": reflectance}},
    })  # fmt: skip


def test_training_through_pictures(loose, field):
    made = scene(cn.mitsuba.NeuralTexture(field))

    def objective(field, seed, key):
        image = mi.render(made, mi.traverse(made), integrator=integrator, seed=seed, spp=4)
        return dr.square(image - 0.3).array

    integrator = cn.mitsuba.NeuralPath(max_depth=3)
    found = cn.fit(field, lambda key: mi.UInt32(key.step) + 1, 30, lr=1e-2, objective=objective, progress=False)
    assert found.losses[-1] < found.losses[0] / 2
    assert dr.width(loose.eval(mi.BSDFContext(), dr.zeros(mi.SurfaceInteraction3f), mi.Vector3f(0, 0, 1))) == 1


def test_a_material_that_comes_later(loose, field):
    made = scene(cn.mitsuba.NeuralTexture(field))
    key = cn.Key(3)
    mean, _ = cn.mitsuba.render_mc(made, 3, key, spp=2)
    other = mi.load_dict({"type": "roughconductor", "alpha": 0.2})
    # sums of the film are atomic, in no fixed order
    np.testing.assert_allclose(cn.mitsuba.render_mc(made, 3, key, spp=2)[0], mean, rtol=1e-5)
    del other


def test_radiance_cache(loose, field):
    made = scene({"type": "rgb", "value": 0.4})
    cache = cn.mitsuba.RadianceCache(made)
    assert np.isfinite(cache.train(2, samples=64).losses).all()


def test_frozen_functions_of_ones_own(loose):
    made = scene({"type": "rgb", "value": 0.4})

    @dr.freeze(state_fn=lambda *args, **kwargs: dr.zeros(mi.BSDFPtr))  # as docs/neural_path.md says
    def frozen(scene, seed):
        return mi.render(scene, seed=seed, spp=4)

    for seed in range(3):
        assert np.allclose(frozen(made, dr.opaque(mi.UInt32, seed)), mi.render(made, seed=seed, spp=4), atol=1e-5)
