"""Decoders, sampling lobes and the BSDF made of them."""

from __future__ import annotations

from pathlib import Path

import drjit as dr
import numpy as np
import pytest

import coopnet as cn
from coopnet import reference as ref

mi = pytest.importorskip("mitsuba")
hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies


pytestmark = pytest.mark.usefixtures("variant")


def same(found, expected, rtol=1e-5):
    """Equal; on CUDA within half precision, which rounds differently in different kernels."""
    half = "cuda" in mi.variant()
    np.testing.assert_allclose(found, expected, rtol=max(rtol, half * 2e-2), atol=1e-6)


def directions(count, seed, least=0.0):
    """Unit vectors ``(3, count)`` above the surface."""
    rng = np.random.default_rng(seed)
    v = rng.normal(size=(3, count))
    v[2] = np.abs(v[2]) + least
    return v / np.linalg.norm(v, axis=0)


def vector(v):
    return mi.Vector3f(*(mi.Float(x.astype(np.float32)) for x in np.atleast_2d(v)))


def decoder(latent=0, name="rusinkiewicz", seed=1, **options):
    inputs = latent + {"rusinkiewicz": 8, "plain": 6}[name]
    field = cn.NeuralField(None, cn.MLP(inputs, 3, width=6, depth=1, bias=True, activation="softplus", **options))
    return cn.mitsuba.Decoder(cn.mitsuba.build(field, seed=seed), directions=name)


def bsdf(**options):
    code = cn.Grid(2, "dense", n_levels=1, n_features_per_level=4, base_resolution=4, init_scale=0.5)
    return cn.mitsuba.NeuralBSDF(decoder(4), code, **options)


def interactions(count=256, seed=0, wi=None):
    si = dr.zeros(mi.SurfaceInteraction3f, count)
    rng = np.random.default_rng(seed)
    si.uv = mi.Point2f(*(mi.Float(x.astype(np.float32)) for x in rng.random((2, count)) * 3 - 1))
    si.wi = vector(directions(count, seed + 1, 0.05)) if wi is None else wi
    return si


# ---- Directions --------------------------------------------------------------------------------------------


def test_rusinkiewicz_angles_by_hand():
    """Two directions in a plane with the normal: half vector and difference vector lie in it, too."""
    a, b = np.radians(70), np.radians(-10)
    wi, wo = (np.array([[np.sin(t)], [0], [np.cos(t)]]) for t in (a, b))
    angles = ref.rusinkiewicz_angles(wi, wo)[:, 0]
    np.testing.assert_allclose(angles, [np.radians(30), 0, np.radians(40), 0], atol=1e-12)


@pytest.mark.parametrize("spread", [1.0, 0.05, 1e-3])
def test_features_are_those_of_the_reference(spread):
    """Also near the mirror direction, where half vectors are close to the normal."""
    wi = directions(500, 3, 0.02)
    wo = np.array([[-1], [-1], [1]]) * wi + spread * np.random.default_rng(4).normal(size=wi.shape)
    wo /= np.linalg.norm(wo, axis=0)
    wi, wo = wi[:, wo[2] > 0], wo[:, wo[2] > 0]
    wi, wo = wi.astype(np.float32).astype(float), wo.astype(np.float32).astype(float)
    found = np.array([f.numpy() for f in cn.mitsuba.bsdf.directions.rusinkiewicz(vector(wi), vector(wo))])
    np.testing.assert_allclose(found, ref.rusinkiewicz_features(wi, wo), atol=2e-5)


def test_features_know_no_order():
    wi, wo = directions(200, 5), directions(200, 6)
    features = ref.rusinkiewicz_features(wi, wo)
    np.testing.assert_allclose(features, ref.rusinkiewicz_features(wo, wi), atol=1e-12)
    one = dr.arange(mi.Float, 200)
    for name, reciprocal in (("rusinkiewicz", True), ("plain", False)):
        d, a, b = decoder(0, name), vector(wi), vector(wo)
        there, back = (d.evaluate([], x, y) / y.z + 0 * one for x, y in ((a, b), (b, a)))
        same = np.allclose(there.numpy(), back.numpy(), rtol=1e-2 if d.field.precision == "half" else 1e-4)
        assert same == reciprocal


