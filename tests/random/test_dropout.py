"""The mask law on every kind of input, and dropout by it."""

from __future__ import annotations

import hashlib
import importlib
import warnings
from fractions import Fraction

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import evaluated
from support.inputs import KINDS, TRACED, kinds_for, make, values, weighted
from support.kernels import launched
from support.properties import given, settings, st

import coopnet as cn
from coopnet import backend as backends
from coopnet import reference as ref
from coopnet.random.law import MaskLaw

# CUDA compiles a kernel for every width and p.
few = settings(max_examples=8)
some = settings(max_examples=5 if "cuda" in backends.available() else 8)

BITS = st.sampled_from([8, 16, 32])
SEED = st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
WORD = st.integers(0, 2**32 - 1)
P = st.floats(0, 0.99) | st.sampled_from([0.1, 0.25, 0.5, 0.99])

# ---- The law -----------------------------------------------------------------------------------------------


@few
@given(n=st.integers(1, 70), bits=BITS, p=P, seed=SEED, step=WORD, stream=WORD, data=st.data())
def test_mask_law(backend, ns, n, bits, p, seed, step, stream, data):
    index = np.array(data.draw(st.lists(WORD, min_size=1, max_size=40)), np.uint32)
    kind = data.draw(st.sampled_from(kinds_for(backend)))
    key = cn.Key(seed, ns.UInt32(index) if data.draw(st.booleans()) else index, step)
    y = cn.dropout(make(ns, kind, np.ones((n, len(index)))), p, key, stream=stream, bits=bits)
    np.testing.assert_array_equal(values(y) != 0, ref.keep_mask(n, p, seed, index, step, stream, bits))


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_every_width(bits):
    for n in range(1, 131):
        y = cn.dropout(np.ones((n, 3)), 0.4, cn.Key(2**64 - n, step=n), stream=n, bits=bits)
        np.testing.assert_array_equal(y != 0, ref.keep_mask(n, 0.4, 2**64 - n, np.arange(3), n, n, bits))


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("n", [1, 4, 5, 16, 17, 130])  # around the ends of words and blocks
def test_law_at_the_ends_of_blocks(ns, n, bits):
    expected = ref.keep_mask(n, 0.3, 9, np.arange(33), 0, 0, bits)
    for kind in ("nested", "tensor"):
        y = cn.dropout(make(ns, kind, np.ones((n, 33))), 0.3, cn.Key(9), bits=bits)
        np.testing.assert_array_equal(values(y) != 0, expected, err_msg=kind)


@few
@given(n=st.integers(1, 40), bits=BITS, p=P, seed=SEED, data=st.data())
def test_dropout_mask(ns, n, bits, p, seed, data):
    index = np.array(data.draw(st.lists(WORD, min_size=1, max_size=20)), np.uint32)
    expected = ref.keep_mask(n, p, seed, index, 3, 2, bits)
    keep = cn.dropout_mask(n, p, cn.Key(seed, ns.UInt32(index), 3), stream=2, bits=bits)
    assert type(keep) is ns.ArrayXb
    np.testing.assert_array_equal(keep.numpy(), expected)
    keep = cn.dropout_mask(n, p, cn.Key(seed, index, 3), stream=2, bits=bits)
    assert keep.dtype == bool
    np.testing.assert_array_equal(keep, expected)


@few
@given(n=st.integers(1, 70), bits=BITS, p=P, seed=SEED, data=st.data())
def test_seven_rounds(backend, ns, n, bits, p, seed, data):
    """The same law of other words, for every kind of input."""
    index = np.array(data.draw(st.lists(WORD, min_size=1, max_size=20)), np.uint32)
    kind, x = data.draw(st.sampled_from(kinds_for(backend))), np.ones((n, len(index)))
    y = cn.dropout(make(ns, kind, x), p, cn.Key(seed, ns.UInt32(index), 3), stream=2, bits=bits, rounds=7)
    expected = ref.keep_mask(n, p, seed, index, 3, 2, bits, 7)
    np.testing.assert_array_equal(values(y) != 0, expected)
    keep = cn.dropout_mask(n, p, cn.Key(seed, index, 3), stream=2, bits=bits, rounds=7)
    np.testing.assert_array_equal(keep, expected)


