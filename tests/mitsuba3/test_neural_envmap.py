"""Light from all around that is a field: values, sampling, pictures, and the picture that samples follow."""

from __future__ import annotations

import copy

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")
pytestmark = pytest.mark.usefixtures("variant")


def made(inputs=3, outputs=3, seed=1, **options):
    network = cn.MLP(-1, outputs, width=8, depth=1, bias=True, activation="softplus", **options)
    return cn.mitsuba.build(cn.NeuralField(cn.Sinusoidal(1, in_features=inputs), network), seed=seed)


def radiance(inputs=3, outputs=3, seed=1):
    return made(inputs, outputs, seed, output_activation="softplus")


def directions(count=200, seed=0):
    d = np.random.default_rng(seed).normal(size=(3, count))
    return mi.Vector3f(*map(mi.Float, (d / np.linalg.norm(d, axis=0)).astype(np.float32)))


def seen(d):
    """An interaction without a surface, of rays that go along ``d``."""
    si = dr.zeros(mi.SurfaceInteraction3f, dr.width(d))
    si.wi = -d
    return si


def close(found, expected, rtol=1e-4, atol=1e-5):
    half = "cuda" in mi.variant()
    np.testing.assert_allclose(found, expected, rtol=max(rtol, half * 1e-2), atol=max(atol, half * 5e-3))


def test_values_are_those_of_the_field():
    d, field = directions(), radiance()
    close(cn.mitsuba.NeuralEnvmap(field, scale=2.0).eval(seen(d)), 2 * field(list(d)).numpy())
    turn = mi.ScalarTransform4f().rotate([0, 1, 0], 90)
    turned = cn.mitsuba.NeuralEnvmap(field, to_world=turn)
    close(turned.eval(seen(d)), field([-d.z, d.y, d.x]).numpy(), rtol=1e-3)
    flat = cn.mitsuba.NeuralEnvmap(radiance(2, 1), "uv")
    u, v = np.arctan2(d.x, -d.z) / (2 * np.pi) % 1, np.arccos(d.y) / np.pi
    expected = flat.field([mi.Float(x.astype(np.float32)) for x in (u, v)]).numpy()
    close(flat.eval(seen(d)), np.repeat(expected, 3, 0), rtol=1e-3)
    assert not turned.eval(seen(d), mi.Bool(False)).numpy().any()


@pytest.mark.parametrize("coordinates", ["direction", "uv"])
def test_samples_densities_and_values_agree(coordinates):
    from mitsuba.chi2 import ChiSquareTest, SphericalDomain

    turn = mi.ScalarTransform4f().rotate([0.6, 0, 0.8], 40)
    sky = cn.mitsuba.NeuralEnvmap(radiance(3 if coordinates == "direction" else 2), coordinates, turn, resolution=16)
    it = dr.zeros(mi.Interaction3f)

    def sample(u):
        ds, weight = sky.sample_direction(it, u)
        close(sky.pdf_direction(it, ds), ds.pdf, rtol=1e-2)
        close(weight * ds.pdf, sky.eval(seen(ds.d)), rtol=1e-3)
        close(sky.eval_direction(it, ds), sky.eval(seen(ds.d)), rtol=1e-3)
        return ds.d

    def pdf(d):
        ds = dr.zeros(mi.DirectionSample3f, dr.width(d))
        ds.d = d
        return sky.pdf_direction(it, ds)

    test = ChiSquareTest(SphericalDomain(), sample, pdf, sample_dim=2, sample_count=100_000, res=16, ires=8)
    assert test.run(), test.messages


def test_the_picture_follows_the_field():
    """An old picture makes the same estimate with more noise, and a new one less."""
    field = radiance(outputs=1)
    sky, it = cn.mitsuba.NeuralEnvmap(field, resolution=32), dr.zeros(mi.Interaction3f)
    u = np.random.default_rng(0).random((2, 1 << 14)).astype(np.float32)

    def estimate():
        _, weight = sky.sample_direction(it, mi.Point2f(*map(mi.Float, u)))
        light = weight.numpy().sum(axis=0)
        return light.mean(), light.std() / light.mean()

    assert estimate()[1] < 0.25
    field.set_matrix("layers.2.weights", -6 * field.matrix("layers.2.weights"))
    old, spread = estimate()
    sky.bake()
    new, narrow = estimate()
    assert narrow < 0.5 * spread and narrow < 0.35
    assert abs(old / new - 1) < 5 * spread / 128
    params = mi.traverse(sky)
    params["network.weights"] = params["network.weights"] * 0
    params.update()
    assert estimate()[1] < 0.1