# ---- Lobes -------------------------------------------------------------------------------------------------


@hypothesis.settings(max_examples=10)
@hypothesis.given(specular=st.floats(0, 1), alpha=st.floats(0.02, 1), seed=st.integers(0, 99))
def test_density_is_that_of_the_reference(specular, alpha, seed):
    wi, wo = directions(300, seed, 0.02), directions(300, seed + 100)
    wo[:, :200] = np.array([[-1], [-1], [1]]) * wi[:, :200] + alpha * 0.3 * wo[:, :200]  # in the lobe
    wo /= np.linalg.norm(wo, axis=0)
    wi[2, 290:], wo[2, 280:290] = -wi[2, 290:], -wo[2, 280:290]
    wi, wo = (v.astype(np.float32).astype(float) for v in (wi, wo))
    found = cn.mitsuba.lobes.pdf([mi.Float(specular), mi.Float(alpha)], vector(wi), vector(wo)).numpy()
    expected = ref.lobe_pdf(specular, alpha, wi, wo)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-6)
    assert not found[280:].any()


@hypothesis.settings(max_examples=10)
@hypothesis.given(
    weights=st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda w: sum(w) > 0.1),
    alphas=st.lists(st.floats(0.02, 1), min_size=5, max_size=5),
    seed=st.integers(0, 99),
)
def test_density_of_eight_numbers_is_that_of_the_reference(weights, alphas, seed):
    wi, wo = directions(300, seed, 0.02), directions(300, seed + 100)
    wo[:, :200] = np.array([[-1], [-1], [1]]) * wi[:, :200] + 0.5 * min(alphas) * wo[:, :200]  # in all lobes
    wo /= np.linalg.norm(wo, axis=0)
    wi, wo = (v.astype(np.float32).astype(float) for v in (wi, wo))
    params = [*(w / sum(weights) for w in weights[:3]), *alphas]
    found = cn.mitsuba.lobes.pdf([mi.Float(v) for v in params], vector(wi), vector(wo)).numpy()
    expected = ref.mixture_pdf(params, wi, wo)
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=1e-6 * expected.max())


def test_density_adds_up():
    """To one but for the samples of the glossy lobe that fall below the surface."""
    n = 400
    z, phi = np.meshgrid((np.arange(n) + 0.5) / n, 2 * np.pi * (np.arange(n) + 0.5) / n)
    s = np.sqrt(1 - z**2)
    wo = np.stack([s * np.cos(phi), s * np.sin(phi), z]).reshape(3, -1)
    for angle in (0.0, 0.8, 1.4):
        wi = np.array([[np.sin(angle)], [0], [np.cos(angle)]]) + 0 * wo
        assert ref.lobe_pdf(0, 0.3, wi, wo).mean() * 2 * np.pi == pytest.approx(1, abs=1e-4)
        assert 0.9 < ref.lobe_pdf(1, 0.3, wi, wo).mean() * 2 * np.pi < 0.95
    assert ref.lobe_pdf(1, 0.1, 0 * wi + [[0], [0], [1]], wo).mean() * 2 * np.pi == pytest.approx(0.99, abs=2e-3)
    for kind in ("beckmann", "ggx"):  # all normals that are seen from one direction
        wi = np.array([[0.6], [0.48], [0.64]]) + 0 * wo
        seen = np.where(np.sum(wi * wo, axis=0) > 0, ref.visible_normals(kind, 0.2, 0.5, wi, wo), 0)
        assert seen.mean() * 2 * np.pi == pytest.approx(1, abs=2e-3)


def lobe_network(latent=0, seed=4, scale=3.0):
    """A network of lobes with random weights: any direction has lobes of its own."""
    made = cn.mitsuba.build(cn.NeuralField(None, cn.MLP(latent + 3, 8, width=8, depth=1, bias=True)), seed=seed)
    made["network.weights"] = made["network.weights"] * scale
    return made