def test_seven_rounds_in_memory_and_layers(ns):
    x = np.ones((64, 2048), np.float32)
    assert (ref.dropout(x, 0.3, 6) != ref.dropout(x, 0.3, 6, rounds=7)).any()
    given_ = ns.TensorXf(x)
    dr.enable_grad(given_)
    for layer, expected in (
        (cn.Dropout(0.3, 8, 5, rounds=7), ref.dropout(x, 0.3, 6, None, 1, 5, 8, rounds=7)),
        (cn.DropPath(0.3, rounds=7), ref.drop_path(x, 0.3, 6, None, 1, rounds=7)),
    ):
        y = layer(given_, cn.Key(6, step=1))
        np.testing.assert_array_equal(y.numpy(), expected)
        dr.backward(y)
        np.testing.assert_array_equal(dr.grad(given_).numpy(), expected)
        dr.clear_grad(given_)
        layer.rounds = 10
        assert (layer(given_, cn.Key(6, step=1)).numpy() != expected).any()
    y = cn.GaussianDropout(0.3, rounds=7)(ns.TensorXf(x[:4, :50]), cn.Key(6, step=1))
    np.testing.assert_allclose(y.numpy(), ref.gaussian_dropout(x[:4, :50], 0.3, 6, None, 1, rounds=7), atol=1e-6)
    with pytest.raises(ValueError, match=r"^MLP: dropout has the stream 5, which all hidden layers would share"):
        cn.MLP(2, 1, dropout=cn.Dropout(0.3, stream=5))
    assert repr(cn.Dropout(0.3, rounds=7)) == "Dropout(p=0.3, bits=16, rounds=7)"


@some
@given(seed=SEED, order=st.randoms(use_true_random=False), first=st.integers(0, 60), data=st.data())
def test_permuted_and_partial_batches(backend, ns, seed, order, first, data):
    """A sample's mask belongs to its identity, whatever else is in the batch and in which order."""
    kind = data.draw(st.sampled_from(kinds_for(backend)))
    x = np.random.default_rng(0).random((12, 90), np.float32) + 1
    whole = values(cn.dropout(make(ns, kind, x), 0.4, cn.Key(seed)))
    index = list(range(90))
    order.shuffle(index)
    index = np.array(index[first:], np.uint32)
    y = values(cn.dropout(make(ns, kind, x[:, index]), 0.4, cn.Key(seed, ns.UInt32(index))))
    np.testing.assert_array_equal(y, whole[:, index])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_and_types_agree(backend, ns, kind, dtype):
    if backend == "cuda" and kind == "coopvec" and dtype == np.float64:
        pytest.skip("cooperative vectors of doubles do not exist on CUDA")
    x = np.random.default_rng(1).normal(size=(37, 50)).astype(dtype)
    key, bits = cn.Key(2**63 + 1, step=8), {np.float16: 8, np.float32: 16, np.float64: 32}[dtype]
    given_ = make(ns, kind, x, dtype)
    y = cn.dropout(given_, 0.3, key, stream=5, bits=bits)
    assert type(y) is type(given_)
    y = values(y)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, ref.dropout(x, 0.3, 2**63 + 1, None, 8, 5, bits))


def test_arrays_of_fixed_length_and_single_arrays(ns):
    x = np.random.default_rng(2).normal(size=(3, 40)).astype(np.float32)
    expected = ref.dropout(x, 0.5, 3)
    for tp in (ns.Array3f, ns.ArrayXf):
        y = cn.dropout(tp([ns.Float(v) for v in x]), 0.5, cn.Key(3))
        assert type(y) is tp
        np.testing.assert_array_equal(y.numpy(), expected)
    y = cn.dropout(ns.Float(x[0]), 0.5, cn.Key(3))
    assert type(y) is ns.Float
    np.testing.assert_array_equal(y.numpy(), expected[0])


