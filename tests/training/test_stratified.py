"""Stratified samples: the law to the bit, a point in every cell, means that vary less."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

import coopnet as cn
from coopnet import reference as ref
from coopnet.training.sampling import _divided


def test_numbers_of_a_class_of_their_own(ns):
    class Odd(int):
        __repr__ = __str__ = __format__ = None

    for law in (cn.uniform, cn.stratified):
        assert np.array_equal(law(1, cn.Key(3), ns.Float, Odd(5))[0], law(1, cn.Key(3), ns.Float, 5)[0])


@pytest.mark.parametrize("n, samples, stream", [(1, 300, 0), (2, 77, 7), (3, 1, 0), (24, 64, 2**31 - 1)])
def test_stratified_points(ns, n, samples, stream):
    seed, step = 2**63 + 5, 9
    points = cn.stratified(n, cn.Key(seed, step=step), ns.Float, samples, stream=stream)
    assert np.array_equal(np.stack([v.numpy() for v in points]), ref.stratified(n, seed, samples, step, stream))
    index = np.random.default_rng(n).integers(0, samples, 5).astype(np.uint32)
    some = cn.stratified(n, cn.Key(seed, index=ns.UInt32(index), step=step), ns.Float, samples, stream=stream)
    assert all(np.array_equal(v.numpy(), w.numpy()[index]) for v, w in zip(some, points, strict=True))


@pytest.mark.parametrize("n", [1, 2, 3, 77, 2**18, 10**6 + 3, 3 * 10**9, 2**32 - 1])
def test_division_by_multiplication(ns, n):
    rng = np.random.default_rng(n)
    index = np.concatenate([rng.integers(0, n, 1000), [0, n - 1, n - 1]]).astype(np.uint64)
    word = np.concatenate([rng.integers(0, 2**32, 1000), [0, 0, 2**32 - 1]]).astype(np.uint64)
    found = _divided(ns.UInt32(index.astype(np.uint32)), ns.UInt32(word.astype(np.uint32)), n).numpy()
    np.testing.assert_array_equal(found, (index << np.uint64(32) | word) // np.uint64(n))


@pytest.mark.parametrize("n, side", [(2, 32), (3, 8)])
def test_stratified_points_have_a_cell_each(ns, n, side):
    points = np.stack([v.numpy() for v in cn.stratified(n, cn.Key(5, step=3), ns.Float, side**n)])
    cells = np.ravel_multi_index(tuple((points * side).astype(int)), (side,) * n)
    assert sorted(cells) == list(range(side**n))
    moved = np.abs(np.diff((points * side).astype(int), axis=1)).sum(axis=0)
    assert np.median(moved) <= n  # neighbours in number are neighbours in space


def test_means_of_stratified_points(ns):
    def means(draw):
        keys = (cn.Key(1, step=i) for i in range(40))
        return np.array([dr.mean(dr.square(x) * y)[0] for x, y in (draw(2, k, ns.Float, 1000) for k in keys)])

    even, any_ = means(cn.stratified), means(cn.uniform)
    assert abs(even.mean() - 1 / 6) < 4 * even.std() / 40**0.5
    assert even.std() < any_.std() / 5  # also where the number of samples is no power of 2


def test_stratified_arguments(ns):
    for options, words in (
        (dict(stream=2**31), "stream is 2147483648"), (dict(samples=0), "samples is 0"),
        (dict(samples=None), "samples is None"), (dict(samples=2**32), "samples is 4294967296"),
        (dict(n=0), "n is 0"), (dict(n=25), "n is 25; at most 24 dimensions is needed"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^stratified: {words}"):
            cn.stratified(**(dict(n=1, key=cn.Key(3), dtype=ns.Float, samples=4) | options))
    with pytest.raises(TypeError, match=r"^stratified: key is a int; a coopnet\.Key"):
        cn.stratified(1, 3, ns.Float, 4)
    with pytest.raises(TypeError, match=r"^stratified: dtype is .*; a single-precision"):
        cn.stratified(1, cn.Key(3), ns.Float64, 4)
