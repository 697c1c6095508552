"""Products over samples by NumPy's BLAS: in slices, in pieces, on one thread each."""

from __future__ import annotations

import numpy as np
import pytest

from coopnet.engine import products as blas
from coopnet.jit import openblas
from coopnet.jit.pool import parallel


@pytest.fixture
def threads(monkeypatch):
    """Numbers of threads that BLAS was told to use, and those that Dr.Jit has."""
    told = []

    class Drjit:
        @staticmethod
        def thread_count():
            return 3

    monkeypatch.setattr(openblas, "_controls", lambda: (lambda: 7, told.append))
    monkeypatch.setattr(blas, "dr", Drjit)
    return told


@pytest.mark.parametrize("samples", [1, 5, 4095, 4096, 8192, 16_384, 30_001])
def test_products(threads, monkeypatch, samples):
    """Whatever slices and pieces there are; slices are what threads take."""
    counts = []
    monkeypatch.setattr(blas, "LEAST", 1 << 12)
    monkeypatch.setattr(blas, "parallel", lambda work, count: counts.append(count) or parallel(work, count))
    a, b = (np.random.default_rng(i).random((samples, n), np.float32) for i, n in enumerate((3, 5)))
    found = blas.product(a, b)
    assert found.shape == (3, 5) and found.dtype == np.float32
    np.testing.assert_allclose(found, a.T.astype(np.float64) @ b, rtol=3e-7 * min(samples, 8))
    assert threads == [1, 7]  # one at a time, and then as before
    assert counts == [max(1, min(3, samples >> 12))]


def test_pieces_are_added_up_in_double_precision(threads):
    """In single precision, 2^24 + 1 is 2^24 however often it is done."""
    a = np.zeros((4 * blas.PIECE, 1), np.float32)
    a[:: blas.PIECE, 0] = [4096, 1, 1, 1]
    assert blas.product(a, a)[0, 0] == np.float32(2**24 + 3) > 2**24


def test_infinities_are_left_to_the_caller(threads, recwarn):
    a = np.array([[np.inf], [1], [-np.inf]], np.float32)
    assert np.isnan(blas.product(a, np.ones((3, 1), np.float32)))
    assert not recwarn.list


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (64, 64), (1, 17)])
def test_results_are_aligned(shape):
    values = np.random.default_rng(0).random(shape)
    keep = [blas._aligned(values, np.dtype(np.float32)) for _ in range(20)]
    for found in keep:
        assert found.ctypes.data % 64 == 0 and found.flags.c_contiguous
        np.testing.assert_array_equal(found, values.astype(np.float32))