#: Beckmann's lobe, also a narrow and an anisotropic one, all lobes together, and lobes from random weights.
LOBES = {
    "beckmann": (1.0, 0.0, 0.0, 0.1, 0.1, 0.3, 0.3, 0.3),
    "anisotropic": (0.5, 0.5, 0.0, 0.2, 0.8, 0.5, 0.1, 0.3),
    "all": (0.3, 0.2, 0.3, 0.4, 0.2, 0.1, 0.5, 0.1),
    "network": None,
}
CASES = [((0.0, 0.5), 0), ((0.6, 0.1), 40), ((1.0, 0.4), 80), ((0.9, 0.8), 40)]


@pytest.mark.parametrize("lobes, angle", [*CASES, *((name, angle) for name in LOBES for angle in (0, 40, 80))])
def test_samples_follow_the_density(lobes, angle):
    from mitsuba.chi2 import BSDFAdapter, ChiSquareTest, SphericalDomain

    a = np.radians(angle)
    wi = [float(x) for x in (0.8 * np.sin(a), 0.6 * np.sin(a), np.cos(a))]
    numbers = LOBES.get(lobes, lobes) or lobe_network()
    hand_over = cn.mitsuba.hand_over
    described = {
        "type": "neural_bsdf",
        "decoder": hand_over("test.chi2", decoder()),
        "lobes": hand_over("test.lobes", numbers),
    }
    sample, pdf = BSDFAdapter("neural_bsdf", described, wi=wi)
    narrow = 64 if lobes == "beckmann" else 16
    test = ChiSquareTest(SphericalDomain(), sample, pdf, sample_dim=3, sample_count=200_000, ires=narrow)
    assert test.run(), test.messages


def test_the_same_lobes_in_eight_numbers():
    lobes, wi, wo = cn.mitsuba.lobes, vector(directions(100, 1, 0.05)), vector(directions(100, 2))
    two = [mi.Float(0.7), mi.Float(0.3)]
    eight = lobes.widened(two)
    same(lobes.pdf(eight, wi, wo).numpy(), lobes.pdf(two, wi, wo).numpy(), rtol=1e-5)
    u = mi.Float(np.linspace(0.01, 0.99, 100))
    found, expected = (lobes.sample(params, wi, u, mi.Point2f(0.3, u)) for params in (eight, two))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-4, atol=1e-5)
    assert lobes.widened(eight) is eight


def test_numbers_that_are_no_lobes_yet():
    """Whatever a network says, weights and roughnesses are in their ranges, and samples have a density."""
    raw = [mi.Float(v) for v in np.random.default_rng(0).normal(size=(8, 200)).astype(np.float32) * 50]
    params = np.array([p.numpy() for p in cn.mitsuba.lobes.from_raw(raw)])
    assert (params >= 0).all() and (params <= 1).all() and (params[:3].sum(axis=0) < 1).all()
    assert (params[3:] >= 0.02).all()
    wi, u = vector(directions(200, 3)), mi.Float(np.linspace(0, 0.999, 200))
    wo, pdf = cn.mitsuba.lobes.sample([mi.Float(p) for p in params], wi, u, mi.Point2f(u, 1 - u))
    assert np.isfinite(wo.numpy()).all() and np.isfinite(pdf.numpy()).all()
    np.testing.assert_array_equal(pdf.numpy() > 0, wo.numpy()[2] > 0)