def test_types_without_derivatives(backend):
    plain = importlib.import_module(f"drjit.{backend}")
    x = np.random.default_rng(2).normal(size=(3, 40)).astype(np.float32)
    for tp in (plain.ArrayXf, plain.TensorXf):
        y = cn.dropout(tp(x), 0.5, cn.Key(3))
        assert type(y) is tp
        np.testing.assert_array_equal(y.numpy(), ref.dropout(x, 0.5, 3))


# (n, p, seed, step, stream, bits), at 29 samples whose index is 7, 7 + 1000003, ... modulo 2^32
DIGEST_OF = [
    (40, 0.1, 0, 0, 0, 16),
    (20, 0.5, 2**64 - 1, 2**32 - 1, 1, 8),
    (9, 0.25, 1234567890123456789, 17, 2**32 - 1, 32),
    (5, 0.99, 2**32, 1, 3, 16),
    (33, 0.3, 2**63 + 12345, 99, 7, 8),
]
DIGEST = "1c73c63d3d02e256aee14cabf5b76142b45cf8ae505ecc6f0f4dc810c9792ee8"


@pytest.mark.parametrize("kind", ["reference", "mask", *KINDS])
def test_stored_digest(ns, kind):
    """These bits are the contract: they are the same on every machine, today and tomorrow."""
    index = (7 + 1000003 * np.arange(29, dtype=np.uint64)).astype(np.uint32) * np.uint32(151)
    total = hashlib.sha256()
    for n, p, seed, step, stream, bits in DIGEST_OF:
        key = cn.Key(seed, ns.UInt32(index), step)
        if kind == "reference":
            keep = ref.keep_mask(n, p, seed, index, step, stream, bits)
        elif kind == "mask":
            keep = cn.dropout_mask(n, p, key, stream=stream, bits=bits).numpy()
        else:
            x = make(ns, kind, np.ones((n, 29)), np.float16)
            keep = values(cn.dropout(x, p, key, stream=stream, bits=bits)) != 0
        total.update(np.packbits(keep).tobytes())
    assert total.hexdigest() == DIGEST


def test_streams_steps_and_seeds_are_independent():
    masks = [
        cn.dropout_mask(64, 0.5, cn.Key(seed, np.arange(200), step), stream=stream)
        for seed, step, stream in [(1, 0, 0), (2, 0, 0), (2**32 + 1, 0, 0), (1, 1, 0), (1, 0, 1), (1, 2**31, 0)]
    ]
    for i, a in enumerate(masks):
        assert abs(a.mean() - 0.5) < 0.02
        for b in masks[:i]:
            assert abs((a == b).mean() - 0.5) < 0.03


# ---- Scale -------------------------------------------------------------------------------------------------


@given(p=P, bits=BITS, dtype=st.sampled_from([np.float16, np.float32, np.float64]))
def test_scale_preserves_the_mean(p, bits, dtype):
    law = MaskLaw(p, bits)
    t, s = law.threshold(dtype), law.scale(dtype)
    assert s == float(dtype(ref.scale(p, bits)))
    # of the 2^bits equally likely fields, 2^bits - t are kept: only the rounding of the scale is left
    mean = Fraction(s) * Fraction(2**bits - t, 2**bits)
    assert abs(mean - 1) <= Fraction(float(np.finfo(dtype).eps)) / 2


@pytest.mark.parametrize("p, exact", [(0.5, 2), (0.75, 4), (0.875, 8)])
@pytest.mark.parametrize("kind", KINDS)
def test_powers_of_two_are_exact(ns, kind, p, exact):
    y = values(cn.dropout(make(ns, kind, np.ones((8, 64)), np.float16), p, cn.Key(4)))
    assert set(np.unique(y).tolist()) == {0, exact}


