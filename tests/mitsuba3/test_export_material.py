"""Materials as source code of other languages, beside Mitsuba's own pictures and values."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.command_line import fails
from support.exported import Library, run_numpy, words
from support.pages import page_data
from support.shaders import Vulkan, Wgpu

import coopnet as cn
from coopnet.interop.export import Reflection, View
from coopnet.interop.export.material import ENTRY, hash_of
from coopnet.interop.export.page import document

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


def picture(bsdf, shape="sphere", view=((0, -4, 1), 34), light=LIGHT, intensity=INTENSITY, side=SIDE, behind=0.0):
    """A shape under a point light, a ray through the middle of each pixel: Mitsuba's colours (3, pixels), and rays."""
    eye, fov = view
    shape, up = shape if isinstance(shape, dict) else {"type": shape}, [0, 0, 1]
    to_world = mi.ScalarTransform4f().look_at(eye, [0, 0, 0], up)
    film = {"type": "hdrfilm", "width": side, "height": side, "rfilter": {"type": "box"}, "pixel_format": "rgb"}
    scene = mi.load_dict({
        "type": "scene", "shape": shape | {"bsdf": bsdf},
        "light": {"type": "point", "position": list(light), "intensity": {"type": "rgb", "value": intensity}},
        "sensor": {"type": "perspective", "fov": fov, "to_world": to_world, "film": film},
    })  # fmt: skip
    pixel = mi.Point2f(*((v + 0.5) / side for v in np.indices((side, side)).reshape(2, -1)[::-1].astype(np.float32)))
    ray, _ = scene.sensors()[0].sample_ray(0.0, 0.5, pixel, mi.Point2f(0.5))
    sampler = mi.load_dict({"type": "independent"})
    sampler.seed(0, side**2)
    seen = mi.load_dict({"type": "direct", "emitter_samples": 1, "bsdf_samples": 0})
    radiance, hit, _ = seen.sample(scene, sampler, mi.RayDifferential3f(ray))
    colours = np.where(hit.numpy(), mi.Color3f(radiance).numpy(), behind)
    return colours, np.stack([ray.o.numpy(), ray.d.numpy()])


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


# ---- Web pages -----------------------------------------------------------------------------------------------

CAMERA, PIXELS, RAYS = (30.0, 20.0), 128, 2
LIGHTS = [(80.0, 40.0), (96.0, 24.0)]  #: the second one is two presses of keys from the first


def towards(azimuth: float, elevation: float) -> np.ndarray:
    a, e = np.radians([azimuth, elevation])
    return np.array([np.cos(a) * np.cos(e), np.sin(a) * np.cos(e), np.sin(e)])


def page_picture(bsdf, shape: str, light: tuple[float, float]) -> np.ndarray:
    """Mitsuba's picture of what a page shows before white, linear, shape ``(PIXELS, PIXELS, 3)``: of the same rays."""
    if shape == "square":  # it faces the camera
        axes = [towards(CAMERA[0] + 90, 0), -towards(CAMERA[0], CAMERA[1] - 90), towards(*CAMERA)]
        turned = np.eye(4)
        turned[:3, :3] = np.transpose(axes)
        shape = {"type": "rectangle", "to_world": mi.ScalarTransform4f(turned)}
    view = list(4 * towards(*CAMERA)), 2 * np.degrees(np.arctan(0.3))
    colours, _ = picture(bsdf, shape, view, 4 * towards(*light), 4.0, PIXELS * RAYS, behind=1.0)
    return colours.reshape(3, PIXELS, RAYS, PIXELS, RAYS).mean(axis=(2, 4)).transpose(1, 2, 0)


def bitmap(linear: np.ndarray) -> np.ndarray:
    """As Mitsuba writes it to a file of 8 bits."""
    made = mi.Bitmap(np.ascontiguousarray(linear, np.float32))
    return np.array(made.convert(mi.Bitmap.PixelFormat.RGB, mi.Struct.Type.UInt8, srgb_gamma=True)).astype(int)


def shows(picture: np.ndarray) -> bool:
    """Is there something to see: shadow, light, and little that is too bright for a screen?"""
    inside = picture[picture.min(axis=2) < 255]
    return len(inside) > 0.3 * PIXELS**2 and inside.std() > 20 and (inside == 255).mean() < 0.2


@pytest.mark.parametrize("api", ["webgpu", "webgl2"])
@pytest.mark.parametrize("shape", ["sphere", "square"])
def test_pages_draw_mitsubas_pictures_while_the_light_moves(variant, browser, tmp_path, shape, api):
    bsdf = material()
    view = View("Wood", azimuth=CAMERA[0], elevation=CAMERA[1], shape=shape, light=LIGHTS[0], intensity=4.0)
    written = cn.export(bsdf, "html", tmp_path / "page.html", view=view)
    with browser.open(written.source, api, PIXELS, PIXELS) as page:
        for i, light in enumerate(LIGHTS):
            if i:
                for key in ("ArrowRight", "ArrowDown"):
                    page.page.locator("#picture").press(key)
            drawn = np.rint(255 * page.picture()).astype(int)
            expected = bitmap(page_picture(bsdf, shape, light))
            assert shows(expected) and f"light {light[0]:.0f}°, {light[1]:.0f}°" in page.text("time")
            assert np.abs(drawn - expected).max() <= 1
        assert not page.noted