# ---- The BSDF ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [False, True])
def test_methods_agree(network):
    b, si, ctx = bsdf(lobes=lobe_network(4) if network else (0.7, 0.2)), interactions(), mi.BSDFContext()
    sampler = mi.load_dict({"type": "independent"})
    sampler.seed(0, 256)
    bs, weight = b.sample(ctx, si, sampler.next_1d(), sampler.next_2d())
    value, pdf = b.eval_pdf(ctx, si, bs.wo)
    np.testing.assert_allclose(dr.norm(bs.wo).numpy(), 1, atol=1e-5)
    valid = bs.pdf.numpy() > 0
    assert 0.8 < valid.mean() <= 1 and np.array_equal(valid, bs.wo.z.numpy() > 0)
    same(b.eval(ctx, si, bs.wo).numpy(), value.numpy(), rtol=1e-5)
    same(b.pdf(ctx, si, bs.wo).numpy(), pdf.numpy(), rtol=1e-6)
    same(bs.pdf.numpy(), pdf.numpy(), rtol=1e-6)
    same((weight * bs.pdf).numpy()[:, valid], value.numpy()[:, valid], rtol=1e-4)
    assert not weight.numpy()[:, ~valid].any() and (value.numpy()[:, valid] > 0).all()
    both = b.eval_pdf_sample(ctx, si, bs.wo, sampler.next_1d(), sampler.next_2d())
    same(both[0].numpy(), value.numpy(), rtol=1e-6)


def test_material_is_what_shading_needs():
    b, si = bsdf(lobes=cn.Grid(2, "dense", n_levels=1, base_resolution=3, init_scale=2.0)), interactions()
    wo = vector(directions(256, 9))
    code, params = b.material(si)
    assert len(code) == 4 and len(params) == 2
    ctx = mi.BSDFContext()
    same(b.decoder.evaluate(code, si.wi, wo).numpy(), b.eval(ctx, si, wo).numpy(), rtol=1e-5)
    same(cn.mitsuba.lobes.pdf(params, si.wi, wo).numpy(), b.pdf(ctx, si, wo).numpy(), rtol=1e-5)
    specular, alpha = (p.numpy() for p in params)
    assert specular.min() > 0 and specular.max() < 0.95 and alpha.min() > 0.02 and alpha.max() < 1
    assert np.ptp(alpha) > 0.1  # it varies
    moved = dr.copy(si)
    moved.uv += 2  # unit squares repeat
    for a, c in zip(code, b.material(moved)[0], strict=True):
        np.testing.assert_allclose(a.numpy(), c.numpy(), atol=1e-4)
    b = bsdf(lobes=lobe_network(4))
    code, params = b.material(si)
    assert len(params) == 8 and all(np.ptp(p.numpy()) > 1e-3 for p in params)  # they vary with code and direction
    same(cn.mitsuba.lobes.pdf(params, si.wi, wo).numpy(), b.pdf(ctx, si, wo).numpy(), rtol=1e-5)


def test_nothing_below_the_surface():
    b, ctx, up, down = bsdf(), mi.BSDFContext(), mi.Vector3f(0.6, 0, 0.8), mi.Vector3f(0.6, 0, -0.8)
    for wi, wo in ((up, down), (down, up), (down, down), (up, mi.Vector3f(-0.6, 0, 0)), (up, mi.Vector3f(dr.nan))):
        value, pdf = b.eval_pdf(ctx, interactions(1, wi=wi), wo)
        assert not value.numpy().any() and not pdf.numpy().any()
    bs, weight = b.sample(ctx, interactions(1, wi=down), mi.Float(0.5), mi.Point2f(0.5))
    assert bs.pdf[0] == 0 and not weight.numpy().any()
    up = interactions(1, wi=up)
    for off in (mi.BSDFFlags.DiffuseReflection, mi.BSDFFlags.GlossyTransmission):
        ctx = mi.BSDFContext()
        ctx.type_mask = +off
        assert not b.eval(ctx, up, mi.Vector3f(0, 0, 1)).numpy().any() and b.pdf(ctx, up, mi.Vector3f(0, 0, 1))[0] == 0


def test_flags_and_text():
    constant, textured = cn.mitsuba.NeuralBSDF(decoder(2), [0.1, 0.2]), bsdf()
    for b, varies in ((constant, False), (textured, True)):
        assert b.component_count() == 1 and mi.has_flag(b.flags(), mi.BSDFFlags.GlossyReflection)
        assert mi.has_flag(b.flags(), mi.BSDFFlags.SpatiallyVarying) == varies
        assert not mi.has_flag(b.flags(), mi.BSDFFlags.BackSide)
        assert str(b).startswith("NeuralBSDF[") and "Decoder(" in str(b)
    assert cn.mitsuba.NeuralBSDF is cn.mitsuba.NeuralBSDF