def test_thresholds():
    given = [(0.5, 8), (0.5, 16), (0.5, 32), (0.3, 16), (0.5 / 256, 8), (1.5 / 256, 8), (np.float32(0.25), np.int64(8))]
    assert [MaskLaw(p, bits).threshold(np.float32) for p, bits in given] == [2**7, 2**15, 2**31, 19661, 0, 2, 64]


def test_dropped_infinities_are_zero(ns):
    for kind in ("list", "nested", "tensor", "numpy"):
        y = values(cn.dropout(make(ns, kind, np.full((8, 32), np.inf)), 0.5, cn.Key(4)))
        assert set(np.unique(y).tolist()) == {0, np.inf}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_drop(ns, kind):
    x = make(ns, kind, np.ones((4, 8)))
    assert cn.dropout(x, 0, cn.Key(1)) is x
    assert cn.dropout(x, 0.0, cn.Key(1), bits=8) is x
    assert cn.dropout(x, 0.5, None) is x
    assert cn.Dropout(0.5)(x) is x and cn.Dropout(0)(x, cn.Key(1)) is x


def test_layer(ns):
    x = np.ones((8, 64), np.float32)
    for layer, stream in [(cn.Dropout(0.3, 8, 5), 5), (cn.Dropout(0.3, 8), 0)]:
        y = layer(ns.TensorXf(x), cn.Key(6, step=1))
        np.testing.assert_array_equal(y.numpy(), ref.dropout(x, 0.3, 6, None, 1, stream, 8))
    assert repr(cn.Dropout(0.3, 8, 5)) == "Dropout(p=0.3, bits=8, stream=5)"
    assert "stream" not in repr(cn.Dropout()) and (cn.Dropout().p, cn.Dropout().bits) == (0.5, 16)


# ---- Gradients ---------------------------------------------------------------------------------------------


