"""Philox4x32 on every kind of word, against Random123 and the NumPy reference."""

from __future__ import annotations

import warnings

import drjit as dr
import numpy as np
import pytest
from support.cuda_on_cpu import as_cuda
from support.known import PHILOX
from support.properties import given, st

import coopnet as cn
from coopnet import reference as ref
from coopnet.random import philox

WORD = st.integers(0, 2**32 - 1)


def random_words(n, shape, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 2**32, shape, dtype=np.uint32) for _ in range(n)]


@pytest.mark.parametrize("counter, key, rounds, words", PHILOX)
def test_known_answers(ns, counter, key, rounds, words):
    expected = [int(w, 16) for w in words.split()]
    assert list(cn.philox4x32(counter, key, rounds)) == expected
    numpy = cn.philox4x32([np.full(3, c, np.uint32) for c in counter], [np.full(3, k, np.uint32) for k in key], rounds)
    drjit = cn.philox4x32([dr.opaque(ns.UInt32, c, 3) for c in counter], [dr.opaque(ns.UInt32, k) for k in key], rounds)
    for n, d, e in zip(numpy, drjit, expected, strict=True):
        assert type(n) is np.ndarray and n.dtype == np.uint32 and n.tolist() == [e] * 3
        assert type(d) is ns.UInt32 and d.numpy().tolist() == [e] * 3


@given(counter=st.tuples(WORD, WORD, WORD, WORD), key=st.tuples(WORD, WORD), rounds=st.integers(1, 12))
def test_ints_and_numpy(counter, key, rounds):
    expected = ref.philox4x32(counter, key, rounds)
    words = cn.philox4x32(counter, key, rounds)
    assert words == expected and all(type(w) is int for w in words)
    assert cn.philox4x32([np.uint32(c) for c in counter], key, rounds) == expected  # scalars are ints
    mixed = cn.philox4x32((np.array([counter[0], 5], np.uint32), *counter[1:]), key, rounds)
    assert [int(w[0]) for w in mixed] == list(expected)


def test_numpy_of_any_shape():
    counter, key = random_words(4, (3, 1)), random_words(2, 5)
    for w, e in zip(cn.philox4x32(counter, key), ref.philox4x32(counter, key), strict=True):
        np.testing.assert_array_equal(w, e)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # words wrap around silently
        zero_d = cn.philox4x32([np.array(0xFFFFFFFF, np.uint32)] * 4, [np.array(0xFFFFFFFF, np.uint32)] * 2)
    assert [hex(w) for w in zero_d] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]


@pytest.mark.parametrize("rounds", [1, 7, 10])
def test_drjit(ns, rounds):
    counter, key = random_words(4, 1000), random_words(2, 1000, seed=1)
    expected = ref.philox4x32(counter, key, rounds)
    words = cn.philox4x32([ns.UInt32(c) for c in counter], [ns.UInt32(k) for k in key], rounds)
    for w, e in zip(words, expected, strict=True):
        np.testing.assert_array_equal(w.numpy(), e)


def test_ints_beside_drjit_words(ns):
    lane = np.arange(100, dtype=np.uint32)
    words = cn.philox4x32((3, ns.UInt32(lane), 2**32 - 1, 7), (1, 2**31))
    dr.eval(words)
    for w, e in zip(words, ref.philox4x32((3, lane, 2**32 - 1, 7), (1, 2**31)), strict=True):
        assert type(w) is ns.UInt32
        np.testing.assert_array_equal(w.numpy(), e)


@pytest.mark.parametrize("first", [0, 1])
def test_nested_words(ns, first):
    """All blocks of a wide vector in one call; the nested word need not come first."""
    lane, blocks = np.arange(17, dtype=np.uint32) * 77, np.arange(12, dtype=np.uint32)
    counter = [ns.ArrayXu([ns.UInt32(int(b)) for b in blocks]), ns.UInt32(lane), 5, 6]
    expected = [blocks[:, None], lane[None], 5, 6]
    if first:
        counter, expected = counter[::-1], expected[::-1]
    words = cn.philox4x32(counter, (ns.UInt32(9), 10))
    dr.eval(words)  # one by one, each would be a kernel
    for w, e in zip(words, ref.philox4x32(expected, (9, 10)), strict=True):
        assert type(w) is ns.ArrayXu
        np.testing.assert_array_equal(w.numpy(), np.broadcast_to(e, (12, 17)))


def test_the_product_that_gpus_take(llvm):
    counter, key = random_words(4, 1000), random_words(2, 1000, seed=1)
    with as_cuda(philox):
        flat = cn.philox4x32([llvm.UInt32(c) for c in counter], [llvm.UInt32(k) for k in key])
        nested = cn.philox4x32([llvm.ArrayXu([llvm.UInt32(c)] * 2) for c in counter], [llvm.UInt32(k) for k in key])
    dr.eval(flat, nested)
    for w, n, e in zip(flat, nested, ref.philox4x32(counter, key), strict=True):
        assert type(w) is llvm.UInt32 and type(n) is llvm.ArrayXu
        np.testing.assert_array_equal(w.numpy(), e)
        np.testing.assert_array_equal(n.numpy(), [e] * 2)