def test_gradients_of_code_and_weights():
    """Against central differences of the same evaluation in the precision of the field."""
    b, si, wo = cn.mitsuba.NeuralBSDF(decoder(3), [0.3, -0.2, 0.5]), interactions(64), vector(directions(64, 8, 0.1))
    params, ctx = mi.traverse(b), mi.BSDFContext()
    half = b.decoder.field.precision == "half"

    def loss():
        return dr.mean(dr.log(b.eval(ctx, si, wo) + 1e-3), axis=None)

    rng = np.random.default_rng(0)
    for name, h in (("latent", 0.05), ("decoder.network.weights", 0.02)):
        start = type(params[name])(params[name])
        dr.enable_grad(params[name])
        params.update()
        dr.backward(loss())
        gradient = dr.grad(params[name]).numpy().astype(float).ravel()
        direction = rng.normal(size=gradient.size) * (gradient != 0)
        found = []
        for sign in (1, -1):
            params[name] = type(start)(
                start.array + sign * h * type(start.array)(mi.Float(direction.astype(np.float32)))
            )
            params.update()
            found.append(float(loss().array[0] if hasattr(loss(), "array") else loss()[0]))
        params[name] = start
        params.update()
        assert (found[0] - found[1]) / (2 * h) == pytest.approx(gradient @ direction, rel=0.1 if half else 2e-2)


def test_dropout_needs_an_index():
    d = decoder(dropout=0.3)
    b = cn.mitsuba.NeuralBSDF(d)
    for make in (lambda: cn.mitsuba.NeuralBSDF(d, key=cn.Key(1)), lambda: setattr(b, "key", cn.Key(1))):
        with pytest.raises(ValueError, match="NeuralBSDF: key has no index"):
            make()
    with pytest.raises(TypeError, match=r"NeuralBSDF: key is a int; a coopnet.Key or None is needed"):
        b.key = 3
    si, wo, ctx = interactions(8), mi.Vector3f(0, 0, 1), mi.BSDFContext()
    plain = b.eval(ctx, si, wo).numpy()
    values = []
    for step in (0, 1, 0):
        b.key = cn.Key(1, index=0, step=step)
        values.append(b.eval(ctx, si, wo).numpy())
    assert np.array_equal(values[0], values[2])
    assert not np.allclose(values[0], values[1]) and not np.allclose(values[0], plain)


# ---- Files and errors --------------------------------------------------------------------------------------


def test_files(tmp_path):
    pytest.importorskip("safetensors")
    lobes = cn.Grid(2, "dense", n_levels=1, base_resolution=3, init_scale=2.0)
    si, wo, ctx = interactions(32), vector(directions(32, 9)), mi.BSDFContext()
    for i, b in enumerate(
        (
            bsdf(lobes=lobes),
            bsdf(lobes=(0.25, 0.75)),
            cn.mitsuba.NeuralBSDF(decoder(2, "plain"), [0.5, 1]),
            bsdf(lobes=lobe_network(4)),
        )
    ):
        for part in (b.latent, b.lobes):
            if part.field is not None and not getattr(part, "network", False):  # no longer what a new one is built with
                part.field["encoding.data"] = part.field["encoding.data"] * 0.5 + 0.1
        path = tmp_path / f"{i}.safetensors"
        b.save(path)
        again = mi.load_dict({"type": "neural_bsdf", "filename": str(path)})
        for x, y in zip(b.eval_pdf(ctx, si, wo), again.eval_pdf(ctx, si, wo), strict=True):
            same(x.numpy(), y.numpy(), rtol=1e-6)
        assert cn.mitsuba.load(path).in_features == b.decoder.field.in_features
    plain = decoder()
    cn.save(tmp_path / "plain.safetensors", plain.field)
    again = mi.load_dict({"type": "neural_bsdf", "filename": str(tmp_path / "plain.safetensors"), "alpha": 0.5})
    same(again.decoder.evaluate([], si.wi, wo).numpy(), plain.evaluate([], si.wi, wo).numpy())
    assert again.lobes.constants.numpy().tolist() == [0.5, 0.5]