def gradient_case(ns, kind, dtype):
    """x with gradients on, dropout of it, and dy."""
    rng = np.random.default_rng(3)
    x, dy = rng.normal(size=(2, 21, 60)).astype(dtype)
    x = make(ns, kind, x, dtype)
    leaves = list(x) if kind == "coopvec" else x
    dr.enable_grad(leaves)
    y = cn.dropout(drnn.CoopVec(leaves) if kind == "coopvec" else leaves, 0.3, cn.Key(11, step=2), stream=1)
    return leaves, y, dy, ref.dropout(dy, 0.3, 11, None, 2, 1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize("kind", TRACED)
def test_gradient_is_dropout_of_the_gradient(ns, kind, evaluated, dtype):
    leaves, y, dy, expected = gradient_case(ns, kind, dtype)
    if evaluated:
        y = list(y) if kind == "coopvec" else y
        dr.eval(y)
    dr.backward(weighted(y, dy, dtype))
    # GPUs flush half-precision numbers below the normal ones to zero
    tiny = float(np.finfo(np.float16).tiny) if dtype == np.float16 else 0
    np.testing.assert_allclose(values(dr.grad(leaves)), expected, rtol=0, atol=tiny)


@pytest.mark.parametrize("kind", TRACED)
def test_tangent_is_dropout_of_the_tangent(ns, kind):
    leaves, y, dx, expected = gradient_case(ns, kind, np.float32)
    dr.set_grad(leaves, make(ns, "list" if kind == "coopvec" else kind, dx))
    outputs = list(y) if kind == "coopvec" else y
    tangent = dr.forward_to(outputs)
    np.testing.assert_array_equal(values(tangent), expected)


def test_gradient_of_an_input_shared_by_all_samples(ns):
    """Many masks at one point: the gradient of the point is the sum."""
    x = ns.Float(2)
    dr.enable_grad(x)
    y = cn.dropout([x], 0.5, cn.Key(1, dr.arange(ns.UInt32, 100)))[0]
    dr.backward(y)
    kept = ref.keep_mask(1, 0.5, 1, np.arange(100)).sum()
    assert x.grad.numpy().tolist() == [2 * kept]


@pytest.mark.parametrize("mode", ["symbolic", "evaluated"])
@pytest.mark.parametrize("kind", ["list", "nested", "coopvec"])
def test_gradient_through_a_loop(ns, kind, mode):
    rng = np.random.default_rng(4)
    x, dy = rng.normal(size=(2, 9, 30)).astype(np.float32)
    leaves = [ns.Float(v) for v in x]
    dr.make_opaque(leaves)
    dr.enable_grad(leaves)

    def turn(i, total, x):
        # a CoopVec made of captured variables would lose their gradient, so they are part of the state
        vector = {"list": list, "nested": ns.ArrayXf, "coopvec": drnn.CoopVec}[kind](x)
        drop = list(cn.dropout(vector, 0.3, cn.Key(5, step=i)))
        return i + 1, [t + d for t, d in zip(total, drop, strict=True)], x

    state = (ns.UInt32(0), [dr.zeros(ns.Float, 30) for _ in leaves], leaves)
    _, total, _ = dr.while_loop(state, lambda i, total, x: i < 3, turn, mode=mode, max_iterations=3)
    dr.backward(weighted(total, dy, np.float32))
    expected = sum(ref.dropout(dy, 0.3, 5, None, step) for step in range(3))
    np.testing.assert_allclose(values(dr.grad(leaves)), expected, rtol=1e-6, atol=1e-6)


# ---- Kernels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("kind", ["tensor", "nested"])
def test_dropout_is_part_of_the_kernel_around_it(ns, kind, index):
    x = make(ns, kind, np.ones((24, 100)))
    lane = dr.arange(ns.UInt32, 100) if index else None
    dr.make_opaque(x, lane)
    key = cn.Key(1, lane).traced(ns.UInt32)
    dr.eval(cn.dropout(x * 2, 0.3, key) + 1)  # brings the key's words to the device
    with launched() as kernels:
        dr.eval(cn.dropout(x * 2, 0.3, key) + 1)
    assert len(kernels) == 1


# ---- Errors ------------------------------------------------------------------------------------------------

BAD = [
    (dict(p=1.0), ValueError, r"p is 1.0; a drop probability in \[0, 1\)"),
    (dict(p=1), ValueError, "p is 1;"),
    (dict(p=-0.1), ValueError, "p is -0.1"),
    (dict(p=float("nan")), ValueError, "p is nan"),
    (dict(p=float("inf")), ValueError, "p is inf"),
    (dict(p="0.5"), TypeError, "p is '0.5' of type str"),
    (dict(p=True), TypeError, "p is True of type bool"),
    (dict(p=False), TypeError, "p is False of type bool"),
    (dict(p=None), TypeError, "p is None"),
    (dict(p=[0.5]), TypeError, r"p is \[0.5\] of type list"),
    (dict(p=np.array(0.5)), TypeError, r"p is array\(0.5\) of type ndarray"),
    (dict(p=0.999, bits=8), ValueError, "p = 0.999 rounds to dropping everything with bits=8"),
    (dict(p=1 - 2**-18), ValueError, "p = 0.99999.* rounds to dropping everything with bits=16"),
    (dict(bits=12), ValueError, "bits is 12; accepted are 8, 16 and 32"),
    (dict(bits=0), ValueError, "bits is 0"),
    (dict(bits=16.0), ValueError, "bits is 16.0"),
    (dict(bits="16"), ValueError, "bits is '16'"),
    (dict(bits=True), ValueError, "bits is True"),
    (dict(bits=None), ValueError, "bits is None"),
    (dict(bits=[16]), ValueError, r"bits is \[16\]"),
    (dict(rounds=8), ValueError, "rounds is 8; accepted are 10 and 7"),
    (dict(rounds=7.0), ValueError, "rounds is 7.0"),
    (dict(rounds=None), ValueError, "rounds is None"),
    (dict(stream=-1), ValueError, r"stream is -1; an int in \[0, 2\^32\)"),
    (dict(stream=2**32), ValueError, "stream is 4294967296"),
    (dict(stream=0.5), ValueError, "stream is 0.5"),
    (dict(stream=True), ValueError, "stream is True"),
]


@pytest.mark.parametrize("arguments, error, message", BAD)
def test_bad_arguments(arguments, error, message):
    dropout = {"p": 0.5, "key": cn.Key(1, np.arange(3))} | arguments
    with pytest.raises(error, match="dropout: " + message):
        cn.dropout(np.ones((2, 3)), **dropout)
    with pytest.raises(error, match="dropout: " + message):
        cn.dropout(np.ones((2, 3)), **(dropout | {"key": None}))  # wrong without a key, too
    with pytest.raises(error, match="dropout_mask: " + message):
        cn.dropout_mask(2, **dropout)
    with pytest.raises(error, match="Dropout: " + message):
        cn.Dropout(**({"p": 0.5} | arguments))


@pytest.mark.parametrize("key", [1, "key", (1, 2), np.arange(3)])
@pytest.mark.parametrize("p", [0, 0.5])
def test_wrong_keys(key, p):
    with pytest.raises(TypeError, match=f"dropout: key is a {type(key).__name__}; a coopnet.Key"):
        cn.dropout(np.ones((2, 3)), p, key)
    with pytest.raises(TypeError, match=f"dropout_mask: key is a {type(key).__name__}"):
        cn.dropout_mask(2, p, key)


def test_errors_of_dropout_mask():
    for n in (0, -1, True, 2.0, "2", None):
        with pytest.raises(ValueError, match=f"dropout_mask: n is {n!r}; an int of at least 1"):
            cn.dropout_mask(n, 0.5, cn.Key(1, 0))
    with pytest.raises(ValueError, match=r"dropout_mask: the key has no index.*UInt32"):
        cn.dropout_mask(2, 0.5, cn.Key(1))


@pytest.mark.parametrize("kind", KINDS)
def test_scale_that_half_precision_cannot_hold(ns, kind):
    x = make(ns, kind, np.ones((2, 3)), np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"dropout: keeping 4096 .* scale of 1\.04858e\+06.*float16"):
            cn.dropout(x, 1 - 2**-20, cn.Key(1), bits=32)
    x = make(ns, kind, np.ones((2, 3)), np.float32)
    cn.dropout(x, 1 - 2**-20, cn.Key(1), bits=32)


def test_wrong_numpy_arrays():
    for x, error, message in [
        (np.ones(3), ValueError, r"shape \(3,\); its shape must be \(features, samples\)"),
        (np.ones((2, 3, 4)), ValueError, r"shape \(2, 3, 4\)"),
        (np.ones((0, 3)), ValueError, r"empty NumPy array of shape \(0, 3\)"),
        (np.ones((3, 0)), ValueError, r"empty NumPy array of shape \(3, 0\)"),
        (np.ones((2, 3), int), TypeError, "int64; a floating point type"),
        (np.ones((2, 3), bool), TypeError, "bool_?; a floating point type"),
        (np.ones((2, 3), complex), TypeError, "complex128; a floating point type"),
        (1.0, TypeError, "got builtins.float; accepted are"),
        (None, TypeError, "got builtins.NoneType; accepted are"),
        ("x", TypeError, "got builtins.str"),
        ([], ValueError, "empty list"),
        ((), ValueError, "empty tuple"),
        ([1.0, 2.0], TypeError, "entry 0 of the list is a float; every entry must be a 1D"),
        ([np.ones(3)], TypeError, "entry 0 of the list is a ndarray"),
    ]:
        for key in (cn.Key(1), None):
            with pytest.raises(error, match="dropout: .*" + message):
                cn.dropout(x, 0.5, key)


def test_wrong_drjit_arrays(ns):
    Float, Float16 = ns.Float, ns.Float16
    for x, error, message in [
        (ns.TensorXf([1, 2]), ValueError, r"tensor of shape \(2,\); 2 dimensions"),
        (dr.zeros(ns.TensorXf, (2, 3, 4)), ValueError, r"tensor of shape \(2, 3, 4\)"),
        (dr.zeros(ns.TensorXf, (0, 3)), ValueError, r"empty tensor of shape \(0, 3\)"),
        (dr.zeros(Float, 0), ValueError, "empty array of type Float"),
        (ns.ArrayXf(), ValueError, "empty array of type ArrayXf"),
        (dr.zeros(ns.Array3f, 0), ValueError, "empty array of type Array3f"),
        ([Float(1), dr.zeros(Float, 0)], ValueError, "entry 1 of the list is empty"),
        (ns.Int(1, 2), TypeError, "Int; a floating point type"),
        (ns.Array3u(1), TypeError, "UInt; a floating point type"),
        (ns.ArrayXb(ns.Bool(True)), TypeError, "Bool; a floating point type"),
        (dr.ones(ns.TensorXi, (2, 3)), TypeError, "Int; a floating point type"),
        ([ns.Int(1), ns.Int(2)], TypeError, "Int; a floating point type"),
        ([Float([1, 2, 3]), Float([1, 2])], ValueError, r"arrays of different sizes, \[2, 3\]"),
        (ns.ArrayXf([Float([1, 2, 3]), Float([1, 2])]), ValueError, r"arrays of different sizes, \[2, 3\]"),
        ([Float(1), Float16(1)], TypeError, r"entry 1 of the list is a .*Float16 but entry 0 is a .*Float;"),
        ((Float(1), 1.0), TypeError, "entry 1 of the tuple is a float"),
        ([Float(1), ns.Array3f(1)], TypeError, "entry 1 of the list is a Array3f"),
        ([ns.TensorXf([1.0])], TypeError, "entry 0 of the list is a TensorXf"),
        (ns.Matrix3f(1), TypeError, "Matrix3f"),
        (ns.Array33f(1), ValueError, "Array33f nested 3 deep"),
        (dr.scalar.Array3f(1), TypeError, "drjit.scalar.Array3f, which has no backend"),
    ]:
        for key in (cn.Key(1), None):
            with pytest.raises(error, match="dropout: .*" + message):
                cn.dropout(x, 0.5, key)


@pytest.mark.parametrize("kind", ["tensor", "numpy"])
def test_one_sample_has_one_index(ns, kind):
    for index in (ns.UInt32([1, 2, 3]), np.arange(3)):
        with pytest.raises(ValueError, match="index has 3 entries, but the input has 1 samples"):
            cn.dropout(make(ns, kind, np.ones((4, 1))), 0.5, cn.Key(1, index))


@pytest.mark.skipif(len(backends.available()) < 2, reason="needs two backends")
def test_key_of_another_backend():
    llvm, cuda = backends.namespace("llvm"), backends.namespace("cuda")
    for here, there in ((llvm, cuda), (cuda, llvm)):
        for key in (cn.Key(there.UInt64(1)), cn.Key(1, dr.arange(there.UInt32, 4)), cn.Key(1, step=there.UInt32(1))):
            with pytest.raises(TypeError, match=r"Key: holds a .*but the input lives on"):
                cn.dropout(here.ArrayXf(np.ones((3, 4))), 0.5, key)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("n", [5, 32, 64, 70])
def test_layers_of_built_networks_follow_the_law(ns, backend, bits, n):
    """On CUDA, masks of vectors up to a width come from a product: to the bit, on every width."""
    half = backend == "cuda"
    layer = cn.Sequential(cn.Dropout(0.3, bits=bits)).alloc(ns.TensorXf16 if half else ns.TensorXf, n)
    x = np.random.default_rng(1).uniform(0.5, 1, (n, 40)).astype(np.float16 if half else np.float32)
    leaf = ns.Float16 if half else ns.Float
    y = evaluated(list(layer(drnn.CoopVec([leaf(row) for row in x]), cn.Key(5, step=2))))
    np.testing.assert_array_equal(np.stack([v.numpy() for v in y]), ref.dropout(x, 0.3, 5, None, 2, 0, bits))
