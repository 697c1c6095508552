"""Sparse random projections."""

from __future__ import annotations

import gc
import itertools
import math
import tracemalloc

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import evaluated
from support.kernels import launched
from support.properties import given, settings, st

import coopnet as cn
from coopnet import reference
from coopnet.kernels import sparse_projection
from coopnet.nn import projection

DENSITIES = st.sampled_from([1.0, 1 / 3, 0.1, 2**-8, 2**-31])
#: Sizes on either side of the border between additions and the kernel that loops.
SMALL, LARGE = (7, 10, 1 / 3), (9, 13, 0.7)

DEFAULT_UNROLL = projection.UNROLL


@pytest.fixture(autouse=True)
def small_border(monkeypatch):
    """Kernels of more than 4096 additions would take long to compile."""
    monkeypatch.setattr(projection, "UNROLL", 30)


def kinds(ns, x, coop=True):
    """The same input in every container."""
    leaf = {np.float16: ns.Float16, np.float32: ns.Float, np.float64: ns.Float64}[x.dtype.type]
    tensor = {np.float16: ns.TensorXf16, np.float32: ns.TensorXf, np.float64: ns.TensorXf64}[x.dtype.type]
    nested = {np.float16: ns.ArrayXf16, np.float32: ns.ArrayXf, np.float64: ns.ArrayXf64}[x.dtype.type]
    parts = [leaf(row) for row in x]
    result = {"NumPy": x, "tensor": tensor(x), "nested": nested(parts), "list": parts, "tuple": tuple(parts)}
    if coop:
        result["CoopVec"] = drnn.CoopVec(parts)
    return result


def numpy(y):
    if isinstance(y, np.ndarray):
        return y
    if isinstance(y, (drnn.CoopVec, list, tuple)):
        n = max(dr.width(v) for v in y)
        return np.stack([np.broadcast_to(v.numpy(), n) for v in evaluated(list(y))])
    return y.numpy()


def coop_types(backend):
    """Types that cooperative vectors can have."""
    return (np.float16,) if backend == "cuda" else (np.float16, np.float32)


# ---- The matrix ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_matrix_to_the_bit(ns, backend, size, dtype):
    """The image of the unit vectors, by every kind of input and both ways, is the matrix itself."""
    n_in, n_out, density = size
    layer = cn.SparseProjection(n_in, n_out, density, seed=2**63 + 5)
    exact = reference.sparse_projection_matrix(n_in, n_out, density, 2**63 + 5)
    expected = exact.astype(dtype)
    np.testing.assert_array_equal(layer.dense(dtype), expected)
    for name, x in kinds(ns, np.eye(n_in, dtype=dtype), dtype in coop_types(backend)).items():
        y = layer(x)
        assert type(y) is type(x), name
        np.testing.assert_array_equal(numpy(y), expected, err_msg=name)
    for name, y in kinds(ns, np.eye(n_out, dtype=dtype), dtype in coop_types(backend)).items():
        np.testing.assert_array_equal(numpy(layer.transpose(y)), expected.T, err_msg=name)


