"""Waves and grids at every coordinate that there is: kinks, huge ones, tiny ones, and those that are not finite.

Field, reference and exported programs follow one rule, for values and for derivatives (docs/encodings.md).
"""

from __future__ import annotations

import shutil

import drjit as dr
import numpy as np
import pytest
from support.exported import Library, run_numpy
from support.properties import given, settings, st

import coopnet as cn
from coopnet import reference as ref

SAMPLES = 128
#: Sizes that are no powers of 2, so that cells beyond the last one are told from it.
LEVELS = dict(n_levels=3, n_features_per_level=2, hashmap_size=62, base_resolution=4, per_level_scale=1.7)
WAVES = {
    "sinusoidal": (lambda: cn.Sinusoidal(20), "sinusoidal", (20,)),
    "shifted": (lambda: cn.Sinusoidal(5, 0.3), "sinusoidal", (5, 0.3)),
    "frequency": (lambda: cn.Frequency(24), "frequency", (24,)),
    "triangular": (lambda: cn.Triangular(9), "triangular", (9,)),
    "triangle wave": (lambda: cn.TriangleWave(30), "triangle_wave", (30,)),
}
GRIDS = {
    "grid": lambda: cn.Grid(2, **LEVELS, init_scale=1.0),
    "smoothstep": lambda: cn.Grid(2, interpolation="smoothstep", **LEVELS, init_scale=1.0),
    "nearest": lambda: cn.Grid(2, interpolation="nearest", **LEVELS, init_scale=1.0),
    "hash grid": lambda: cn.HashGrid(2, **LEVELS, init_scale=1.0),
    "permutohedral": lambda: cn.Permutohedral(2, **LEVELS, init_scale=1.0),
}
KNOWN = [0.0, -0.0, 0.25, -0.25, 0.5, 1.0, -1.75, 65536.5, 2.0**22 + 0.5, 2.0**23 + 1, 2.0**24 + 2, 2.0**31, -(2.0**31)]
KNOWN += [2.0**32 - 256, 3e9, -3e9, 2.0**64, 1e30, -1e30, 3.4e38, -3.4e38, 2.0**-126, 2.0**-127, 1e-45, -1e-40, 1e-30]
KNOWN += [0.5 - 2.0**-25, 0.5 + 2.0**-24, 0.25 + 2.0**-25, np.nan, np.inf, -np.inf]
coordinate = st.one_of(
    st.floats(width=32),
    st.floats(-2, 2, width=32),
    st.integers(-200, 200).map(lambda v: v / 64),
    st.builds(lambda v, k: v * 2.0**k, st.sampled_from([1, -1, 1.5]), st.integers(-140, 127)),
)
several = st.lists(coordinate, min_size=1, max_size=SAMPLES - len(KNOWN))
quick = settings(max_examples=10)


def padded(xs):
    return np.resize(np.array([*KNOWN, *xs], np.float32), SAMPLES)


def evaluated(ns, layer, x):
    """Values, derivatives forward in direction 1 of every coordinate, and back from all features at once."""
    p = [ns.Float(np.ascontiguousarray(v)) for v in x]
    dr.make_opaque(p)
    directions = [[ns.Float(float(i == j)) for j in range(len(x))] for i in range(len(x))]
    _, moved = layer.jvp(p, directions)
    dr.enable_grad(p)
    y = layer(p)
    weights = [ns.Float(np.float32(np.cos(3.0 * k) / 2.0 ** (k / 2))) for k in range(len(y))]
    if any(dr.grad_enabled(v) for v in y):
        dr.backward(sum(v * w for v, w in zip(y, weights, strict=True)))
    back = dr.grad(p)
    dr.eval(y, moved, back)  # one by one, each would be a kernel

    def rows(vector):
        return np.stack([np.broadcast_to(dr.detach(v).numpy(), SAMPLES) for v in vector])

    return rows(y), np.stack([rows(t) for t in moved], axis=1), rows(back), np.array([float(w[0]) for w in weights])


