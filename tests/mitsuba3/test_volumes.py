"""Neural volumes, phase functions and media, and the integrator that shows what media emit."""

from __future__ import annotations

import copy
import pickle

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")
pytestmark = pytest.mark.usefixtures("variant")

#: Of losses: what a sample adds to a gradient in half precision is not lost then.
SCALE = 1024


def made(outputs, inputs=3, seed=1, bounds=None, **options):
    network = cn.MLP(-1, outputs, width=8, depth=1, bias=True, activation="softplus", **options)
    return cn.mitsuba.build(cn.NeuralField(cn.Sinusoidal(1, in_features=inputs), network, bounds=bounds), seed=seed)


def density(seed=1, **options):
    return made(1, seed=seed, output_activation="softplus", **options)


def points(count=200, seed=0, low=0.0, high=1.0):
    xyz = np.random.default_rng(seed).uniform(low, high, (3, count)).astype(np.float32)
    it = dr.zeros(mi.MediumInteraction3f, count)
    it.p, it.wi = mi.Point3f(*map(mi.Float, xyz)), mi.Vector3f(0, 0, 1)
    it.sh_frame = mi.Frame3f(it.wi)
    return it


def close(found, expected, rtol=1e-4, atol=1e-5):
    half = "cuda" in mi.variant()
    np.testing.assert_allclose(found, expected, rtol=max(rtol, half * 1e-2), atol=max(atol, half * 5e-3))


def scene(medium, light=None, **objects):
    """A cube that fills the unit cube, seen from the front in a bright room."""
    view = mi.ScalarTransform4f().look_at([0.5, 0.5, 4], [0.5, 0.5, 0.5], [0, 1, 0])
    film = {"type": "hdrfilm", "width": 4, "height": 4, "rfilter": {"type": "box"}}
    cube = mi.ScalarTransform4f().translate([0.5] * 3).scale(0.5)
    inside = {} if medium is None else {"interior": medium}
    return mi.load_dict({
        "type": "scene", "light": light or {"type": "constant"},
        "sensor": {"type": "perspective", "to_world": view, "fov": 15, "film": film},
        "cube": {"type": "cube", "to_world": cube, "bsdf": {"type": "null"}, **inside}, **objects,
    })  # fmt: skip


# ---- Volumes and phase functions ---------------------------------------------------------------------------


def test_values_are_those_of_the_field():
    one, three, it = density(), made(3, seed=2, output_activation="sigmoid"), points()
    x, y, z = it.p
    expected = one([x, y, z]).numpy()[0]
    v = cn.mitsuba.NeuralVolume(one)
    close(v.eval_1(it), expected)
    close(v.eval(it), np.repeat(expected[None], 3, 0))
    assert type(v.eval(it)) is mi.Color3f and not v.eval_1(it, mi.Bool(False)).numpy().any()
    colour = cn.mitsuba.NeuralVolume(three, maximum=1)
    close(colour.eval(it), three([x, y, z]).numpy())
    close(colour.eval_3(it), three([x, y, z]).numpy())
    assert colour.max() == 1 and np.array_equal(v.bbox().max, [1, 1, 1]) and "NeuralVolume[max=" in str(v)


