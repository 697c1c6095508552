"""BSDFs that belong to no scene, which virtual calls of a frozen function visit, too."""

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")


@pytest.fixture
def scene(backend):
    """A small room with a neural floor, beside which a metal and a neural BSDF exist."""
    mi.set_variant(f"{backend}_ad_rgb")
    field = cn.mitsuba.build(cn.NeuralField(None, cn.MLP(2, 3, width=8, depth=1, dropout=0.2)))
    texture = cn.mitsuba.NeuralTexture(field)
    box = mi.cornell_box()
    box["floor"]["bsdf"] = {"type": "diffuse", "reflectance": texture}
    box["sensor"]["film"] |= {"width": 8, "height": 8}
    others = [mi.load_dict({"type": "roughconductor"})]
    decoder = cn.mitsuba.Decoder(cn.mitsuba.build(cn.NeuralField(None, cn.MLP(9, 3, width=8, depth=1))))
    others.append(cn.mitsuba.NeuralBSDF(decoder, latent=[0.5]))
    yield mi.load_dict(box), field
    del others


def test_a_cache_is_trained(scene):
    result = cn.mitsuba.RadianceCache(scene[0]).train(3, samples=64)
    assert result.steps == 3 and np.isfinite(result.losses).all()


def test_deviations_of_a_picture(scene):
    mean, deviation = cn.mitsuba.render_mc(scene[0], 3, cn.Key(1), integrator=mi.load_dict({"type": "path"}), spp=2)
    assert np.isfinite(mean.numpy()).all() and deviation.numpy().max() > 0


def test_a_frozen_picture_through_a_cache(backend):
    """Of a scene of Mitsuba's own plugins, beside which a BSDF with arrays exists: the integrator shows it all."""
    mi.set_variant(f"{backend}_ad_rgb")
    box = mi.cornell_box()
    box["sensor"]["film"] |= {"width": 8, "height": 8}
    scene = mi.load_dict(box)
    integrator = cn.mitsuba.RadianceCache(scene).integrator()
    decoder = cn.mitsuba.Decoder(cn.mitsuba.build(cn.NeuralField(None, cn.MLP(9, 3, width=8, depth=1))))
    other = cn.mitsuba.NeuralBSDF(decoder, latent=[0.5])
    frozen = dr.freeze(lambda scene, integrator, seed: mi.render(scene, integrator=integrator, seed=seed, spp=2))
    for seed in (1, 2):
        found = frozen(scene, integrator, dr.opaque(mi.UInt32, seed)).numpy()
        np.testing.assert_allclose(found, mi.render(scene, integrator=integrator, seed=seed, spp=2), atol=1e-4)
    del other


@pytest.mark.parametrize("integrator", ["prb", "neural_path"])
def test_a_texture_is_trained_through_pictures(scene, integrator):
    cn.mitsuba.register()
    scene, field = scene
    integrator, params = mi.load_dict({"type": integrator, "max_depth": 3}), mi.traverse(scene)

    def objective(field, seed, key):
        return dr.square(mi.render(scene, params, integrator=integrator, seed=seed, spp=2) - 0.25).array

    result = cn.fit(field, lambda key: mi.UInt32(key.step), 3, objective=objective, progress=False)
    assert result.steps == 3 and np.isfinite(result.losses).all()
