"""Tensors in memory, which are dropped out block by block rather than element by element."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

import coopnet as cn
from coopnet import reference as ref
from coopnet.random import draws

SHAPE = (37, 48)  # the last block of a column is not full


@pytest.fixture(autouse=True)
def every_tensor_is_large(monkeypatch):
    monkeypatch.setattr(draws, "LARGE", 1)


@pytest.fixture
def blocks(monkeypatch):
    """Calls of what makes blocks."""
    calls = []
    function = draws._in_memory
    monkeypatch.setattr(draws, "_in_memory", lambda *a: calls.append(1) or function(*a))
    return calls


def tensor(ns, x, half=False):
    """``x`` in memory of Dr.Jit's own, which dr.freeze needs."""
    leaf = ns.Float16 if half else ns.Float
    result = dr.tensor_t(leaf)(leaf(np.ascontiguousarray(x).ravel()) * dr.opaque(leaf, 1), x.shape)
    dr.make_opaque(result)
    return result


def numbers(shape=SHAPE, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_every_shape(backend, ns, bits, blocks):
    """Rows around the ends of blocks; numbers of columns that packets divide, and that they don't."""
    shapes = [(37, 48), (37, 47)]
    if backend == "llvm":  # every shape is a kernel
        shapes = (
            [(37, c) for c in (48, 47, 6, 4, 1)] + [(1, 47), (5, 48), (16, 47)]
            if bits == 16
            else [*shapes, (16, 6), (5, 1)]
        )
    for r, c in shapes:
        x = numbers((r, c))
        y = cn.dropout(tensor(ns, x), 0.3, cn.Key(2**40 + 5, step=2), stream=3, bits=bits)
        expected = ref.dropout(x, 0.3, 2**40 + 5, None, 2, 3, bits)
        np.testing.assert_array_equal(y.numpy(), expected, err_msg=f"{r} x {c}")
        assert blocks
        blocks.clear()


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_types(ns, dtype, blocks):
    x = numbers(dtype=dtype)
    leaf = {np.float16: ns.Float16, np.float64: ns.Float64}[dtype]
    given = dr.tensor_t(leaf)(leaf(x.ravel()) * dr.opaque(leaf, 1), x.shape)
    dr.make_opaque(given)
    y = cn.dropout(given, 0.3, cn.Key(5))
    assert blocks and type(y) is type(given)
    np.testing.assert_array_equal(y.numpy(), ref.dropout(x, 0.3, 5))


@pytest.mark.parametrize("columns", [48, 47])
def test_index_and_step_per_sample(ns, columns, blocks):
    x = numbers((37, columns))
    index, step = np.random.default_rng(1).integers(0, 2**32, (2, columns), dtype=np.uint32)
    y = cn.dropout(tensor(ns, x), 0.3, cn.Key(5, ns.UInt32(index), ns.UInt32(step)))
    np.testing.assert_array_equal(y.numpy(), ref.dropout(x, 0.3, 5, index, step))
    y = cn.dropout(tensor(ns, x), 0.3, cn.Key(5, 11))
    np.testing.assert_array_equal(y.numpy(), ref.dropout(x, 0.3, 5, np.full(columns, 11)))
    assert len(blocks) == 2
    with pytest.raises(ValueError, match="index has 3 entries"):
        cn.dropout(tensor(ns, x), 0.3, cn.Key(5, ns.UInt32([1, 2, 3])))


def test_memory_of_the_output_alone(backend, ns, monkeypatch):
    monkeypatch.setattr(draws, "LARGE", 1 << 16)
    x = dr.full(ns.TensorXf, 1, (64, 1 << 12))
    dr.make_opaque(x)
    key = cn.Key(1).traced(ns.UInt32)
    dr.eval(cn.dropout(x, 0.3, key))  # brings the key's words to the device
    dr.sync_thread()
    dr.flush_malloc_cache()
    dr.detail.malloc_clear_statistics()
    which = dr.JitBackend.LLVM if backend == "llvm" else dr.JitBackend.CUDA
    before = dr.detail.malloc_watermark(which)
    y = cn.dropout(x, 0.3, key)
    dr.eval(y)
    dr.sync_thread()
    assert dr.detail.malloc_watermark(which) - before <= 4 * (64 << 12) + (1 << 12)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("half", [False, True])
def test_gradient_and_tangent(ns, half, stored, blocks):
    """Of a gradient in memory, and of one that is an expression."""
    dtype = np.float16 if half else np.float32
    x, d = numbers(dtype=dtype), numbers(seed=1, dtype=dtype)
    expected = ref.dropout(d, 0.3, 5)
    tiny = float(np.finfo(np.float16).tiny) if half else 0
    X, D = tensor(ns, x, half), tensor(ns, d, half)
    dr.enable_grad(X)
    y = cn.dropout(X, 0.3, cn.Key(5))
    np.testing.assert_array_equal(y.numpy(), ref.dropout(x, 0.3, 5))
    before = len(blocks)
    assert before
    if stored:
        dr.set_grad(y, D)
        dr.enqueue(dr.ADMode.Backward, y)
        dr.traverse(dr.ADMode.Backward)
        assert len(blocks) > before
    else:
        dr.backward(y.array * D.array)
    np.testing.assert_allclose(dr.grad(X).numpy(), expected, rtol=0, atol=tiny)
    X = tensor(ns, x, half)
    dr.enable_grad(X)
    y = cn.dropout(X, 0.3, cn.Key(5))
    dr.set_grad(X, D)
    np.testing.assert_array_equal(dr.forward_to(y).numpy(), expected)


def test_gradient_of_a_sum(ns):
    """Its gradient is one number for all elements."""
    X = tensor(ns, numbers())
    dr.enable_grad(X)
    dr.backward(cn.dropout(X, 0.3, cn.Key(5)).array)
    np.testing.assert_array_equal(dr.grad(X).numpy(), ref.dropout(np.ones(SHAPE, np.float32), 0.3, 5))


def test_expressions_stay_part_of_their_kernel(ns, blocks):
    X = tensor(ns, numbers())
    cn.dropout(X * 2, 0.3, cn.Key(1))
    cn.dropout(dr.full(ns.TensorXf, 1, SHAPE), 0.3, cn.Key(1))
    assert not blocks
    y = cn.dropout(cn.dropout(X, 0.3, cn.Key(1)), 0.3, cn.Key(2))  # the inner result will be in memory anyway
    assert len(blocks) == 2
    expected = ref.dropout(ref.dropout(numbers(), 0.3, 1), 0.3, 2)
    np.testing.assert_array_equal(y.numpy(), expected)


def test_small_tensors_stay_part_of_their_kernel(ns, blocks, monkeypatch):
    monkeypatch.setattr(draws, "LARGE", 37 * 48 + 1)
    cn.dropout(tensor(ns, numbers()), 0.3, cn.Key(1))
    assert not blocks


@pytest.mark.parametrize("mode", ["symbolic", "evaluated"])
def test_loops(ns, mode, blocks):
    x = numbers()
    X = tensor(ns, x)

    def turn(i, total):
        return i + 1, total + cn.dropout(X, 0.3, cn.Key(5, step=i)).array

    state = (ns.UInt32(0), dr.zeros(ns.Float, x.size))
    _, total = dr.while_loop(state, lambda i, total: i < 3, turn, mode=mode)
    assert bool(blocks) == (mode == "evaluated")
    expected = sum(ref.dropout(x, 0.3, 5, None, step) for step in range(3))
    np.testing.assert_allclose(total.numpy().reshape(SHAPE), expected, rtol=1e-6)


def test_frozen(ns, blocks):
    @dr.freeze
    def step(x, dy, seed):
        dr.enable_grad(x)
        y = cn.dropout(x, 0.3, cn.Key(seed))
        dr.backward(y.array * dy.array)
        return dr.detach(y), dr.grad(x)

    for columns, recordings in ((48, 1), (24, 2)):
        for seed in (3, 4, 2**33):
            x, dy = numbers((37, columns), seed), numbers((37, columns), seed + 1)
            y, dx = step(tensor(ns, x), tensor(ns, dy), dr.opaque(ns.UInt64, seed))
            np.testing.assert_array_equal(y.numpy(), ref.dropout(x, 0.3, seed))
            np.testing.assert_array_equal(dx.numpy(), ref.dropout(dy, 0.3, seed))
        assert step.n_recordings == recordings
    assert blocks


def test_without_derivatives(backend, blocks):
    import importlib

    plain = importlib.import_module(f"drjit.{backend}")
    y = cn.dropout(plain.TensorXf(numbers()), 0.3, cn.Key(5))
    assert type(y) is plain.TensorXf and blocks
    np.testing.assert_array_equal(y.numpy(), ref.dropout(numbers(), 0.3, 5))
