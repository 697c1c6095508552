"""Sums of rows by index."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

from coopnet.kernels import segment_sum
from coopnet.kernels.segment_sum import sort, sum_rows, sum_rows_fixed


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 4096, 4097, 20_000])
@pytest.mark.parametrize("count, width", [(1, 1), (7, 3), (5000, 16)])
@pytest.mark.parametrize("sums", [sum_rows, sum_rows_fixed])
def test_sum_rows(ns, n, count, width, sums):
    """Blocks that are full or not, segments that cross none, one or many, and one pass or several."""
    rng = np.random.default_rng(n)
    rows = rng.integers(-8, 9, (width, n)).astype(np.float32)  # sums are exact
    index = np.minimum(rng.integers(0, count + 1, n) * rng.integers(0, 2, n), count).astype(np.uint32)
    expected = np.zeros((count + 1, width))
    np.add.at(expected, index, rows.T)
    y = sums([ns.Float(v) for v in rows], ns.UInt32(index), count)
    np.testing.assert_array_equal(y.numpy().reshape(count, width), expected[:count])


def test_fixed_sums_keep_small_rows_and_what_is_not_finite(ns):
    rows = np.array([[1e4, 1e-4, np.inf, 2e-4, 1.0, np.nan]], np.float32)
    y = sum_rows_fixed([ns.Float(v) for v in rows], ns.UInt32([0, 1, 2, 1, 0, 4]), 5).numpy()
    np.testing.assert_allclose(y[[0, 1, 3]], [10001, 3e-4, 0], rtol=1e-6)
    assert np.isnan(y[[2, 4]]).all()


@pytest.mark.parametrize("factor", [1e-30, 2**-10, 1e30])
def test_fixed_sums_of_any_size(ns, factor):
    """The unit that they are rounded to follows the largest."""
    rows = np.array([[0.5, -0.25, 0.75, 0]], np.float32) * np.float32(factor)
    y = sum_rows_fixed([ns.Float(v) for v in rows], ns.UInt32([0, 0, 2, 1]), 3).numpy()
    np.testing.assert_array_equal(y, np.array([0.25, 0, 0.75], np.float32) * np.float32(factor))


def test_rows_handed_on(ns, monkeypatch):
    """Two for each block, as many as there are indices."""
    sizes, one_pass = [], segment_sum._pass

    def seen(*arguments):
        handed = one_pass(*arguments)
        if handed is not None:
            sizes.append([dr.width(v) for v in handed])
        return handed

    monkeypatch.setattr(segment_sum, "_pass", seen)
    block = segment_sum._BLOCK[dr.backend_v(ns.Float)]
    sum_rows([ns.Float(1) + dr.zeros(ns.Float, block * block)] * 3, dr.zeros(ns.UInt32, block * block), 1)
    assert sizes[:2] == [[3 * 2 * block, 2 * block], [3 * 4, 4]]


@pytest.mark.parametrize("bound", [0, 1, 2047, 2048, 2**22 + 5, 2**32 - 1])
def test_sort_is_stable(ns, bound):
    index = (np.random.default_rng(0).integers(0, bound, 5000, endpoint=True) // 3 * 3).astype(np.uint32)
    values, order = sort(ns.UInt32(index), bound)
    np.testing.assert_array_equal(order.numpy(), np.argsort(index, kind="stable"))
    np.testing.assert_array_equal(values.numpy(), np.sort(index))


@pytest.mark.parametrize("sum_rows", [sum_rows, sum_rows_fixed])
def test_one_index_for_all_rows_in_a_frozen_function(ns, sum_rows):
    """An index that is a literal is computed by no kernel: it must be one that a replay can read again."""

    @dr.freeze
    def sums(x):
        return sum_rows([x], ns.UInt32(3) + dr.zeros(ns.UInt32, dr.width(x)), 5)

    for k in range(4):
        found = sums(dr.arange(ns.Float, 300) + dr.opaque(ns.Float, k))
        assert np.array_equal(found.numpy(), [0, 0, 0, 300 * 299 / 2 + 300 * k, 0])
