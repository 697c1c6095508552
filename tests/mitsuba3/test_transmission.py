"""Materials that transmit, and specular parts of any kind beside a network."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")

from support.spheres import numbers, spheres  # noqa: E402 - needs Mitsuba

pytestmark = pytest.mark.usefixtures("variant")

LOBES = (0.1, 0.1, 0.1, 0.2, 0.3, 0.1, *[0.3] * 9)


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


@pytest.mark.parametrize("eta", [1.5, 1.0])
def test_methods_agree_on_both_sides(eta):
    """Values, samples and densities; the relative index; and reciprocity with the squared indices."""
    b, (si, sampler), ctx = glass(eta), interactions(), mi.BSDFContext()
    bs, weight = b.sample(ctx, si, sampler.next_1d(), sampler.next_2d())
    dr.eval(bs, weight)
    value, pdf = b.eval_pdf(ctx, si, bs.wo)
    valid, half = bs.pdf.numpy() > 0, b.decoder.field.precision == "half"
    assert valid.mean() > 0.8
    np.testing.assert_allclose(pdf.numpy()[valid], bs.pdf.numpy()[valid], rtol=1e-4)
    tolerance = 2e-2 if half else 1e-3
    np.testing.assert_allclose((weight * bs.pdf).numpy()[:, valid], value.numpy()[:, valid], rtol=tolerance)
    through = (si.wi.z * bs.wo.z < 0).numpy()
    index = np.where(through, np.where(si.wi.z.numpy() > 0, eta, 1 / eta), 1)
    np.testing.assert_allclose(np.broadcast_to(bs.eta.numpy(), index.shape)[valid], index[valid], rtol=1e-6)
    back = mi.SurfaceInteraction3f(si)
    back.wi = bs.wo
    there, again = value / dr.abs(bs.wo.z), b.eval(ctx, back, si.wi) / dr.abs(si.wi.z)
    valid &= np.minimum(abs(si.wi.z.numpy()), abs(bs.wo.z.numpy())) > 0.01
    np.testing.assert_allclose((there.numpy() * index**2)[:, valid], again.numpy()[:, valid], rtol=10 * tolerance)


@pytest.mark.parametrize("lobes", [LOBES, (0.0, 0.0, 0.0, 0.0, 1.0, 0.0, *[0.3] * 9)])
@pytest.mark.parametrize("height", [0.6, -0.6])
def test_samples_follow_the_density(lobes, height):
    from mitsuba.chi2 import BSDFAdapter, ChiSquareTest, SphericalDomain

    made, keep = glass().decoder, cn.mitsuba.hand_over
    described = {"decoder": keep("test.glass", made), "lobes": keep("test.through", lobes)}
    sample, pdf = BSDFAdapter("neural_bsdf", {"type": "neural_bsdf", **described}, wi=[0.8, 0, height])
    test = ChiSquareTest(SphericalDomain(), sample, pdf, sample_dim=3, sample_count=100_000, ires=16)
    assert test.run(), test.messages


DELTAS = {
    "dielectric": {"type": "dielectric"},
    "thindielectric": {"type": "thindielectric"},
    "mask": {"type": "mask", "opacity": 0.3, "nested": {"type": "diffuse"}},
}


@pytest.mark.parametrize("name", DELTAS)
def test_specular_parts_are_mitsubas(name):
    """The sum of all weights of a specular kind is that of the reference."""
    reference = mi.load_dict(DELTAS[name])
    b, (si, sampler) = glass(specular=reference), interactions(1 << 15)
    si.wi = mi.Vector3f(0.6, 0, 0.8)
    u = sampler.next_1d(), sampler.next_2d()
    found = {}
    for which in (b, reference):
        bs, weight = which.sample(mi.BSDFContext(), si, *u)
        for kind in (mi.BSDFFlags.Null, mi.BSDFFlags.DeltaReflection, mi.BSDFFlags.DeltaTransmission):
            mean = dr.mean(dr.select(mi.has_flag(bs.sampled_type, kind), weight[0], 0))[0]
            found.setdefault(kind, []).append(mean)
    for ours, true in found.values():
        assert ours == pytest.approx(true, abs=0.02)
    assert sum(true > 0.01 for _, true in found.values()) == len(b.specular.components)


def test_pictures_of_path(backend):
    scene = spheres([glass(), glass(1.0), glass(specular=mi.load_dict(DELTAS["dielectric"]))], size=6)
    ours, path = (
        numbers(mi.render(scene, integrator=mi.load_dict({"type": kind, "max_depth": 4}), seed=1))
        for kind in ("neural_path", "path")
    )
    error = np.abs(ours - path).max(axis=-1) / path.max()
    assert np.mean(error > (3e-2 if backend == "cuda" else 2e-5)) < 0.06


def test_learning_glass(tmp_path):
    pytest.importorskip("safetensors")
    reference = mi.load_dict({"type": "roughdielectric", "alpha": 0.4})
    field = cn.NeuralField(None, cn.MLP(12, 3, width=32, depth=2, bias=True))
    found = cn.mitsuba.fit_bsdf(field, reference, steps=300, samples=2048, lr=1e-2)
    assert found.bsdf.decoder.eta == pytest.approx(1.5046 / 1.000277, rel=1e-3)
    assert found.relative_error < 0.3 and found.albedo == pytest.approx(found.reference_albedo, rel=0.08)
    assert found.reference_albedo < 1 and found.spread < 1.5
    found.bsdf.save(tmp_path / "glass.safetensors")
    again = mi.load_dict({"type": "neural_bsdf", "filename": str(tmp_path / "glass.safetensors")})
    si, _ = interactions(64)
    wo = -si.wi
    for x, y in zip(*(b.eval_pdf(mi.BSDFContext(), si, wo) for b in (found.bsdf, again)), strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-3, atol=1e-6)


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
