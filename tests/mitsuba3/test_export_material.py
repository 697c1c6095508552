"""Materials as source code of other languages, beside Mitsuba's own pictures and values."""

from __future__ import annotations

import numpy as np
import pytest
from support.exported import Library, run_numpy, words
from support.shaders import Vulkan

import coopnet as cn

mi = pytest.importorskip("mitsuba")

SIDE, LIGHT, INTENSITY = 48, (1.5, -3.0, 3.0), 60.0


def material(latent="grid", directions="rusinkiewicz"):
    """A material that varies over the surface, of random weights."""
    grid = cn.Grid(2, "dense", n_levels=1, base_resolution=9, n_features_per_level=4, init_scale=1.0)
    latent = {"grid": grid, "numbers": [0.5, -0.25, 1.0, 0.125], "nothing": None}[latent]
    size = 0 if latent is None else 4
    inputs = size + {"rusinkiewicz": 8, "plain": 6}[directions]
    network = cn.MLP(inputs, 3, width=16, depth=2, bias=True)
    field = cn.mitsuba.build(cn.NeuralField(None, network), seed=2)
    return cn.mitsuba.NeuralBSDF(cn.mitsuba.Decoder(field, size, directions), latent)


def picture(bsdf) -> tuple[np.ndarray, np.ndarray]:
    """A sphere under a point light, a ray through the middle of each pixel: Mitsuba's colours (3, pixels), and rays."""
    to_world = mi.ScalarTransform4f().look_at([0, -4, 1], [0, 0, 0], [0, 0, 1])
    film = {"type": "hdrfilm", "width": SIDE, "height": SIDE, "rfilter": {"type": "box"}, "pixel_format": "rgb"}
    scene = mi.load_dict({
        "type": "scene", "shape": {"type": "sphere", "bsdf": bsdf},
        "light": {"type": "point", "position": list(LIGHT), "intensity": {"type": "rgb", "value": INTENSITY}},
        "sensor": {"type": "perspective", "fov": 34, "to_world": to_world, "film": film},
    })  # fmt: skip
    pixel = mi.Point2f(*((v + 0.5) / SIDE for v in np.indices((SIDE, SIDE)).reshape(2, -1)[::-1].astype(np.float32)))
    ray, _ = scene.sensors()[0].sample_ray(0.0, 0.5, pixel, mi.Point2f(0.5))
    sampler = mi.load_dict({"type": "independent"})
    sampler.seed(0, SIDE**2)
    seen = mi.load_dict({"type": "direct", "emitter_samples": 1, "bsdf_samples": 0})
    light, _, _ = seen.sample(scene, sampler, mi.RayDifferential3f(ray))
    return mi.Color3f(light).numpy(), np.stack([ray.o.numpy(), ray.d.numpy()])


