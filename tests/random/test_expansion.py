"""How masks of vectors on CUDA are expanded from few numbers, with types of the CPU."""

from __future__ import annotations

import importlib

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import evaluated
from support.cuda_on_cpu import as_cuda
from support.properties import given, settings, st

import coopnet as cn
from coopnet import backend as backends
from coopnet import reference
from coopnet.random import expansion
from coopnet.random import law as laws
from coopnet.random.law import GaussianLaw, MaskLaw, PathLaw

dropout = importlib.import_module("coopnet.nn.dropout")

pytestmark = pytest.mark.skipif(
    "llvm" not in backends.available(), reason="plays a GPU with the CPU's types; test_dropout.py has both backends"
)


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("n", [1, 5, 8, 9, 16])
def test_matrices_in_memory(llvm, n):
    view = expansion.in_rows(np.eye(n), llvm.Float16)
    assert view.shape == (n, n) and view.stride % 8 == 0 and view.stride - n in range(8)
    rows = view.buffer.numpy().reshape(-1, view.stride)
    np.testing.assert_array_equal(rows[:, :n], np.eye(n))
    np.testing.assert_array_equal(rows[:, n:], 0)
    if n == view.stride:  # products on the CPU take rows to have no gaps
        x = numbers(n, 6).astype(np.float16)
        y = evaluated(list(drnn.matvec(view, drnn.CoopVec([llvm.Float16(v) for v in x]))))
        np.testing.assert_array_equal(np.stack([v.numpy() for v in y]), x)


@settings(max_examples=40)
@given(st.integers(1, 200), st.sampled_from([8, 16, 32]), st.integers(0, 2**32 - 1), st.floats(0, 1), st.booleans())
def test_bits_of_masks(n, bits, seed, p, scheduled):
    """Every element has a bit of its own, that of the law, and a byte gives it back without rounding."""
    single = cn.backend.namespace("llvm").Float
    drop = float(np.float32(min(p, 1 - 2.0**-bits)))  # what a schedule can hold
    drop = drop if round(drop * 2**bits) < 2**bits else 0.5
    law = MaskLaw(single(drop) if scheduled else drop, bits, 3)
    where, key = expansion.places(n, bits), cn.Key(seed, step=9)
    assert len(set(where)) == n and max(w[0] for w in where) < 4 * -(-n // 32)
    half = cn.backend.namespace("llvm").Float16
    digits = evaluated(expansion.digits(n, law.traced(half), key, cn.backend.namespace("llvm").UInt32, 50))
    bytes_ = np.stack([np.broadcast_to(d.numpy().astype(int), 50) for d in digits])
    kept = [bytes_[byte] // 2 >> bit & 1 for byte, bit in where]
    expected = reference.keep_mask(n, drop, seed, np.arange(50), 9, 3, bits)
    np.testing.assert_array_equal(kept, expected)
    e = expansion.digit_matrix(n, bits).astype(np.float16) @ bytes_[: 4 * -(-n // 32)].astype(np.float16)
    assert e.dtype == np.float16 and e.max() <= 128
    np.testing.assert_array_equal(np.rint(e) > e, expected)


def test_dropouts_of_one_width_share_a_matrix(llvm):
    def alloc(*layers, size):
        with as_cuda(dropout):
            net = cn.Sequential(*layers).alloc(llvm.TensorXf16, size)
        return [m.expansion.value for m in net.layers if isinstance(m, cn.Dropout)]

    drop = cn.Dropout(0.5)
    a, b, c = alloc(cn.Linear(3, 8), drop, cn.Linear(8, 8), drop, cn.Linear(8, 4), drop, size=3)
    assert a.shape == (8, 4) and a is b and c.shape == (4, 4) and a.dtype == dr.VarType.Float16
    a, b, c = alloc(drop, cn.Dropout(0.5, bits=32), drop, size=4)
    assert {v.shape for v in (a, b)} == {(4, 4)} and a is not b and a is c
    limit = dropout.EXPANDED_WIDTH
    assert alloc(drop, size=limit)[0].shape[0] == limit and alloc(drop, size=limit + 1) == [None]
    noise = cn.GaussianDropout(0.5)
    a, b = alloc(noise, drop, size=4)
    assert a.shape == b.shape == (4, 4) and a is not b
    assert alloc(noise, size=expansion.FACTORS + 1) == [None]
    assert alloc(drop, size=1)[0].shape == (1, 4)
    assert alloc(cn.Dropout(0.0), size=8) == alloc(cn.DropPath(0.5), size=8) == [None]
    assert cn.Dropout(0.5).alloc(llvm.TensorXf16, 8).expansion.value is None


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("way", ["product", "components", "other bits"])
def test_masks_of_vectors_are_products_on_cuda(llvm, half, bits, way):
    x = numbers(40, 40).astype(np.float16 if half else np.float32)
    leaf = llvm.Float16 if half else llvm.Float
    parts = [leaf(v) for v in x]
    dr.enable_grad(parts)
    made = {"product": bits, "other bits": 24 - bits}.get(way, 0)
    law = MaskLaw(0.3, bits, stream=4)
    given = expansion.expansion(MaskLaw(0.3, made), leaf, 40) if made in (8, 16, 32) else None
    key = cn.Key(5, step=2)
    with as_cuda(laws):
        y = list(law.apply(drnn.CoopVec(parts), key, given))
        dr.backward(sum(y))
    y, slopes = evaluated(y, dr.grad(parts))
    expected = reference.dropout(x, 0.3, 5, None, 2, 4, bits)
    got = np.stack([v.numpy() for v in y])
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, expected)
    kept = reference.dropout(np.ones_like(x), 0.3, 5, None, 2, 4, bits)
    np.testing.assert_array_equal(np.stack([v.numpy() for v in slopes]), kept)


def test_noise_of_vectors_is_a_product_on_cuda(llvm):
    x = [llvm.Float16(v) for v in numbers(8, 40).astype(np.float16)]
    law, key = GaussianLaw(0.3, stream=4), cn.Key(5, step=2)
    given = expansion.expansion(law, llvm.Float16, 8)
    with as_cuda(laws):
        y = evaluated(list(law.apply(drnn.CoopVec(x), key, given)))
    expected = law.apply(llvm.ArrayXf16(x), key)
    np.testing.assert_array_equal(np.stack([v.numpy() for v in y]), expected.numpy())


def test_whole_samples_are_dropped_by_one_factor_on_cuda(llvm):
    x = numbers(8, 40).astype(np.float16)
    with as_cuda(laws):
        y = evaluated(list(PathLaw(0.3, stream=4).apply(drnn.CoopVec([llvm.Float16(v) for v in x]), cn.Key(5, step=2))))
    np.testing.assert_array_equal(np.stack([v.numpy() for v in y]), reference.drop_path(x, 0.3, 5, None, 2, 4))


def test_registers_for_masks_are_asked_for(llvm, monkeypatch):
    """Of those that a mask, its draws and the vector take; through the matrix, if there is one."""
    asked = []
    monkeypatch.setattr(expansion, "request_registers", lambda parts, views, used: asked.append((views, used)) or parts)
    x = drnn.CoopVec([llvm.Float16(v) for v in numbers(8, 3)])
    given = expansion.expansion(MaskLaw(0.3), llvm.Float16, 8)
    with as_cuda(laws):
        MaskLaw(0.3).apply(x, cn.Key(5), given)
        MaskLaw(0.3).apply(x, cn.Key(5))
    assert asked == [([given.value], 24)]
