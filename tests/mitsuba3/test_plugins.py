"""Textures, and both plugins in scenes: descriptions, parameters, gradients, integrators, variants."""

from __future__ import annotations

import copy
import pickle

import drjit as dr
import numpy as np
import pytest
from support.arrays import arrays
from support.machines import run

import coopnet as cn

mi = pytest.importorskip("mitsuba")


pytestmark = pytest.mark.usefixtures("variant")


def same(found, expected, rtol=1e-6, atol=1e-6):
    """Equal; on CUDA within half precision, which rounds differently in different kernels."""
    half = "cuda" in mi.variant()
    np.testing.assert_allclose(found, expected, rtol=max(rtol, half * 1e-2), atol=max(atol, half * 5e-3))


def field(outputs=3, inputs=2, seed=1, precision="auto", octaves=1, **options):
    network = cn.MLP(-1, outputs, width=4, depth=1, bias=True, activation="softplus", **options)
    return cn.mitsuba.build(cn.NeuralField(cn.Sinusoidal(octaves, in_features=inputs), network), precision, seed)


def grey(seed=1):
    return cn.mitsuba.NeuralTexture(field(1, seed=seed, output_activation="sigmoid"))


def colour(seed=2, precision="auto"):
    return cn.mitsuba.NeuralTexture(field(3, seed=seed, precision=precision, output_activation="sigmoid"))


def bsdf(seed=1):
    decoder = cn.NeuralField(None, cn.MLP(11, 3, width=4, depth=1, bias=True, activation="softplus"))
    return cn.mitsuba.NeuralBSDF(cn.mitsuba.Decoder(cn.mitsuba.build(decoder, seed=seed)), [0.2, -0.4, 0.3])


def scene(material, light=None, size=8, **shape):
    """A square seen from the front, and a light beside the camera."""
    view = mi.ScalarTransform4f().look_at(origin=[0, 0, 4], target=[0, 0, 0], up=[0, 1, 0])
    beside = mi.ScalarTransform4f().look_at(origin=[2, 1, 3], target=[0, 0, 0], up=[0, 1, 0])
    lamp = {"type": "rectangle", "to_world": beside, "emitter": {"type": "area", "radiance": 5.0}}
    film = {"type": "hdrfilm", "width": size, "height": size, "rfilter": {"type": "box"}}
    return mi.load_dict({
        "type": "scene",
        "integrator": {"type": "path", "max_depth": 3},
        "sensor": {"type": "perspective", "fov": 25, "to_world": view, "film": film},
        "light": lamp if light is None else light,
        "ground": {"type": "rectangle", "bsdf": material, **shape},
    })  # fmt: skip


def points(count=100, seed=0):
    rng = np.random.default_rng(seed)
    si = dr.zeros(mi.SurfaceInteraction3f, count)
    si.uv = mi.Point2f(*(mi.Float(x.astype(np.float32)) for x in rng.random((2, count))))
    si.p = mi.Point3f(*(mi.Float(x.astype(np.float32)) for x in rng.random((3, count))))
    return si


# ---- Textures ----------------------------------------------------------------------------------------------


def test_values_are_those_of_the_field():
    si = points()
    u, v = si.uv
    rgb, one = field(3), field(1)
    t = cn.mitsuba.NeuralTexture(rgb, clamp=False)
    expected = rgb([u, v]).numpy()
    assert type(t.eval(si)) is mi.Color3f
    same(t.eval(si).numpy(), expected)
    same(t.eval_3(si).numpy(), expected)
    same(t.eval_1(si).numpy(), [0.212671, 0.715160, 0.072169] @ expected, rtol=1e-4, atol=1e-6)
    assert not t.eval(si, active=mi.Bool(False)).numpy().any()
    assert (expected < 0).any() or (expected > 1).any()
    clamped = cn.mitsuba.NeuralTexture(rgb)
    same(clamped.eval(si).numpy(), np.clip(expected, 0, 1))
    t = cn.mitsuba.NeuralTexture(one, clamp=False)
    same(t.eval(si).numpy(), np.repeat(one([u, v]).numpy(), 3, axis=0))
    same(t.eval_1(si).numpy(), one([u, v]).numpy()[0])


