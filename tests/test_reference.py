"""The NumPy ground truth against known answers, finite differences and Dr.Jit's own encodings."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.known import PHILOX
from support.properties import given, settings, st

import coopnet as cn
from coopnet import reference as ref

Array = np.ndarray[Any, Any]


def difference(f: Callable[[Array], Array], x: Array, dy: Array, h: float = 1e-6) -> Array:
    """Gradient of sum(dy * f(x)) with respect to x by central differences."""
    grad = np.zeros(x.shape)
    for i in np.ndindex(x.shape):
        e = np.zeros(x.shape)
        e[i] = h
        grad[i] = np.sum(dy * (f(x + e) - f(x - e))) / (2 * h)
    return grad


# ---- Generator and dropout ---------------------------------------------------------------------------------


# Random123's known answers (kat_vectors).
@pytest.mark.parametrize("counter, key, rounds, words", PHILOX)
def test_philox_known_answers(counter, key, rounds, words):
    expected = [int(w, 16) for w in words.split()]
    assert list(ref.philox4x32(counter, key, rounds)) == expected
    arrays = ref.philox4x32([np.full(3, c, np.uint32) for c in counter], [np.uint32(k) for k in key], rounds)
    for a, e in zip(arrays, expected, strict=True):
        assert a.dtype == np.uint32 and a.tolist() == [e] * 3


def test_philox_rounds_and_broadcast():
    assert ref.philox4x32((1, 2, 3, 4), (5, 6), rounds=0) == (1, 2, 3, 4)
    assert ref.philox4x32((1, 2, 3, 4), (5, 6), rounds=7) != ref.philox4x32((1, 2, 3, 4), (5, 6))
    grid = ref.philox4x32((np.arange(2)[:, None], np.arange(3), 0, 0), (1, 2))
    assert grid[3].shape == (2, 3) and grid[3][1, 2] == ref.philox4x32((1, 2, 0, 0), (1, 2))[3]
    with pytest.raises(ValueError, match="4 and 2 words"):
        ref.philox4x32((0, 0, 0), (0, 0))


def test_threshold_and_scale():
    assert [ref.threshold(0.5, b) for b in (8, 16, 32)] == [128, 32768, 2**31]
    assert ref.threshold(0.3) == 19661 and ref.scale(0.3) == 65536 / (65536 - 19661)
    assert ref.threshold(1e-9) == 0 and ref.scale(1e-9) == 1
    for p, bits in [(1.0, 16), (-0.1, 16), (math.nan, 16), (0.999, 8), (0.5, 12)]:
        with pytest.raises(ValueError):
            ref.threshold(p, bits)


@settings(max_examples=25, deadline=None)
@given(
    features=st.integers(1, 40),
    bits=st.sampled_from([8, 16, 32]),
    p=st.floats(0, 0.99),
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**32 - 1),
    stream=st.integers(0, 9),
)
def test_mask_law_digit_by_digit(features, bits, p, seed, step, stream):
    """Every sample's words in a row, as one long integer whose base-2^k digits are the random digits."""
    index = np.array([0, 7, 2**32 - 1])
    mask = ref.keep_mask(features, p, seed, index, step, stream, bits)
    assert mask.shape == (features, 3) and mask.dtype == bool
    for column, sample in enumerate(index.tolist()):
        stretch = 0
        for block in range(-(-features * bits // 128)):
            for lane, word in enumerate(ref.philox4x32((block, sample, step, stream), (seed % 2**32, seed >> 32))):
                stretch |= word << (128 * block + 32 * lane)
        for i in range(features):
            assert mask[i, column] == ((stretch >> (i * bits)) % 2**bits >= ref.threshold(p, bits))


def test_mask_depends_on_identity_only():
    index = np.random.default_rng(0).permutation(200)
    ordered = ref.keep_mask(19, 0.4, 2**63 + 5, np.arange(200), step=3, stream=1)
    np.testing.assert_array_equal(ref.keep_mask(19, 0.4, 2**63 + 5, index, 3, 1), ordered[:, index])
    per_sample = ref.keep_mask(19, 0.4, 2**63 + 5, np.arange(200), step=np.full(200, 3), stream=1)
    np.testing.assert_array_equal(per_sample, ordered)
    for other in [dict(seed=5), dict(step=4), dict(stream=2), dict(seed=2**63 + 6)]:
        args = {"seed": 2**63 + 5, "step": 3, "stream": 1} | other
        assert np.any(ref.keep_mask(19, 0.4, index=np.arange(200), **args) != ordered)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dropout_type_and_mean(dtype):
    x = np.ones((64, 2000), dtype)
    y = ref.dropout(x, 0.3, seed=1)
    assert y.dtype == dtype
    assert set(np.unique(y).tolist()) == {0.0, float(dtype(ref.scale(0.3)))}
    assert abs(y.astype(np.float64).mean() - 1) < 0.01
    assert ref.dropout(x, 0, seed=1) is x
    x[:] = np.inf
    assert not np.isnan(ref.dropout(x, 0.3, seed=1)).any()


@pytest.mark.parametrize("convention", ["triton", "ztensor"])
def test_seeded_dropout(convention):
    x = np.ones(20_000, np.float32)
    y = ref.seeded_dropout(x, 0.25, 123, convention=convention)
    assert y.dtype == np.float32 and set(np.unique(y).tolist()) == {0.0, float(np.float32(1 / 0.75))}
    assert abs(y.mean() - 1) < 0.02
    part = ref.seeded_dropout(x[100:300], 0.25, 123, np.arange(100, 300), convention)
    np.testing.assert_array_equal(part, y[100:300])


def test_seeded_dropout_conventions():
    x = np.ones(4096)
    word = ref.philox4x32((np.arange(4096), 0, 0, 0), (7, 1))[0]
    ztensor = ref.seeded_dropout(x, 0.3, 2**32 + 7, convention="ztensor")
    np.testing.assert_array_equal(ztensor != 0, word >= 1288490189)  # ceil(0.3 2^32)
    triton = ref.seeded_dropout(x, 0.3, 2**32 + 7, convention="triton")
    folded = np.where(word < 2**31, word, 2**32 - 1 - word.astype(np.int64)) / 2**31
    clear = abs(folded - 0.3) > 1e-6  # beyond float32's rounding
    np.testing.assert_array_equal((triton != 0)[clear], (folded > 0.3)[clear])
    far = ref.seeded_dropout(np.ones(64), 0.5, 3, np.arange(64) + 2**40, "ztensor")
    high = ref.philox4x32((np.arange(64), 256, 0, 0), (3, 0))[0]
    np.testing.assert_array_equal(far != 0, high >= 2**31)
    with pytest.raises(ValueError, match="32-bit"):
        ref.seeded_dropout(np.ones(1), 0.5, 3, np.array([2**32]), "triton")
    with pytest.raises(ValueError, match="convention"):
        ref.seeded_dropout(np.ones(1), 0.5, 3, convention="other")


def test_seeds_of_rows():
    """Of a matrix: each row as if it were alone, and offsets are those of its columns."""
    x, seeds = np.ones((3, 40)), np.array([5, 2**33 + 1, 7], np.uint64)
    for convention in ("triton", "ztensor"):
        y = ref.seeded_dropout(x, 0.4, seeds, convention=convention)
        for row, seed in zip(y, seeds.tolist(), strict=True):
            np.testing.assert_array_equal(row, ref.seeded_dropout(np.ones(40), 0.4, seed, convention=convention))
        whole = ref.seeded_dropout(x, 0.4, 5, convention=convention)  # one seed: the place in all of x
        alone = ref.seeded_dropout(np.ones(120), 0.4, 5, convention=convention)
        np.testing.assert_array_equal(whole.ravel(), alone)
    for p in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="p must be in"):
            ref.seeded_dropout(x, p, 5)


def test_gaussian_dropout_inverts_the_normal_law():
    """The noise z of an element has the probability (n + 1/2) / 2^24 to be exceeded from below, n 24 bits of a word."""
    p, index, x = 0.2, np.array([0, 3, 2**32 - 1]), np.full((6, 3), 2.0)
    y = ref.gaussian_dropout(x, p, 2**32 + 9, index, step=4, stream=1)
    z = (y / x - 1) / 0.5  # sqrt(0.2 / 0.8)
    for i in range(6):
        for column, sample in enumerate(index.tolist()):
            n = ref.philox4x32((i // 4, sample, 4, 1), (9, 1))[i % 4] >> 8
            below = math.erfc(-z[i, column] / math.sqrt(2)) / 2
            assert below * 2**24 == pytest.approx(n + 0.5, abs=1e-3)
    lanes = ref.gaussian_dropout(np.ones((2, 5)), p, 1)
    np.testing.assert_array_equal(lanes, ref.gaussian_dropout(np.ones((2, 5)), p, 1, np.arange(5), 0, 0))


def test_drop_path_drops_samples():
    x = np.random.default_rng(0).normal(size=(7, 50))
    y = ref.drop_path(x, 0.3, 11, step=2, stream=4, bits=8)
    keep = ref.keep_mask(1, 0.3, 11, np.arange(50), 2, 4, 8)[0]
    assert 0 < keep.sum() < 50
    np.testing.assert_array_equal(y, x * keep * ref.scale(0.3, 8))
    assert ref.drop_path(x, 0, 11) is x


def test_seeds_of_masks():
    assert ref.keep_mask(1, 0.5, 2**64 - 1, 0).shape == (1, 1) == ref.keep_mask(1, 0.5, 0, 0).shape
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match="seed must be in"):
            ref.keep_mask(1, 0.5, seed, 0)


def test_uint_to_uniform_float():
    u = ref.uint_to_uniform_float(np.array([0, 2**32 - 1, 1, 2**31 - 1, 2**31], np.uint32))
    assert u.dtype == np.float32 and u[0] == u[1] == 0 and u[3] == u[4] < 1
    assert u[2] == np.float32(4.6566127342e-10)


# ---- Layers and encodings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ref.ACTIVATIONS)
@settings(max_examples=40, deadline=None)
@given(x=st.floats(-30, 5).filter(lambda v: abs(v) > 1e-3))
def test_activation_derivatives(name, x):
    f, df = ref.ACTIVATIONS[name]
    point = np.array([x])
    np.testing.assert_allclose(df(point), difference(f, point, np.ones(1)), rtol=1e-6, atol=1e-8)


def test_activation_values():
    x = np.array([-1.0, 0.0, 2.0])
    expected: dict[str, Any] = {
        "identity": x,
        "relu": [0, 0, 2],
        "leaky_relu": [-0.01, 0, 2],
        "tanh": [-math.tanh(1), 0, math.tanh(2)],
        "sigmoid": [1 / (1 + math.e), 0.5, 1 / (1 + math.exp(-2))],
        "softplus": [math.log(1 + math.exp(-1)), math.log(2), math.log(1 + math.exp(2))],
        "squareplus": [(math.sqrt(5) - 1) / 2, 1, 1 + math.sqrt(2)],
        "gelu": [-0.15880800939172324, 0, 1.9545976940877752],
        "silu": [-1 / (1 + math.e), 0, 2 / (1 + math.exp(-2))],
        "sine": [math.sin(-1), 0, math.sin(2)],
        "exp": [math.exp(-1), 1, math.exp(2)],
    }
    assert expected.keys() == ref.ACTIVATIONS.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(ref.ACTIVATIONS[name][0](x), values, rtol=1e-15, atol=1e-17)


@pytest.mark.parametrize("name", ref.ACTIVATIONS)
@pytest.mark.filterwarnings("error")
def test_activations_far_out(name):
    for f in ref.ACTIVATIONS[name]:
        y = f(np.array([-1e4, -800.0, 800.0, 1e4]))
        assert not np.isnan(y).any() and (name == "exp" or np.isfinite(y).all())
        assert f(np.array([1, 2])).dtype == np.float64


def test_linear_and_bound():
    W, x, b = np.array([[1, 2], [3, 4], [5, 6]]), np.array([[1, 0], [1, 2]]), np.array([1, 0, -1])
    np.testing.assert_array_equal(ref.linear(W, x, b), [[4, 5], [7, 8], [10, 11]])
    np.testing.assert_array_equal(ref.linear(W, x), [[3, 4], [7, 8], [11, 12]])
    bound = ref.uniform_bound("xavier_uniform", 30, 20)
    assert bound**2 / 3 == pytest.approx(2 / 50)  # the variance


def test_initial_weights_by_hand():
    """For 8 inputs and 10 outputs; SIREN's are those of its first equation: 1 / n, and sqrt(6 / n) / omega."""
    expected = {
        "xavier_uniform": 1 / 3, "xavier_normal": 1 / 3, "kaiming_uniform": 0.5, "kaiming_normal": 0.5, "siren": 0.5,
        "siren_first": 0.07216878364870322, "zero": 0,
    }  # fmt: skip
    for name, deviation in expected.items():
        assert ref.initial_deviation(name, 8, 10) == pytest.approx(deviation)
        assert ref.uniform_bound(name, 8, 10) == pytest.approx(deviation * 1.7320508075688772)
    assert ref.siren_bounds([2, 24, 54, 3], 10) == pytest.approx([0.5, 0.05, 1 / 30])
    assert ref.siren_bounds([2, 24, 3]) == pytest.approx([0.5, 0.5 / 30])


def test_strengths_of_activations():
    x = np.array([-1.0, 0.0, 2.0])
    np.testing.assert_allclose(ref.leaky_relu(x, 0.5), [-0.5, 0, 2])
    np.testing.assert_allclose(ref.sine(x, 3), np.sin(3 * x))
    np.testing.assert_allclose(ref.softplus(x, 2), np.log(1 + np.exp(2 * x)) / 2)
    np.testing.assert_allclose(ref.squareplus(x, 2), (2 * x + np.sqrt(4 * x**2 + 4)) / 4)
    for f, name in ((ref.leaky_relu, "leaky_relu"), (ref.sine, "sine"), (ref.softplus, "softplus"),
                    (ref.squareplus, "squareplus")):  # fmt: skip
        np.testing.assert_array_equal(f(x), ref.ACTIVATIONS[name][0](x))
    assert ref.ACTIVATIONS["relu"][1](np.zeros(1)) == 0 and ref.ACTIVATIONS["leaky_relu"][1](np.zeros(1)) == 0.01


def test_defaults_are_those_of_the_layers():
    """Numbers that are left out here are those that are left out there, but for what layers find out themselves."""
    compared = 0
    for name in ref.OPS.keys() & set(cn.__all__):
        layer = inspect.signature(getattr(cn, name)).parameters
        for key, parameter in inspect.signature(ref.OPS[name]).parameters.items():
            theirs = layer[key].default if key in layer else None
            if theirs != -1 and all(isinstance(v, (int, float)) for v in (theirs, parameter.default)):
                assert parameter.default == theirs, (name, key)
                compared += 1
    assert compared > 20


def test_frequencies_and_waves_by_hand():
    x = np.array([[0.125], [0.3]])
    y = ref.frequency(x, 3)
    expected = [f(2**i * math.pi * v) for v in (0.125, 0.3) for i in range(3) for f in (math.sin, math.cos)]
    np.testing.assert_allclose(y[:, 0], expected)
    # 4 |frac(t) - 1/2| - 1 at t = x / 2, x + 1/4, 2 x + 1/2
    waves = [4 * abs(t % 1 - 0.5) - 1 for v in (0.125, 0.3) for t in (v / 2, v + 0.25, 2 * v + 0.5)]
    np.testing.assert_allclose(ref.triangle_wave(x, 3)[:, 0], waves)
    np.testing.assert_allclose(ref.identity(x, 2, -1), [[-0.75], [-0.4]])
    np.testing.assert_array_equal(ref.identity(x), x)
    angle = 2 * math.pi * (2 * 0.125 - 0.3)
    np.testing.assert_allclose(ref.fourier(x, [[2, -1]])[:, 0], [math.sin(angle), math.cos(angle)])


def test_one_blob_is_an_integral():
    """Of 15/16 (1 - u^2)^2 around x and its copies at x - 1 and x + 1, over each of the bins, by the midpoint rule."""
    x, n = np.array([[0.03, 0.5, 0.99], [0.25, 1.0, 0.0]]), 4
    u = (np.arange(n * 2000) + 0.5) / (n * 2000)
    expected = np.zeros((2, n, 3))
    for shift in (-1, 0, 1):
        at = (u[None, :, None] - x[:, None, :] - shift) * n
        density = np.where(abs(at) < 1, 15 / 16 * (1 - at**2) ** 2, 0)
        expected += density.reshape(2, n, 2000, 3).sum(axis=2) / 2000
    y = ref.one_blob(x, n)
    assert y.shape == (8, 3)
    np.testing.assert_allclose(y, expected.reshape(8, 3), atol=1e-6)
    np.testing.assert_allclose(y.reshape(2, n, 3).sum(axis=1), 1)


def test_spherical_harmonics():
    """Of the first bands in closed form; all are orthonormal on the sphere."""
    v = np.random.default_rng(0).normal(size=(3, 5))
    v /= np.linalg.norm(v, axis=0)
    x, y, z = v
    a, b, c = math.sqrt(1 / (4 * math.pi)), math.sqrt(3 / (4 * math.pi)), math.sqrt(15 / (4 * math.pi))
    expected = [
        a + 0 * x, -b * y, b * z, -b * x, c * x * y, -c * y * z, math.sqrt(5 / (16 * math.pi)) * (3 * z**2 - 1),
        -c * x * z, c / 2 * (x**2 - y**2),
    ]  # fmt: skip
    np.testing.assert_allclose(ref.spherical_harmonics((v + 1) / 2, 3), expected, atol=1e-14)
    nodes, weights = np.polynomial.legendre.leggauss(8)
    angle = 2 * np.pi * np.arange(16) / 16
    z, angle = (m.ravel() for m in np.meshgrid(nodes, angle, indexing="ij"))
    r = np.sqrt(1 - z**2)
    f = ref.spherical_harmonics((np.stack([r * np.cos(angle), r * np.sin(angle), z]) + 1) / 2, 6)
    gram = f * np.repeat(weights, 16) * (2 * np.pi / 16) @ f.T
    np.testing.assert_allclose(gram, np.eye(36), atol=1e-12)


def test_drawn_frequencies_by_hand():
    """Box-Muller on words 0 to 2, in pairs; an odd number leaves out the last."""
    drawn = ref.fourier_frequencies(5, 2**40 + 3)
    assert drawn.shape == (5,) and ref.fourier_frequencies(0, 1).shape == (0,)
    for i in range(3):
        a, b, c, _ = ref.philox4x32((i, 0, 0, 0), (3, 256))
        uniform = ((a * 2**32 + b) // 2**11 + 1) / 2**53
        pair = drawn[2 * i : 2 * i + 2]
        assert pair[0] == pytest.approx(math.sqrt(-2 * math.log(uniform)) * math.cos(2 * math.pi * c / 2**32))
        if len(pair) == 2:
            assert math.hypot(*pair) == pytest.approx(math.sqrt(-2 * math.log(uniform)))
            assert pair[1] == pytest.approx(pair[0] * math.tan(2 * math.pi * c / 2**32))
    many = ref.fourier_frequencies(4000, 0)
    assert abs(many.mean()) < 0.05 and abs(many.std() - 1) < 0.05


def test_composites():
    x = np.arange(6.0).reshape(3, 2)
    parts = [(0, 1, lambda v: 2 * v), (1, 2, lambda v: v[:1] + v[1:])]
    np.testing.assert_array_equal(ref.composite(x, parts), [[0, 2], [6, 8]])
    np.testing.assert_array_equal(ref.composite(x, parts, "sum"), [[6, 10]])
    np.testing.assert_array_equal(ref.composite(x, parts, "product"), [[0, 16]])


def test_encoding_order():
    x = np.array([[0.1, 0.2], [0.3, 0.4]])
    y = ref.sinusoidal(x, 3, shift=0.125)
    assert y.shape == (12, 2)
    assert y[6 + 4, 1] == pytest.approx(math.sin(2 * math.pi * (4 * 0.4 + 2 * 0.125)))
    assert y[2 + 1, 0] == pytest.approx(math.cos(2 * math.pi * (2 * 0.1 + 0.125)))
    quarters = ref.triangular(np.array([[0, 0.25, 0.5, 0.75, 1.125]]), 1)
    np.testing.assert_allclose(quarters, [[0, 1, 0, -1, 0.5], [1, 0, -1, 0, 0.5]], atol=1e-12)
    assert ref.sinusoidal(x, 0).shape == ref.triangular(x, 0).shape == (0, 2)


@pytest.mark.parametrize("name", ["sinusoidal", "triangular"])
@pytest.mark.parametrize("shift", [0, 0.3])
def test_encoding_derivatives(name, shift):
    rng = np.random.default_rng(1)
    x, dy = rng.random((2, 5)), rng.normal(size=(16, 5))
    f, vjp = getattr(ref, name), getattr(ref, name + "_vjp")
    expected = difference(lambda x: f(x, 4, shift), x, dy)
    np.testing.assert_allclose(vjp(x, dy, 4, shift), expected, rtol=1e-6, atol=1e-6)
    dx, h = rng.normal(size=x.shape), 1e-6
    moved = (f(x + h * dx, 4, shift) - f(x - h * dx, 4, shift)) / (2 * h)
    np.testing.assert_allclose(getattr(ref, name + "_jvp")(x, dx, 4, shift), moved, rtol=1e-6, atol=1e-6)
    assert f(x, 4).tolist() == f(x, 4, 0).tolist() and vjp(x, dy, 4).tolist() == vjp(x, dy, 4, 0).tolist()
    jvp = getattr(ref, name + "_jvp")
    assert jvp(x, dx, 4).tolist() == jvp(x, dx, 4, 0).tolist()


@pytest.mark.parametrize("name, layer", [("sinusoidal", "SinEncode"), ("triangular", "TriEncode")])
@pytest.mark.parametrize("shift", [0, 0.3])
def test_encoding_matches_drjit(ns, name, layer, shift):
    from drjit import nn

    x = np.random.default_rng(2).random((3, 50), np.float32)
    y = getattr(nn, layer)(5, shift).alloc(ns.TensorXf, 3)(ns.TensorXf(x))
    np.testing.assert_allclose(y.numpy(), getattr(ref, name)(x, 5, shift), atol=2e-4)


# ---- Hash grid ---------------------------------------------------------------------------------------------

# (dimension, arguments): dense and hashed levels mixed, odd sizes, both alignments, a level that just fits
GRIDS = [
    (2, dict(n_levels=4, hashmap_size=2**9, base_resolution=4, per_level_scale=1.9)),
    (3, dict(n_levels=3, hashmap_size=2**10, base_resolution=5, per_level_scale=1.7, align_corners=True)),
    (3, dict(n_levels=3, n_features_per_level=4, hashmap_size=1000, base_resolution=9, per_level_scale=1.37)),
    (2, dict(n_levels=2, hashmap_size=8**2, base_resolution=8)),
    (1, dict(n_levels=3, hashmap_size=16, base_resolution=3)),
    (4, dict(n_levels=2, hashmap_size=2**9, base_resolution=3)),
]
LAYOUT = ("n_levels", "n_features_per_level", "hashmap_size", "base_resolution", "per_level_scale")


def grid_size(dimension: int, args: dict[str, Any]) -> int:
    last = ref.hash_grid_levels(dimension, **{k: v for k, v in args.items() if k in LAYOUT})[-1]
    return (last.offset + last.size) * args.get("n_features_per_level", 2)


def test_hash_grid_interpolates_linear_functions():
    """A dense level with aligned corners whose features are vertex coordinates returns the position."""
    v, u = np.mgrid[0:4, 0:4]  # the first axis is the fastest
    params = np.stack([u.ravel(), v.ravel()], axis=1).ravel()
    x = np.random.default_rng(0).random((2, 20))
    y = ref.hash_grid(x, params, n_levels=1, base_resolution=4, align_corners=True)
    np.testing.assert_allclose(y, 3 * x, atol=1e-12)
    with pytest.raises(ValueError, match="store 16 vertices, but params hold 15"):
        ref.hash_grid(x, params[2:], n_levels=1, base_resolution=4)


def test_hash_grid_layout():
    levels = ref.hash_grid_levels(2, 3, hashmap_size=100, base_resolution=4)
    assert [tuple(level) for level in levels] == [(3.0, 4, 0, 16), (7.0, 8, 16, 64), (15.0, 16, 80, 100)]
    just_above = ref.hash_grid_levels(2, 1, base_resolution=4, level_scales=[3.0000001])
    assert just_above[0].resolution == 5


@pytest.mark.parametrize("dimension, args", GRIDS)
def test_hash_grid_derivatives(dimension, args):
    rng = np.random.default_rng(3)
    params = rng.normal(size=grid_size(dimension, args))
    x = rng.random((dimension, 4))
    dy: Any = rng.normal(size=ref.hash_grid(x, params, **args).shape)
    dx, dparams = ref.hash_grid_vjp(x, params, dy, **args)
    expected = difference(lambda x: ref.hash_grid(x, params, **args), x, dy)
    np.testing.assert_allclose(dx, expected, rtol=1e-6, atol=1e-6)
    # The grid is linear in its parameters, so differences are exact, here in a direction that moves them all.
    direction = rng.normal(size=params.shape)
    moved = ref.hash_grid(x, params + direction, **args) - ref.hash_grid(x, params, **args)
    np.testing.assert_allclose(dparams @ direction, np.sum(dy * moved), rtol=1e-10)
    some = np.flatnonzero(dparams)[:5]
    for i in some:
        step = np.zeros_like(params)
        step[i] = 1
        moved = ref.hash_grid(x, params + step, **args) - ref.hash_grid(x, params, **args)
        np.testing.assert_allclose(dparams[i], np.sum(dy * moved), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dimension, args", GRIDS)
def test_hash_grid_matches_drjit(ns, dimension, args):
    import drjit as dr
    from drjit import nn

    rng = np.random.default_rng(4)
    grid: Any = nn.HashGridEncoding(ns.Float32, dimension, **args)
    scales = [grid._level_scale(level) for level in range(grid.n_levels)]
    assert grid.n_params == grid_size(dimension, args)
    params = rng.normal(size=grid.n_params).astype(np.float32)
    x = rng.random((dimension, 300), np.float32)
    x[:, 0], x[:, 1] = 0, 1
    grid.data = ns.Float32(params)
    position = ns.ArrayXf(x)
    dr.enable_grad(grid.data, position)
    y = grid(position)
    expected = ref.hash_grid(x, params, **args, level_scales=scales)
    np.testing.assert_allclose(y.numpy(), expected, atol=1e-4)

    dy = np.asarray(rng.normal(size=expected.shape), np.float32)
    dr.backward(y * ns.ArrayXf(dy))
    dx, dparams = ref.hash_grid_vjp(x, params, dy, **args, level_scales=scales)
    np.testing.assert_allclose(grid.data.grad.numpy(), dparams, atol=2e-3)
    # A sample within rounding of a cell boundary may lie in the other cell, where the slope differs.
    offset = 0 if args.get("align_corners") else 0.5
    inside = np.ones(x.shape[1], bool)
    for s in scales:
        t = x.astype(np.float64) * s + offset
        inside &= (abs(t - np.round(t)) > 1e-4).all(axis=0)
    assert inside.mean() > 0.9
    np.testing.assert_allclose(position.grad.numpy()[:, inside], dx[:, inside], rtol=1e-3, atol=5e-3)


@pytest.mark.parametrize("dimension, args", GRIDS)
@pytest.mark.parametrize("interpolation", ["linear", "smoothstep", "nearest"])
def test_hash_grid_in_a_direction(dimension, args, interpolation):
    rng = np.random.default_rng(5)
    params, x = rng.normal(size=grid_size(dimension, args)), rng.random((dimension, 4))
    dx, h, args = rng.normal(size=x.shape), 1e-6, args | dict(interpolation=interpolation)
    moved = (ref.hash_grid(x + h * dx, params, **args) - ref.hash_grid(x - h * dx, params, **args)) / (2 * h)
    tangent = ref.hash_grid_jvp(x, params, dx, **args)
    np.testing.assert_allclose(tangent, moved, rtol=1e-6, atol=1e-6)
    dy = rng.normal(size=moved.shape)
    gradient, _ = ref.hash_grid_vjp(x, params, dy, **args)
    np.testing.assert_allclose(np.sum(gradient * dx), np.sum(dy * tangent), rtol=1e-10, atol=1e-12)


def test_interpolations_by_hand():
    """On a level of 2 vertices an axis, with the values 0 and 1 along the first and the same along the second."""
    params, x = np.array([0.0, 1, 0, 1]), np.array([[0.25, 0.75, 0.5], [0.1, 0.9, 0.5]])
    options = dict(n_levels=1, n_features_per_level=1, base_resolution=2, align_corners=True)
    for interpolation, expected in (
        ("linear", [0.25, 0.75, 0.5]), ("nearest", [0, 0, 0]), ("smoothstep", [5 / 32, 27 / 32, 0.5]),
    ):  # fmt: skip
        np.testing.assert_allclose(ref.hash_grid(x, params, interpolation=interpolation, **options)[0], expected)


def test_storages_by_hand():
    """Sizes of levels of 3, 5 and 9 vertices an axis in two dimensions; none but hashed ones mix up coordinates."""
    options = dict(n_levels=3, hashmap_size=20, base_resolution=3, per_level_scale=5 / 3, level_scales=[2, 4, 8])
    for storage, sizes in (("hash", [10, 20, 20]), ("dense", [10, 26, 82]), ("tiled", [9, 9, 9])):
        levels = ref.hash_grid_levels(2, storage=storage, **options)
        assert [level.size for level in levels] == sizes
        assert [level.offset for level in levels] == [0, sizes[0], sizes[0] + sizes[1]]
        assert [level.resolution for level in levels] == [3, 5, 9]
    assert [v.size for v in ref.hash_grid_levels(2, storage="dense", multiple=8, **options)] == [16, 32, 88]
    (most,) = ref.hash_grid_levels(7, 1, 1, storage="dense", base_resolution=100)
    assert most.size == 2**31 - 1  # Dr.Jit's limit
    vertex = np.array([[1, 4, 8], [0, 2, 7]])
    level = ref.GridLevel(8.0, 9, 100, 9)
    tiled = [100 + (x + 9 * y) % 9 for x, y in vertex.T.tolist()]
    assert ref.vertex_slot(vertex, level, "tiled").tolist() == tiled
    hashed = [100 + (x ^ (y * 2654435761 % 2**32)) % 9 for x, y in vertex.T.tolist()]
    assert ref.vertex_slot(vertex, level).tolist() == hashed
    level = ref.GridLevel(8.0, 9, 7, 81)  # that just fits
    assert ref.vertex_slot(vertex, level).tolist() == [7 + x + 9 * y for x, y in vertex.T.tolist()]


def test_hashes_of_all_dimensions():
    """Müller et al. 2022, equation 4, and tiny-cuda-nn's multipliers beyond three."""
    primes = [1, 2654435761, 805459861, 3674653429, 2097192037, 1434869437, 2165219737]
    vertex = np.arange(14).reshape(7, 2) * 5
    expected = [0, 0]
    for prime, coordinates in zip(primes, vertex.tolist(), strict=True):
        expected = [e ^ (c * prime % 2**32) for e, c in zip(expected, coordinates, strict=True)]
    found = ref.vertex_slot(vertex, ref.GridLevel(99.0, 100, 0, 1009))
    assert found.tolist() == [e % 1009 for e in expected]


def test_permutohedral_by_hand():
    """In two dimensions: from the lowest vertex of the cell along the axis with the larger fraction first."""
    # scale 1, two vertices an axis: at (0.3, 0.1) the position is (0.8, 0.6), at (0.2, 0.6) it is (0.7, 1.1)
    params = np.array([2.0, 3.0, 5.0, 7.0])
    x = np.array([[0.3, 0.1], [0.1, 0.3]])
    y = ref.permutohedral(x, params, n_levels=1, n_features_per_level=1, base_resolution=2)
    # weights 1 - 0.8, 0.8 - 0.6 and 0.6 of the vertices (0, 0), (1, 0) or (0, 1), and (1, 1)
    np.testing.assert_allclose(y, [[0.2 * 2 + 0.2 * 3 + 0.6 * 7, 0.2 * 2 + 0.2 * 5 + 0.6 * 7]])
    level = ref.GridLevel(99.0, 100, 40, 1009)
    for vertex in ((3, 4), (0, 99), (17, 2)):
        expected = (((vertex[0] * 2531011) % 2**32 + vertex[1]) * 2531011) % 2**32
        assert ref.permuto_slot(np.array(vertex)[:, None], level).tolist() == [40 + expected % 1009]
    just = ref.GridLevel(2.0, 3, 4, 9)
    assert ref.permuto_slot(np.array([[1], [2]]), just).tolist() == [4 + 1 + 3 * 2]


@pytest.mark.parametrize("dimension", [1, 2, 3, 4])
def test_permutohedral_weights(dimension):
    """They add up to 1, and the encoding is linear in its parameters."""
    options = dict(n_levels=3, n_features_per_level=2, hashmap_size=2**9, base_resolution=3, per_level_scale=1.6)
    rng = np.random.default_rng(0)
    levels = ref.hash_grid_levels(dimension, **options)
    size = 2 * (levels[-1].offset + levels[-1].size)
    x = rng.random((dimension, 6))
    np.testing.assert_allclose(ref.permutohedral(x, np.full(size, 2.5), **options), 2.5)
    params, dy, direction = rng.normal(size=size), rng.normal(size=(6, 6)), rng.normal(size=size)
    gradient = ref.permutohedral_vjp(x, params, dy, **options)
    moved = ref.permutohedral(x, params + direction, **options) - ref.permutohedral(x, params, **options)
    np.testing.assert_allclose(gradient @ direction, np.sum(dy * moved), rtol=1e-10)


# ---- Random projection -------------------------------------------------------------------------------------


@pytest.mark.parametrize("density", [1 / 3, 0.8, 1, 1e-12])
def test_sparse_projection_entry_by_entry(density):
    n_in, n_out, seed = 5, 7, 2**35 + 1
    R = ref.sparse_projection_matrix(n_in, n_out, density, seed)
    t = max(round(density * 2**31), 1)
    a = math.sqrt(2**31 / (t * n_out))
    for i, j in itertools.product(range(n_out), range(n_in)):
        word = ref.philox4x32((i // 4, j, 0, 2**32 - 1), (1, 8))[i % 4]
        expected = 0 if word >> 1 >= t else -a if word & 1 else a
        assert R[i, j] == pytest.approx(expected, abs=0)
    x = np.random.default_rng(0).normal(size=(n_in, 3))
    np.testing.assert_allclose(ref.sparse_projection(x, n_out, density, seed), R @ x)
    y = np.random.default_rng(1).normal(size=(n_out, 3))
    np.testing.assert_allclose(ref.sparse_projection(y, n_out, density, seed, in_features=n_in), R.T @ y)
    assert ref.sparse_projection(x).shape == (64, 3)
    np.testing.assert_array_equal(ref.sparse_projection(x), ref.sparse_projection_matrix(5, 64, 1 / 3) @ x)


# ---- Embedding ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out_of_range", ["error", "zero", "clamp"])
def test_embedding(out_of_range):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(5, 3))
    ids = np.array([4, 0, 4, 2]) if out_of_range == "error" else np.array([4, -1, 4, 7])
    y = ref.embedding(ids, table, out_of_range)
    columns = {"error": [4, 0, 4, 2], "zero": [4, None, 4, None], "clamp": [4, 0, 4, 4]}[out_of_range]
    for column, row in zip(y.T, columns, strict=True):
        np.testing.assert_array_equal(column, np.zeros(3) if row is None else table[row])
    dy: Any = rng.normal(size=y.shape)
    expected = difference(lambda t: ref.embedding(ids, t, out_of_range), table, dy)
    np.testing.assert_allclose(ref.embedding_vjp(ids, table, dy, out_of_range), expected, atol=1e-8)


def test_embedding_errors():
    with pytest.raises(IndexError, match="reach from -1 to 2, but there are 3 rows"):
        ref.embedding(np.array([-1, 2]), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="out_of_range is 'wrap'"):
        ref.embedding(np.array([0]), np.zeros((3, 2)), "wrap")


# ---- Networks and measures ---------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    activation=st.sampled_from(sorted(ref.ACTIVATIONS)),
    output=st.sampled_from([None, "sigmoid", "relu", "exp"]),
    bias=st.booleans(),
    p=st.sampled_from([0.0, 0.3]),
    depth=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_mlp_vjp(activation, output, bias, p, depth, seed):
    rng = np.random.default_rng(seed)
    widths = [2, *[5] * depth, 3]
    weights = [rng.normal(size=(o, i)) for i, o in itertools.pairwise(widths)]
    weights = [0.4 * w / math.sqrt(w.shape[1]) for w in weights]  # small, for towers of exponentials
    biases = [0.3 * rng.normal(size=len(w)) for w in weights] if bias else None
    x, dy = rng.normal(size=(2, 3)), rng.normal(size=(3, 3))
    options = dict(activation=activation, output_activation=output, dropout=(p, 8, seed, np.array([4, 2, 9]), 1))
    y, dx, dweights, dbiases = ref.mlp_vjp(weights, x, dy, biases=biases, **options)
    np.testing.assert_array_equal(y, ref.mlp(weights, x, biases=biases, **options))

    def check(actual, f, at):
        np.testing.assert_allclose(actual, difference(f, at, dy), rtol=2e-5, atol=1e-6 * (1 + abs(dy * y).max()))

    check(dx, lambda v: ref.mlp(weights, v, biases=biases, **options), x)
    for i, w in enumerate(weights):
        check(
            dweights[i],
            lambda v, i=i: ref.mlp([*weights[:i], v, *weights[i + 1 :]], x, biases=biases, **options),
            w,
        )
        if biases is None:  # dropped samples then sit exactly on the kink of relu
            assert dbiases[i].shape == (len(w),)
            continue
        check(
            dbiases[i],
            lambda v, i=i: ref.mlp(weights, x, biases=[*biases[:i], v, *biases[i + 1 :]], **options),
            biases[i],
        )


@pytest.mark.parametrize("activation", ["gelu", "sine"])
def test_mlp_in_a_direction(activation):
    rng = np.random.default_rng(2)
    weights = [rng.normal(size=s) / 2 for s in [(5, 2), (5, 5), (3, 5)]]
    biases = [rng.normal(size=5), None, rng.normal(size=3)]
    options = dict(activation=activation, output_activation="tanh", biases=biases, dropout=(0.3, 16, 4))
    x, dx, dy, h = rng.normal(size=(2, 6)), rng.normal(size=(2, 6)), rng.normal(size=(3, 6)), 1e-6
    y, tangent = ref.mlp_jvp(weights, x, dx, **options)
    np.testing.assert_array_equal(y, ref.mlp(weights, x, **options))
    moved = (ref.mlp(weights, x + h * dx, **options) - ref.mlp(weights, x - h * dx, **options)) / (2 * h)
    np.testing.assert_allclose(tangent, moved, rtol=1e-6, atol=1e-8)
    gradient = ref.mlp_vjp(weights, x, dy, **options)[1]
    np.testing.assert_allclose(np.sum(gradient * dx), np.sum(dy * tangent))


def test_siren_by_hand():
    W, b = [np.array([[2.0]]), np.array([[3.0]]), np.array([[0.5]])], [np.array([v]) for v in (0.1, 0.2, 0.3)]
    for options, first, other in ((dict(), 30, 30), (dict(omega_0=4.0, omega=2.0), 4, 2)):
        h = math.sin(other * (3 * math.sin(first * (2 * 0.7 + 0.1)) + 0.2))
        assert ref.siren(W, b, np.array([[0.7]]), **options)[0, 0] == pytest.approx(0.5 * h + 0.3)


def test_containers():
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(ref.residual(lambda v: 10 * v)(x), 11 * x)
    np.testing.assert_array_equal(ref.skip(lambda v: v[:1] * 5)(x), [[5, 10], [1, 2], [3, 4]])
    both = ref.heads(lambda v: v + 1, lambda h: h[:1], lambda h: 2 * h)
    np.testing.assert_array_equal(both(x), [[2, 3], [4, 6], [8, 10]])
    assert ref.sequential()(x) is x
    np.testing.assert_array_equal(ref.sequential(lambda v: v + 1, lambda v: v * 3)(x), 3 * (x + 1))
    f = lambda v: v[:1] ** 2 + 3 * v[1:]  # noqa: E731
    np.testing.assert_allclose(ref.numerical_gradient(f, x, 1e-3), [[2, 4], [3, 3]], rtol=1e-9)
    np.testing.assert_allclose(ref.numerical_gradient(lambda v: v**3, np.array([[1.0]]), 0.5), [[3.25]])


def test_mlp_is_its_layers():
    rng = np.random.default_rng(5)
    W = [rng.normal(size=s) for s in [(8, 2), (8, 8), (1, 8)]]
    x = rng.normal(size=(2, 30))
    relu = ref.ACTIVATIONS["relu"][0]
    network = ref.sequential(
        lambda x: ref.linear(W[0], x),
        relu,
        lambda x: ref.dropout(x, 0.5, seed=9, step=2, stream=0),
        lambda x: ref.linear(W[1], x),
        relu,
        lambda x: ref.dropout(x, 0.5, seed=9, step=2, stream=1),
        lambda x: ref.linear(W[2], x),
    )
    drop = ref.MLPDropout(0.5, seed=9, step=2)
    np.testing.assert_allclose(network(x), ref.mlp(W, x, "relu", dropout=drop), rtol=1e-12)
    swapped = ref.mlp(W, x, "relu", dropout=drop._replace(streams=(1, 0)))
    assert not np.allclose(network(x), swapped)
    field = ref.neural_field(lambda x: 2 * x, network)
    np.testing.assert_array_equal(field(x), network(2 * x))
    with pytest.raises(ValueError, match="unknown activation 'swish'"):
        ref.mlp(W, x, "swish")


def test_mlp_rounds_the_scale_to_a_type():
    W, x = [np.eye(4), np.eye(4)], np.ones((4, 50))
    for dtype in (np.float16, np.float32, np.float64):
        y = ref.mlp(W, x, "relu", dropout=(0.3,), dtype=dtype)
        assert set(np.unique(y)) == {0.0, float(dtype(ref.scale(0.3)))}


def test_losses_by_hand():
    """Of the predictions 2 and 0.5 for the targets 1 and -0.5, with the density 0.5."""
    y, t, p = np.array([[2.0], [0.5]]), np.array([[1.0], [-0.5]]), np.array([[0.5], [0.5]])
    expected = {
        "l1": 1, "l2": 1, "huber": 0.5, "log_l1": math.log(2), "relative_l1": (1 / 2.01 + 1 / 0.51) / 2,
        "relative_l2": (1 / 4.01 + 1 / 0.26) / 2, "mape": (1 / 1.01 + 1 / 0.51) / 2,
        "smape": (1 / 1.51 + 1 / 0.51) / 2, "cross_entropy": -(math.log(2) - 0.5 * math.log(0.5)) / 2,
        "variance": (1 / 2 - 1 / 1 + 0.25 / 0.5 - 0.25 / 1) / 2,
    }  # fmt: skip
    for name, value in expected.items():
        assert ref.loss(name, y, t) == pytest.approx([value]), name
        if name != "variance":
            assert ref.loss(name, y, t, p) == pytest.approx([2 * value]), name
    assert ref.loss("variance", y, t, p) == pytest.approx([(1 / 2 - 2 + 0.5 - 0.5) / 2 * 2])
    assert ref.loss("l2", y + 1, t) == pytest.approx([4]) and ref.loss("huber", y + 2, t) == pytest.approx([2.5])
    assert ref.loss("huber", t + 0.5, t) == pytest.approx([0.125])
    # denominators of another prediction
    assert ref.loss("relative_l2", y, t, at=np.ones_like(y)) == pytest.approx([1 / 1.01])
    assert ref.loss("relative_l1", y, t, at=np.ones_like(y)) == pytest.approx([1 / 1.01])
    assert ref.loss("smape", y, t, at=np.ones_like(y)) == pytest.approx([(1 / 1.01 + 1 / 0.76) / 2])
    rgb, luminance = np.array([[1.0], [2.0], [3.0]]), 0.299 + 2 * 0.587 + 3 * 0.114
    assert ref.loss("relative_l2_luminance", rgb, 0 * rgb) == pytest.approx([14 / 3 / (luminance**2 + 0.01)])
    two, luminance = np.concatenate([rgb, 2 * rgb]), 3 * luminance
    assert ref.loss("relative_l2_luminance", two, 0 * two) == pytest.approx([70 / 6 / (luminance**2 + 0.01)])
    more = np.concatenate([two, [[7.0]]])  # of further components the luminance knows nothing
    assert ref.loss("relative_l2_luminance", more, 0 * more) == pytest.approx([119 / 7 / (luminance**2 + 0.01)])
    found = ref.loss("relative_l2_luminance", more[:5], 0 * more[:5])
    assert found == pytest.approx([34 / 5 / ((luminance / 3) ** 2 + 0.01)])
    found = ref.loss("gaussian_nll", np.array([[1.0], [0.5]]), np.array([[3.0]]))
    assert found == pytest.approx([(0.5 + 4 * math.exp(-0.5)) / 2])
    assert len(expected) + 2 == len(ref.LOSSES)


def test_adam_by_hand():
    """Two steps on one weight; the first is as long as the rate, whatever the gradient."""
    w, m, v = (np.array([a]) for a in (3.0, 0.0, 0.0))
    w1, m1, v1 = ref.adam_step(w, m, v, np.array([4.0]), 1)
    assert (w1[0], m1[0], v1[0]) == pytest.approx((2.999, 0.4, 0.016))
    w2, m2, v2 = ref.adam_step(w1, m1, v1, np.array([-1.0]), 2)
    assert (m2[0], v2[0]) == pytest.approx((0.26, 0.016984))
    mean, square = 0.26 / (1 - 0.81), 0.016984 / (1 - 0.999**2)
    assert w2[0] == pytest.approx(2.999 - 1e-3 * mean / math.sqrt(square))
    tiny = ref.adam_step(w, m, v, np.array([1e-8]), 1)[0]  # where epsilon shows: sqrt(v) is 1e-8 sqrt(1e-3)
    assert tiny[0] == pytest.approx(3 - 1e-3 * math.sqrt(1e-3) / 0.1 * 1e-9 / (1e-8 * math.sqrt(1e-3) + 1e-8))
    other = ref.adam_step(w, m, v, np.array([4.0]), 1, 0.1, 0.5, 0.75, l2_reg=0.5)
    assert [a[0] for a in other] == pytest.approx([2.9, 2.75, 7.5625])
    rate = 1e-3 * math.sqrt(1e-3) / 0.1  # alpha_1: of the decay, too
    for options, decay in ((dict(relative_decay=0.5), 0.5 * 3), (dict(absolute_decay=0.5), 0.5)):
        assert ref.adam_step(w, m, v, np.array([4.0]), 1, **options)[0][0] == pytest.approx(2.999 - rate * decay)
    negative = ref.adam_step(-w, m, v, np.array([4.0]), 1, absolute_decay=0.5)[0][0]
    assert negative == pytest.approx(-3.001 + rate * 0.5)


def test_masks_of_mc_dropout():
    """Steps of the key's step on, which is counted in runs of so many samples, modulo 2^32."""
    asked = []
    mean, deviation = ref.mc_dropout(lambda step: asked.append(step) or np.array([step % 7.0]), 3, 5)
    assert asked == [15, 16, 17] and mean == pytest.approx([2]) and deviation == pytest.approx([math.sqrt(2 / 3)])
    asked.clear()
    ref.mc_dropout(lambda step: asked.append(step) or np.zeros(1), 4, 2**30 + 1)
    assert asked == [4, 5, 6, 7]
    asked.clear()
    ref.mc_dropout(lambda step: asked.append(step) or np.zeros(1), 2)
    assert asked == [0, 1]


def test_measures():
    a = np.zeros((3, 4))
    assert ref.l2(a, a + 0.1) == pytest.approx(0.01)
    assert ref.psnr(a, a + 0.1) == pytest.approx(20)
    assert ref.psnr(a, a + 0.1, peak=10) == pytest.approx(40)
    assert ref.psnr(a, a) == math.inf


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20))
def test_welford(values):
    samples = 1e6 + np.array(values)[:, None] * [1, 2]
    mean, std = ref.welford(samples)
    np.testing.assert_allclose(mean, samples.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(std, samples.std(axis=0), rtol=1e-6, atol=1e-6)


def test_welford_needs_samples():
    with pytest.raises(ValueError, match="no samples"):
        ref.welford([])


def test_registry():
    assert all(callable(f) for f in ref.OPS.values())