def test_a_file_from_before_materials_transmitted():
    """Saved by version 0.2.0.dev0 on the CPU, with its values there."""
    pytest.importorskip("safetensors")
    path = Path(__file__).parent.parent / "data" / "neural_bsdf.safetensors"
    b = mi.load_dict({"type": "neural_bsdf", "filename": str(path)})
    value, pdf = b.eval_pdf(mi.BSDFContext(), interactions(1, wi=mi.Vector3f(0.6, 0, 0.8)), mi.Vector3f(0, 0.6, 0.8))
    same(value.numpy().ravel(), [1.5607213, 0.9023790, 0.7342720])
    same(pdf.numpy(), [0.1949140])
    assert b.decoder.eta is None and b.component_count() == 1


@pytest.mark.parametrize("method", ["value", "evaluate"])
def test_decoders_of_ones_own(method):
    """Whichever method a subclass replaces, the BSDF uses it."""

    class Own(cn.mitsuba.Decoder):
        pass

    def value(self, raw, wo):
        return 2 * cn.mitsuba.Decoder.value(self, raw, wo)

    def evaluate(self, code, wi, wo, key=None, active=True):
        return 2 * cn.mitsuba.Decoder.evaluate(self, code, wi, wo, key, active)

    setattr(Own, method, {"value": value, "evaluate": evaluate}[method])
    plain, si, wo = decoder(), interactions(8), mi.Vector3f(0, 0.6, 0.8)
    ours, theirs = (
        cn.mitsuba.NeuralBSDF(made).eval(mi.BSDFContext(), si, wo).numpy() for made in (Own(plain.field), plain)
    )
    same(ours, 2 * theirs)


def test_damaged_files(tmp_path):
    """What is no BSDF is refused with the name of the file, before anything large is allocated."""
    pytest.importorskip("safetensors")
    path, plain, entry = tmp_path / "a.safetensors", decoder(2), "mitsuba.neural_bsdf"
    grid = cn.io.describe(
        cn.NeuralField(cn.Grid(2, "dense", n_levels=1, base_resolution=9), cn.Identity(), in_features=2)
    )
    huge = cn.io.describe(
        cn.NeuralField(cn.Grid(2, "dense", n_levels=1, base_resolution=30000), cn.Identity(), in_features=2)
    )
    for described, message in (
        (3, "holds no BSDF"),
        ({"latent_features": 5}, "field has 10 inputs, but latent_features=5"),
        ({"latent_features": "x"}, "latent_features is 'x'"),
        ({"latent": ["x", 1]}, "latent is .*numbers are needed"),
        ({"latent": {"format": "other"}}, "holds no BSDF"),
        ({"latent": grid}, "holds no BSDF"),
        ({"latent": huge}, "holds no BSDF"),
        ({"latent": [1.0, 2.0], "lobes": [0.5, 7.0]}, "alpha is 7"),
    ):
        cn.save(path, plain.field, metadata={entry: described})
        with pytest.raises(RuntimeError, match=message):
            mi.load_dict({"type": "neural_bsdf", "filename": str(path)})
    arrays = {"latent.encoding.data": np.zeros(5, np.float32)}
    cn.save(path, plain.field, tensors=arrays, metadata={entry: {"latent": grid}})
    with pytest.raises(RuntimeError, match="holds no BSDF"):
        mi.load_dict({"type": "neural_bsdf", "filename": str(path)})


def test_a_long_code():
    made = decoder(300)
    assert cn.mitsuba.NeuralBSDF(made, np.linspace(0, 1, 300)).latent.count == 300


