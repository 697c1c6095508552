"""Learning BSDFs: how close, how bright, and what is refused."""

from __future__ import annotations

import sys

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")

from coopnet.mitsuba.bsdf.reflections import draw, weights  # noqa: E402 - needs Mitsuba

pytestmark = pytest.mark.usefixtures("variant")


def learn(reference, steps=250, field=None, **options):
    options = dict(samples=2048, lr=1e-2, seed=3) | options
    if field is None:
        network = cn.MLP(-1, 3, options.pop("width", 16), options.pop("depth", 2), bias=True)
        field = cn.NeuralField(None, network, in_features=options.pop("inputs", 8))
    return cn.mitsuba.fit_bsdf(field, mi.load_dict(reference), steps=steps, **options)


@pytest.fixture
def few_lobe_steps(monkeypatch):
    """For what does not depend on the lobes: two steps, not 400."""
    module = sys.modules[cn.mitsuba.BSDFFit.__module__]
    fit_lobes = module.fit_lobes
    monkeypatch.setattr(module, "fit_lobes", lambda *args: fit_lobes(*args[:4], 2, *args[5:]))


def furnace(bsdf, angle):
    """Share of the light of a white sky that is reflected, by the BSDF's own samples."""
    n, a = 1 << 16, np.radians(angle)
    sampler = mi.load_dict({"type": "independent"})
    sampler.seed(1, n)
    si = dr.zeros(mi.SurfaceInteraction3f, n)
    si.wi = mi.Vector3f(float(np.sin(a)), 0, float(np.cos(a)))
    si.uv = sampler.next_2d()
    _, weight = bsdf.sample(mi.BSDFContext(), si, sampler.next_1d(), sampler.next_2d())
    return weight.numpy().mean(axis=1)


#: Its texture has no derivative.
BUMPS = {"type": "bumpmap", "texture": {"type": "checkerboard"}, "bsdf": {"type": "diffuse"}}
WHITE = {"type": "roughconductor", "material": "none", "alpha": 0.3}
#: A network for what does not depend on how well it learns.
SMALL = {"width": 8, "depth": 1}


def test_a_white_conductor_does_not_shine():
    """In a white furnace: a fit of a BSDF that conserves energy reflects no more than all of it."""
    found = learn(WHITE, steps=600)
    assert found.relative_error < 0.15
    reference = mi.load_dict(WHITE)
    for angle in (0, 30, 60, 75, 85):
        ours, true = furnace(found.bsdf, angle), furnace(reference, angle)
        assert ours.max() < 1.05 and ours == pytest.approx(true, abs=0.12), angle
    assert found.albedo == pytest.approx(found.reference_albedo, rel=0.03)
    # the lobes are those of the material: what they miss would show as noise
    si = dr.zeros(mi.SurfaceInteraction3f)
    si.wi = mi.Vector3f(0.6, 0, 0.8)
    beckmann, _, _, u, v, *_ = (p.numpy()[0] for p in found.bsdf.material(si)[1])
    assert beckmann > 0.6 and u == pytest.approx(0.3, abs=0.06) and v == pytest.approx(0.3, abs=0.06)
    assert found.spread < 1.5 * found.reference_spread


def test_figures():
    """Of a fit that has learned nothing: the initial network reflects about 1 / sr, whatever the reference."""
    found = learn({"type": "diffuse", "reflectance": 0.5}, steps=1, lr=1e-6)
    assert found.reference_albedo == pytest.approx(0.5, rel=2e-2) and found.reference_spread < 1e-3
    assert found.albedo == pytest.approx(furnace(found.bsdf, 45).mean(), rel=0.4)
    assert found.relative_error == pytest.approx(found.albedo / 0.5 - 1, rel=0.2)
    assert found.result.steps == 1 and "relative error" in repr(found)
    better = learn({"type": "diffuse", "reflectance": 0.5}, steps=200)
    assert better.relative_error < 0.1 and better.spread < 0.1


