"""Memory that is not asked to be zero may hold anything: where all of it is NaN, results are the same."""

from __future__ import annotations

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import evaluated

import coopnet as cn
from coopnet.kernels.segment_sum import sum_rows
from coopnet.nn import projection
from coopnet.random import draws


@pytest.fixture
def compare(monkeypatch):
    """Runs a function of no arguments that returns a NumPy array, as it is and with garbage in new memory."""

    def run(function):
        expected = function()
        made = []

        def garbage(tp, shape):
            made.append(shape)
            bad = dr.nan if dr.is_float_v(tp) else 0xDEAD
            return dr.opaque(tp, bad, shape)

        with monkeypatch.context() as patch:
            patch.setattr(dr, "empty", garbage)
            got = function()
        assert np.isfinite(expected).all()
        np.testing.assert_array_equal(got, expected)
        return made

    return run


@pytest.mark.parametrize("memory", [None, 2**18])  # in one piece, and in chunks
@pytest.mark.parametrize("samples", [2048, 3001])  # partial products of equal lengths, and not
@pytest.mark.parametrize("path", ["spill", "store"])
def test_spilled_gradients(ns, backend, set_limits, compare, path, samples, memory):
    if memory:
        set_limits(KEPT_BYTES=memory // 2 if backend == "cuda" else memory)  # of numbers of that size
    net = cn.MLP(3, 2, width=8, depth=1, bias=True, dropout=0.2)
    leaf = ns.Float16 if backend == "cuda" else ns.Float
    net = drnn.pack(net.alloc(dr.tensor_t(leaf), 3), layout="training")
    x = [leaf(ns.Float(v)) for v in np.random.default_rng(0).random((3, samples))]
    dr.eval(x)

    def gradients():
        buffer, xs = net["weights"], [leaf(v) for v in x]
        dr.disable_grad(buffer)
        dr.enable_grad(buffer, xs)
        with cn.gradient_path(path):
            y = list(net(drnn.CoopVec(xs), cn.Key(1)))
            dr.backward(y[0] + y[1] * 0.5)
        return np.concatenate([v.numpy().astype(np.float64) for v in evaluated(dr.grad([buffer, *xs]))])

    made = compare(gradients)
    assert any(n > 1000 for n in made) == (memory is not None or samples == 2048)  # the results of products are short


@pytest.mark.parametrize("n", [1, 63, 64, 65, 5000])
def test_sums_of_rows(ns, compare, n):
    rng = np.random.default_rng(n)
    rows, ids = rng.random((3, n)).astype(np.float32), rng.integers(0, 9, n).astype(np.uint32)
    assert compare(lambda: sum_rows([ns.Float(v) for v in rows], ns.UInt32(ids), 8).numpy())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("samples", [1, 7, 8, 11])
def test_projections(ns, monkeypatch, compare, samples, transposed):
    monkeypatch.setattr(projection, "UNROLL", 1)
    layer = cn.SparseProjection(6, 9, 0.5, 2)
    f = layer.transpose if transposed else layer
    x = np.random.default_rng(0).random((9 if transposed else 6, samples)).astype(np.float32)
    assert compare(lambda: f(ns.TensorXf(x)).numpy())
    assert compare(lambda: np.stack([v.numpy() for v in f([ns.Float(v) for v in x])]))


@pytest.mark.parametrize("layer", [cn.Dropout(0.3), cn.Dropout(0.3, bits=8), cn.DropPath(0.3)])
@pytest.mark.parametrize("shape", [(37, 48), (16, 7), (3, 5)])
def test_dropout_of_tensors(ns, monkeypatch, compare, layer, shape):
    monkeypatch.setattr(draws, "LARGE", 1)
    x = ns.TensorXf(np.random.default_rng(0).random(shape).astype(np.float32))
    dr.eval(x)
    assert compare(lambda: layer(x, cn.Key(4)).numpy())