@settings(max_examples=12)  # every shape is a kernel
@given(
    n_in=st.integers(1, 40),
    n_out=st.integers(1, 40),
    density=DENSITIES,
    seed=st.integers(0, 2**64 - 1),
    n=st.sampled_from([1, 2, 9]),
)
def test_agrees_with_the_reference(backend, ns, n_in, n_out, density, seed, n):
    if backend == "cuda":
        n_out, density, n = 4, 1 / 3, 2  # few kernels to compile
    x = np.random.default_rng(0).standard_normal((n_in, n)).astype(np.float32)
    layer = cn.SparseProjection(n_in, n_out, density, seed)
    np.testing.assert_allclose(
        layer.dense(np.float64), reference.sparse_projection_matrix(n_in, n_out, density, seed), rtol=1e-15
    )
    expected = reference.sparse_projection(x, n_out, density, seed)
    bound = 1e-6 * (1 + np.abs(layer.dense(np.float64)) @ np.abs(x))
    for value in (x, ns.TensorXf(x)):
        y = numpy(layer(value))
        assert y.shape == expected.shape and (np.abs(y - expected) <= bound).all()
        back = numpy(layer.transpose(layer(value)))
        reference_back = reference.sparse_projection(y, n_out, density, seed, in_features=n_in)
        assert (np.abs(back - reference_back) <= 1e-6 * (1 + np.abs(layer.dense()).T @ np.abs(y))).all()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_half_precision_is_summed_in_single(ns, size):
    n_in, n_out, density = size
    x = np.random.default_rng(0).standard_normal((n_in, 20)).astype(np.float16)
    layer = cn.SparseProjection(n_in, n_out, density, 3)
    expected = reference.sparse_projection(x, n_out, density, 3)
    for name, value in kinds(ns, x).items():
        np.testing.assert_allclose(numpy(layer(value)), expected, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("block", [1, 26, 60, 10**6])
def test_the_matrix_is_made_in_blocks(ns, monkeypatch, block):
    """On the host a large one is made column by column, or some columns at a time; the last block is not full."""
    n_in, n_out, density = 9, 13, 0.4
    monkeypatch.setattr(sparse_projection, "BLOCK", block)
    monkeypatch.setattr(projection, "UNROLL", 10**6)
    sparse_projection._entries.cache_clear()
    layer = cn.SparseProjection(n_in, n_out, density, 11)
    exact = reference.sparse_projection_matrix(n_in, n_out, density, 11)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n_in, 4)), rng.standard_normal((n_out, 4))
    np.testing.assert_allclose(layer(x), exact @ x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(layer.transpose(y), exact.T @ y, rtol=1e-12, atol=1e-12)
    parts = [ns.Float(v) for v in x.astype(np.float32)]
    np.testing.assert_allclose(numpy(layer(parts)), exact @ x, rtol=1e-5, atol=1e-5)
    sparse_projection._entries.cache_clear()


def test_arrays_of_numpy_are_not_copied(monkeypatch):
    """What is wide enough is read where it is; a block of the matrix exists at a time."""
    monkeypatch.setattr(sparse_projection, "BLOCK", 1 << 10)
    x = np.ones((2000, 500), np.float32)
    tracemalloc.start()
    cn.SparseProjection(2000, 4, density=0.5)(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 2


def test_entries_are_distributed_as_stated():
    """Each sign has half the density; neither neighbours nor seeds are correlated."""
    n_in, n_out, density = 1000, 200, 0.2
    signs = [cn.SparseProjection(n_in, n_out, density, s).dense() * math.sqrt(density * n_out) for s in (1, 2)]
    n = signs[0].size
    for sign in (-1, 1):
        count = np.count_nonzero(np.round(signs[0]) == sign)
        assert abs(count - n * density / 2) < 5 * math.sqrt(n * density / 2)
    a = signs[0]
    for u, v in ((a[1:], a[:-1]), (a[4:], a[:-4]), (a[:, 1:], a[:, :-1]), (signs[0], signs[1])):
        for f in (np.asarray, np.abs):
            r = np.corrcoef(f(u).ravel(), f(v).ravel())[0, 1]
            assert abs(r) * math.sqrt(u.size) < 5


def test_a_dropout_of_the_same_seed_draws_other_words():
    """The matrix and the masks of one seed have no counter in common, unless a dropout takes the last stream."""
    n = 128
    nonzero = cn.SparseProjection(n, n, 0.5, 7).dense() != 0
    dropped = ~cn.dropout_mask(n, 0.5, cn.Key(7, np.arange(n)), bits=32)
    assert abs(np.corrcoef(nonzero.ravel(), dropped.ravel())[0, 1]) < 5 / n


# ---- What it is for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("density", [1.0, 1 / 3])
def test_distances_are_preserved_within_the_bound_of_the_lemma(ns, density):
    """Achlioptas 2003, theorem 1.1, at beta = 1: all squared distances within 1 +- epsilon, with probability 1 - 1/n.

    Points on a curve and ones with few nonzero coordinates, which a sparse matrix might miss.
    """
    n, n_in, epsilon = 24, 1000, 0.5
    n_out = math.ceil(6 / (epsilon**2 / 2 - epsilon**3 / 3) * math.log(n))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n_in, n)).astype(np.float32)
    x[:, n // 2 :] *= rng.random((n_in, n // 2)) < 0.02
    y = cn.SparseProjection(n_in, n_out, density, seed=4)(ns.TensorXf(x)).numpy()
    pairs = list(itertools.combinations(range(n), 2))
    ratios = [((y[:, i] - y[:, j]) ** 2).sum() / ((x[:, i] - x[:, j]) ** 2).sum() for i, j in pairs]
    assert 1 - epsilon < min(ratios) and max(ratios) < 1 + epsilon
    # not because everything is mapped to the same length: the spread is that of n_out terms
    assert 0.3 < np.std(ratios) / math.sqrt(2 / n_out) < 3


def test_lengths_are_kept_in_the_mean():
    """Over seeds; the density that cannot be represented by 31 bits is corrected for."""
    x = np.random.default_rng(1).standard_normal((60, 1))
    for density in (0.3, 3 * 2**-33):
        if density > 0.1:
            lengths = [(cn.SparseProjection(60, 16, density, s)(x) ** 2).sum() for s in range(300)]
            error = np.std(lengths) / math.sqrt(len(lengths))
            assert abs(np.mean(lengths) - (x**2).sum()) < 5 * error
        else:  # rounds to 1 in 2^31
            assert sparse_projection.Signs(60, 16, density, 0).scale == math.sqrt(2**31 / 16)


# ---- Derivatives ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_are_those_of_the_matrix(ns, backend, size, transposed):
    n_in, n_out, density = size
    layer = cn.SparseProjection(n_in, n_out, density, 3)
    matrix = layer.dense(np.float64).T if transposed else layer.dense(np.float64)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((matrix.shape[1], 11)).astype(np.float32)
    dy = rng.standard_normal((matrix.shape[0], 11)).astype(np.float32)
    f = layer.transpose if transposed else layer
    for name, value in kinds(ns, x, backend == "llvm").items():
        if name in ("NumPy", "tuple", "list" if backend == "cuda" else ""):
            continue
        parts = list(value) if name in ("list", "CoopVec") else value
        dr.enable_grad(parts)
        y = f(drnn.CoopVec(parts) if name == "CoopVec" else parts)
        outputs = list(y) if name in ("list", "CoopVec") else y
        weights = [ns.Float(row) for row in dy] if isinstance(outputs, list) else type(outputs)(dy)
        loss = (
            sum(dr.dot(a, b) for a, b in zip(outputs, weights, strict=True))
            if isinstance(outputs, list)
            else outputs * weights
        )
        dr.backward(dr.sum(loss, axis=None) if not isinstance(outputs, list) else loss)
        gradient = numpy([dr.grad(v) for v in parts]) if isinstance(parts, list) else dr.grad(parts).numpy()
        np.testing.assert_allclose(gradient, matrix.T @ dy, rtol=1e-5, atol=1e-5, err_msg=name)

        tangents = kinds(ns, np.ascontiguousarray(x[::-1]), False)["list" if isinstance(parts, list) else name]
        value = kinds(ns, x, False)["list" if isinstance(parts, list) else name]
        dr.enable_grad(value)
        dr.set_grad(value, tangents)
        y = f(drnn.CoopVec(value) if name == "CoopVec" else value)
        outputs = list(y) if name in ("list", "CoopVec") else y
        dr.forward_to(outputs)
        forward = numpy([dr.grad(v) for v in outputs]) if isinstance(outputs, list) else dr.grad(outputs).numpy()
        np.testing.assert_allclose(forward, matrix @ x[::-1], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_numbers_shared_by_all_samples(ns, size):
    """An array of one entry stands for all samples, and its gradient is the sum over them."""
    n_in, n_out, density = size
    layer = cn.SparseProjection(n_in, n_out, density, 3)
    x = [ns.Float([1, 2, 3]), *(ns.Float(0.5 + i) for i in range(n_in - 1))]
    dr.enable_grad(x)
    y = layer(x)
    full = np.stack([np.broadcast_to(v.numpy(), 3) for v in x])
    np.testing.assert_allclose(numpy(y), layer.dense() @ full, rtol=1e-4, atol=1e-5)
    dr.backward(sum(dr.sum(v) for v in y))
    expected = layer.dense().sum(axis=0)
    found = [v.numpy() for v in evaluated(dr.grad(x))]
    np.testing.assert_allclose(found[0], np.full(3, expected[0]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.concatenate(found[1:]), 3 * expected[1:], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_rows_and_of_a_flat_array_are_the_same(ns, transposed):
    signs = sparse_projection.Signs(6, 9, 0.5, 2, transposed)
    assert (signs.adjoint.rows, signs.adjoint.depth) == (signs.depth, signs.rows)
    x = np.random.default_rng(0).standard_normal((signs.depth, 11)).astype(np.float32)
    flat = sparse_projection.product(signs, ns.Float(x.ravel()), 11).numpy().reshape(-1, 11)
    np.testing.assert_array_equal(numpy(sparse_projection.product(signs, [ns.Float(v) for v in x], 11)), flat)
    np.testing.assert_allclose(flat, sparse_projection.product_on_host(signs, x), rtol=1e-5, atol=1e-6)


# ---- Where it runs -------------------------------------------------------------------------------------------


def peak(ns, backend, f):
    """Bytes that the backend holds at most while ``f`` runs, beyond those it held before."""
    flag = dr.JitBackend.LLVM if backend == "llvm" else dr.JitBackend.CUDA
    gc.collect()  # what other tests left behind
    dr.flush_malloc_cache()  # the watermark counts what is kept for later, too
    dr.sync_thread()
    dr.detail.malloc_clear_statistics()
    marker = dr.opaque(ns.Float, 0, 1)
    before = dr.detail.malloc_watermark(flag)
    f()
    dr.sync_thread()
    del marker
    return dr.detail.malloc_watermark(flag) - before


def test_no_matrix_is_allocated(ns, backend):
    """1 MB of input and 256 KB of output, beside which a matrix of 64 MB would show."""
    n_in, n_out, n = 8192, 2048, 32
    layer = cn.SparseProjection(n_in, n_out, 1 / 64, 5)
    x = ns.TensorXf(dr.opaque(ns.Float, 1, n_in * n), (n_in, n))
    dr.eval(x)

    def there_and_back():
        y = layer(x)
        dr.eval(y)
        dr.eval(layer.transpose(y))

    there_and_back()
    matrix, results = 4 * n_in * n_out, 4 * n * (n_in + n_out)
    assert results <= peak(ns, backend, there_and_back) <= 2 * results  # allocators round up
    assert peak(ns, backend, lambda: dr.eval(dr.opaque(ns.Float, 1, n_in * n_out))) >= matrix  # it does see one


def test_another_seed_compiles_nothing(ns, backend):
    def run(seed, n):
        x = ns.TensorXf(dr.opaque(ns.Float, 1, 40 * n), (40, n))
        dr.eval(cn.SparseProjection(40, 24, 0.5, seed)(x))

    run(1, 32)
    with launched() as kernels:
        run(2, 32)
    assert kernels and all(k["cache_hit"] for k in kernels)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_in_a_frozen_function(ns, size):
    n_in, n_out, density = size
    layer = cn.SparseProjection(n_in, n_out, density, 1)

    @dr.freeze
    def f(x):
        return layer(x)

    @dr.freeze
    def g(x):
        return layer(x)

    for n in (6, 6, 40, 13):
        x = ns.TensorXf(dr.arange(ns.Float, n_in * n) * 1e-3 + 1e-3, (n_in, n))
        np.testing.assert_allclose(f(x).numpy(), layer.dense() @ x.numpy(), rtol=1e-4, atol=1e-4)
        parts = [dr.arange(ns.Float, n) * 1e-3 + i for i in range(n_in)]
        np.testing.assert_allclose(numpy(g(parts)), layer.dense() @ numpy(parts), rtol=1e-4, atol=1e-3)


def test_in_a_symbolic_loop(ns):
    """Small projections are additions in the caller's kernel; large ones say why they cannot be."""
    layer = cn.SparseProjection(3, 3, 0.9, 8)

    def run(layer, x):
        return dr.while_loop((ns.UInt32(0), x), lambda i, x: i < 3, lambda i, x: (i + 1, layer(x)), mode="symbolic")[1]

    x = np.random.default_rng(0).standard_normal((3, 10)).astype(np.float32)
    expected = np.linalg.matrix_power(layer.dense(np.float64), 3) @ x
    np.testing.assert_allclose(numpy(run(layer, ns.ArrayXf(x))), expected, rtol=1e-5, atol=1e-5)
    wide = cn.SparseProjection(7, 7, 1.0)
    with pytest.raises(RuntimeError) as info:
        run(wide, [ns.Float([1, 2]) for _ in range(7)])
    assert "more than 30 nonzero entries go through memory" in str(info.value.__cause__)


def test_as_encoding_of_a_field(ns, backend):
    """Its width is inferred, it has no parameters, and gradients reach the coordinates and the weights behind it."""
    layer = cn.SparseProjection(out_features=16, density=0.5, seed=2)
    assert cn.Sequential(layer, cn.Linear(-1, 2)).alloc(ns.TensorXf, 5).layers[0].in_features == 5
    field = cn.NeuralField(layer, cn.MLP(out_features=2, width=16, depth=1), in_features=5).build(backend)
    assert list(field) == ["network.weights"]
    weights = field["network.weights"]
    dr.enable_grad(weights)
    x = [ns.Float([0.1, 0.2, 0.3]) + i for i in range(5)]
    dr.enable_grad(x)
    y = field(x)
    assert len(y) == 2
    dr.backward(dr.sum(y * y))
    assert np.any(dr.grad(weights).numpy() != 0) and any(np.any(dr.grad(v).numpy() != 0) for v in x)


def test_survives_a_checkpoint(ns, backend, tmp_path):
    pytest.importorskip("safetensors")
    layer = cn.SparseProjection(5, 8, 0.3, 2**64 - 1)
    field = cn.NeuralField(layer, cn.MLP(out_features=2, width=8, depth=1)).build(backend)
    cn.save(tmp_path / "field.safetensors", field)
    loaded = cn.load(tmp_path / "field.safetensors", backend=backend)
    assert repr(loaded.encoding) == repr(layer)
    x = [ns.Float([0.1, 0.2]) + i for i in range(5)]
    np.testing.assert_array_equal(loaded(x).numpy(), field(x).numpy())


# ---- Errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, words",
    [
        (dict(in_features=0), "in_features is 0"),
        (dict(out_features=-1), "out_features is -1"),
        (dict(out_features=True), "out_features is True"),
        (dict(density=0), "density is 0"),
        (dict(density=1.5), "density is 1.5"),
        (dict(density=math.nan), "density is nan"),
        (dict(seed=-1), "seed is -1"),
        (dict(seed=2**64), "seed is 18446744073709551616"),
        (dict(seed=1.0), "seed is 1.0"),
    ],
)
def test_errors_of_the_constructor(arguments, words):
    with pytest.raises(ValueError, match="SparseProjection: ") as info:
        cn.SparseProjection(**arguments)
    assert words in str(info.value)


def test_the_border_is_as_documented():
    text = projection.SparseProjection.__doc__
    assert f"up to {DEFAULT_UNROLL} expected" in text and f"applies them to {sparse_projection.TILE} samples" in text


def test_errors_of_calls(ns):
    layer = cn.SparseProjection(3, 2)
    x = ns.TensorXf(np.ones((4, 5), np.float32))
    with pytest.raises(ValueError, match="the input has 4 features, but the projection takes 3"):
        layer(x)
    with pytest.raises(ValueError, match="the input has 4 features, but the projection takes 2"):
        layer.transpose(x)
    with pytest.raises(ValueError, match=r"SparseProjection\.transpose: in_features is -1"):
        cn.SparseProjection().transpose(x)
    with pytest.raises(ValueError, match=r"SparseProjection\.dense: in_features is -1"):
        cn.SparseProjection().dense()
    with pytest.raises(ValueError, match="accepted are float32 and float64"):
        layer.dense(np.float16)
    with pytest.raises(TypeError, match="a floating point type is needed"):
        layer(np.ones((3, 2), int))
    with pytest.raises(ValueError, match="in_features is 3, but the input has 4"):
        layer.alloc(ns.TensorXf, 4)
    assert cn.SparseProjection(out_features=2)(x).shape == (2, 5)  # the width of the input, if none is stated