#: By materials: lobes that do not know the direction are enough for some.
ROUGH = {
    "anisotropic": ({"type": "roughconductor", "distribution": "ggx", "alpha_u": 0.3, "alpha_v": 0.1}, 1),
    "plastic": ({"type": "roughplastic", "alpha": 0.2}, None),
}


@pytest.mark.parametrize("name", ROUGH)
def test_samples_as_good_as_the_references(name):
    reference, resolution = ROUGH[name]
    found = learn(reference, steps=600, lobe_resolution=resolution)
    assert found.spread < 1.5 * found.reference_spread
    assert found.bsdf.lobes.network == (resolution is None) and found.bsdf.lobes.count == 8


def test_textured():
    """A code learned with the decoder: two halves of a checkerboard."""
    checker = {"type": "checkerboard", "color0": {"type": "rgb", "value": [0.8, 0.2, 0.1]}, "color1": 0.2}
    checker["to_uv"] = mi.ScalarTransform4f().scale([1, 1, 1])
    code = cn.Grid(2, "dense", n_levels=1, n_features_per_level=2, base_resolution=17, init_scale=0.1)
    reference = {"type": "principled", "base_color": checker, "roughness": 0.5}
    found = learn(reference, steps=400, inputs=10, latent=code, lobe_resolution=4)
    assert found.relative_error < 0.25 and found.bsdf.latent.varies
    assert found.bsdf.lobes.varies and not found.bsdf.lobes.network and found.spread < 1.5 * found.reference_spread
    si = dr.zeros(mi.SurfaceInteraction3f, 4)
    si.uv, si.wi = mi.Point2f([0.25, 0.75, 0.25, 0.75], [0.25, 0.75, 0.75, 0.25]), mi.Vector3f(0.6, 0, 0.8)
    ours = found.bsdf.eval(mi.BSDFContext(), si, mi.Vector3f(0, 0.6, 0.8)).numpy()
    true = mi.load_dict(reference).eval(mi.BSDFContext(), si, mi.Vector3f(0, 0.6, 0.8)).numpy()
    np.testing.assert_allclose(ours, true, rtol=0.3)
    assert abs(ours[0, 0] - ours[0, 2]) > 0.05


def test_what_is_learned_by_default(monkeypatch):
    """2000 steps of 2^14 samples, of a network with three hidden layers of 32."""
    module = sys.modules[cn.mitsuba.BSDFFit.__module__]

    class Asked(Exception):
        pass

    def fit(field, batch, steps, *, lr, seed, progress, objective):
        shapes = [field.matrix(f"layers.{i}.weights").shape for i in (0, 2, 4, 6)]
        assert shapes == [(32, 8), (32, 32), (32, 32), (3, 32)] and field.matrix("layers.0.bias").shape == (32,)
        assert (steps, seed, progress) == (2000, 0, False) and lr(0) == pytest.approx(5e-3)
        assert dr.width(batch(cn.Key(0)).wo) == 1 << 14
        raise Asked

    monkeypatch.setattr(module, "fit", fit)
    with pytest.raises(Asked):
        cn.mitsuba.fit_bsdf(None, mi.load_dict(WHITE))


def test_the_same_seed_learns_the_same(backend, few_lobe_steps):
    if backend == "cuda":
        pytest.skip("atomics add in any order")
    one, two, other = (learn(WHITE, steps=20, seed=seed) for seed in (1, 1, 2))
    assert one.result.losses == two.result.losses != other.result.losses
    assert one.relative_error == two.relative_error


def test_a_built_field_is_trained_on(few_lobe_steps):
    field = cn.mitsuba.build(cn.NeuralField(None, cn.MLP(8, 3, width=16, depth=2, bias=True)))
    first = learn(WHITE, steps=60, field=field)
    assert first.bsdf.decoder.field is field
    again = learn(WHITE, steps=60, field=field)
    assert again.result.losses[0] < 0.5 * first.result.losses[0]