# ---- Waves -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WAVES)
def test_waves_are_right_at_every_coordinate(ns, name):
    make, twin, options = WAVES[name]
    layer = make()

    @quick
    @given(several)
    def check(xs):
        x = padded(xs)[None]
        finite = np.isfinite(x[0])
        y, jacobian, back, weights = evaluated(ns, layer, x)
        expected = getattr(ref, twin)(x, *options)
        assert np.isnan(expected[:, ~finite]).all() and np.isnan(y[:, ~finite]).all()
        np.testing.assert_allclose(y[:, finite], expected[:, finite], rtol=0, atol=1e-6)
        with np.errstate(invalid="ignore"):
            slopes = getattr(ref, f"{twin}_jvp")(x, np.ones_like(x), *options)[:, finite]
        octaves = np.repeat(np.arange(options[0]), len(y) // options[0])[:, None]
        frequency = 2 * np.pi * 2.0**octaves * (0.5 if twin in ("frequency", "triangle_wave") else 1)
        np.testing.assert_allclose(jacobian[:, 0, finite] / frequency, slopes / frequency, atol=1e-6)
        error = 2e-6 * (np.abs(weights) @ frequency)[0]
        np.testing.assert_allclose(back[0, finite], weights @ slopes, rtol=0, atol=error)

    check()


def test_the_highest_frequencies_are_right(ns):
    x = padded([])
    y = cn.Frequency(128)([ns.Float(x)])
    dr.eval(y)
    y = np.stack([v.numpy() for v in y])
    np.testing.assert_allclose(y, ref.frequency(x[None], 128), rtol=0, atol=1e-6)


def test_a_tip_has_the_derivative_0(ns):
    """The mean of both sides, forward and back, in all waves, and in drjit.nn's by our rule."""
    x = np.resize(np.arange(-8, 8) / 8, SAMPLES).astype(np.float32)[None]
    _, jacobian, back, _ = evaluated(ns, cn.TriangleWave(1), x)
    assert np.array_equal(jacobian[0, 0] == 0, x[0] % 1 == 0) and np.array_equal(back[0], jacobian[0, 0])
    _, jacobian, *_ = evaluated(ns, cn.Triangular(1), x)
    assert np.array_equal(jacobian[0, 0] == 0, x[0] % 0.5 == 0.25)
    assert np.array_equal(jacobian[1, 0] == 0, x[0] % 0.5 == 0)
    p = dr.nn.CoopVec(ns.Float(x[0]))
    (moved,) = cn.nn.tangents.jvp(dr.nn.TriEncode(1), p, [dr.nn.CoopVec(dr.full(ns.Float, 1, SAMPLES))], None)[1]
    assert np.array_equal(np.stack([v.numpy() for v in moved]), jacobian[:, 0])


@pytest.mark.parametrize("name", ["sinusoidal", "triangular"])
def test_half_precision_is_encoded_in_single(ns, name):
    """Whatever an input in half precision is, its features are rounded once."""
    make, twin, options = WAVES[name]
    x = np.concatenate([np.arange(-32, 32) / 16, np.array([1000.5, 65504, -65504, 6e-8, 0.1])]).astype(np.float16)
    for p in ([ns.Float16(x)], dr.nn.CoopVec(ns.Float16(x))):
        y = list(make()(p))
        dr.eval(y)
        y = np.stack([v.numpy() for v in y])
        assert y.dtype == np.float16
        np.testing.assert_allclose(y, getattr(ref, twin)(x[None], *options), atol=6e-4)


def test_derivatives_can_be_differentiated(ns):
    """The second derivative of a sine far from 0."""
    x = ns.Float(np.array([0.1, 65536.125, -3e6], np.float32))
    dr.enable_grad(x)
    _, ((slope, _),) = cn.Sinusoidal(1).jvp([x], [[dr.full(ns.Float, 1, 3)]])
    dr.backward(slope)
    expected = -((2 * np.pi) ** 2) * np.sin(2 * np.pi * (x.numpy().astype(np.float64) % 1))
    np.testing.assert_allclose(dr.grad(x).numpy(), expected, atol=1e-4)


# ---- Grids -------------------------------------------------------------------------------------------------


def points(xs):
    """Two coordinates, each with its share of what is known."""
    x = padded(xs)
    return np.stack([x, np.concatenate([x[40:], np.linspace(0, 1, 40, dtype=np.float32)])])


@pytest.mark.parametrize("name", GRIDS)
def test_grids_follow_one_rule_at_every_coordinate(ns, name):
    layer = GRIDS[name]().alloc(ns.TensorXf)
    scales = [level.scale for level in layer.grid.value.levels]
    twin = ref.permutohedral if isinstance(layer, cn.Permutohedral) else ref.hash_grid
    options = {k: v for k, v in LEVELS.items() if k != "per_level_scale"} | {"level_scales": scales}
    if not isinstance(layer, cn.Permutohedral):
        options["interpolation"] = layer.interpolation
    if isinstance(layer, cn.Grid):
        options["multiple"] = 8

    @quick
    @given(several)
    def check(xs):
        x = points(xs)
        finite = np.isfinite(x).all(axis=0)
        y, jacobian, back, weights = evaluated(ns, layer, x)
        expected = twin(x, layer["data"].numpy(), **options)
        for found in (expected, y, jacobian):
            assert np.isnan(found[..., ~finite]).all() and np.isfinite(found[..., finite]).all()
        # between, single precision has few of the places in a cell
        place = np.abs(x) * np.max(scales)
        exact = finite & ((place < 16) | (np.abs(x) * np.min(scales) > 2**24)).all(axis=0)
        if layer.interpolation == "nearest":  # where rounding a place changes its cell
            places = np.where(exact, x, 0) * np.array(scales)[:, None, None] + 0.5
            exact &= ((np.abs(places - np.rint(places)) > 1e-4) | (place > 16)).all((0, 1))
        np.testing.assert_allclose(y[:, exact], expected[:, exact], atol=2e-5)
        np.testing.assert_allclose(back[:, finite], np.einsum("f,fdn->dn", weights, jacobian[..., finite]), atol=2e-4)

    check()


def test_a_face_belongs_to_the_cell_above_it(ns):
    """Derivatives of linear interpolation jump there."""
    grid = cn.Grid(1, n_levels=1, n_features_per_level=1, base_resolution=5, init_scale=1.0).alloc(ns.TensorXf)
    faces = (np.arange(0, 4) + 0.5) / 4  # the places 1 to 4
    x = np.resize(np.concatenate([faces, faces + 0.01, faces - 0.01]), SAMPLES).astype(np.float32)[None]
    slopes = evaluated(ns, grid, x)[1][0, 0, :12].reshape(3, 4)
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-6)
    assert (np.abs(slopes[0] - slopes[2]) > 1e-3).all()


