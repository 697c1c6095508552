"""Materials that transmit, and specular parts of any kind beside a network."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

import coopnet as cn
from coopnet import reference as ref

mi = pytest.importorskip("mitsuba")

from coopnet.mitsuba.bsdf import directions  # noqa: E402 - needs Mitsuba
from coopnet.mitsuba.bsdf.reflections import draw  # noqa: E402 - needs Mitsuba

pytestmark = pytest.mark.usefixtures("variant")

LOBES = (0.1, 0.1, 0.1, 0.2, 0.3, 0.1, *[0.3] * 9)
INTERFACE = (0.0, 0.0, 0.0, 0.0, 1.0, 0.0, *[0.3] * 9)


def glass(eta=1.5, specular=None):
    field = cn.NeuralField(None, cn.MLP(12, 3, width=8, depth=1, bias=True))
    decoder = cn.mitsuba.Decoder(cn.mitsuba.build(field), eta=eta)
    return cn.mitsuba.NeuralBSDF(decoder, lobes=LOBES, specular=specular)


def interactions(count=4096):
    sampler = mi.load_dict({"type": "independent"})
    sampler.seed(0, count)
    si = dr.zeros(mi.SurfaceInteraction3f, count)
    si.wi = mi.warp.square_to_uniform_sphere(sampler.next_2d())
    dr.eval(si)
    return si, sampler


def furnace(*bsdfs):
    """Shares of light that is reflected or transmitted, by samples, for cosines of incidence in a range."""
    si, sampler = interactions(1 << 15)
    u = sampler.next_1d(), sampler.next_2d()
    weights = [bsdf.sample(importance(), si, *u)[1][0] for bsdf in bsdfs]
    dr.eval(weights)
    z = si.wi.z.numpy()
    for low, high in ((-0.95, -0.7), (-0.7, -0.4), (-0.4, -0.1), (0.1, 0.4), (0.4, 0.7), (0.7, 0.95)):
        yield low, high, *(weight.numpy()[(z > low) & (z < high)].mean() for weight in weights)


def importance():
    context = mi.BSDFContext()
    context.mode = mi.TransportMode.Importance
    return context


@pytest.mark.parametrize("eta", [1.5, 1.0])
def test_features_and_densities_are_those_of_the_reference(eta):
    """Of directions anywhere, half of them near those that go straight on."""
    wi, wo = np.random.default_rng(0).normal(size=(2, 3, 4000))
    wo[:, ::2] = 0.3 * wo[:, ::2] - wi[:, ::2]
    wi, wo = ((v / np.linalg.norm(v, axis=0)).astype(np.float32) for v in (wi, wo))
    pair = [mi.Vector3f(*map(mi.Float, v)) for v in (wi, wo)]
    wi, wo = wi.astype(float), wo.astype(float)
    features = [f.numpy() for f in directions.rusinkiewicz(*pair, eta)]
    np.testing.assert_allclose(features, ref.interface_features(wi, wo, eta), atol=2e-4)
    numbers = [*LOBES[:6], 0.3, 0.2, 0.3, 0.5, 0.4, 0.2, 0.3, 0.4, 0.3]
    found = cn.mitsuba.lobes.pdf([mi.Float(v) for v in (*numbers, eta)], *pair).numpy()
    expected = ref.interface_pdf(numbers, eta, wi, wo)
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=1e-6 * expected.max())


@pytest.mark.parametrize("eta", [1.5, 1.0])
def test_methods_agree_on_both_sides(eta):
    """Values, samples and densities; the relative index; and reciprocity with the squared indices."""
    b, (si, sampler), ctx = glass(eta), interactions(), mi.BSDFContext()
    assert {"decoder.network.weights", "lobes"} == set(mi.traverse(b).keys())
    bs, weight = b.sample(ctx, si, sampler.next_1d(), sampler.next_2d())
    value, pdf = b.eval_pdf(ctx, si, bs.wo)
    back = mi.SurfaceInteraction3f(si)
    back.wi = bs.wo
    there, again = value / dr.abs(bs.wo.z), b.eval(ctx, back, si.wi) / dr.abs(si.wi.z)
    light = b.eval(importance(), si, bs.wo) / value
    through, sampled = si.wi.z * bs.wo.z < 0, weight * bs.pdf
    dr.eval(bs, sampled, value, pdf, there, again, light, through)
    valid, half = bs.pdf.numpy() > 0, b.decoder.field.precision == "half"
    assert valid.mean() > 0.8
    np.testing.assert_allclose(pdf.numpy()[valid], bs.pdf.numpy()[valid], rtol=1e-4)
    tolerance = 2e-2 if half else 1e-3
    np.testing.assert_allclose(sampled.numpy()[:, valid], value.numpy()[:, valid], rtol=tolerance)
    index = np.where(through.numpy(), np.where(si.wi.z.numpy() > 0, eta, 1 / eta), 1)
    np.testing.assert_allclose(np.broadcast_to(bs.eta.numpy(), index.shape)[valid], index[valid], rtol=1e-6)
    valid &= np.minimum(abs(si.wi.z.numpy()), abs(bs.wo.z.numpy())) > 0.01
    np.testing.assert_allclose((there.numpy() * index**2)[:, valid], again.numpy()[:, valid], rtol=10 * tolerance)
    np.testing.assert_allclose(light.numpy()[0, valid], index[valid] ** 2, rtol=2 * tolerance)


@pytest.mark.parametrize("eta, lobes, height", [(1.5, LOBES, 0.6), (1.5, INTERFACE, -0.6), (1.0, LOBES, -0.6)])
def test_samples_follow_the_density(eta, lobes, height):
    from mitsuba.chi2 import BSDFAdapter, ChiSquareTest, SphericalDomain

    made, keep = glass(eta).decoder, cn.mitsuba.hand_over
    described = {"decoder": keep("test.glass", made), "lobes": keep("test.through", lobes)}
    sample, pdf = BSDFAdapter("neural_bsdf", {"type": "neural_bsdf", **described}, wi=[0.8, 0, height])
    test = ChiSquareTest(SphericalDomain(), sample, pdf, sample_dim=3, sample_count=100_000, ires=16)
    assert test.run(), test.messages


DELTAS = {
    "dielectric": {"type": "dielectric"},
    "mask": {"type": "mask", "opacity": 0.3, "nested": {"type": "diffuse"}},
}


@pytest.mark.parametrize("name", DELTAS)
def test_specular_parts_are_mitsubas(name, backend):
    """One by one, to the precision of floats, and the sum of all weights among other samples."""
    tolerance = 1e-5 if backend == "cuda" else 1e-6
    reference = mi.load_dict(DELTAS[name])
    b, (si, sampler) = glass(specular=reference), interactions(1 << 14)
    u = sampler.next_1d(), sampler.next_2d()
    bs, weight = b.sample(mi.BSDFContext(), si, *u)
    assert len(b.specular.components) == (1 if name == "mask" else 2)
    for k, component in enumerate(b.specular.components):
        context, its_own = mi.BSDFContext(), mi.BSDFContext()
        context.component, its_own.component = b.smooth_components + k, component
        if name == "mask":  # answers to a type, but not to a number
            its_own = mi.BSDFContext(mi.TransportMode.Radiance, +mi.BSDFFlags.Null, its_own.component)
            its_own.component = mi.BSDFContext().component
        (one, ours), (other, true) = b.sample(context, si, *u), reference.sample(its_own, si, 1 - 2**-24, u[1])
        mean = dr.mean(dr.select(bs.sampled_component == context.component, weight[0], 0))
        wanted = dr.select(mi.has_flag(other.sampled_type, mi.BSDFFlags.Delta), true * other.pdf, 0 * u[0])
        ours, etas = ours * one.pdf, [eta + 0 * u[0] for eta in (one.eta, other.eta)]
        dr.eval(ours, wanted, one.wo, other.wo, etas, mean)
        seen = wanted[0].numpy() > 0
        assert seen.mean() > 0.5 and mean[0] == pytest.approx(wanted[0].numpy().mean(), abs=0.02)
        np.testing.assert_allclose(ours.numpy()[:, seen], wanted.numpy()[:, seen], rtol=tolerance)
        np.testing.assert_allclose(one.wo.numpy()[:, seen], other.wo.numpy()[:, seen], atol=tolerance)
        np.testing.assert_array_equal(etas[0].numpy()[seen], etas[1].numpy()[seen])
    passes = [bsdf.eval_null_transmission(si) for bsdf in (b, reference, glass())]
    dr.eval(passes)
    passes = [spectrum.numpy() for spectrum in passes]
    np.testing.assert_array_equal(passes[0], passes[1])
    assert passes[0].any() == (name == "mask") and not passes[2].any()


def test_samples_that_are_refused_are_not_learned_from():
    """Mitsuba's principledthin returns directions at grazing angles with a weight of 0 and the density of other parts:
    samples over densities must integrate solid angle there, too."""
    reference = mi.load_dict({"type": "principledthin", "spec_trans": 0.5, "diff_trans": 0.6})
    drawn = draw(reference, cn.Key(0), 1 << 17)
    z = drawn.wo.z
    grazing = drawn.valid & (drawn.wi.z * z < 0) & (dr.abs(z) > 0.02) & (dr.abs(z) < 0.1)
    assert dr.mean(dr.select(grazing, 1 / drawn.pdf, 0))[0] == pytest.approx(2 * np.pi * 0.08, rel=0.15)


def test_learning_glass(tmp_path):
    """How close, how bright by angle on both sides, and how noisy; and the file."""
    pytest.importorskip("safetensors")
    reference = mi.load_dict({"type": "roughdielectric", "alpha": 0.4})
    field = cn.NeuralField(None, cn.MLP(12, 3, width=16, depth=2, bias=True))
    found = cn.mitsuba.fit_bsdf(field, reference, steps=200, samples=2048, lr=2e-2)
    assert found.bsdf.decoder.eta == pytest.approx(1.5046 / 1.000277, rel=1e-3)
    assert found.relative_error < 0.27
    assert found.albedo == pytest.approx(found.reference_albedo, rel=0.06) and found.reference_albedo < 1
    assert found.spread < 2.2 * found.reference_spread
    for low, high, ours, true in furnace(found.bsdf, reference):
        assert ours == pytest.approx(true, abs=0.2) and true < 1, (low, high)
    si, _ = interactions(64)
    found.bsdf.save(tmp_path / "glass.safetensors")
    again = mi.load_dict({"type": "neural_bsdf", "filename": str(tmp_path / "glass.safetensors")})
    for x, y in zip(*(b.eval_pdf(mi.BSDFContext(), si, -si.wi) for b in (found.bsdf, again)), strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_energy_of_longer_training():
    """By angle on both sides, with a quarter of the samples that are taken by default."""
    reference = mi.load_dict({"type": "roughdielectric", "alpha": 0.3})
    found = cn.mitsuba.fit_bsdf(None, reference, steps=1000, samples=1 << 13)
    assert found.relative_error < 0.09 and found.spread < 1.4 * found.reference_spread
    for low, high, ours, true in furnace(found.bsdf, reference):
        assert ours == pytest.approx(true, abs=0.05), (low, high)


def test_what_is_refused():
    masked = {"type": "mask", "nested": {"type": "plastic"}}
    blend = {"type": "blendbsdf", "weight": 0.5, "a": DELTAS["mask"], "b": {"type": "diffuse"}}
    two = {"type": "blendbsdf", "weight": 0.5} | {
        n: {"type": "roughdielectric", "int_ior": i} for n, i in (("a", 1.3), ("b", 1.6))
    }
    sides = {"type": "mask", "nested": {"type": "twosided", "nested": {"type": "diffuse"}}}
    for reference, words in (
        (DELTAS["dielectric"], "reference is perfectly specular"),
        (masked, "reference has a mask among other specular parts"),
        (blend, "reference has a mask among other specular parts"),
        (two, "reference transmits with refractive indices from 1.29964 to 1.59956"),
        (sides, "reference is twosided"),
    ):
        with pytest.raises(ValueError, match=f"fit_bsdf: {words}"):
            cn.mitsuba.fit_bsdf(None, mi.load_dict(reference), steps=1)
    with pytest.raises(ValueError, match="a decoder that transmits needs fifteen"):
        cn.mitsuba.NeuralBSDF(glass().decoder, lobes=(0.5, 0.3))