def test_coordinates():
    si = points()
    u, v = si.uv
    f, solid = field(1), field(1, inputs=3)
    shifted = dr.copy(si)
    shifted.uv = mi.Point2f(u + 3, v - 2)
    t = cn.mitsuba.NeuralTexture(f, clamp=False)
    same(t.eval_1(shifted).numpy(), f([u, v]).numpy()[0], atol=2e-3)
    once = cn.mitsuba.NeuralTexture(f, clamp=False, repeat=False)
    same(once.eval_1(shifted).numpy(), f(shifted.uv).numpy()[0])
    move = mi.ScalarTransform4f().translate([0.1, 0.2, 0]).scale([0.5, 0.25, 1])
    t = cn.mitsuba.NeuralTexture(f, transform=move, clamp=False)
    expected = f([0.5 * u + 0.1, 0.25 * v + 0.2]).numpy()[0]
    same(t.eval_1(si).numpy(), expected, atol=1e-3)
    move = mi.ScalarTransform4f().rotate([0, 0, 1], 90).scale(2)
    t = cn.mitsuba.NeuralTexture(solid, "position", move, clamp=False)
    x, y, z = si.p
    same(t.eval_1(si).numpy(), solid([-2 * y, 2 * x, 2 * z]).numpy()[0], atol=5e-3)


@pytest.mark.parametrize("turned", [False, True])
def test_gradient_in_uv(turned):
    move = mi.ScalarTransform4f().rotate([0, 0, 1], 30).scale([0.5, 0.8, 1]) if turned else None
    t, si, h = cn.mitsuba.NeuralTexture(field(3), transform=move, clamp=False), points(40), 1e-2
    found = t.eval_1_grad(si).numpy()

    def at(du, dv):
        moved = dr.copy(si)
        moved.uv = mi.Point2f(si.uv.x + du, si.uv.y + dv)
        return t.eval_1(moved).numpy()

    expected = np.array([at(h, 0) - at(-h, 0), at(0, h) - at(0, -h)]) / (2 * h)
    close = np.abs(found - expected) < 0.05 * np.abs(expected).max()
    assert close.mean() > 0.9  # others are cut by the edge of the unit square
    solid = cn.mitsuba.NeuralTexture(field(1, 3), "position")
    with pytest.raises(RuntimeError, match="a field of positions has no gradient in uv"):
        solid.eval_1_grad(si)


TO_UV = {
    "none": lambda: None,
    "three": lambda: mi.ScalarTransform3f().translate([0.1, 0.2]).rotate(30).scale([0.5, 1.5]),
    "four": lambda: mi.ScalarTransform4f().translate([0.1, 0.2, 0.3]).rotate([0, 0, 1], 30).scale([0.5, 1.5, 1]),
}


@pytest.mark.parametrize("to_uv", TO_UV)
@pytest.mark.parametrize("wrap_mode", ["repeat", "mirror", "clamp"])
def test_coordinates_are_those_of_bitmaps(wrap_mode, to_uv):
    """A bitmap of a field and the field itself are one texture, also beyond the unit square, with one slope."""
    f, n = field(3), 512
    i = (np.arange(n) + 0.5) / n
    u, v = (mi.Float(x.ravel().astype(np.float32)) for x in np.meshgrid(i, i))
    texels = f([u, v]).numpy().T.reshape(n, n, 3).copy()
    options = {"wrap_mode": wrap_mode} | ({} if to_uv == "none" else {"to_uv": TO_UV[to_uv]()})
    bitmap = mi.load_dict({"type": "bitmap", "bitmap": mi.Bitmap(texels), "raw": True, **options})
    name = cn.mitsuba.hand_over("test.wrapped", f)
    described = mi.load_dict({"type": "neural_texture", "field": name, "clamp": False, **options})
    si = points(2000)
    si.uv = 6 * si.uv - 3
    at = si.uv if to_uv == "none" else mi.Point2f(mi.Transform3f(TO_UV["three"]().matrix) @ si.uv)
    inside = [abs(x - dr.round(x)) > 2 / n for x in at]  # bitmaps are smooth across the edge
    keep = (inside[0] & inside[1]).numpy()
    assert keep.mean() > 0.9
    for texture in (cn.mitsuba.NeuralTexture(f, clamp=False, **options), described):
        same(texture.eval(si).numpy()[:, keep], bitmap.eval(si).numpy()[:, keep], atol=0.02)
        slopes, expected = (t.eval_1_grad(si).numpy()[:, keep] for t in (texture, bitmap))
        # in half precision, differences of texels are coarse
        median, correlation = (0.02, 0.999) if f.precision == "single" else (0.1, 0.9)
        assert np.median(np.abs(slopes - expected)) < median * np.abs(expected).max()
        assert np.corrcoef(slopes.ravel(), expected.ravel())[0, 1] > correlation
    again = pickle.loads(pickle.dumps(described))
    np.testing.assert_array_equal(again.eval(si), described.eval(si))


