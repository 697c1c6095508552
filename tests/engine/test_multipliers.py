"""Products in blocks of rows: the same numbers to the bit."""

from __future__ import annotations

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import arrays, evaluated, owned

import coopnet as cn
from coopnet.engine import multipliers
from coopnet.engine.affine import Affine, Weights
from coopnet.engine.strategies import MATRICES, choose
from coopnet.jit.native import core


@pytest.fixture(autouse=True, params=[8, 16], scope="module")
def lanes(request):
    """Processors with AVX2 and with AVX-512: what is in blocks differs, not the numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "llvm_lanes", lambda: request.param)
        yield request.param


def matrix(ns, rows, columns, seed=0, half=False, layout="inference"):
    """A packed matrix, its bias and a vector, for each of 70 samples; a GPU multiplies in half precision alone."""
    rng = np.random.default_rng(seed)
    a, b, x = (rng.standard_normal(s).astype(np.float32) for s in ((rows, columns), (rows, 1), (columns, 70)))
    half = half or dr.backend_v(ns.Float) == dr.JitBackend.CUDA
    tensor, leaf = (ns.TensorXf16, ns.Float16) if half else (ns.TensorXf, ns.Float)
    return *drnn.pack([tensor(a), tensor(b)], layout=layout), drnn.CoopVec(owned([leaf(v) for v in x]))


def numbers(vector):
    components = list(vector)
    dr.eval(components)  # all in one kernel
    return np.stack([v.numpy() for v in components])


# one block, several, none whole, and columns that share lines of the cache or don't
@pytest.mark.parametrize("rows, columns, biased", [
    (1, 1, False), (3, 128, True), (43, 64, False), (128, 64, True), (150, 100, True), (97, 128, False),
])  # fmt: skip
def test_product(backend, ns, rows, columns, biased):
    if backend == "cuda":
        rows, columns = -(-rows // 16) * 16, -(-columns // 16) * 16
    a, b, x = matrix(ns, rows, columns)
    expected = drnn.matvec(a, x, b) if biased else drnn.matvec(a, x)
    assert np.array_equal(numbers(Affine(Weights(a, b)).product(x, biased)), numbers(expected))


@pytest.mark.parametrize("rows, columns, biased", [(1, 1, True), (3, 40, False), (16, 16, True), (37, 23, True)])
def test_unrolled(backend, ns, rows, columns, biased):
    """With every entry in the code, in whole blocks of outputs and in parts; a GPU has another layout."""
    if backend == "cuda":
        pytest.skip("for CPUs")
    a, b, x = matrix(ns, rows, columns)
    y = matrix(ns, columns, rows)[2]
    [op] = multipliers.with_multipliers([Affine(Weights(a, b))], "unrolled", back=True)
    assert isinstance(op.multiplier, multipliers.Unrolled)
    expected = drnn.matvec(a, x, b) if biased else drnn.matvec(a, x)
    assert np.array_equal(numbers(op.product(x, biased)), numbers(expected))
    turned = numbers(op.multiplier.transposed(op, y, columns))
    assert np.array_equal(turned, numbers(drnn.matvec(a, y, transpose=True)))


# too large for the first cache in either precision, or in single only; in few of its sets, or just not
@pytest.mark.parametrize("rows, columns, biased, half", [
    (112, 116, True, False), (150, 180, False, True), (128, 43, True, True), (64, 100, False, False),
    (128, 40, False, False), (7, 12, True, False),
])  # fmt: skip
def test_copies(backend, ns, lanes, rows, columns, biased, half):
    """Of a matrix and of its transpose: with 8 lanes of what does not fit into the first cache, with 16 of columns that
    meet in few of its sets."""
    if backend == "cuda":
        rows, columns = -(-rows // 16) * 16, -(-columns // 16) * 16
    a, b, x = matrix(ns, rows, columns, half=half)
    y = matrix(ns, columns, rows, half=half)[2]
    op = Affine(Weights(a, b))
    [copied] = multipliers.with_multipliers([op], "copies", back=True)
    forth, back = (copied.multiplier.forth, copied.multiplier.back) if copied is not op else (None, None)
    size = 2 if half else 4
    large = rows * columns * size > 48 << 10
    assert (forth is not None) == (backend == "llvm" and lanes == 8 and large and rows >= 16)
    expected = large and columns >= 16 if lanes == 8 else rows % (256 // size) == 0 and columns > 40
    assert (back is not None) == (backend == "llvm" and expected)
    if forth is not None:
        whole = drnn.matvec(a, x, b) if biased else drnn.matvec(a, x)
        assert np.array_equal(numbers(copied.product(x, biased)), numbers(whole))
        assert max(part.shape[1] for part in forth[0]) <= 64
    if back is not None:
        transposed = copied.multiplier.transposed(op, y, columns)
        assert np.array_equal(numbers(transposed), numbers(drnn.matvec(a, y, transpose=True)))


@pytest.mark.parametrize("of", ["rows", "loop", "few", "gradients", "few gradients", "input"])
def test_where_matrices_are_copied(backend, ns, lanes, set_limits, monkeypatch, of):
    """Where many samples are evaluated outside symbolic code; the result is the same."""
    if lanes == 16 and of not in ("rows", "gradients", "input"):
        pytest.skip("such calls copy nothing, whatever the number of lanes: those with 8 show it")
    field = cn.NeuralField(None, cn.MLP(16, 3, width=128, depth=2, bias=True)).build(backend, seed=1)
    made = []
    for name, copy in list(multipliers.COPIES.items()):
        monkeypatch.setitem(multipliers.COPIES, name, lambda *given, copy=copy: made.append(given) or copy(*given))
    samples = 100 if of.startswith("few") else 700
    x = arrays(ns, [np.random.default_rng(i).random(samples) for i in range(16)])
    if of.endswith("gradients"):
        dr.enable_grad(field["network.weights"])
    if of == "input":
        dr.enable_grad(x)
    if of == "loop":
        y, _ = dr.while_loop((ns.ArrayXf([0, 0, 0]), ns.UInt32(0)), lambda _, i: i < 1, lambda _, i: (field(x), i + 1),
                             mode="symbolic")  # fmt: skip
    else:
        y = field(x)
    cpu = backend == "llvm"
    expected = {"rows": 1, "gradients": 2, "input": 2} if lanes == 8 else {"gradients": 1, "input": 1}
    if cpu:  # a GPU copies transposed matrices
        assert len(made) == expected.get(of, 0)
    set_limits(COPIES_SAMPLES=1 << 30)
    assert np.array_equal(y.numpy(), field(x).numpy())


# Columns of 128 meet in eight sets of 64, of 256 in four, of 100 in all.
@pytest.mark.parametrize("columns, expected", [
    (8, {8: 1, 16: 1}), (16, {8: 1, 16: 1}), (100, {8: 1, 16: 1}),
    (64, {8: 1, 16: 5}), (128, {8: 1, 16: 5}), (192, {8: 1, 16: 5}), (256, {8: 7, 16: 5}), (512, {8: 7, 16: 5}),
])  # fmt: skip
def test_blocks_are_alike(backend, ns, lanes, columns, expected):
    a = matrix(ns, 200, columns if backend == "llvm" else max(columns, 16))[0]
    described = multipliers.described(a, transposed=False)
    strategy, parts = choose(MATRICES, described)[0], [a]
    if strategy == "row blocks":
        parts = multipliers._row_blocks(a, described)
    sizes = [part.shape[0] for part in parts]
    assert len(sizes) == (expected[lanes] if backend == "llvm" else 1)
    assert sum(sizes) == 200 and max(sizes) - min(sizes) <= 1


def test_matrices_that_dr_jit_differentiates_are_whole(ns):
    a, _, x = matrix(ns, 200, 256, layout="training")
    dr.enable_grad(a.buffer)
    y = Affine(Weights(a)).product(x)
    assert choose(MATRICES, multipliers.described(a, transposed=False))[0] == "whole"
    dr.backward(sum(list(y), x.type(0)))
    assert np.abs(dr.grad(a.buffer).numpy()).max() > 0


def test_gradients_are_those_of_whole_matrices(backend, ns, set_limits):
    """To the bit, with biases, dropout and the gradient of the input, of a matrix in blocks forth and copied back."""
    found = []
    for whole in (False, True):
        if whole:
            set_limits(ROW_BLOCKS={1: (0, 1)}, COPIES_SAMPLES=1 << 30)
        net = cn.Sequential(cn.Linear(256, 52, bias=True), cn.ReLU(), cn.Dropout(0.2), cn.Linear(52, 3, bias=True))
        field = cn.NeuralField(None, net).build(backend, seed=1)
        x = arrays(ns, np.random.default_rng(0).random((256, 600)))
        dr.enable_grad(x)
        with cn.gradient_path("spill"):
            dr.enable_grad(field["network.weights"])
            y = field(x, cn.Key(3, step=ns.UInt32(5)))
            dr.backward(sum((dr.square(v) for v in y), ns.Float(0)))
        found.append([v.numpy() for v in evaluated(dr.grad([field["network.weights"], *x]))])
    for one, other in zip(*found, strict=True):
        assert np.abs(one).max() > 0 and np.array_equal(one, other)


def test_a_step_goes_forward_once(backend, ns):
    """Copying matrices evaluates what the caller has scheduled: on the way back, that was the loss of all samples."""
    field = cn.NeuralField(None, cn.MLP(3, 1, width=128, depth=2)).build(backend, seed=1)

    def batch(key):
        x = cn.uniform(3, key, ns.Float, 5000)
        return x, [x[0]]

    found = []

    def look(field):
        found.append([k for k in dr.kernel_history((dr.KernelType.JIT,)) if k["size"] == 5000])
        dr.kernel_history_clear()
        return 0.0

    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True), cn.gradient_path("spill"):
        cn.fit(field, batch, 3, metric=look, metric_every=1, progress=False)
    assert len(found[-1]) == 1
