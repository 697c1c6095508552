"""Dropout in the conventions of other systems."""

from __future__ import annotations

import math

import drjit as dr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coopnet as cn
from coopnet import reference, seeded

PROBABILITIES = st.sampled_from([0.01, 0.1, 0.25, 0.5, 0.9, 1 - 2**-20])


@pytest.mark.parametrize("convention", seeded.CONVENTIONS)
@given(p=PROBABILITIES, seed=st.integers(0, 2**64 - 1), start=st.integers(0, 2**32 - 300))
def test_agrees_with_the_reference(ns, convention, p, seed, start):
    x = np.linspace(-2, 3, 257).astype(np.float32)
    offset = np.arange(start, start + 257, dtype=np.uint32)
    expected = reference.seeded_dropout(x, p, seed, offset, convention)
    np.testing.assert_array_equal(cn.seeded_dropout(x, p, seed, offset=offset, convention=convention), expected)
    y = cn.seeded_dropout(ns.Float(x), p, seed, offset=ns.UInt32(offset), convention=convention)
    np.testing.assert_array_equal(y.numpy(), expected)


@pytest.mark.parametrize("half", [False, True])
def test_offsets_of_64_bits(ns, half):
    leaf = ns.Float16 if half else ns.Float
    offset = np.array([0, 2**32 - 1, 2**32, 2**40 + 7], np.uint64)
    x = np.ones(4, np.float16 if half else np.float32)
    expected = reference.seeded_dropout(x, 0.5, 11, offset, "ztensor")
    y = cn.seeded_dropout(leaf(x), 0.5, dr.opaque(ns.UInt64, 11), offset=ns.UInt64(offset), convention="ztensor")
    np.testing.assert_array_equal(y.numpy(), expected)


@pytest.mark.parametrize("p", [0.1, 0.5, 1 / 3, 2**-32, 1 - 2**-32])
def test_decisions_near_the_threshold_are_exact(ns, monkeypatch, p):
    """ztensor compares integers: a float comparison errs for words next to the bound."""
    bound = math.ceil(p * 2**32)
    words = np.clip(np.arange(bound - 40, bound + 40), 0, 2**32 - 1).astype(np.uint32)
    monkeypatch.setattr(seeded, "philox4x32", lambda counter, key: (ns.UInt32(words),) * 4)
    y = cn.seeded_dropout(dr.ones(ns.Float, 80), p, 0, convention="ztensor").numpy()
    np.testing.assert_array_equal(y != 0, words.astype(np.int64) >= bound)


@pytest.mark.parametrize("convention", seeded.CONVENTIONS)
def test_gradient_and_identity(ns, convention):
    x = ns.Float([1.0, 2.0, 3.0, 4.0])
    assert cn.seeded_dropout(x, 0, 1, convention=convention) is x
    dr.enable_grad(x)
    y = cn.seeded_dropout(x, 0.5, 3, convention=convention)
    dr.backward(y)
    np.testing.assert_array_equal(x.grad.numpy(), np.where(y.numpy() != 0, 2, 0))


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(convention="torch"), ValueError, "convention is 'torch'"),
        (dict(p=1.0), ValueError, "p is 1.0"),
        (dict(seed=-1), ValueError, "seed is -1"),
        (dict(offset=np.arange(4)), TypeError, "offset is a ndarray"),
        (dict(x=[1.0]), TypeError, "entry 0 of the list"),
    ],
)
def test_errors(ns, change, error, words):
    arguments = dict(x=ns.Float([1, 2, 3, 4]), p=0.5, seed=1, convention="triton") | change
    with pytest.raises(error) as info:
        cn.seeded_dropout(arguments.pop("x"), arguments.pop("p"), arguments.pop("seed"), **arguments)
    assert words in str(info.value)
    with pytest.raises(ValueError, match="offset has 3 entries"):
        cn.seeded_dropout(ns.Float([1, 2]), 0.5, 1, offset=ns.UInt32([1, 2, 3]), convention="triton")
    with pytest.raises(TypeError, match="UInt32 array is needed for 'triton'"):
        cn.seeded_dropout(ns.Float([1, 2]), 0.5, 1, offset=ns.UInt64([1, 2]), convention="triton")