def test_pictures():
    """That of Mitsuba's ``envmap`` of the same light, and gradients of the weights."""
    field, n = radiance(), 64
    i = dr.arange(mi.UInt32, 2 * n * n)
    (sine, cosine), (s, c) = (
        dr.sincos(dr.pi * (mi.Float(i // (2 * n)) + 0.5) / n),
        dr.sincos(dr.pi * (mi.Float(i % (2 * n)) + 0.5) / n),
    )
    baked = field([s * sine, cosine, -c * sine]).numpy().T.reshape(n, 2 * n, 3)
    sky = cn.mitsuba.NeuralEnvmap(field)
    film = {"type": "hdrfilm", "width": 4, "height": 4, "rfilter": {"type": "box"}}
    view = mi.ScalarTransform4f().look_at([0, 0, 40], [0, 0, 0], [0, 1, 0])
    means = []
    path = mi.load_dict({"type": "prb", "max_depth": 3})
    for light in (sky, {"type": "envmap", "bitmap": mi.Bitmap(np.ascontiguousarray(baked, np.float32))}):
        scene = mi.load_dict({
            "type": "scene", "light": light, "ball": {"type": "sphere", "radius": 8},
            "sensor": {"type": "perspective", "fov": 25, "to_world": view, "film": film},
        })  # fmt: skip
        means.append(mi.render(scene, integrator=path, spp=1024).numpy().mean(axis=(0, 1)))
        if light is sky:
            params = mi.traverse(scene)
            dr.enable_grad(params["light.network.weights"])
            picture = mi.render(scene, params, integrator=path, spp=256)
            dr.backward(dr.mean(picture, axis=None))
            gradient = dr.grad(params["light.network.weights"])
            # the picture is linear in light: that of the last layer's softplus follows it
            assert dr.all(dr.isfinite(gradient)) and dr.any(gradient != 0)
    np.testing.assert_allclose(means[0], means[1], rtol=0.02)


def test_light_paths_need_the_size_of_the_scene():
    sky = cn.mitsuba.NeuralEnvmap(radiance())
    sensor = mi.cornell_box()["sensor"]
    sensor["film"] |= {"width": 4, "height": 4, "rfilter": {"type": "box"}}
    scene = mi.load_dict({"type": "scene", "light": sky, "sensor": sensor, "ball": {"type": "sphere", "radius": 0.5}})
    tracer = mi.load_dict({"type": "ptracer", "max_depth": 2})
    with pytest.raises(RuntimeError) as error:
        mi.render(scene, integrator=tracer, spp=1)
    assert "call emitter.set_scene(scene) before light is followed" in str(error.value.__cause__)
    sky.set_scene(scene)
    found = mi.render(scene, integrator=tracer, spp=4096).numpy().mean()
    expected = mi.render(scene, integrator=mi.load_dict({"type": "path", "max_depth": 2}), spp=512)
    assert abs(found / expected.numpy().mean() - 1) < 0.1


def test_in_scenes_and_copies(tmp_path):
    field, d = radiance(), directions(20)
    name = cn.mitsuba.hand_over("sky", field)
    sky = mi.load_string(f"""<emitter version="3.0.0" type="neural_envmap"><string name="field" value="{name}"/>
        <float name="scale" value="3"/><transform name="to_world"><rotate y="1" angle="30"/></transform></emitter>""")
    again = copy.deepcopy(sky)
    assert str(again) == str(sky) and again.field is not field
    np.testing.assert_array_equal(again.eval(seen(d)), sky.eval(seen(d)))
    assert sky.is_environment() and "network.weights" in mi.traverse(sky)


def test_refusals():
    envmap, field = cn.mitsuba.NeuralEnvmap, radiance()
    with pytest.raises(ValueError, match=r"^NeuralEnvmap: field has 3 inputs; 2 is needed"):
        envmap(field, "uv")
    with pytest.raises(ValueError, match=r"^NeuralEnvmap: to_world is not a rotation or mirror image"):
        envmap(field, to_world=mi.ScalarTransform4f().scale(2))
    with pytest.raises(ValueError, match=r"^NeuralEnvmap: floor is 0; a number in \(0, 1\] is needed"):
        envmap(field, floor=0)
    with pytest.raises(ValueError, match=r"^NeuralEnvmap: resolution is 2"):
        envmap(field, resolution=2)
    with pytest.raises(ValueError, match=r"^NeuralEnvmap: key has no index"):
        envmap(field, key=cn.Key(1))
    sky = envmap(made(dropout=0.2, output_activation="softplus"))
    scene = mi.load_dict({"type": "scene", "sky": sky, "sensor": {"type": "perspective"}})
    with pytest.raises(ValueError, match="masks is 'path', but emitters are evaluated in virtual calls"):
        cn.mitsuba.render_mc(scene, 2, cn.Key(0), integrator=cn.mitsuba.NeuralPath(), masks="path")


# ---- Area lights -------------------------------------------------------------------------------------------


def test_area_lights_sample_where_they_are_bright():
    """Points agree with their density, and pictures with those of uniform points, at less noise."""
    field = radiance(2, 1, seed=3)
    field.set_matrix("layers.2.weights", 12 * field.matrix("layers.2.weights"))
    uniform, lamp = (cn.mitsuba.NeuralTexture(field, clamp=False, sampling=n) for n in (0, 16))
    u = mi.Point2f(*map(mi.Float, np.random.default_rng(0).random((2, 1 << 16)).astype(np.float32)))
    point, pdf = lamp.sample_position(u)
    assert dr.all((point >= 0) & (point <= 1), axis=None)
    close(lamp.pdf_position(point), pdf)
    counts, *_ = np.histogram2d(point.y.numpy(), point.x.numpy(), bins=16, range=[[0, 1], [0, 1]])
    i = dr.arange(mi.UInt32, 256)
    expected = lamp.pdf_position((mi.Point2f(i % 16, i // 16) + 0.5) / 16).numpy().reshape(16, 16) * 2**16 / 256
    assert (((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(2 * 255) < 4
    si = dr.zeros(mi.SurfaceInteraction3f, 1 << 16)
    light = []
    for texture in (uniform, lamp):
        si.uv, pdf = texture.sample_position(u)
        weight = texture.eval_1(si).numpy() / pdf.numpy()
        light.append((weight.mean(), weight.std()))
    (a, wide), (b, narrow) = light
    assert narrow < 0.5 * wide and abs(a - b) < 4 * wide / 256
    assert copy.deepcopy(lamp).sampling == 16
    with pytest.raises(ValueError, match=r"^NeuralTexture: sampling is for coordinates='uv'"):
        cn.mitsuba.NeuralTexture(radiance(3, 1), "position", sampling=8)
    room = {
        "type": "scene", "floor": {"type": "rectangle"},
        "lamp": {
            "type": "rectangle", "emitter": {"type": "area", "radiance": lamp},
            "to_world": mi.ScalarTransform4f().translate([0, 0, 1]).rotate([1, 0, 0], 180),
        },
        "sensor": {
            "type": "perspective", "film": {"type": "hdrfilm", "width": 2, "height": 2, "rfilter": {"type": "box"}},
            "to_world": mi.ScalarTransform4f().look_at([3, 0, 0.9], [0, 0, 0], [0, 0, 1]), "fov": 10,
        },
    }  # fmt: skip
    means = []
    for texture in (uniform, lamp):
        room["lamp"]["emitter"]["radiance"] = texture
        means.append(mi.render(mi.load_dict(room), integrator=mi.load_dict({"type": "path"}), spp=2048).numpy().mean())
    assert abs(means[0] / means[1] - 1) < 0.03