def test_nested_words_of_other_lengths(ns):
    """One nested word is enough, and words of one entry go with all; others are refused."""
    three, two = (ns.ArrayXu([ns.UInt32(i) for i in range(n)]) for n in (3, 2))
    words = cn.philox4x32((0, 0, 0, three), (0, 0))
    np.testing.assert_array_equal([int(v[0]) for v in words[0]], ref.philox4x32((0, 0, 0, np.arange(3)), (0, 0))[0])
    one = ns.ArrayXu([ns.UInt32(0)])
    np.testing.assert_array_equal(cn.philox4x32((one,) * 3 + (three,), (one, one))[0].numpy(), words[0].numpy())
    for counter in ((three, three, two, three), (three, two, 0, 0), (two, ns.UInt32(0), 0, three)):
        with pytest.raises(ValueError, match=r"philox4x32: got words of \[2, 3\] entries; one size"):
            cn.philox4x32(counter, (0, 0))
    for counter in (
        (ns.UInt32(1, 2), ns.UInt32(1, 2, 3), 0, 0),
        (ns.ArrayXu(ns.UInt32(1, 2)), 0, 0, ns.UInt32(1, 2, 3)),
    ):
        with pytest.raises(ValueError, match=r"philox4x32: got words of \[.*2, 3\] entries; one size"):
            cn.philox4x32(counter, (0, 0))
    with pytest.raises(ValueError, match=r"got words of \[0, 2\] entries"):
        cn.philox4x32((ns.UInt32(), ns.UInt32(1, 2), 0, 0), (0, 0))


def test_words_without_derivatives(backend, ns):
    import importlib

    plain = importlib.import_module(f"drjit.{backend}")
    words = cn.philox4x32([plain.UInt32(0)] * 4, [0, 0])
    assert type(words[0]) is plain.UInt32 and words[0][0] == 0x6627E8D5


@pytest.mark.parametrize(
    "counter, key, rounds, error, message",
    [
        ((0, 0, 0), (0, 0), 10, ValueError, "counter of 3 and a key of 2 words; 4 and 2"),
        ((0,) * 4, (0,) * 3, 10, ValueError, "counter of 4 and a key of 3 words"),
        ((0,) * 4, (0, 0), 0, ValueError, "rounds is 0"),
        ((0,) * 4, (0, 0), True, ValueError, "rounds is True"),
        ((0,) * 4, (0, 0), 7.0, ValueError, "rounds is 7.0"),
        ((0, -1, 0, 0), (0, 0), 10, ValueError, r"counter\[1\] is -1; an int in \[0, 2\^32\)"),
        ((0, 0, 0, 2**32), (0, 0), 10, ValueError, r"counter\[3\] is 4294967296"),
        ((0,) * 4, (0, 2**32), 10, ValueError, r"key\[1\] is 4294967296"),
        ((0, 0, True, 0), (0, 0), 10, ValueError, r"counter\[2\] is True"),
        ((0.5, 0, 0, 0), (0, 0), 10, TypeError, r"counter\[0\] is a float"),
        ((0,) * 4, ("a", 0), 10, TypeError, r"key\[0\] is a str"),
        ((np.zeros(2),) * 4, (0, 0), 10, TypeError, r"counter\[0\] has dtype float64"),
        ((np.zeros(2, np.int32),) * 4, (0, 0), 10, TypeError, "int32; a NumPy word must be uint32"),
    ],
)
def test_errors(counter, key, rounds, error, message):
    with pytest.raises(error, match="philox4x32: .*" + message):
        cn.philox4x32(counter, key, rounds)


def test_errors_of_drjit_words(ns):
    for bad in (ns.Float(1), ns.Int(1), ns.UInt64(1), ns.TensorXu([1])):
        with pytest.raises(TypeError, match=rf"philox4x32: counter\[1\] is a {type(bad).__name__}; .*UInt32"):
            cn.philox4x32((0, bad, 0, 0), (0, 0))
    for words in ((ns.UInt32(1), np.zeros(1, np.uint32), 0, 0), (np.zeros(1, np.uint32), ns.UInt32(1), 0, 0)):
        with pytest.raises(TypeError, match=r"philox4x32: NumPy and Dr\.Jit words"):
            cn.philox4x32(words, (0, 0))


def test_words_without_a_shape():
    with pytest.raises(ValueError, match=r"^philox4x32: "):
        cn.philox4x32(np.array(np.uint32(1)), (0, 0))
