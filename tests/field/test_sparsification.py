"""Sparsification curves: against the reference, and what must hold for all of them."""

from __future__ import annotations

import numpy as np
import pytest
from support.properties import given, hnp, settings, st

import coopnet as cn
from coopnet import reference as ref

NORMS = ("mean", "rms")
# few different values, so that ties are common
COARSE = hnp.arrays(np.float64, st.shared(st.integers(1, 30), key="n"), elements=st.integers(0, 5).map(float))


@settings(deadline=None)
@given(COARSE.filter(np.any), COARSE, st.sampled_from(NORMS), st.sampled_from([1e-200, 1.0, 1e200]))
def test_agrees_with_the_reference(error, uncertainty, norm, scale):
    found = cn.sparsification(error * scale, -uncertainty * scale, norm=norm)
    for values, expected in zip(
        (found.remaining, found.oracle), ref.sparsification(error, -uncertainty, norm), strict=True
    ):
        np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12)
    assert found.ause == pytest.approx(np.mean(found.remaining - found.oracle), abs=1e-15)
    assert found.random == pytest.approx(np.mean(1 - found.oracle), abs=1e-15)
    assert found.ause >= -1e-12 and np.all(found.oracle <= found.remaining + 1e-12)
    assert found.remaining[0] == found.oracle[0] == 1


def random_samples(n=1000):
    rng = np.random.default_rng(0)
    return abs(rng.normal(size=n)), rng.random(n)


@pytest.mark.parametrize("norm", NORMS)
def test_the_oracle_and_nothing(norm):
    """Only order counts: what grows with the error is the oracle. A constant knows nothing, and no more does noise."""
    error, noise = random_samples()
    oracle = cn.sparsification(error, np.exp(3 * error), norm=norm)
    np.testing.assert_allclose(oracle.remaining, oracle.oracle, atol=1e-12)
    assert abs(oracle.ause) < 1e-12 and np.all(np.diff(oracle.oracle) <= 1e-12)
    constant = cn.sparsification(error, np.full(len(error), 0.3), norm=norm)
    np.testing.assert_allclose(constant.remaining, 1, atol=1e-12)
    assert constant.ause == pytest.approx(constant.random, abs=1e-12)
    assert cn.sparsification(error, noise, norm=norm).ause == pytest.approx(constant.random, abs=0.05)
    assert cn.sparsification(error, -error, norm=norm).ause > constant.random + 0.3
    partly = cn.sparsification(error, error + noise, norm=norm).ause
    assert 0.01 < partly < 0.7 * constant.random


def test_the_area_of_known_errors():
    """Errors spread evenly over [0, 1]: the oracle leaves 1 - r of their mean, whose area above it is 1/2."""
    found = cn.sparsification((np.arange(10_000) + 0.5) / 10_000, np.zeros(10_000))
    np.testing.assert_allclose(found.oracle, 1 - found.removed, atol=1e-12)
    assert found.random == pytest.approx(0.5, abs=1e-4)


def test_ties_are_in_no_order():
    """The same whatever the order of samples, and the mean over orders of what ties hide."""
    error, _ = random_samples(64)
    uncertainty = np.arange(64) // 16
    found = cn.sparsification(error, uncertainty)
    shuffle = np.random.default_rng(1).permutation(64)
    again = cn.sparsification(error[shuffle], uncertainty[shuffle])
    np.testing.assert_allclose(again.remaining, found.remaining, atol=1e-12)


def test_pictures_and_device_arrays(ns):
    error, uncertainty = (v.astype(np.float32) for v in random_samples(60))
    expected = cn.sparsification(error, uncertainty).remaining
    picture = cn.sparsification(error.reshape(6, 10), uncertainty.reshape(6, 10))
    device = cn.sparsification(ns.Float(error), ns.Float(uncertainty))
    tensor = cn.sparsification(ns.TensorXf(error.reshape(6, 10)), uncertainty.reshape(6, 10))
    for found in (picture, device, tensor):
        np.testing.assert_array_equal(found.remaining, expected)
        assert found.remaining.dtype == np.float64 and found.removed.tolist() == [k / 60 for k in range(60)]
    assert repr(device).startswith("<Sparsification: 60 samples, ause=0.")


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(error=[1.0]), TypeError, "error is [1.0] of type list; a NumPy or Dr.Jit array is needed"),
        (dict(uncertainty=np.array(["a", "b"])), TypeError, "uncertainty is a NumPy array of <U1"),
        (dict(error=np.ma.masked_less(np.ones(2), 0)), TypeError, "a NumPy or Dr.Jit array is needed"),
        (dict(error=np.array([True, False])), TypeError, "array of real numbers"),
        (dict(error=np.ones(3)), ValueError, "error has the shape (3,), and uncertainty (2,)"),
        (dict(error=np.ones(0), uncertainty=np.ones(0)), ValueError, "error is empty"),
        (dict(uncertainty=np.array([1, np.nan])), ValueError, "uncertainty has NaN or infinities"),
        (dict(error=np.array([1, np.inf])), ValueError, "error has NaN or infinities"),
        (dict(error=np.array([1, -2.5])), ValueError, "error has -2.5 in it"),
        (dict(error=np.zeros(2)), ValueError, "error is 0 everywhere"),
        (dict(norm="l2"), ValueError, "norm is 'l2'; accepted are 'mean', 'rms'"),
    ],
)
def test_bad_arguments(change, error, words):
    arguments = dict(error=np.ones(2), uncertainty=np.ones(2)) | change
    with pytest.raises(error) as caught:
        cn.sparsification(**arguments)
    assert str(caught.value).startswith("sparsification: ") and words in str(caught.value)


def test_not_while_recording(ns):
    import drjit as dr

    @dr.freeze
    def frozen(x):
        return cn.sparsification(x, x)

    with pytest.raises(RuntimeError) as caught:
        frozen(ns.Float([1, 2]))
    # Dr.Jit wraps what a frozen function raises
    chain = [str(caught.value), str(caught.value.__cause__), str(caught.value.__context__)]
    assert any("sparsification: called while Dr.Jit records" in text for text in chain)
