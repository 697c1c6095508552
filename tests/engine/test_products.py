"""Products over samples by NumPy's BLAS: in slices, in pieces, on one thread each."""

from __future__ import annotations

import numpy as np
import pytest

from coopnet.engine import limits
from coopnet.engine import products as blas
from coopnet.jit.native import openblas
from coopnet.jit.native.pool import parallel


@pytest.fixture
def threads(monkeypatch):
    """Numbers of threads that BLAS was told to use, and of slices that Dr.Jit's three threads were given."""
    told, counts = [], []

    class Drjit:
        @staticmethod
        def thread_count():
            return 3

    monkeypatch.setattr(openblas, "_controls", lambda: (lambda: 7, told.append))
    monkeypatch.setattr(blas, "dr", Drjit)
    monkeypatch.setattr(blas, "parallel", lambda work, count: counts.append(count) or parallel(work, count))
    return told, counts


@pytest.mark.parametrize("columns", [(3, 5), (5, 3), (3, 1), (5, 16)])
@pytest.mark.parametrize("samples", [1, 5, 4095, 4096, 8192, 16_384, 30_001])
def test_products(threads, set_limits, samples, columns):
    """Whatever slices and pieces there are; slices are what threads take. Few columns take as long as 16."""
    told, counts = threads
    set_limits(SLICE_MULTIPLICATIONS=16 * 16 << 12)  # of 4,096 samples
    a, b = (np.random.default_rng(i).random((samples, n), np.float32) for i, n in enumerate(columns))
    (found,) = blas.blas([(a, b)])
    assert found.shape == columns and found.dtype == np.float64
    np.testing.assert_allclose(found, a.T.astype(np.float64) @ b, rtol=3e-7 * min(samples, 8))
    assert told == [1, 7]  # one at a time, and then as before
    slices = max(1, min(3, samples >> 12))
    assert counts == ([slices] if samples >= 4096 else [])  # little work is not worth another thread


def test_products_share_threads(threads, set_limits):
    """Slices of all products side by side; each comes out as by itself."""
    _, counts = threads
    set_limits(SLICE_MULTIPLICATIONS=16 * 16 << 12)
    rng = np.random.default_rng(0)
    shapes = [(5000, 3, 5), (9000, 16, 32), (100, 4, 4), (20_000, 2, 2)]
    pairs = [(rng.random((n, i), np.float32), rng.random((n, j), np.float32)) for n, i, j in shapes]
    found = blas.blas(pairs)
    assert counts == [1 + 3 + 1 + 3] and len(found) == 4
    for product, pair in zip(found, pairs, strict=True):
        assert np.array_equal(product, blas.blas([pair])[0])
    assert blas.blas([]) == []


def test_pieces_are_added_up_in_double_precision(threads):
    """In single precision, 2^24 + 1 is 2^24 however often it is done."""
    a = np.zeros((4 * limits.BLAS_SAMPLES, 1), np.float32)
    a[:: limits.BLAS_SAMPLES, 0] = [4096, 1, 1, 1]
    assert blas.blas([(a, a)])[0][0, 0] == 2**24 + 3


def test_infinities_are_left_to_the_caller(threads, recwarn):
    a = np.array([[np.inf], [1], [-np.inf]], np.float32)
    assert np.isnan(blas.blas([(a, np.ones((3, 1), np.float32))])[0])
    assert not recwarn.list


@pytest.mark.parametrize("pieces", [1, 2, 6])
def test_parts_are_added_up(ns, pieces):
    """Of matrices that a layer's rows and columns are padded to, as libraries return them."""
    parts = np.random.default_rng(0).integers(-4, 5, (pieces, 8, 16)).astype(np.float32)
    found = blas._sum(ns.Float(parts.ravel()), 8 * 16)
    np.testing.assert_array_equal(found.numpy(), parts.sum(axis=0).ravel())