def test_mean_and_largest_value():
    f = field(3, output_activation="sigmoid")
    t = cn.mitsuba.NeuralTexture(f, resolution=128)
    i = (np.arange(200) + 0.5) / 200
    u, v = (mi.Float(x.ravel().astype(np.float32)) for x in np.meshgrid(i, i))
    values = f([u, v]).numpy()
    luminance = [0.212671, 0.715160, 0.072169] @ values
    assert t.mean()[0] == pytest.approx(luminance.mean(), rel=2e-3)
    assert t.max() == pytest.approx(values.max(), rel=2e-2)
    assert list(t.resolution()) == [128, 128] and t.is_spatially_varying()
    assert 0 < cn.mitsuba.NeuralTexture(field(1, 3, output_activation="sigmoid"), "position").mean()[0] < 1
    assert str(t).startswith("NeuralTexture[coordinates=uv, channels=3")


def test_texture_dropout():
    f, si = field(1, dropout=0.3), points(50)
    with pytest.raises(ValueError, match="NeuralTexture: key has no index"):
        cn.mitsuba.NeuralTexture(f, key=cn.Key(1))
    t = cn.mitsuba.NeuralTexture(f, clamp=False, key=cn.Key(1, index=5))
    one = t.eval_1(si).numpy()
    t.key = t.key.fold_in(1)
    assert not np.allclose(one, t.eval_1(si).numpy())
    t.key = None
    same(t.eval_1(si).numpy(), f(si.uv).numpy()[0])
    image = mi.render(scene({"type": "diffuse", "reflectance": t}), spp=1).numpy()
    t.key = cn.Key(2, index=0)
    assert not np.allclose(mi.render(scene({"type": "diffuse", "reflectance": t}), spp=1).numpy(), image)


WHERE = {
    "diffuse": lambda: {"type": "diffuse", "reflectance": colour()},
    "principled": lambda: {"type": "principled", "base_color": colour(), "roughness": grey(), "metallic": grey(3)},
    "roughconductor": lambda: {"type": "roughconductor", "alpha": grey(), "specular_reflectance": colour()},
    "roughplastic": lambda: {"type": "roughplastic", "diffuse_reflectance": colour()},
    "blendbsdf": lambda: {"type": "blendbsdf", "weight": grey(), "a": {"type": "diffuse"}, "b": bsdf()},
    "mask": lambda: {"type": "mask", "opacity": grey(), "nested": {"type": "diffuse"}},
    "bumpmap": lambda: {"type": "bumpmap", "height": grey(), "nested": {"type": "diffuse"}},
    "normalmap": lambda: {"type": "normalmap", "normalmap": colour(), "nested": {"type": "diffuse"}},
    "twosided": lambda: {"type": "twosided", "nested": bsdf()},
    "several in one": lambda: {"type": "blendbsdf", "weight": 0.3, "a": bsdf(), "b": bsdf(2)},
}


def test_textures_and_bsdfs_inside_others():
    """One picture of tiles, each of another material."""
    parts = {}
    for i, material in enumerate(WHERE.values()):
        place = mi.ScalarTransform4f().translate([2.0 * i, 0, 0])
        parts[f"tile {i}"] = {"type": "rectangle", "to_world": place, "bsdf": material()}
    middle = len(WHERE) - 1.0
    view = mi.ScalarTransform4f().look_at(origin=[middle, 0, 4], target=[middle, 0, 0], up=[0, 1, 0])
    film = {"type": "hdrfilm", "width": 8 * len(WHERE), "height": 8, "rfilter": {"type": "box"}}
    image = mi.render(mi.load_dict({
        "type": "scene",
        "integrator": {"type": "path", "max_depth": 3},
        "sensor": {"type": "orthographic", "to_world": view.scale([len(WHERE), len(WHERE), 1]), "film": film},
        "light": {"type": "constant"},
        **parts,
    }), spp=4).numpy()  # fmt: skip
    for tile, name in zip(np.split(image, len(WHERE), axis=1), WHERE, strict=True):
        assert np.isfinite(tile).all() and tile.mean() > 1e-3 and tile.std() > 0, name


