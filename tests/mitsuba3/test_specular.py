"""Materials with a perfectly specular part, which is kept beside the network."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")

from support.spheres import decoder, material, numbers, spheres  # noqa: E402 - needs Mitsuba

from coopnet.mitsuba.bsdf.reflections import spread  # noqa: E402 - needs Mitsuba

pytestmark = pytest.mark.usefixtures("variant")

#: One specular part; that of the blend is in half of it.
VARNISH = {"type": "plastic", "diffuse_reflectance": 0.6}
MIRROR = {"type": "blendbsdf", "weight": 0.5, "a": {"type": "conductor"}, "b": {"type": "diffuse"}}


def varnished(code=(0.3,), lobes=(0.4, 0.3), reference=VARNISH, made=None):
    made = decoder(len(code), directions="rusinkiewicz") if made is None else made
    return cn.mitsuba.NeuralBSDF(made, list(code), lobes, specular=mi.load_dict(reference))


def interactions(angle, count=1 << 14):
    si = dr.zeros(mi.SurfaceInteraction3f, count)
    si.wi = mi.Vector3f(float(np.sin(angle)), 0, float(np.cos(angle)))
    return si


def samples(bsdf, si, context=None, seed=0):
    sampler = mi.load_dict({"type": "independent"})
    sampler.seed(seed, dr.width(si))
    return bsdf.sample(context or mi.BSDFContext(), si, sampler.next_1d(), sampler.next_2d())


@pytest.mark.parametrize("reference", [VARNISH, MIRROR], ids=["plastic", "blend"])
@pytest.mark.parametrize("angle", [0.3, 1.4])
def test_samples(reference, angle):
    """The specular part has the reflectance of the reference, and the rest the density that it says."""
    bsdf, si = varnished(reference=reference), interactions(angle)
    bs, weight = samples(bsdf, si)
    weight, wo, pdf = weight.numpy(), bs.wo.numpy(), bs.pdf.numpy()
    delta = (bs.sampled_type.numpy() & int(mi.BSDFFlags.Delta)) != 0
    context = mi.BSDFContext()
    context.component = 0
    _, wanted = mi.load_dict(reference).sample(context, si, mi.Float(0.5), mi.Point2f(0.5))
    light = mi.luminance(wanted).numpy()[0]
    rest = (1 - light) * mi.luminance(mi.load_dict(reference).eval_diffuse_reflectance(si)).numpy()[0]
    assert delta.mean() == pytest.approx(np.clip(light / (light + rest), 0.05, 0.9), abs=0.02)
    np.testing.assert_allclose(weight[:, delta].sum(axis=1) / len(delta), wanted.numpy()[:, 0], rtol=0.1)
    np.testing.assert_allclose(wo[:, delta].T, [[-np.sin(angle), 0, np.cos(angle)]] * delta.sum(), atol=1e-6)
    density, value = bsdf.pdf(mi.BSDFContext(), si, bs.wo).numpy(), bsdf.eval(mi.BSDFContext(), si, bs.wo).numpy()
    smooth, half = ~delta & (pdf > 0), bsdf.decoder.field.precision == "half"
    np.testing.assert_allclose(density[smooth], pdf[smooth], rtol=1e-4)
    np.testing.assert_allclose((weight * pdf)[:, smooth], value[:, smooth], rtol=2e-2 if half else 1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["mask", "blend"])
def test_samples_beside_a_rough_metal(kind):
    """Mitsuba's diffuse reflectance of a metal says nothing about its light: shares are those of a bright rest."""
    rough = {"type": "roughconductor", "alpha": 0.3}
    mask = {"type": "mask", "opacity": 0.6, "nested": rough}
    blend = {"type": "blendbsdf", "weight": 0.6, "a": {"type": "conductor", "material": "none"}, "b": rough}
    bs, _ = samples(varnished(reference={"mask": mask, "blend": blend}[kind]), interactions(0.6))
    assert ((bs.sampled_type.numpy() & int(mi.BSDFFlags.Delta)) != 0).mean() == pytest.approx(0.4, abs=0.02)


def test_parts_alone():
    bsdf, si = varnished(), interactions(0.5)
    assert bsdf.component_count() == 2 and mi.has_flag(bsdf.flags(), mi.BSDFFlags.DeltaReflection)
    assert "specular.diffuse_reflectance.value" in mi.traverse(bsdf).keys()  # noqa: SIM118 - Mitsuba's own mapping
    wo = mi.Vector3f(0, 0.6, 0.8)
    for kind, is_delta in ((mi.BSDFFlags.DeltaReflection, True), (mi.BSDFFlags.GlossyReflection, False)):
        context = mi.BSDFContext()
        context.type_mask = +kind
        bs, weight = samples(bsdf, si, context)
        assert (((bs.sampled_type.numpy() & int(mi.BSDFFlags.Delta)) != 0) == is_delta).all()
        assert bool(bsdf.pdf(context, si, wo).numpy().any()) == (not is_delta)
        if is_delta:
            np.testing.assert_allclose(weight.numpy().mean(axis=1), 0.04, atol=0.005)  # Fresnel's
        else:
            plain = cn.mitsuba.NeuralBSDF(bsdf.decoder, [0.3], (0.4, 0.3))
            np.testing.assert_allclose(bsdf.pdf(context, si, wo).numpy(), plain.pdf(context, si, wo).numpy(), rtol=1e-6)


