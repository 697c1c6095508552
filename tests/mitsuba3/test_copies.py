"""Copies and pickles of plugins: their fields are copied along, and the scene that they came from is not."""

from __future__ import annotations

import copy
import pickle

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")

WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}
both = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


pytestmark = pytest.mark.usefixtures("variant")


def make(inputs, outputs=3, **options):
    network = cn.MLP(inputs, outputs, width=8, depth=1, bias=True, activation="softplus", **options)
    return cn.mitsuba.build(cn.NeuralField(None, network), seed=1)


def interaction():
    rng = np.random.default_rng(0)
    si = dr.zeros(mi.SurfaceInteraction3f, 20)
    si.uv = mi.Point2f(*map(mi.Float, rng.random((2, 20)).astype(np.float32)))
    si.wi = dr.normalize(mi.Vector3f(0.3, 0.1, 0.9))
    return si


def is_another(field, again):
    """Of the same numbers: and what becomes of one is nothing to the other."""
    before = field.matrix("layers.0.weights")
    assert again is not field and np.array_equal(again.matrix("layers.0.weights"), before)
    again.set_matrix("layers.0.weights", before * 0)
    assert np.array_equal(field.matrix("layers.0.weights"), before)


@both
@pytest.mark.parametrize("from_scene", [False, True])
def test_textures(way, from_scene):
    options = dict(transform=mi.ScalarTransform4f().scale([2, 3, 1]).translate([0.1, 0, 0]), clamp=False, resolution=7)
    field = make(2, dropout=0.25)
    texture = cn.mitsuba.NeuralTexture(field, key=cn.Key(3, 0), **options)
    if from_scene:
        name = cn.mitsuba.hand_over("for copies", field)
        texture = mi.load_dict({"type": "neural_texture", "field": name, "id": "paint", **options})
    again = way(texture)
    assert type(again) is type(texture) and again.id() == texture.id()
    assert str(again) == str(texture) and again.texels == texture.texels == 7
    np.testing.assert_array_equal(again.eval(interaction()), texture.eval(interaction()))
    is_another(field, again.field)


@both
@pytest.mark.parametrize("kind", ["numbers", "grid", "lobes"])
def test_materials(way, kind):
    latent = cn.Grid(2, "dense", n_levels=1, base_resolution=4) if kind == "grid" else [0.2, -0.4]
    lobes = make(5, 8) if kind == "lobes" else (0.25, 0.5)
    bsdf = cn.mitsuba.NeuralBSDF(cn.mitsuba.Decoder(make(10)), latent, lobes=lobes)
    again, si, context = way(bsdf), interaction(), mi.BSDFContext()
    wo = dr.normalize(mi.Vector3f(-0.2, 0.4, 0.7))
    for found, expected in zip(again.eval_pdf(context, si, wo), bsdf.eval_pdf(context, si, wo), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert str(again) == str(bsdf)
    is_another(bsdf.decoder.field, again.decoder.field)


@both
def test_integrators(way):
    path = cn.mitsuba.NeuralPath(max_depth=-1, rr_depth=7, hide_emitters=True, networks="mask", banks=4)
    again = way(path)
    assert str(again) == str(path) and (again.hide_emitters, again.banks, again.key) == (True, 4, None)


def test_on_another_backend(backend, monkeypatch):
    """What is read where another variant is set is moved to its backend."""
    decoder, asked = cn.mitsuba.Decoder(make(8)), []
    monkeypatch.setattr(cn.mitsuba.variants, "to", lambda value, backend: asked.append((value, backend)) or value)
    pickle.loads(pickle.dumps(cn.mitsuba.NeuralBSDF(decoder)))
    assert {where for _, where in asked} == {backend} and any(isinstance(v, cn.mitsuba.Decoder) for v, _ in asked)
    assert cn.to(decoder, backend) is decoder
    if backend == "llvm":  # moved: to another precision, where there is one backend
        assert cn.to(decoder, backend, "half").field.precision == "half"


@both
def test_caches_have_scenes(way):
    cache = cn.mitsuba.RadianceCache(mi.load_dict(mi.cornell_box()))
    with pytest.raises(TypeError, match=r"^RadianceCache: a cache cannot be copied or pickled, since its scene cannot"):
        way(cache)
    with pytest.raises(TypeError, match=r"^RadianceCacheIntegrator: it belongs to a cache, and cannot be copied"):
        way(cache.integrator())


@both
def test_media(way):
    """With the phase function, or not at all."""
    plain = cn.mitsuba.NeuralMedium(make(3, 1), albedo=0.5)
    is_another(plain.field, way(plain).field)
    for phase in (mi.load_dict({"type": "hg", "g": 0.9}), cn.mitsuba.NeuralPhase(make(3, 1))):
        with pytest.raises(TypeError, match=r"^NeuralMedium: a copy would lose its phase function"):
            way(cn.mitsuba.NeuralMedium(make(3, 1), albedo=0.5, phase=phase))