@pytest.mark.parametrize("shape", ["rectangle", "sphere"])
def test_area_light(shape):
    """A light with a neural texture shines like one with a bitmap of it, seen and sampled."""
    f, n = field(3, octaves=3, output_activation="softplus"), 64
    i = (np.arange(n) + 0.5) / n
    u, v = (mi.Float(x.ravel().astype(np.float32)) for x in np.meshgrid(i, 1 - i))  # rows of bitmaps from the top
    texels = f([u, v]).numpy().T.reshape(n, n, 3).copy()
    bitmap = {"type": "bitmap", "bitmap": mi.Bitmap(texels), "raw": True, "wrap_mode": "clamp"}
    images = []
    for radiance in (cn.mitsuba.NeuralTexture(f, clamp=False), bitmap):
        over = mi.ScalarTransform4f().translate([0, 1.2, 0.6]).rotate([1, 0, 0], 60).scale(0.4)
        light = {"type": shape, "to_world": over, "emitter": {"type": "area", "radiance": radiance}}
        images.append(mi.render(scene({"type": "diffuse"}, light), spp=512).numpy())
    assert images[0].mean() == pytest.approx(images[1].mean(), rel=0.03) and images[0].mean() > 1e-3


# ---- Descriptions ------------------------------------------------------------------------------------------