def shading(rays: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the function is asked where rays hit the unit sphere, which rays do, and the light that arrives there."""
    origin, d = rays.astype(np.float64)
    middle = np.sum(origin * d, axis=0)
    inside = middle**2 - np.sum(origin**2, axis=0) + 1
    hit = inside > 0
    n = (origin + d * (-middle - np.sqrt(np.maximum(inside, 0))))[:, hit]
    d = d[:, hit]
    s = np.stack([-n[1], n[0], 0 * n[0]]) / np.hypot(n[0], n[1])
    t = np.cross(n, s, axis=0)
    u, v = np.arctan2(n[1], n[0]) / (2 * np.pi) % 1, np.arctan2(np.hypot(n[0], n[1]), n[2]) / np.pi
    to = np.array(LIGHT)[:, None] - n
    wo = to / np.linalg.norm(to, axis=0)
    local = [np.sum(a * b, axis=0) for a in (-d, wo) for b in (s, t, n)]
    return np.stack([u, v, *local]).astype(np.float32), hit, INTENSITY / np.sum(to**2, axis=0)


def srgb(x: np.ndarray) -> np.ndarray:
    """As Mitsuba converts pictures to 8 bits."""
    curve = np.where(x <= 0.0031308, 12.92 * x, 1.055 * np.maximum(x, 0.0031308) ** (1 / 2.4) - 0.055)
    return np.clip(curve, 0, 1)


def test_pictures_are_mitsubas(variant, tmp_path):
    bsdf = material()
    expected, rays = picture(bsdf)
    x, hit, arriving = shading(rays)
    assert 0.3 < hit.mean() < 0.8
    sources = {t: cn.export(bsdf, t, tmp_path / f"wood.{t}", name="wood") for t in ("numpy", "c", "glsl")}
    compiled = Library([sources["c"].source], tmp_path)
    found = {
        "numpy": run_numpy(sources["numpy"].source, "wood", sources["numpy"].weights, x)[0],
        "c": compiled.run("wood", sources["c"].weights, x, (3,))[0],
    }
    if not Vulkan.missing():
        made = Vulkan.run(sources["glsl"].source.read_text(), [("wood", (3,))], words(sources["glsl"]), x)
        found["glsl"] = made[0]
    for target, y in found.items():
        drawn = np.zeros_like(expected)
        drawn[:, hit] = y * arriving
        difference = np.abs(srgb(drawn) - srgb(expected)).max()
        assert srgb(expected).std() > 0.1 and difference <= 1 / 255, (target, difference)


@pytest.mark.parametrize(("latent", "directions"), [("numbers", "rusinkiewicz"), ("nothing", "plain")])
def test_values_are_those_of_eval_below_the_surface_and_beyond_the_unit_square_too(
    variant, backend, tmp_path, latent, directions
):
    bsdf, n = material(latent, directions), 200
    rng = np.random.default_rng(1)
    wi, wo = (v / np.linalg.norm(v, axis=0) for v in rng.normal(size=(2, 3, n)))
    x = np.concatenate([rng.uniform(-2, 3, (2, n)), wi, wo]).astype(np.float32)
    x[[4, 7], : n // 2] = np.abs(x[[4, 7], : n // 2])
    si = mi.SurfaceInteraction3f()
    si.uv, si.wi = mi.Point2f(*x[:2]), mi.Vector3f(*x[2:5])
    expected = mi.Color3f(bsdf.eval(mi.BSDFContext(), si, mi.Vector3f(*x[5:]))).numpy()
    written = cn.export(bsdf, "numpy", tmp_path / "wood.py", derivatives=True)
    y, jacobian = run_numpy(written.source, "field_jacobian", written.weights, x)
    tolerance = 1e-5 if backend == "llvm" else 2e-2  # CUDA computes in half precision
    np.testing.assert_allclose(y, expected, atol=tolerance * expected.max())
    below = (x[4] <= 0) | (x[7] <= 0)
    assert below.any() and (y[:, below] == 0).all() and (y[:, ~below] > 0).all()
    assert np.isfinite(jacobian).all() and (jacobian[:, below] == 0).all()


def test_what_is_told_of_directions_is_the_same_on_both_sides():
    from coopnet.interop.export import material as exported
    from coopnet.mitsuba.bsdf import decoder, directions

    here = exported.DIRECTIONS, exported.SHARP, exported.LARGEST
    assert here == (directions.FEATURES, directions.SHARP, decoder.LARGEST)


def test_what_cannot_be_exported_is_refused(variant, tmp_path):
    bsdf = material()
    varnished = cn.mitsuba.NeuralBSDF(bsdf.decoder, bsdf.latent.source(), specular=mi.load_dict({"type": "plastic"}))
    with pytest.raises(ValueError, match="NeuralBSDF: it has a perfectly specular part"):
        cn.export(varnished, "c", tmp_path / "f.c")
    with pytest.raises(ValueError, match="dropout is True, but materials are exported without"):
        cn.export(bsdf, "c", tmp_path / "f.c", dropout=True)
    with pytest.raises(ValueError, match="field is a material; use another target"):
        cn.export(bsdf, "html", tmp_path / "f.html")
    material_of = cn.interop.export.Reflection
    with pytest.raises(ValueError, match="decoder has 12 inputs; latent and directions make 8"):
        cn.export(material_of(bsdf.decoder.field), "c", tmp_path / "f.c")
    with pytest.raises(TypeError, match="latent is a list; a NeuralField or a tuple"):
        material_of(bsdf.decoder.field, [1.0])
    assert list(tmp_path.iterdir()) == []