# ---- Exported programs -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Fields that give the features, with their exports to C and NumPy."""
    directory, made = tmp_path_factory.mktemp("programs"), {}
    for name, make in ({k: v[0] for k, v in WAVES.items()} | GRIDS).items():
        layer = make()
        field = cn.NeuralField(layer, cn.Identity(), in_features=layer.in_features if name in GRIDS else 1)
        made[name] = field.build("llvm", seed=2)
        for suffix, target in ((".c", "c"), (".py", "numpy")):
            stem = directory / f"{name.replace(' ', '_')}{suffix}"
            cn.export(made[name], target, stem, name=f"f_{stem.stem}", derivatives=True, inline=True)
    compiler = shutil.which("cc")
    return directory, made, Library(list(directory.glob("*.c")), directory) if compiler else None


@pytest.mark.parametrize("name", [*WAVES, *GRIDS])
def test_exports_follow_the_same_rule(programs, name):
    directory, fields, library = programs
    if library is None:
        pytest.skip("there is no C compiler")
    ns, field, stem = cn.backend.namespace("llvm"), fields[name], name.replace(" ", "_")
    encoding = field.encoding

    @quick
    @given(several)
    def check(xs):
        x = points(xs) if name in GRIDS else padded(xs)[None]
        y, jacobian, *_ = evaluated(ns, encoding, x)
        slopes = jacobian.reshape(-1, SAMPLES)
        sizes = len(y), len(slopes)
        for z, moved in (
            library.run(f"f_{stem}_jacobian", None, x, sizes),
            run_numpy(directory / f"{stem}.py", f"f_{stem}_jacobian", None, x),
        ):
            np.testing.assert_allclose(z, y, rtol=0, atol=1e-6 if name in WAVES else 1e-5)
            finite = np.isfinite(x).all(axis=0)
            scale = np.maximum(1, np.nanmax(np.abs(slopes[:, finite]), axis=1, keepdims=True))
            np.testing.assert_allclose(moved[:, finite] / scale, slopes[:, finite] / scale, rtol=0, atol=3e-6)
            if name in GRIDS:
                assert np.isnan(moved[:, ~finite]).all()

    check()