def test_dictionaries_and_xml(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    f = field(3, output_activation="sigmoid")
    cn.save(tmp_path / "wood.safetensors", f)
    material = bsdf()
    material.save(tmp_path / "paint.safetensors")
    cn.mitsuba.hand_over("test.wood", f)
    (tmp_path / "scene.xml").write_text(
        """<scene version="3.0.0">
          <bsdf type="diffuse" id="wood">
            <texture type="neural_texture" name="reflectance">
              <string name="filename" value="wood.safetensors"/>
              <transform name="transform"><scale x="0.5" y="0.25"/></transform>
              <boolean name="clamp" value="false"/> <integer name="resolution" value="17"/>
            </texture>
          </bsdf>
          <bsdf type="neural_bsdf" id="paint"> <string name="filename" value="paint.safetensors"/> </bsdf>
          <shape type="rectangle"> <ref id="wood"/> </shape> <shape type="sphere"> <ref id="paint"/> </shape>
        </scene>"""
    )
    rectangle, sphere = sorted(mi.load_file(str(tmp_path / "scene.xml")).shapes(), key=lambda s: s.class_name())
    if rectangle.class_name() != "Rectangle":
        rectangle, sphere = sphere, rectangle
    si = points(20)
    si.wi = mi.Vector3f(0, 0.6, 0.8)
    si.n = si.sh_frame.n = mi.Normal3f(0, 0, 1)
    up = mi.Vector3f(0, 0, 1)
    scaled = f([0.5 * si.uv.x, 0.25 * si.uv.y]).numpy()
    found = rectangle.bsdf().eval(mi.BSDFContext(), si, up).numpy() * np.pi
    same(found, scaled, atol=1e-3)
    expected = material.eval(mi.BSDFContext(), si, up).numpy()
    same(sphere.bsdf().eval(mi.BSDFContext(), si, up).numpy(), expected, rtol=1e-5)
    described = mi.load_dict({"type": "neural_texture", "field": "test.wood", "clamp": False, "repeat": False})
    same(described.eval(si).numpy(), f(si.uv).numpy())
    named = {"type": "neural_bsdf", "decoder": cn.mitsuba.hand_over("test.decoder", material.decoder)}
    named |= {"latent": cn.mitsuba.hand_over("test.latent", [0.2, -0.4, 0.3]), "specular": 0.1}
    found = mi.load_dict(named)
    same(found.eval(mi.BSDFContext(), si, up).numpy(), expected)
    assert found.lobes.constants.numpy() == pytest.approx([0.1, 0.3])
    named |= {"lobes": cn.mitsuba.hand_over("test.lobes", (0.2, 0.7))}
    del named["specular"]
    assert mi.load_dict(named).lobes.constants.numpy() == pytest.approx([0.2, 0.7])


def test_errors_reach_the_user(tmp_path):
    cn.mitsuba.hand_over("test.one", field(1))
    cn.mitsuba.hand_over("test.gone", 3)
    assert cn.mitsuba.hand_over("test.gone", None) == "test.gone"
    (tmp_path / "text.safetensors").write_text("no checkpoint")
    missing = str(tmp_path / "missing.safetensors")
    for description, message in (
        ({}, "neural_texture: got neither field nor filename; one of field and filename is needed"),
        ({"field": "test.one", "filename": "x"}, "neural_texture: got field and filename; one of"),
        ({"field": "test.gone"}, "nothing was handed over as 'test.gone'"),
        ({"filename": missing}, "missing.safetensors: No such file"),
        ({"filename": str(tmp_path / "text.safetensors")}, "not a safetensors file"),
        ({"field": "test.one", "coordinates": "position"}, "field has 2 inputs; 3 is needed"),
        ({"field": "test.one", "resolution": -1}, "NeuralTexture: resolution is -1"),
    ):
        with pytest.raises(RuntimeError, match=message):
            mi.load_dict({"type": "neural_texture", **description})
    for call, error, message in (
        (lambda: cn.mitsuba.NeuralTexture(field(2)), ValueError, "NeuralTexture: field has 2 outputs; 1 or 3 is need"),
        (lambda: cn.mitsuba.NeuralTexture(3), TypeError, "NeuralTexture: field is a int; a NeuralField is needed"),
        (lambda: cn.mitsuba.NeuralTexture(field(1), "st"), ValueError, "coordinates is 'st'; accepted are 'uv', 'pos"),
        (lambda: cn.mitsuba.NeuralTexture(field(1), clamp=1), ValueError, "NeuralTexture: clamp is 1"),
        (lambda: cn.mitsuba.NeuralTexture(field(1), repeat=2), ValueError, "NeuralTexture: repeat is 2; True or False"),
        (lambda: cn.mitsuba.NeuralTexture(field(1), transform=2), TypeError, "NeuralTexture: transform is 2; an affi"),
        (lambda: cn.mitsuba.NeuralTexture(field(1), to_uv=2), TypeError, "NeuralTexture: to_uv is 2; an affine mi"),
        (lambda: cn.mitsuba.NeuralTexture(field(1), wrap_mode="zero"), ValueError, "wrap_mode is 'zero'; accepted are"),
        (
            lambda: cn.mitsuba.NeuralTexture(field(1), repeat=False, wrap_mode="clamp"),
            ValueError,
            "NeuralTexture: wrap_mode is 'clamp', but repeat=False",
        ),
        (
            lambda: cn.mitsuba.NeuralTexture(field(1, 3), "position", wrap_mode="clamp"),
            ValueError,
            "NeuralTexture: wrap_mode and to_uv are for coordinates='uv'",
        ),
        (
            lambda: cn.mitsuba.NeuralTexture(field(1), transform=np.eye(4), to_uv=np.eye(3)),
            ValueError,
            "NeuralTexture: got transform and to_uv",
        ),
        (lambda: cn.mitsuba.NeuralTexture(field(1), key=3), TypeError, "NeuralTexture: key is a int; a coopnet.Key"),
        (lambda: cn.mitsuba.hand_over(3, 3), ValueError, "mitsuba.hand_over: name is 3; a string is needed"),
        (lambda: cn.mitsuba.NeuralNothing, AttributeError, "has no attribute 'NeuralNothing'"),
    ):
        with pytest.raises(error, match=message):
            call()
    projection = mi.ScalarTransform4f(np.array(mi.ScalarTransform4f().scale(1).matrix) + np.eye(4)[[3, 0, 1, 2]] * 0)
    assert cn.mitsuba.NeuralTexture(field(1), transform=projection).rows[0] == [1, 0, 0, 0]


# ---- Parameters --------------------------------------------------------------------------------------------


def test_parameters_are_the_fields_own():
    f, material = field(3), bsdf()
    textured = mi.traverse(scene({"type": "diffuse", "reflectance": cn.mitsuba.NeuralTexture(f)}))
    plain = mi.traverse(scene(material))
    cases = (
        (textured, "ground.bsdf.reflectance.network.weights", f, "network.weights"),
        (plain, "ground.bsdf.decoder.network.weights", material.decoder.field, "network.weights"),
    )
    for params, key, owner, name in cases:
        assert key in params and type(params[key]) is type(owner[name])
        params[key] = params[key] * 0.5
        expected = params[key].numpy()
        params.update()
        np.testing.assert_array_equal(owner[name].numpy(), expected)
        np.testing.assert_array_equal(owner.network["weights"].numpy(), expected)
    before = mi.render(scene(material), spp=2).numpy()
    plain["ground.bsdf.latent"] = [3.0, 2.0, 1.0]
    plain.update()
    assert material.latent.constants.numpy().tolist() == [3, 2, 1]
    assert not np.allclose(mi.render(scene(material), spp=2).numpy(), before)
    grid = cn.Grid(2, "dense", n_levels=1, n_features_per_level=1, base_resolution=2)
    decoder = cn.mitsuba.Decoder(cn.mitsuba.build(cn.NeuralField(None, cn.MLP(9, 3, width=8))))
    textured = cn.mitsuba.NeuralBSDF(decoder, grid, cn.Grid(2, "dense", n_levels=1, base_resolution=2))
    names = set(mi.traverse(textured).keys())
    assert names == {"decoder.network.weights", "latent.encoding.data", "lobes.encoding.data"}


@pytest.mark.parametrize("kind, integrator", [("texture", "prb"), ("bsdf", "prb"), ("bsdf", "path")])
def test_gradients_of_renderings(integrator, kind, backend):
    """Against central differences with the same random numbers."""
    texture = kind == "texture"
    s = scene({"type": "diffuse", "reflectance": colour()} if texture else bsdf())
    key = "ground.bsdf." + ("reflectance.network.weights" if texture else "latent")
    params = mi.traverse(s)
    params.keep([key])
    tracer = mi.load_dict({"type": integrator, "max_depth": 3})
    start = type(params[key])(params[key])
    flat = getattr(start, "array", start)
    (weights,) = arrays(mi, np.random.default_rng(1).random((1, 8 * 8 * 3)))

    def loss():
        """Its terms; their sum would be a kernel that nobody looks at."""
        return mi.render(s, params, integrator=tracer, spp=16, seed=3).array * weights

    dr.enable_grad(params[key])
    params.update()
    dr.backward(loss())
    gradient = dr.grad(params[key]).numpy().astype(float).ravel()
    assert np.abs(gradient).max() > 0
    direction = gradient / np.linalg.norm(gradient)
    found, h = [], 0.05 if texture else 0.02
    for sign in (1, -1):
        moved = type(flat)(mi.Float((sign * h * direction).astype(np.float32))) + dr.detach(flat)
        params[key] = type(start)(moved, dr.shape(start)) if dr.is_tensor_v(start) else moved
        params.update()
        with dr.suspend_grad():
            found.append(loss().numpy().sum(dtype=np.float64))
    assert (found[0] - found[1]) / (2 * h) == pytest.approx(
        gradient @ direction, rel=0.1 if backend == "cuda" else 2e-2
    )


@pytest.mark.parametrize("optimizer, precision", [("drjit", "half"), ("mitsuba", "auto")])
def test_optimization(optimizer, precision):
    """A few steps towards an image lower the loss, with parameters pushed by ``params.update(opt)``."""
    s = scene({"type": "diffuse", "reflectance": colour(precision=precision)})
    key = "ground.bsdf.reflectance.network.weights"
    params = mi.traverse(s)
    params.keep([key])
    make = dr.opt.Adam if optimizer == "drjit" else mi.ad.Adam
    opt = make(lr=0.1)
    opt[key] = params[key]
    params.update(opt)
    losses = []
    tracer = mi.load_dict({"type": "prb", "max_depth": 2})
    for step in range(8):
        image = mi.render(s, params, integrator=tracer, spp=4, seed=step)
        loss = dr.mean(dr.square(image - mi.TensorXf([0.4, 0.1, 0.05])), axis=None)
        dr.backward(2**12 * loss)  # in half precision, gradients of a mean over pixels vanish; Adam takes any scale
        opt.step()
        params.update(opt)
        losses.append(float(loss.array[0]))
    assert losses[-1] < 0.5 * losses[0]


def test_freezing():
    """``dr.freeze`` around ``mi.render`` sees new weights and codes."""
    s = scene(bsdf())
    params = mi.traverse(s)
    frozen = dr.freeze(lambda scene, seed: mi.render(scene, spp=2, seed=seed))
    for i in range(4):
        for key in ("ground.bsdf.decoder.network.weights", "ground.bsdf.latent"):
            params[key] = params[key] * (0.9 - 0.1 * i)
        params.update()
        seed = dr.opaque(mi.UInt32, i)
        expected = mi.render(s, spp=2, seed=seed).numpy()
        same(frozen(s, seed).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert frozen.n_recordings < 4


# ---- Variants ------------------------------------------------------------------------------------------------


def test_plugins_follow_the_variant(backend):
    """Registered before any variant is set, and while one is that fields do not run in."""
    done = run(f"""
import mitsuba as mi, coopnet as cn
cn.mitsuba.register()
mi.set_variant("scalar_rgb")
cn.mitsuba.register()
mi.set_variant("{backend}_ad_rgb")
field = cn.mitsuba.build(cn.NeuralField(None, cn.MLP(2, 1, width=8)))
print(mi.load_dict({{"type": "neural_texture", "field": cn.mitsuba.hand_over("a", field)}}).channels)
""")
    assert done.stdout.split() == ["1"], done.stderr


def test_mitsuba_is_needed():
    """Where it is not installed, importing says how to."""
    done = run("import sys; sys.modules['mitsuba'] = None; import coopnet.mitsuba")
    assert (
        done.returncode
        and "ImportError: coopnet.mitsuba needs Mitsuba 3; pip install mitsuba, or coopnet[mi" in done.stderr
    )


def test_fields_are_built_as_elsewhere(backend):
    made = cn.NeuralField(None, cn.MLP(2, 1, width=8))
    weights = [f["network.weights"].numpy() for f in (cn.mitsuba.build(made), made.build(backend))]
    assert np.array_equal(*weights)


def test_fields_of_another_backend_are_asked_about(monkeypatch):
    """Also where there is only one backend to have fields of."""

    def refuse(what, value, leaf, other):
        assert leaf is mi.Float
        raise TypeError(f"{what} of another backend than {other}")

    monkeypatch.setattr("coopnet.mitsuba.fields.check_backend", refuse)
    with pytest.raises(
        TypeError, match=r"^NeuralTexture: network.weights is of another backend than Mitsuba's variant"
    ):
        cn.mitsuba.NeuralTexture(field(1))


def test_variants(backend):
    """Classes and plugins follow the variant; fields of another backend are refused in words."""
    other = {"llvm": "cuda", "cuda": "llvm"}[backend]
    mine, f = cn.mitsuba.NeuralTexture, field(1)
    mi.set_variant("scalar_rgb")
    with pytest.raises(RuntimeError, match="the Mitsuba variant is scalar_rgb"):
        mine(f)
    with pytest.raises(RuntimeError, match=r"the Mitsuba variant is scalar_rgb; call mitsuba.set_variant"):
        mi.load_dict({"type": "neural_texture"})
    mi.set_variant(f"{backend}_ad_rgb")
    cn.mitsuba.register()
    assert cn.mitsuba.NeuralTexture is mine and isinstance(mine(f), mi.Texture)
    assert mi.load_dict({"type": "neural_texture", "field": cn.mitsuba.hand_over("test.again", f)}).field is f
    if other not in cn.backend.available():
        return
    mi.set_variant(f"{other}_ad_rgb")
    assert cn.mitsuba.NeuralTexture is not mine
    with pytest.raises(TypeError, match=r"NeuralTexture: network.weights is a .*, but Mitsuba's variant"):
        cn.mitsuba.NeuralTexture(f)
    assert mi.load_dict({"type": "neural_texture", "field": cn.mitsuba.hand_over("test.other", field(1))}).channels == 1


# ---- files, and what Mitsuba makes of them -----------------------------------------------------------------


def test_one_file_named_twice(tmp_path):
    """Mitsuba merges entries of a scene that say the same; what is loaded by itself stays apart."""
    path = str(tmp_path / "material.safetensors")
    bsdf().save(path)
    entry = {"type": "neural_bsdf", "filename": path}

    def decoders(*materials, **options):
        shapes = {f"ball {i}": {"type": "sphere", "bsdf": material} for i, material in enumerate(materials)}
        made = mi.load_dict({"type": "scene", **shapes}, **options)
        return len({id(shape.bsdf().decoder) for shape in made.shapes()})

    assert decoders(entry, dict(entry)) == 1
    assert decoders(entry, dict(entry), optimize=False) == 2
    assert decoders(entry, entry | {"alpha": 0.5}) == 2
    assert decoders(mi.load_dict(entry), mi.load_dict(entry)) == 2


@pytest.mark.parametrize("kind, name", [("roughplastic", "alpha"), ("principled", "eta"), ("principled", "specular")])
def test_parameters_that_are_numbers(kind, name):
    """Mitsuba takes no texture there, which docs/mitsuba.md says."""
    with pytest.raises(RuntimeError, match=f'The property "{name}" has the wrong type'):
        mi.load_dict({"type": kind, name: grey()})


@pytest.mark.parametrize("name", ["diffuse_reflectance", "specular_reflectance"])
def test_textures_of_roughplastic(name):
    assert mi.load_dict({"type": "roughplastic", name: colour()})


def test_textures_of_fields_with_bounds(tmp_path):
    """From a file, in a scene: the texture is the field, whatever box it maps to the unit square."""
    pytest.importorskip("safetensors")
    grid = cn.Grid(2, "dense", n_levels=1, base_resolution=4, init_scale=1.0)
    plain = cn.NeuralField(grid, cn.MLP(-1, 3, 8, 1), in_features=2)
    bounded = cn.NeuralField(grid, cn.MLP(-1, 3, 8, 1), in_features=2, bounds=(-1, 3))
    built = [cn.mitsuba.build(f, seed=2) for f in (plain, bounded)]
    cn.save(tmp_path / "f.safetensors", built[1])
    texture = mi.load_dict({"type": "neural_texture", "filename": str(tmp_path / "f.safetensors"), "clamp": False})
    si = dr.zeros(mi.SurfaceInteraction3f, 50)
    si.uv = mi.Point2f(np.random.default_rng(0).random((2, 50)).astype(np.float32))
    same(np.array(texture.eval(si)), built[1](si.uv).numpy())
    same(built[1](si.uv).numpy(), built[0]((si.uv + 1) / 4).numpy(), atol=1e-5)


def test_several_textures_of_one_field():
    """Each takes some of its outputs; copies and scene descriptions, too."""
    several, si = field(outputs=5), points()
    y = [dr.clip(v, 0, 1).numpy() for v in several(list(si.uv))]
    colors = cn.mitsuba.NeuralTexture(several, channels=[2, 0, 4])
    described = {"type": "neural_texture", "field": cn.mitsuba.hand_over("several", several), "channels": "2 0 4"}
    for texture in (colors, copy.deepcopy(colors), mi.load_dict(described)):
        for found, c in zip(texture.eval_3(si), (2, 0, 4), strict=True):
            same(found.numpy(), y[c])
    single = cn.mitsuba.NeuralTexture(several, channels=(np.int64(3),), clamp=False)
    same(dr.clip(single.eval_1(si), 0, 1).numpy(), y[3])
    rows = several.jacobian(list(si.uv))
    same(single.eval_1_grad(si).numpy(), [v.numpy() for v in rows[3]], rtol=1e-5)
    for bad in ([0, 1], [5], [-1], [True], "0 1 x", [0.0, 1.0, 2.0], 1):
        with pytest.raises((ValueError, TypeError), match="NeuralTexture: channels is"):
            cn.mitsuba.NeuralTexture(several, channels=bad)