def glass(code=(0.2,)):
    """What transmits, by a network and by a smooth interface."""
    field = cn.NeuralField(None, cn.MLP(12 + len(code), 3, width=4, depth=1, bias=True, activation="softplus"))
    made = cn.mitsuba.Decoder(cn.mitsuba.build(field, seed=2), len(code), eta=1.5)
    return cn.mitsuba.NeuralBSDF(made, list(code), specular=mi.load_dict({"type": "dielectric"}))


def scene(lobes):
    """Varnish on a sphere and on both sides of a leaf, beside a network without, and glass."""
    made = decoder(1, directions="rusinkiewicz")
    to = mi.ScalarTransform4f().translate([0, 0, 1]).rotate([1, 0, 0], -80).scale(1.5)
    sides = {"a": varnished((0.1,), made=made), "b": varnished((0.9,), lobes, MIRROR, made)}
    leaf = {"type": "rectangle", "to_world": to, "bsdf": {"type": "twosided"} | sides}
    return spheres([varnished(made=made), material(), varnished((0.5,), lobes, made=made), glass()], leaf=leaf)


def test_picture_of_path(backend):
    network = cn.mitsuba.build(cn.NeuralField(None, cn.MLP(4, 8, width=8, depth=1)), seed=4)
    shared = scene(network)
    pictures = [
        numbers(mi.render(shared, integrator=mi.load_dict({"type": kind, "max_depth": 4}), seed=1))
        for kind in ("neural_path", "path")
    ]
    error = np.abs(pictures[0] - pictures[1]).max(axis=-1) / pictures[1].max()
    assert np.mean(error > (3e-2 if backend == "cuda" else 2e-5)) < (0.06 if backend == "cuda" else 0.03)


def test_gradients(backend):
    """Of codes, by central differences of pictures of the same paths."""
    leaves = scene((0.5, 0.3))
    params, integrator = mi.traverse(leaves), cn.mitsuba.NeuralPath(max_depth=3)
    names = [name for name in params.keys() if name.endswith("latent")]  # noqa: SIM118
    assert len(names) >= 5
    start = {name: mi.Float(params[name]) for name in names}

    def at(step):
        for name in names:
            params[name] = mi.Float(start[name] + step)
        params.update()
        return float(numbers(mi.render(leaves, integrator=integrator, seed=3, spp=4)).mean())

    wanted = (at(0.05) - at(-0.05)) / 0.1
    for name in names:
        params[name] = mi.Float(start[name])
        dr.enable_grad(params[name])
    params.update()
    dr.backward(dr.mean(mi.render(leaves, params, integrator=integrator, seed=2, seed_grad=3, spp=4), axis=None))
    found = sum(float(dr.grad(params[name]).numpy().sum()) for name in names)
    assert found == pytest.approx(wanted, rel=0.1 if backend == "cuda" else 1e-2)


def test_learning_what_is_under_the_varnish(tmp_path):
    """The network learns the diffuse part; together they reflect what the reference does, and are as noisy."""
    pytest.importorskip("safetensors")
    field = cn.NeuralField(None, cn.MLP(8, 3, width=16, depth=2, bias=True))
    reference = mi.load_dict(VARNISH)
    found = cn.mitsuba.fit_bsdf(field, reference, steps=300, samples=2048, lr=1e-2)
    assert found.relative_error < 0.1 and found.albedo == pytest.approx(found.reference_albedo, rel=0.03)
    assert found.spread < 1.5 * found.reference_spread
    for angle in (0.2, 1.0, 1.4):
        si = interactions(angle, 1 << 15)
        ours, true = (samples(bsdf, si)[1].numpy().mean(axis=1) for bsdf in (found.bsdf, reference))
        assert ours == pytest.approx(true, abs=0.08) and ours.max() < 1
    found.bsdf.save(tmp_path / "a.safetensors")
    described = {"type": "neural_bsdf", "filename": str(tmp_path / "a.safetensors"), "inside": VARNISH}
    again = mi.load_dict(described)
    assert spread(again, cn.Key(1), 4096)[0] == pytest.approx(spread(found.bsdf, cn.Key(1), 4096)[0], rel=1e-3)
    assert again.specular.components == [0]
    with pytest.raises(RuntimeError, match=r"a\.safetensors' was saved with a perfectly specular part, which"):
        mi.load_dict({"type": "neural_bsdf", "filename": described["filename"]})


def test_what_is_refused():
    made = decoder(0)
    for reference, message in (
        ({"type": "diffuse"}, "NeuralBSDF: specular has no perfectly specular part; one is needed"),
        ({"type": "mask", "nested": VARNISH}, "NeuralBSDF: specular has a mask among other specular parts"),
    ):
        with pytest.raises(ValueError, match=message):
            cn.mitsuba.NeuralBSDF(made, specular=mi.load_dict(reference))
    with pytest.raises(TypeError, match=r"NeuralBSDF: specular is a dict; a mi\.BSDF"):
        cn.mitsuba.NeuralBSDF(made, specular=VARNISH)
    with pytest.raises(RuntimeError, match="there are 2 BSDFs inside"):
        name = cn.mitsuba.hand_over("test.specular", made)
        mi.load_dict({"type": "neural_bsdf", "decoder": name, "a": VARNISH, "b": VARNISH})