def test_places():
    """The box lies at the field's bounds, or where ``to_world`` takes the unit cube; outside there is nothing."""
    field = density(bounds=((-1, 0, 2), (1, 3, 4)))
    it, move = (
        points(2000, low=-2, high=5),
        mi.ScalarTransform4f().translate([1, 2, 3]).rotate([0, 1, 0], 30).scale([2, 1, 3]),
    )
    p = np.array(it.p)
    for to_world in (None, move):
        v = cn.mitsuba.NeuralVolume(field, to_world)
        matrix = np.array(mi.ScalarTransform4f().translate([-1, 0, 2]).scale([2, 3, 2]).matrix)
        local = np.linalg.inv(matrix if to_world is None else np.array(move.matrix))
        u = local[:3, :3] @ p + local[:3, 3:]
        inside = ((u >= 0) & (u <= 1)).all(0)
        asked = matrix[:3, :3] @ u + matrix[:3, 3:]
        expected = field([mi.Float(a.astype(np.float32)) for a in asked]).numpy()[0]
        assert 20 < inside.sum() < 1900
        close(v.eval_1(it), np.where(inside, expected, 0), rtol=1e-3)
        corners = (np.linalg.inv(local) @ np.array([[x, y, z, 1] for x in (0, 1) for y in (0, 1) for z in (0, 1)]).T)[
            :3
        ]
        np.testing.assert_allclose([v.bbox().min, v.bbox().max], [corners.min(1), corners.max(1)], atol=1e-5)
        ray = mi.Ray3f(mi.Point3f(*p), dr.normalize(mi.Vector3f(1, -0.5, 0.25)))
        met, near, far = v.placed.crossed(ray)
        middle = ray(0.5 * (near + far))
        v_middle = dr.zeros(mi.MediumInteraction3f, 2000)
        v_middle.p = middle
        assert np.array_equal(met.numpy(), v.eval_1(v_middle).numpy() > 0) and met.numpy().any()


def test_majorant():
    v = cn.mitsuba.NeuralVolume(density())
    grid = points(5000, seed=5)
    assert 0.9 * v.max() < v.eval_1(grid).numpy().max() * 1.1 < 1.02 * v.max()
    assert v.exceeded(5000)[0] == 0
    low = cn.mitsuba.NeuralVolume(v.field, maximum=0.5 * v.max())
    with pytest.warns(
        RuntimeWarning, match=r"^NeuralVolume.exceeded: at \d+ of 5000 points the density is above the m"
    ):
        share, most = low.exceeded(5000)
    assert 0 < share <= 1 and 1 < most < 2
    close(low.eval_1(grid), np.minimum(v.eval_1(grid), 0.5 * v.max()))
    before = v.max()
    v.field.set_matrix("layers.2.weights", 2 * np.abs(v.field.matrix("layers.2.weights")))
    v.parameters_changed()
    assert v.max() != before and v.exceeded(5000)[0] == 0
    medium = cn.mitsuba.NeuralMedium(made(4), scale=3.0, maximum=1.0)
    with pytest.warns(RuntimeWarning, match="NeuralMedium.exceeded"):
        assert medium.exceeded(5000)[0] > 0


@pytest.mark.parametrize("outputs", [1, 3])
def test_phase_functions_are_sampled_by_their_density(outputs):
    from mitsuba.chi2 import ChiSquareTest, SphericalDomain

    phase, context = cn.mitsuba.NeuralPhase(made(outputs, seed=4)), mi.PhaseFunctionContext()
    it = points(1)

    def sample(u):
        wo, _, pdf = phase.sample(context, it, u[0], mi.Point2f(u[1], u[2]))
        close(phase.eval_pdf(context, it, wo)[1], pdf)
        return wo, dr.ones(mi.Float, dr.width(wo))

    test = ChiSquareTest(
        SphericalDomain(),
        sample,
        lambda wo: phase.eval_pdf(context, it, wo)[1],
        sample_dim=3,
        sample_count=100_000,
        ires=8,
    )
    assert test.run(), test.messages
    value, pdf = phase.eval_pdf(context, it, mi.Vector3f(0, 0, 1))
    assert type(value) is mi.Color3f and value.x == pdf


def test_phase_function_of_a_constant():
    field = made(1, seed=2)
    field.set_matrix("layers.2.weights", 0 * field.matrix("layers.2.weights"))
    g = float(0.98 * np.tanh(field([mi.Float(0.5)] * 3).numpy()[0, 0]))
    ours, theirs = cn.mitsuba.NeuralPhase(field), mi.load_dict({"type": "hg", "g": g})
    wo = mi.warp.square_to_uniform_sphere(mi.Point2f(*map(mi.Float, np.random.default_rng(0).random((2, 50)))))
    context, it = mi.PhaseFunctionContext(), points(50)
    close(ours.eval_pdf(context, it, wo)[1], theirs.eval_pdf(context, it, wo)[1], rtol=1e-3)