def test_errors_in_words(backend):
    field = cn.NeuralField(None, cn.MLP(8, 3, width=8, depth=1))
    built = cn.mitsuba.build(field)
    two = cn.mitsuba.build(cn.NeuralField(None, cn.MLP(8, 2, width=8, depth=1)))
    d, grid = decoder(4), cn.Grid(2, "dense", n_levels=1, n_features_per_level=4, base_resolution=2)
    Decoder, BSDF = cn.mitsuba.Decoder, cn.mitsuba.NeuralBSDF
    for call, error, message in (
        (lambda: Decoder(3), TypeError, "Decoder: field is a int; a NeuralField is needed"),
        (lambda: Decoder(field), ValueError, "Decoder: the field is not built yet; call cn.mitsuba.build"),
        (lambda: Decoder(two), ValueError, "Decoder: field has 2 outputs; 3 is needed"),
        (lambda: Decoder(built, 4), ValueError, r"Decoder: field has 8 inputs, but latent_features=4 .* make 12"),
        (lambda: Decoder(built, 10**5000), ValueError, "latent_features is an int of 16610 bits; a vector has"),
        (lambda: Decoder(built, directions="polar"), ValueError, "directions is 'polar'; accepted are 'rusinkiewicz'"),
        (lambda: Decoder(cn.mitsuba.build(cn.NeuralField(None, cn.MLP(5, 3, width=8)))), ValueError, "field has 5 inp"),
        (lambda: BSDF(built), TypeError, "NeuralBSDF: decoder is a NeuralField; a coopnet.mitsuba.Decoder is needed"),
        (lambda: BSDF(d), ValueError, "NeuralBSDF: latent has 0 numbers, but the decoder takes 4"),
        (lambda: BSDF(d, [1, 2]), ValueError, "NeuralBSDF: latent has 2 numbers, but the decoder takes 4"),
        (lambda: BSDF(d, [1, 2, 3, dr.nan]), ValueError, "NeuralBSDF: latent has numbers that are not finite"),
        (lambda: BSDF(d, 3), TypeError, "NeuralBSDF: latent is a int; None, numbers, an encoding"),
        (lambda: BSDF(d, ["a"]), TypeError, "NeuralBSDF: latent is .*; numbers are needed"),
        (lambda: BSDF(d, built), ValueError, "NeuralBSDF: latent: field has 8 inputs; 2 is needed"),
        (lambda: BSDF(d, grid, grid), ValueError, "NeuralBSDF: lobes has 4 numbers; two or eight are needed"),
        (lambda: BSDF(d, grid, two), ValueError, "NeuralBSDF: lobes: field has 8 inputs; 2 or 7 is needed"),
        (lambda: BSDF(d, grid, LOBES["all"][:2] + (0.9,) * 6), ValueError, "the weights of the lobes add up to 1.4"),
        (lambda: BSDF(d, grid, LOBES["all"][:7] + (0.001,)), ValueError, "NeuralBSDF: coat_alpha is 0.001"),
        (lambda: BSDF(d, grid, [0.5, 2.0]), ValueError, "NeuralBSDF: alpha is 2"),
        (lambda: BSDF(d, grid, [1.5, 0.3]), ValueError, "NeuralBSDF: specular is 1.5"),
        (lambda: cn.mitsuba.build(3), TypeError, "mitsuba.build: field is a int"),
    ):
        with pytest.raises(error, match=message):
            call()
    matrices = cn.mitsuba.build(cn.NeuralField(None, cn.MLP(2, 4, width=8)))
    with pytest.raises(ValueError, match=r"NeuralBSDF: latent has a network; a grid with cn.Identity"):
        BSDF(d, matrices)
    variant = mi.variant()
    mi.set_variant("scalar_rgb")
    try:
        for call in (lambda: cn.mitsuba.NeuralBSDF, lambda: cn.mitsuba.build(field), lambda: Decoder(built)):
            with pytest.raises(RuntimeError, match=r"the Mitsuba variant is scalar_rgb; call mitsuba.set_variant"):
                call()
    finally:
        mi.set_variant(variant)
