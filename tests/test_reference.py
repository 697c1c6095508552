"""The NumPy ground truth against known answers, finite differences and Dr.Jit's own encodings."""

from __future__ import annotations

import ast
import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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

# Random123's known answers (kat_vectors), 10 rounds.
KNOWN = [
    ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize("counter, key, words", KNOWN)
def test_philox_known_answers(counter, key, words):
    expected = [int(w, 16) for w in words.split()]
    assert list(ref.philox4x32(counter, key)) == expected
    arrays = ref.philox4x32([np.full(3, c, np.uint32) for c in counter], [np.uint32(k) for k in key])
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
    dr.backward(dr.sum(y * ns.ArrayXf(dy), axis=None))
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


def test_registry_and_imports():
    assert all(callable(f) for f in ref.OPS.values())
    tree = ast.parse(Path(ref.__file__).read_text(encoding="utf-8"))
    modules = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or "."] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert modules <= {"numpy", *sys.stdlib_module_names}