# ---- Media -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["ours", pytest.param("theirs", marks=pytest.mark.slow)])
def test_scattered_light_is_that_of_volpath(whose):
    """A field's medium in both integrators; and Mitsuba's, of a field."""
    described = cn.mitsuba.NeuralMedium(made(4, seed=3), light="scattered", scale=4.0)
    if whose == "theirs":
        sigma = cn.mitsuba.NeuralVolume(density())
        described = {"type": "heterogeneous", "sigma_t": sigma, "albedo": 0.8, "scale": 4.0}
    volpath, ours = mi.load_dict({"type": "volpath"}), cn.mitsuba.NeuralVolpath()
    s = scene(described, spot={"type": "point", "position": [0.5, 3, 1], "intensity": 8.0})
    a, b = (mi.render(s, integrator=i, spp=1024, seed=2).numpy() for i in (volpath, ours))
    assert a.min() > 0
    np.testing.assert_allclose(b.mean(axis=(0, 1)), a.mean(axis=(0, 1)), rtol=0.04)  # 0.011 from seed to seed


def marched(s, field):
    """The emitted light of the pixels by ``ray_march``: a function of the field's weights."""
    lane = dr.arange(mi.UInt32, 16 * 64)
    pixel, u = lane // 64, cn.uniform(2, cn.Key(0, lane), mi.Float)
    place = mi.Point2f((mi.Float(pixel % 4) + u[0]) / 4, (mi.Float(pixel // 4) + u[1]) / 4)
    ray, _ = s.sensors()[0].sample_ray(0, 0, place, mi.Point2f(0.5))
    near, far = cn.render.OccupancyGrid(1, 0, 1, backend=mi.variant().split("_")[0]).interval(ray.o, ray.d)
    seen = cn.render.ray_march(field, ray.o, ray.d, near, far, 64, background=1.0)
    return [dr.block_sum(c, 64) / 64 for c in seen.color][:2]


def test_fields_of_ray_march_are_media():
    """The same picture, and the same gradient of the weights, without training anything."""
    field = made(4, seed=3)
    medium = cn.mitsuba.NeuralMedium(field)
    s, integrator = scene(medium), cn.mitsuba.NeuralVolpath()
    params = mi.traverse(s)
    key = "cube.interior_medium.network.weights"
    dr.enable_grad(params[key])
    picture = mi.render(s, params, integrator=integrator, spp=2048)
    dr.backward(SCALE * dr.mean(picture[:, :, 0]))
    found, picture = dr.grad(params[key]).numpy(), picture.numpy()
    dr.set_grad(params[key], 0)
    red, green = marched(s, field)
    np.testing.assert_allclose(picture[:, :, 0].ravel(), red.numpy(), rtol=0.02)
    np.testing.assert_allclose(picture[:, :, 1].ravel(), green.numpy(), rtol=0.02)
    dr.backward(SCALE * dr.mean(red))
    expected = dr.grad(params[key]).numpy()
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def test_without_media():
    """Surfaces alone: the picture of ``path``."""
    s = scene(None, floor={"type": "rectangle", "to_world": mi.ScalarTransform4f().translate([0.5, 0.5, 0])})
    a, b = (
        mi.render(s, integrator=i, spp=256).numpy()
        for i in (mi.load_dict({"type": "path"}), cn.mitsuba.NeuralVolpath())
    )
    np.testing.assert_allclose(b.mean(), a.mean(), rtol=0.02)


def test_densities_at_the_majorant():
    """A medium that is cut everywhere is one of that density: it emits what it hides, and gradients are numbers."""
    field = made(4, seed=3)
    medium = cn.mitsuba.NeuralMedium(field, maximum=0.25, color="none")
    field.set_matrix("layers.2.weights", 0 * field.matrix("layers.2.weights"))
    s, integrator = scene(medium), cn.mitsuba.NeuralVolpath()
    params, key = mi.traverse(s), "cube.interior_medium.network.weights"
    dr.enable_grad(params[key])
    picture = mi.render(s, params, integrator=integrator, spp=2048)
    dr.backward(SCALE * dr.mean(picture, axis=None))
    assert dr.all(dr.isfinite(dr.grad(params[key])))
    color = np.maximum(field([mi.Float(0.5)] * 3).numpy()[1:, 0], 0)
    centre = picture.numpy()[1:3, 1:3].mean(axis=(0, 1))
    through = np.exp(-0.25)
    np.testing.assert_allclose(centre, through + (1 - through) * color, rtol=0.04)


@pytest.mark.slow
def test_light_behind_media():
    """Shadows of a neural medium, and their gradient: a lamp over a floor, with the medium between."""
    field = density(seed=3)
    medium = cn.mitsuba.NeuralMedium(field, density="none", scale=2.0, maximum=4.0)
    view = mi.ScalarTransform4f().look_at([3, 3, 0.5], [0.5, -1, 0.5], [0, 1, 0])
    film = {"type": "hdrfilm", "width": 1, "height": 1, "rfilter": {"type": "box"}}
    floor = mi.ScalarTransform4f().translate([0.5, -1, 0.5]).rotate([1, 0, 0], -90).scale(5)
    s = scene(
        medium, {"type": "point", "position": [0.5, 2, 0.5], "intensity": 10.0},
        sensor={"type": "perspective", "to_world": view, "fov": 0.01, "film": film},
        floor={"type": "rectangle", "to_world": floor},
    )  # fmt: skip
    params, key = mi.traverse(s), "cube.interior_medium.network.weights"
    dr.enable_grad(params[key])
    picture = mi.render(s, params, integrator=cn.mitsuba.NeuralVolpath(max_depth=2), spp=20000)
    dr.backward(SCALE * picture[0, 0, 0])
    found = dr.grad(params[key]).numpy()
    dr.set_grad(params[key], 0)
    height = (dr.arange(mi.Float, 256) + 0.5) / 256
    depth = 2 * dr.mean(field([mi.Float(0.5), height, mi.Float(0.5)])[0])
    expected = 10 / 9 * 0.5 / dr.pi * dr.exp(-depth)
    np.testing.assert_allclose(picture.numpy()[0, 0, 0], expected.numpy()[0], rtol=0.02)
    dr.backward(SCALE * expected)
    expected = dr.grad(params[key]).numpy()
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sigma_t", "albedo", "phase_function"])
@pytest.mark.parametrize("integrator", ["prbvolpath", "neural_volpath"])
def test_gradients_are_those_of_differences(backend, integrator, name):
    """In the direction of the gradient; what a phase function does is seen under a lamp."""
    if backend == "cuda":
        pytest.skip("in calls, sums of half precision stall, of which a warning speaks")
    sigma, albedo, phase = density(), made(3, seed=2, output_activation="sigmoid"), made(1, seed=4)
    lamp = {"type": "point", "position": [2, 2, 2], "intensity": 20.0}
    s = scene({
        "type": "heterogeneous", "sigma_t": cn.mitsuba.NeuralVolume(sigma, maximum=3), "scale": 3.0,
        "albedo": cn.mitsuba.NeuralVolume(albedo, maximum=1), "phase": cn.mitsuba.NeuralPhase(phase),
    }, lamp if name == "phase_function" else None)  # fmt: skip
    way = mi.load_dict({"type": integrator, "max_depth": 6})
    params, key = mi.traverse(s), f"cube.interior_medium.{name}.network.weights"
    dr.enable_grad(params[key])
    dr.backward(SCALE * dr.mean(mi.render(s, params, integrator=way, spp=4096), axis=None))
    gradient = dr.grad(params[key]).numpy().astype(float) / SCALE
    dr.disable_grad(params[key])
    length = 0.06 if name == "phase_function" else 0.25  # it bends more
    before, step = params[key].numpy().copy(), length * gradient / np.linalg.norm(gradient)
    means = []
    for sign in (1, -1):
        params[key] = type(params[key])((before + sign * step).astype(before.dtype))
        params.update()
        means.append(np.mean([mi.render(s, integrator=way, spp=4096, seed=i).numpy().mean() for i in range(4)]))
    np.testing.assert_allclose((means[0] - means[1]) / 2, gradient @ step, rtol=0.12)


def test_frozen_pictures_follow_the_field():
    """Frozen functions find the weights of volumes, phase functions and media, and of those alone that are there."""
    sigma, phase, whole = density(), made(1, seed=4), made(7)
    kinds = {
        "volpath": {
            "type": "heterogeneous", "sigma_t": cn.mitsuba.NeuralVolume(sigma, maximum=3),
            "phase": cn.mitsuba.NeuralPhase(phase),
        },
        "neural_volpath": cn.mitsuba.NeuralMedium(whole, maximum=3.0),
    }  # fmt: skip
    for name, medium in kinds.items():
        s, way = scene(medium), mi.load_dict({"type": name, "max_depth": 3})
        frozen = dr.freeze(lambda s, way, seed: mi.render(s, integrator=way, spp=4, seed=seed))
        for seed in range(3):
            found = frozen(s, way, dr.opaque(mi.UInt32, seed + 1)).numpy()
            close(found, mi.render(s, integrator=way, spp=4, seed=dr.opaque(mi.UInt32, seed + 1)).numpy())
            for field in (sigma, phase, whole):
                field.set_matrix("layers.2.weights", 1.3 * field.matrix("layers.2.weights"))


# ---- Plugins -----------------------------------------------------------------------------------------------


def test_in_scenes(tmp_path):
    """By name, from a file and in XML; parameters are the field's own."""
    field = density()
    cn.save(tmp_path / "smoke.safetensors", field)
    name, it = cn.mitsuba.hand_over("volume", field), points()
    expected = cn.mitsuba.NeuralVolume(field).eval_1(it).numpy()
    file = {"type": "neural_volume", "filename": str(tmp_path / "smoke.safetensors"), "maximum": 9.0}
    volume = mi.load_dict(file)
    close(volume.eval_1(it), expected)
    assert volume.max() == 9
    media = mi.load_string(f"""<scene version="3.0.0"><medium type="heterogeneous" id="a">
        <volume name="sigma_t" type="neural_volume"><string name="field" value="{name}"/></volume>
        <phase type="neural_phase"><string name="field" value="{name}"/></phase></medium>
        <medium type="neural_medium" id="b"><string name="field" value="{name}"/><phase type="hg"/></medium>
        <integrator type="neural_volpath"><integer name="max_depth" value="7"/></integrator></scene>""")
    assert media.integrator().max_depth == 7 and str(media.integrator()) == "NeuralVolpath[max_depth=7, rr_depth=5]"
    s = scene(mi.load_dict({"type": "neural_medium", "field": name, "density": "none", "p": {"type": "hg", "g": 0.5}}))
    params = mi.traverse(s)
    assert {"cube.interior_medium.network.weights", "cube.interior_medium.phase_function.g"} <= set(params.keys())
    key = "cube.interior_medium.network.weights"
    params[key] = params[key] * 0
    params.update()
    close(field([mi.Float(0.5)] * 3), np.log([[2.0]]))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_copies(way):
    move = mi.ScalarTransform4f().translate([1, 0, 0]).scale([2, 2, 3])
    it, context = points(low=0, high=3), mi.PhaseFunctionContext()
    volume = cn.mitsuba.NeuralVolume(density(dropout=0.1), move, resolution=7, key=cn.Key(3, 0))
    again = way(volume)
    assert str(again) == str(volume) and again.resolution().x == 7 and again.field is not volume.field
    np.testing.assert_array_equal(again.eval_1(it), volume.eval_1(it))
    phase = cn.mitsuba.NeuralPhase(made(3), move)
    wo = mi.Vector3f(0, 0, 1)
    np.testing.assert_array_equal(way(phase).eval_pdf(context, it, wo)[1], phase.eval_pdf(context, it, wo)[1])
    medium = cn.mitsuba.NeuralMedium(made(7), move, scale=2.0)
    for found, expected in zip(
        way(medium).get_scattering_coefficients(it), medium.get_scattering_coefficients(it), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    path = cn.mitsuba.NeuralVolpath(max_depth=9, rr_depth=3, banks=4, key=cn.Key(2))
    assert str(way(path)) == str(path) and way(path).banks == 4


def test_outputs_of_media():
    """1 absorbs, 4 emit or scatter, 7 do both; six inputs see the direction of the ray."""
    it = points(50)
    one = cn.mitsuba.NeuralMedium(density(), density="none")
    sigma_s, sigma_n, sigma_t = one.get_scattering_coefficients(it)
    assert not sigma_s.numpy().any()
    grey = cn.mitsuba.NeuralMedium(one.field, density="none", albedo=0.5, maximum=one.max())
    close(grey.get_scattering_coefficients(it)[0], 0.5 * sigma_t.numpy())
    close(sigma_n + sigma_t, np.full((3, 50), one.max()))
    field = made(7)
    y = field(list(it.p)).numpy()
    sigma, albedo, light = cn.mitsuba.NeuralMedium(field).coefficients(it, None, True)
    sigmoid = 1 / (1 + np.exp(-y[1:]))
    close(sigma, np.log1p(np.exp(y[0])), rtol=1e-3)
    close(albedo, sigmoid[:3], rtol=1e-3)
    close(light, np.log1p(np.exp(y[0])) * sigmoid[3:], rtol=1e-3)
    turned = made(4, inputs=6)
    medium = cn.mitsuba.NeuralMedium(turned, light="scattered", color="none", density="none", maximum=50)
    expected = turned([*it.p, mi.Float(0), mi.Float(0), mi.Float(-1)]).numpy()
    close(medium.coefficients(it, None, True)[1], expected[1:].clip(0, 1))


def test_refusals():
    field, four = density(), made(4)
    volume, medium, phase = cn.mitsuba.NeuralVolume, cn.mitsuba.NeuralMedium, cn.mitsuba.NeuralPhase
    with pytest.raises(ValueError, match=r"^NeuralVolume: field has 4 outputs; 1 or 3 is needed"):
        volume(four)
    with pytest.raises(ValueError, match=r"^NeuralVolume: field has 2 inputs; 3 is needed"):
        volume(made(1, inputs=2))
    with pytest.raises(TypeError, match=r"^NeuralVolume: to_world is .* an affine mi.ScalarTransform4f is needed"):
        volume(field, to_world=3)
    with pytest.raises(ValueError, match=r"^NeuralVolume: to_world makes the box flat"):
        volume(field, mi.ScalarTransform4f().scale([1, 0, 1]))
    with pytest.raises(ValueError, match=r"^NeuralVolume: maximum is 0; None or a positive number is needed"):
        volume(field, maximum=0)
    with pytest.raises(ValueError, match=r"^NeuralVolume: key has no index"):
        volume(field, key=cn.Key(1))
    with pytest.raises(ValueError, match=r"^NeuralPhase: field has 4 outputs; 1 or 3 is needed"):
        phase(four)
    with pytest.raises(ValueError, match=r"^NeuralMedium: field has 3 outputs; 1 or 4 or 7 are needed"):
        medium(made(3))
    with pytest.raises(ValueError, match=r"^NeuralMedium: light is 'red'"):
        medium(four, light="red")
    with pytest.raises(TypeError, match=r"^NeuralMedium: phase is a float; a mi.PhaseFunction or None is needed"):
        medium(four, phase=0.5)
    with pytest.raises(
        ValueError, match=r"^NeuralMedium: albedo is 0.5, but field has 4 outputs, which include the albedo"
    ):
        medium(four, albedo=0.5)
    with pytest.raises(ValueError, match=r"^NeuralMedium: albedo is 2; a number in \[0, 1\] is needed"):
        medium(field, albedo=2)
    with pytest.raises(ValueError, match=r"^NeuralVolume.exceeded: samples is 0"):
        volume(field, maximum=1.0).exceeded(0)
    with pytest.raises(ValueError, match=r"^NeuralVolpath: max_depth is -2"):
        cn.mitsuba.NeuralVolpath(max_depth=-2)
    s = scene(medium(four))
    params = mi.traverse(s)
    key = "cube.interior_medium.network.weights"
    dr.enable_grad(params[key])
    picture = mi.render(s, params, integrator=cn.mitsuba.NeuralVolpath(), spp=1)
    dr.set_grad(params[key], 1)
    with pytest.raises(RuntimeError) as error:
        dr.forward_to(picture)
    assert "derivatives in forward mode are not possible" in str(error.value.__cause__ or error.value)