def test_samples_that_count_for_nothing():
    """Directions below the surface are none: value 0, and a density that can be divided by."""
    reference = mi.load_dict({"type": "roughconductor", "material": "none", "alpha": 1.0})
    drawn = draw(reference, cn.Key(0), 4096)
    valid, value = drawn.valid.numpy(), drawn.value.numpy()
    assert 0.5 < valid.mean() < 0.99
    assert value[:, valid].any(axis=0).mean() > 0.99 and not value[:, ~valid].any()
    assert (drawn.pdf.numpy()[~valid] == 1).all() and (drawn.wo.numpy()[2] > 0).all()
    found = weights(reference, cn.Key(0), 4096).numpy()
    assert found.min() == 0 and 0.5 < np.mean(found > 0) < 0.99


@pytest.mark.usefixtures("few_lobe_steps")
def test_a_decoder_that_does_not_say_its_inputs():
    assert learn(WHITE, steps=2, inputs=-1).bsdf.decoder.field.in_features == 8


def test_points_lie_where_their_coordinates_say():
    """In the plane z = 0, for what depends on positions."""
    field = cn.mitsuba.build(cn.NeuralField(None, cn.MLP(3, 1, width=4, depth=1, output_activation="sigmoid")))
    texture = cn.mitsuba.NeuralTexture(field, "position")
    drawn = draw(mi.load_dict({"type": "diffuse", "reflectance": texture}), cn.Key(0), 64)
    expected = field([*drawn.uv, mi.Float(0)])[0] * drawn.wo.z / np.pi
    np.testing.assert_allclose(drawn.value.x.numpy(), expected.numpy(), rtol=1e-2, atol=1e-4)


def test_what_is_refused():
    field = cn.NeuralField(None, cn.MLP(8, 3, width=8))
    for reference, options, error, message in (
        ({"type": "conductor"}, {}, ValueError, "reference is perfectly specular"),
        (
            {"type": "twosided", "bsdf": WHITE},
            {},
            ValueError,
            "reference is twosided, but only the front .* is learned",
        ),
        ({"type": "diffuse", "reflectance": 0.0}, {}, ValueError, "reference reflects nothing on its front side"),
        (BUMPS, {}, ValueError, r"reference cannot be evaluated \(.*eval_1_grad.*\); a bumpmap needs slopes, which"),
        (WHITE, {"latent": [1.0, 2.0]}, ValueError, "latent is constant"),
        (WHITE, {"latent": 3}, TypeError, "latent is a int"),
        (WHITE, {"steps": 0}, ValueError, "steps is 0"),
        (WHITE, {"lr": -1.0}, ValueError, "lr is -1.0"),
        (WHITE, {"seed": 1 << 63}, ValueError, "seed is"),
        (WHITE, {"directions": "polar"}, ValueError, "directions is 'polar'"),
        (WHITE, {"directions": "plain"}, ValueError, "field has 8 inputs, but latent_features=0 .* make 6"),
        (WHITE, {"field": cn.NeuralField(cn.Frequency(8, 2), cn.MLP(-1, 3))}, ValueError, "field has a Frequency"),
        (WHITE, {"field": 3}, TypeError, "field is a int"),
    ):
        with pytest.raises(error, match=f"(fit_bsdf|Decoder): {message}"):
            learn(reference, **({"field": field} | options))
    with pytest.raises(TypeError, match="fit_bsdf: reference is a dict"):
        cn.mitsuba.fit_bsdf(None, WHITE)


def test_bumps_of_a_bitmap(few_lobe_steps):
    """What a bump map over a checkerboard is refused for, a bitmap has."""
    values = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4, 1)
    reference = BUMPS | {"texture": {"type": "bitmap", "bitmap": mi.Bitmap(values), "raw": True}}
    assert learn(reference, steps=1, **SMALL).reference_albedo > 0.1