def test_the_light_moves_by_itself_and_by_the_mouse(variant, browser, tmp_path):
    written = cn.export(material(), "html", tmp_path / "page.html", view=View(moving=True, intensity=4.0))
    with browser.open(written.source, "webgl2", 48, 48, reduced_motion="reduce") as page:
        still = page.picture()  # who wants no motion has none
        assert "light 80°, 40°" in page.text("time")
    with browser.open(written.source, "webgl2", 48, 48) as page:
        end = time.monotonic() + 30
        while "light 80°" in (said := page.text("time")) or "light" not in said:
            assert time.monotonic() < end, said
            page.page.wait_for_timeout(50)
        page.page.get_by_label("Moves").uncheck()
        page.picture()
        stopped = page.text("time")
        page.page.wait_for_timeout(200)
        assert page.text("time") == stopped
        page.page.locator("#picture").press("0")
        assert np.array_equal(page.picture(), still)
        page.page.mouse.move(24, 24)
        page.page.mouse.down()
        page.page.mouse.move(34, 34)
        page.page.mouse.up()
        page.picture()
        assert "light 84°, 36°" in page.text("time")
        page.page.select_option("select", "Square")
        assert np.abs(page.picture() - still).max() > 0.1


#: Around a page's shader: its numbers as constants, and a function of a pixel.
PIXEL = {
    "glsl": (
        "const vec4 u[8] = vec4[8]({});", "vec4({})",
        "void pixel(float x[2], out float y[3]) { vec3 v = shown(vec2(x[0], x[1])); y = float[3](v.x, v.y, v.z); }",
    ),
    "wgsl": (
        "const u = array<vec4f, 8>({}); @group(0) @binding(0) var<storage, read> field_weights: array<u32>;",
        "vec4f({})",
        "fn pixel(x: array<f32, 2>, y: ptr<function, array<f32, 3>>) "
        "{ let v = shown(vec2f(x[0], x[1])); *y = array<f32, 3>(v.x, v.y, v.z); }",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("target", "device"), [("glsl", Vulkan), ("wgsl", Wgpu)])
@pytest.mark.parametrize("light", LIGHTS)
def test_shaders_of_pages_draw_mitsubas_pictures_before_they_are_rounded(variant, tmp_path, target, device, light):
    if reason := device.missing():
        pytest.skip(reason)
    bsdf = material()
    written = cn.export(bsdf, target, tmp_path / f"field.{target}", inline=False)
    declared, vector, function = PIXEL[target]
    out, right, down = towards(*CAMERA), towards(CAMERA[0] + 90, 0), towards(CAMERA[0], CAMERA[1] - 90)
    numbers = [  # as the page's script gives them
        (PIXELS, PIXELS, RAYS, 0), (*4 * out, 0), (*-out, 2 * 0.3 / PIXELS), (*right, 0), (*down, 0),
        (*4 * towards(*light), 4.0), (0, 0, 0, 0), (1, 1, 1, 0),
    ]  # fmt: skip
    filled = ", ".join(vector.format(", ".join(repr(float(v)) for v in row)) for row in numbers)
    shader = document._shader(target, "material", 3, False)
    shader = shader[: shader.index({"glsl": "out vec4", "wgsl": "@fragment"}[target])]
    source = "\n".join([declared.format(filled), written.source.read_text(), shader, function])
    x = np.indices((PIXELS, PIXELS)).reshape(2, -1)[::-1].astype(np.float32)
    drawn = device.run(source, [("pixel", (3,))], words(written), np.ascontiguousarray(x))[0]
    expected = srgb(page_picture(bsdf, "sphere", light)).transpose(2, 0, 1).reshape(3, -1)
    assert expected.std() > 0.1 and np.abs(drawn - expected).max() <= 0.5 / 255


# ---- Values, files, and what cannot be ------------------------------------------------------------------------


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


@pytest.mark.parametrize("directions", ["plain", "rusinkiewicz"])
def test_c_with_derivatives_compiles_without_a_warning(variant, tmp_path, directions):
    written = cn.export(material(directions=directions), "c", tmp_path / "wood.c", derivatives=True)
    Library([written.source], tmp_path)


def test_what_is_told_of_directions_is_the_same_on_both_sides():
    from coopnet.interop.export import material as exported
    from coopnet.mitsuba.bsdf import decoder, directions

    there = {name: directions.count(name, None) for name in directions.FEATURES}
    here = exported.DIRECTIONS, exported.SHARP, exported.LARGEST
    assert here == (there, directions.SHARP, decoder.LARGEST)


def test_what_cannot_be_exported_is_refused(variant, tmp_path):
    bsdf = material()
    varnished = cn.mitsuba.NeuralBSDF(bsdf.decoder, bsdf.latent.source(), specular=mi.load_dict({"type": "plastic"}))
    with pytest.raises(ValueError, match="NeuralBSDF: it has a perfectly specular part"):
        cn.export(varnished, "c", tmp_path / "f.c")
    field = cn.mitsuba.build(cn.NeuralField(None, cn.MLP(12, 3, width=8, depth=1)))
    glass = cn.mitsuba.NeuralBSDF(cn.mitsuba.Decoder(field, eta=1.5))
    with pytest.raises(ValueError, match="NeuralBSDF: it transmits; only reflections can be exported"):
        cn.export(glass, "c", tmp_path / "f.c")
    glass.save(tmp_path / "glass.safetensors")
    with pytest.raises(ValueError, match="transmits; only reflections can be exported"):
        cn.interop.export.Reflection.load(tmp_path / "glass.safetensors")
    (tmp_path / "glass.safetensors").unlink()
    with pytest.raises(ValueError, match="dropout is True, but materials are exported without"):
        cn.export(bsdf, "c", tmp_path / "f.c", dropout=True)
    with pytest.raises(ValueError, match="region of view is for images and surfaces, but the field is a material"):
        cn.export(bsdf, "html", tmp_path / "f.html", view=View(region=(0, 0, 1, 1)))
    with pytest.raises(ValueError, match="up and smooth of view: only for surfaces, but the field is a material"):
        cn.export(bsdf, "html", tmp_path / "f.html", view=View(up="z", smooth=True, azimuth=3))
    with pytest.raises(ValueError, match="decoder has 12 inputs; latent and directions make 8"):
        cn.export(Reflection(bsdf.decoder.field), "c", tmp_path / "f.c")
    with pytest.raises(TypeError, match="latent is a list; a NeuralField or a tuple"):
        Reflection(bsdf.decoder.field, [1.0])
    with pytest.raises(ValueError, match=r"latent is \(nan,\); a tuple of finite numbers is needed"):
        Reflection(bsdf.decoder.field, (float("nan"),))
    with pytest.raises(ValueError, match="latent has 12 inputs; 2 are needed, u and v"):
        Reflection(bsdf.decoder.field, bsdf.decoder.field)
    assert list(tmp_path.iterdir()) == []


# ---- Files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latent", ["grid", "numbers", "nothing"])
def test_files_are_exported_without_mitsuba(variant, backend, tmp_path, latent):
    pytest.importorskip("safetensors")
    bsdf, path = material(latent), tmp_path / "wood.safetensors"
    bsdf.save(path)
    loaded = Reflection.load(path, backend)
    assert hash_of(loaded) == hash_of(bsdf.as_material())
    first, second = (cn.export(m, "c", tmp_path / "f.c", inline=True).source.read_bytes() for m in (bsdf, loaded))
    assert first == second


def test_the_command_line_exports_files_of_materials(variant, tmp_path, capsys):
    pytest.importorskip("typer")
    pytest.importorskip("safetensors")
    from coopnet import cli

    bsdf, path = material(), tmp_path / "wood.safetensors"
    bsdf.save(path)
    command = ["export", path, "-o", tmp_path, "--to"]
    assert cli.main([*map(str, command), "c", "--name", "wood"]) == 0
    source = (tmp_path / "wood.c").read_text()
    assert "float x[8], float y[3]" in source and f"Material {hash_of(bsdf.as_material())[:32]}" in source
    assert cli.main([*map(str, command), "html", "--title", "Wood", "--view", "40,10"]) == 0
    data = page_data(tmp_path / "field.html")
    assert [data[name] for name in ("title", "view", "angles", "shape")] == ["Wood", "material", [40, 10], 0]
    fails(capsys, [*command, "html", "--up", "y"], 2, "--up: only for surfaces, but")
    fails(capsys, [*command, "html", "--region", "0,0,1,1"], 2, "region of view is for images and surfaces")
    fails(capsys, [*command, "glsl", "--dropout"], 2, "materials are exported without")
    varnished = cn.mitsuba.NeuralBSDF(bsdf.decoder, bsdf.latent.source(), specular=mi.load_dict({"type": "plastic"}))
    varnished.save(path)
    fails(capsys, [*command, "c"], 1, "has a perfectly specular part, which a function of directions cannot express")
    for described in (3, {"latent": ["x"]}, {"latent": {"format": "other"}}, {"directions": "polar"}):
        cn.save(path, bsdf.decoder.field, metadata={ENTRY: described})
        fails(capsys, [*command, "c"], 1, "holds no material")
