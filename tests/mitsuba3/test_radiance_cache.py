"""The radiance cache: paths that end in it, its training, its files."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import drjit as dr
import numpy as np
import pytest
from support.arrays import values
from support.machines import ROOT, python

import coopnet as cn
from coopnet import reference as ref
from coopnet.checks import shown

mi = pytest.importorskip("mitsuba")

from coopnet.mitsuba.cache.camera import Camera  # noqa: E402
from coopnet.mitsuba.cache.short_paths import Ending, trace  # noqa: E402
from coopnet.mitsuba.cache.surface import Box, inputs, material  # noqa: E402
from coopnet.mitsuba.path.vertex import power_heuristic  # noqa: E402

ALBEDO, EMISSION = 0.6, 0.5
#: What is scattered in a closed box whose walls emit and reflect the same everywhere.
SCATTERED = ALBEDO * EMISSION / (1 - ALBEDO)


pytestmark = pytest.mark.usefixtures("variant")


def camera(size: int, **more):
    film = {"type": "hdrfilm", "width": size, "height": size, "rfilter": {"type": "box"}, "pixel_format": "rgb"}
    return {"type": "perspective", "film": film, **more}


def closed_box(albedo=ALBEDO):
    bsdf = {"type": "diffuse", "reflectance": {"type": "rgb", "value": albedo}}
    light = {"type": "area", "radiance": {"type": "rgb", "value": EMISSION}}
    box = {"type": "cube", "flip_normals": True, "bsdf": bsdf, "light": light}
    return mi.load_dict({"type": "scene", "box": box, "sensor": camera(12, fov=90)})


def cornell(size: int, **changes):
    scene = mi.cornell_box()
    scene["sensor"]["film"] = camera(size)["film"]
    return mi.load_dict(scene | changes)


def small_field(backend, width=16, seed=0):
    grid = cn.HashGrid(3, n_levels=4, hashmap_size=2**12, base_resolution=4)
    encoding = cn.Composite([grid, cn.Identity()], [3, 13])
    return cn.NeuralField(encoding, cn.MLP(out_features=3, width=width, depth=2), in_features=16).build(
        backend, seed=seed
    )


def render(scene, integrator, spp, seed=0):
    return mi.render(scene, integrator=integrator, spp=spp, seed=seed).numpy().astype(np.float64)


def test_the_field_of_a_cache_that_is_given_none(backend):
    """A hash grid of 6 levels from 8 to 113 cells a side, two hidden layers of 32; and an average that begins there."""
    cache = cn.mitsuba.RadianceCache(closed_box())
    grid = cache.field.encoding.nested[0]
    assert (grid.n_levels, grid.hashmap_size, grid.base_resolution) == (6, 2**16, 8)
    assert int(8 * grid.per_level_scale**5) == 113
    shapes = [cache.field.matrix(f"layers.{i}.weights").shape for i in (0, 2, 4)]
    assert shapes == [(32, 35), (32, 32), (3, 32)] and len(cache.field.network.layers) == 5
    for name, value in cache.field.items():
        assert np.array_equal(cache.averaged[name].numpy(), value.numpy()) and value.numpy().any()


def test_the_box_of_a_scene():
    """Of any size; what lies beyond it, as points of another scene may, is on its faces."""
    small = mi.load_dict({"type": "scene", "sensor": camera(4), "ball": {"type": "sphere", "radius": 1e-3}})
    box = Box.from_scene(small, "test")
    assert box.scale == pytest.approx(1 / (1.02 * 2e-3))
    found = box.to_unit(mi.Point3f([0, 1, -1], 0, 0)).numpy()
    np.testing.assert_allclose(found, [[0.5, 1, 0], [0.5] * 3, [0.5] * 3], atol=1e-5)


def test_random_numbers_of_a_step(backend):
    """Every ray has its own, and they are a function of seed and step."""
    sensor = closed_box().sensors()[0]

    def drawn(key):
        ray, number, sampler = Camera(sensor, 64).draw(key, 3)
        return [np.array(v) for v in (*ray.d, number, sampler.next_1d(), sampler.next_1d())]

    first = drawn(cn.Key(1, step=5))
    assert all(np.array_equal(a, b) for a, b in zip(first, drawn(cn.Key(1, step=5)), strict=True))
    assert set(first[3]) == {0, 1, 2} and all(len(set(v)) == 64 for v in first[4:])
    for key in (cn.Key(2, step=5), cn.Key(1, step=6)):
        assert all(not np.isin(a, b).any() for a, b in zip(first[4:], drawn(key)[4:], strict=True))


def test_inputs_agree_with_the_reference(backend):
    """Of a scene with every kind of material, at random points of it."""
    spec = {"type": "rgb", "value": [0.9, 0.5, 0.2]}
    kinds = {
        "diffuse": ({"type": "diffuse", "reflectance": spec}, 1.0, [0.9, 0.5, 0.2], 0.0),
        "metal": ({"type": "roughconductor", "alpha": 0.25, "specular_reflectance": spec}, 0.25, 0.0, [0.9, 0.5, 0.2]),
        "mirror": ({"type": "conductor"}, 0.0, 0.0, 1.0),
        "two": ({"type": "twosided", "bsdf": {"type": "diffuse", "reflectance": 0.4}}, 1.0, 0.4, 0.0),
    }
    scene = {"type": "scene", "sensor": camera(4)}
    for i, (name, (bsdf, *_)) in enumerate(kinds.items()):
        scene[name] = {"type": "sphere", "center": [3.0 * i, 0, 1.0 * i], "bsdf": bsdf}
    scene = mi.load_dict(scene)
    rng = np.random.default_rng(0)
    box = Box.from_scene(scene, "test")
    corners = np.array([np.ravel(scene.bbox().min), np.ravel(scene.bbox().max)]).T
    for i, (_, roughness, diffuse, specular) in enumerate(kinds.values()):
        d = rng.normal(size=(3, 16))
        d /= np.linalg.norm(d, axis=0)
        p = np.array([[3.0 * i], [0], [1.0 * i]]) + d
        for side in (1, -1):  # seen from outside and from inside
            ray = mi.Ray3f(mi.Point3f(p + 0.5 * side * d), mi.Vector3f(-side * d))
            si = scene.ray_intersect(ray)
            found = inputs(si, material(si.bsdf(), si, True), box)
            full = [np.broadcast_to(np.reshape(v, (-1, 1)), (3, 16)) for v in (diffuse, specular)]
            expected = ref.radiance_cache_inputs(p, side * d, d, np.full(16, roughness), *full, corners)
            np.testing.assert_allclose(values(found), expected, atol=2e-5)


def test_paths_end_where_the_reference_says(backend):
    rng = np.random.default_rng(1)
    for spread in (5.0, 50.0):
        ending, ours, theirs = Ending(1, spread), [], []
        for _ in range(20):
            distance, density = rng.uniform(0.1, 3, 5), rng.uniform(0.05, 3, 5)
            cosine = rng.uniform(-1, 1, 5)
            area, first = ref.path_spread(distance, density, cosine)
            sums = np.sqrt(area)
            met = ending.met(mi.UInt32(np.arange(5, dtype=np.uint32)), mi.Float(sums), mi.Float(float(first)))
            ours.append(met.numpy())
            theirs.append(area > spread * first)
        np.testing.assert_array_equal(ours, theirs)
        assert 0.1 < np.mean(theirs) < 0.9
    a, b = rng.uniform(0.1, 4, (2, 50))
    np.testing.assert_allclose(power_heuristic(mi.Float(a), mi.Float(b)).numpy(), ref.power_heuristic(a, b), rtol=1e-5)


def test_spread_of_a_traced_path(backend):
    """A small constant ends paths after the first bounce, a large one never."""
    scene = cornell(8)
    cache = cn.mitsuba.RadianceCache(scene, small_field(backend))
    for spread, vertices in ((1e-12, 1), (1e9, 31)):
        images = [render(scene, cache.integrator(**o), 16) for o in (dict(spread=spread), dict(vertices=vertices))]
        # but for paths that hardly left a corner
        assert np.mean(np.isclose(*images, rtol=1e-3)) > 0.95
    assert np.mean(np.isclose(images[0], render(scene, cache.integrator(vertices=1), 16), rtol=1e-3)) < 0.5


def test_a_box_of_constant_radiance(backend, capsys):
    """L = E / (1 - albedo): every number of bounces is needed, and most come from the tails."""
    scene = closed_box()
    cache = cn.mitsuba.RadianceCache(scene, small_field(backend), average=0.9)
    result = cache.train(150, lr=1e-2, samples=2**11)
    assert result.steps == cache.steps == len(result.losses) == 150 and result.stopped == "steps"
    assert capsys.readouterr() == ("", "")  # no bar: a cache is trained many times, for a few steps
    ray = scene.sensors()[0].sample_ray(0, 0, mi.Point2f([0.2, 0.5, 0.9], [0.1, 0.5, 0.7]), mi.Point2f(0.5))[0]
    si = scene.ray_intersect(ray)
    tolerance = 0.08 if backend == "cuda" else 0.03
    np.testing.assert_allclose(cache.radiance(si).numpy(), SCATTERED, rtol=tolerance)
    np.testing.assert_array_equal(cache.radiance(si, mi.Bool([True, False, True])).numpy()[:, 1], 0)
    for options, emitted in ((dict(vertices=3), EMISSION), (dict(spread=0.01, hide_emitters=True), 0)):
        image = render(scene, cache.integrator(**options), 4)
        np.testing.assert_allclose(image.mean(), emitted + SCATTERED, rtol=tolerance)


@pytest.mark.parametrize("after", [1, 2])
def test_paths_of_a_query_end_so_many_vertices_after_it(after):
    """In a box of one albedo, which every vertex multiplies the weight by."""
    ray, _, sampler = Camera(closed_box().sensors()[0], 64).draw(cn.Key(0), 1)
    paths = trace(closed_box(), sampler, ray, Ending(after), query=dr.arange(mi.UInt32, 64) % 3)
    assert dr.all(paths.query.valid & paths.end.valid)
    np.testing.assert_allclose(paths.weight.numpy(), ALBEDO**after, rtol=1e-5)


def test_without_cache_paths_are_those_of_mitsuba(backend):
    """Paths that never end in the cache: the estimator of ``path``, so the mean of differences is noise.

    They are short, or the longest ones would be lost in it.
    """
    ball = {"type": "sphere", "center": [0.4, -0.6, 0.3], "radius": 0.3, "bsdf": {"type": "dielectric"}}
    glossy = {"type": "sphere", "center": [-0.4, 0.4, 0.3], "radius": 0.3, "bsdf": {"type": "roughplastic"}}
    lights = {"sky": {"type": "constant", "radiance": 0.3}, "lamp": {"type": "point", "position": [0, 0, 0.8]}}
    scene = cornell(8, ball=ball, glossy=glossy, **lights)
    cache = cn.mitsuba.RadianceCache(scene, small_field(backend))
    ours = cache.integrator(vertices=32, max_depth=3)
    theirs = mi.load_dict({"type": "path", "max_depth": 3, "rr_depth": 1000})
    passes = 24
    images = [
        np.stack([render(scene, i, 64, seed) for seed in range(s, s + passes)]) for i, s in ((ours, 0), (theirs, 99))
    ]
    means, variances = ([f(v, axis=0) for v in images] for f in (np.mean, lambda v, axis: v.var(axis, ddof=1) / passes))
    z = (means[0] - means[1]) / np.sqrt(sum(variances) + 1e-12)
    assert np.sqrt(np.mean(z**2)) < 1.35  # Student's t with 46 degrees of freedom: 1.02
    total = (means[0] - means[1]).mean() / math.sqrt(sum(variances).sum()) * means[0].size
    assert abs(total) < 4


def test_training_approaches_the_reference(backend):
    scene = cornell(16)
    cache = cn.mitsuba.RadianceCache(scene, small_field(backend))
    reference = render(scene, mi.load_dict({"type": "path", "max_depth": 32}), 512)

    def errors():
        images = [render(scene, cache.integrator(vertices=n), 64) for n in (0, 1)]
        return [np.mean((image - reference) ** 2 / (reference**2 + 0.01)) for image in images]

    before = errors()
    cache.train(120, samples=2**12)
    after = errors()
    print(before, after)
    assert after[0] < 0.02 * before[0] and after[1] < 0.2 * before[1]
    assert max(after) < 0.01


def test_steps_replay_and_go_on(backend):
    """Twice 6 steps are 12, to the last bit on LLVM, and after the first two no step is recorded anew."""
    scene, passes = cornell(8), []
    for parts in ((12,), (6, 6), (1, 11)):
        cache = cn.mitsuba.RadianceCache(scene, small_field(backend))
        for steps in parts:
            result = cache.train(steps, samples=256)
        passes.append((result.losses, {k: np.array(v) for k, v in cache.averaged.items()}))
        assert 1 <= result.recordings <= 2
        recordings = result.recordings
        assert cache.train(5, samples=256).recordings == recordings
    for losses, weights in passes[1:]:
        if backend == "llvm":
            assert losses == passes[0][0]
            for name, value in weights.items():
                np.testing.assert_array_equal(value, passes[0][1][name])
        else:
            np.testing.assert_allclose(losses, passes[0][0], rtol=0.05)


def test_reset(backend):
    """The same run again, with nothing recorded after the first time."""
    cache = cn.mitsuba.RadianceCache(cornell(8), small_field(backend))
    initial = {k: np.array(v) for k, v in cache.averaged.items()}
    first = cache.train(6, samples=256)
    losses, recordings = first.losses, []
    for _ in range(2):
        cache.reset()
        assert cache.steps == 0
        for name, value in cache.averaged.items():
            np.testing.assert_array_equal(value.numpy(), initial[name])
        again = cache.train(6, samples=256)
        recordings.append(again.recordings)
        np.testing.assert_allclose(again.losses, losses, rtol=0 if backend == "llvm" else 0.05)
    assert recordings[0] == recordings[1]


def test_seeds_make_runs(backend):
    scene = cornell(8)
    losses = [
        cn.mitsuba.RadianceCache(scene, small_field(backend), seed=seed).train(3, samples=256).losses
        for seed in (1, 1, 2, 1 << 40 | 1)
    ]
    if backend == "llvm":
        assert losses[0] == losses[1]
    assert losses[0] != losses[2] and losses[0] != losses[3]


def test_settings_may_change(backend):
    """Other settings are another frozen step of the same optimizer; going back to the first records nothing."""
    cache = cn.mitsuba.RadianceCache(cornell(8), small_field(backend))
    one = cache.train(3, samples=256).recordings
    both = cache.train(3, samples=512, vertices=1, tail=2).recordings
    assert both > one
    state = cache._training.optimizer.state
    assert cache.train(3, samples=256).recordings <= both + 1
    assert cache.steps == 9 and cache._training.optimizer.state is not None and state


def test_the_average_is_what_is_shown(backend):
    cache = cn.mitsuba.RadianceCache(cornell(8), small_field(backend), average=0.5)
    before = {k: v.numpy().astype(np.float64) for k, v in cache.field.items()}
    for _ in range(20):  # half precision skips the first steps, until it has found a scale
        cache.train(1, lr=1e-2, samples=256)
        if any(np.any(v.numpy() != before[k]) for k, v in cache.field.items()):
            break
    for name, value in cache.field.items():
        shown_ = cache.averaged[name].numpy().astype(np.float64)
        np.testing.assert_allclose(shown_, 0.5 * (before[name] + value.numpy()), atol=2e-3)
        assert np.any(value.numpy() != before[name])


@pytest.mark.parametrize("bsdf, dark", [
    ({"type": "diffuse"}, True), ({"type": "twosided", "nested": {"type": "diffuse"}}, False),
    ({"type": "thindielectric"}, False),
])  # fmt: skip
def test_backs_of_one_sided_materials_are_dark(backend, bsdf, dark):
    """Whatever the network has learned."""
    scene = mi.load_dict({"type": "scene", "sheet": {"type": "rectangle", "bsdf": bsdf}, "sensor": camera(4)})
    field = cn.NeuralField(None, cn.MLP(16, 3, width=16, depth=1, bias=True)).build(backend)
    field.set_matrix("layers.2.bias", np.full(3, 4.0))
    cache = cn.mitsuba.RadianceCache(scene, field)
    z = mi.Float([2, -2])
    seen = cache.radiance(scene.ray_intersect(mi.Ray3f(mi.Point3f(0.1, 0.2, z), mi.Vector3f(0, 0, -dr.sign(z)))))
    front, back = seen.numpy().T
    assert (front > 0).all() and (back == 0).all() == dark


def test_reflectances_need_not_be_learned(backend):
    """With the factor, a wall twice as dark is half as bright, untrained; without, the network decides."""
    ray = mi.Ray3f(mi.Point3f(0), mi.Vector3f(0, 0, 1))
    found = {}
    for factored in (True, False):
        for albedo in (0.3, 0.6):
            scene = closed_box(albedo)
            # a network that does not see its inputs: all weights but the last are 0, all biases but the last, too
            field = cn.NeuralField(None, cn.MLP(16, 3, width=16, depth=1, bias=True)).build(backend)
            for name in ("layers.0.weights", "layers.2.weights"):
                field.set_matrix(name, np.zeros(field.matrix(name).shape))
            field.set_matrix("layers.2.bias", np.ones(3))
            cache = cn.mitsuba.RadianceCache(scene, field, factored=factored, scale=2.0)
            found[factored, albedo] = cache.radiance(scene.ray_intersect(ray)).numpy().ravel()
    np.testing.assert_allclose(found[True, 0.3], 0.6, rtol=1e-3)
    np.testing.assert_allclose(found[True, 0.6], 1.2, rtol=1e-3)
    np.testing.assert_allclose(found[False, 0.3], 2, rtol=1e-3)
    np.testing.assert_allclose(found[False, 0.6], 2, rtol=1e-3)


def test_files(backend, tmp_path):
    pytest.importorskip("safetensors")
    scene = cornell(8)
    cache = cn.mitsuba.RadianceCache(scene, small_field(backend), scale=0.5, factored=False)
    cache.train(3, samples=256)
    path = tmp_path / "cache.safetensors"
    cache.save(path)
    again = cn.mitsuba.RadianceCache.load(path, scene)
    assert again.output == cache.output
    a, b = (render(scene, c.integrator(), 4) for c in (cache, again))
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    cn.save(path, cache.field)
    with pytest.raises(ValueError, match=r"RadianceCache.load: .* holds a field, but not that of a radiance cache"):
        cn.mitsuba.RadianceCache.load(path, scene)


def test_one_kernel_a_picture(backend):
    """The cache is part of the kernel that traces the paths, and a second picture compiles nothing."""
    scene = cornell(8)
    integrator = cn.mitsuba.RadianceCache(scene, small_field(backend)).integrator()
    dr.eval(mi.render(scene, integrator=integrator, spp=4, seed=1))
    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        dr.kernel_history_clear()
        dr.eval(mi.render(scene, integrator=integrator, spp=4, seed=2))
        kernels = [k for k in dr.kernel_history() if "cache_hit" in k]
    assert sum(k["operation_count"] > 500 for k in kernels) == 1
    assert all(k["cache_hit"] for k in kernels)


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(scene=None), TypeError, "RadianceCache: scene is a NoneType; a mi.Scene"),
        (dict(field=3), TypeError, "RadianceCache: field is a int"),
        (dict(field="unbuilt"), ValueError, "not built yet"),
        (dict(field="narrow"), ValueError, "RadianceCache: field has 3 inputs; 16 is needed"),
        (dict(field="grey"), ValueError, "RadianceCache: field has 1 outputs; 3 is needed"),
        (dict(scale=0), ValueError, "RadianceCache: scale is 0"),
        (dict(factored=1), ValueError, "RadianceCache: factored is 1"),
        (dict(average=1.0), ValueError, "RadianceCache: average is 1.0"),
        (dict(average=-0.5), ValueError, "RadianceCache: average is -0.5"),
        (dict(seed=-1), ValueError, "RadianceCache: seed is -1"),
    ],
)
def test_bad_arguments(backend, change, error, words):
    made = {
        "unbuilt": lambda: cn.NeuralField(None, cn.MLP(16, 3)),
        "narrow": lambda: cn.NeuralField(None, cn.MLP(3, 3)).build(backend),
        "grey": lambda: cn.NeuralField(None, cn.MLP(16, 1)).build(backend),
    }
    change = {k: made[v]() if isinstance(v, str) else v for k, v in change.items()}
    arguments = {"scene": closed_box(), "field": None} | change
    with pytest.raises(error, match="RadianceCache") as info:
        cn.mitsuba.RadianceCache(**arguments)
    assert words in str(info.value), shown(str(info.value))


@pytest.mark.parametrize(
    "method, change, words",
    [
        ("train", dict(steps=-1), "steps is -1"),
        ("train", dict(steps=1, samples=0), "samples is 0"),
        ("train", dict(steps=1, vertices=0), "vertices is 0"),
        ("train", dict(steps=1, tail=0), "tail is 0"),
        ("train", dict(steps=1, sensor=1), "sensor is 1"),
        ("train", dict(steps=1, lr=-1), "lr is -1"),
        ("integrator", dict(vertices=-1), "vertices is -1"),
        ("integrator", dict(spread=0.0), "spread is 0.0"),
        ("integrator", dict(max_depth=0), "max_depth is 0"),
        ("integrator", dict(hide_emitters=2), "hide_emitters is 2"),
    ],
)
def test_bad_arguments_of_methods(backend, method, change, words):
    cache = cn.mitsuba.RadianceCache(closed_box(), small_field(backend))
    with pytest.raises(ValueError) as info:
        getattr(cache, method)(**change)
    assert words in str(info.value), str(info.value)


def test_variants_and_sensors_are_needed(backend):
    with pytest.raises(ValueError, match="the scene has no sensor"):
        cn.mitsuba.RadianceCache(mi.load_dict({"type": "scene", "ball": {"type": "sphere"}}))
    for light in ({}, {"sky": {"type": "constant"}}):
        with pytest.raises(ValueError, match=r"^RadianceCache: the scene has no surface with an extent\.$"):
            cn.mitsuba.RadianceCache(mi.load_dict({"type": "scene", "sensor": camera(4), **light}))
    scene = closed_box()
    mi.set_variant("scalar_rgb")
    with pytest.raises(RuntimeError, match="RadianceCache: the Mitsuba variant is scalar_rgb"):
        cn.mitsuba.RadianceCache(scene)


def test_frozen_pictures_see_new_weights(backend):
    """In ``dr.freeze``, the cache's weights are inputs: replays after more training are not those of the recording."""
    scene = cornell(8)
    cache = cn.mitsuba.RadianceCache(scene, small_field(backend))
    integrator = cache.integrator(vertices=0)
    draw = dr.freeze(lambda scene, integrator, seed: mi.render(scene, integrator=integrator, spp=4, seed=seed))
    for steps in (0, 3, 6):
        cache.train(steps, samples=256)
        found = draw(scene, integrator, dr.opaque(mi.UInt32, steps)).numpy()
        np.testing.assert_allclose(found, render(scene, integrator, 4, steps), rtol=1e-4, atol=1e-5)
    assert draw.n_recordings <= 2


@pytest.mark.slow
def test_the_example_runs(backend, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    path = Path(cn.__file__).parent.parent / "examples" / "radiance_cache.py"
    spec = importlib.util.spec_from_file_location("radiance_cache_example", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    out = tmp_path / "picture.png"
    arguments = ["--backend", backend, "--size", "16", "--seconds", "0.1", "--steps", "5", "--passes", "2"]
    assert example.main([*arguments, "--samples", "256", "--out", str(out)]) == 0
    assert out.stat().st_size > 10_000 and capsys.readouterr().out.count("relMSE") == 4


@pytest.mark.slow
def test_the_benchmark_runs(backend, tmp_path):
    done = python(ROOT / "benchmarks" / "radiance_cache.py", "--quick", "--backend", backend, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / f"radiance-cache-{backend}.json").read_text())["results"]
    assert [row["scene"] for row in rows] == ["cornell", "glossy"]
    for row in rows:
        assert [(c["steps"], c["vertices"]) for c in row["cache"]] == [(4, 0), (4, 1)]
        for moments in (row["path"], *(c["moments"] for c in row["cache"])):
            assert all(m["error"] > 0 and m["spp"] % 8 == 0 for m in moments)