def test_bitmaps(few_lobe_steps):
    """Textures that hardware looks up, in a frozen step."""
    values = np.linspace(0.1, 0.9, 4 * 4 * 3, dtype=np.float32).reshape(4, 4, 3)
    reference = {
        "type": "principled",
        "base_color": {"type": "bitmap", "bitmap": mi.Bitmap(values), "raw": True},
        "roughness": {"type": "bitmap", "bitmap": mi.Bitmap(values[..., :1].copy()), "raw": True},
    }
    latent = cn.Grid(2, "dense", n_levels=1, n_features_per_level=4, base_resolution=4, init_scale=0.05)
    found = learn(reference, steps=100, inputs=12, latent=latent, **SMALL)
    assert found.relative_error < 0.9


def test_a_latent_code_has_bounds_of_its_own(few_lobe_steps, monkeypatch):
    """Code and decoder are one field while they learn: the box of the code is that of its two coordinates."""
    module, learned = sys.modules[cn.mitsuba.BSDFFit.__module__], []
    fit = module.fit
    monkeypatch.setattr(module, "fit", lambda field, *args, **options: (
        learned.append(field), fit(field, *args, **options))[1])  # fmt: skip
    grid = cn.Grid(2, "dense", n_levels=1, n_features_per_level=3, base_resolution=4, init_scale=1.0)
    code = cn.mitsuba.build(cn.NeuralField(grid, cn.Identity(), bounds=(-1, [3, 2])), seed=1)
    reference = {"type": "diffuse", "reflectance": 0.5}
    found = learn(reference, steps=1, inputs=11, latent=code, **SMALL)
    assert code.bounds == (-1.0, (3.0, 2.0)) and found.bsdf.latent.field is code
    place, angles = [mi.Float(0.3), mi.Float(0.8)], [mi.Float(0.1 * i) for i in range(8)]
    parts = found.bsdf.decoder.field([*code(place), *angles]).numpy()
    np.testing.assert_allclose(learned[0]([*place, *angles]).numpy(), parts, rtol=1e-2, atol=1e-3)
    code = cn.mitsuba.build(cn.NeuralField(grid, cn.Identity()), seed=1)
    plain = learn(reference, steps=1, inputs=11, latent=code, **SMALL)
    assert found.result.losses != plain.result.losses
    decoder = cn.NeuralField(None, cn.MLP(11, 3, width=16, depth=2, bias=True), bounds=(0, 1))
    with pytest.raises(ValueError, match="fit_bsdf: field has bounds"):
        learn(reference, 1, decoder, latent=code)


@pytest.mark.slow  # bitmaps and bumps have tests of their own
def test_a_nest_as_of_films(few_lobe_steps):
    """A blend by a bitmap of a clear-coated paint, whose colors are bitmaps, and worn metal under bumps and normals."""
    rng = np.random.default_rng(0)

    def bitmap(low, high, channels=1):
        texels = rng.uniform(low, high, (4, 4, channels)).astype(np.float32)
        return {"type": "bitmap", "bitmap": mi.Bitmap(texels), "raw": True}

    paint = {"type": "principled", "base_color": bitmap(0.1, 0.9, 3), "roughness": bitmap(0.3, 0.8), "clearcoat": 0.5}
    metal = {"type": "roughconductor", "material": "Al", "alpha": bitmap(0.2, 0.4)}
    bent = {"type": "normalmap", "normalmap": bitmap([0.4, 0.4, 0.9], [0.6, 0.6, 1.0], 3), "bsdf": metal}
    bumpy = {"type": "bumpmap", "texture": bitmap(0, 0.1), "bsdf": bent}
    nest = {"type": "blendbsdf", "weight": bitmap(0.0, 1.0), "a": paint, "b": bumpy}
    code = cn.Grid(2, "dense", n_levels=1, n_features_per_level=8, base_resolution=9, init_scale=0.1)
    found = learn(nest, steps=600, inputs=16, latent=code)
    assert found.relative_error < 0.35  # without a code 0.46
    assert found.albedo == pytest.approx(found.reference_albedo, rel=0.1)
