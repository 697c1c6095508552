"""The scale of rates that are arrays: a quotient without a division."""

from __future__ import annotations

import re

import drjit as dr
import numpy as np
import pytest
from support.kernels import launched

import coopnet as cn
from coopnet.random.law import quotient

#: Instructions that CUDA's compiler turns into calls of subroutines, which have a stack.
CALLS = re.compile(r"(div|rcp|sqrt)\.rn\.f64|(div|rem)\.[us]64")


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_quotients_are_those_of_a_division(ns, bits):
    few = np.arange(1, 2 ** min(bits, 16) + 1)
    many = np.random.default_rng(bits).integers(1, 2**bits + 1, 1 << 20)
    b = np.concatenate([few, many, 2**bits - few + 1]).astype(np.float64)
    np.testing.assert_array_equal(quotient(2**bits, ns.Float64(b)).numpy(), 2**bits / b)


def test_kernels_with_cooperative_vectors_call_nothing(ns, backend):
    """Steps with rates that are arrays, stratified points, a grid and Adam; evaluations in odd numbers."""
    if backend != "cuda":
        pytest.skip("looks at PTX")
    layers = cn.Linear(-1, 16), cn.ReLU(), cn.ConcreteDropout(0.1), cn.Linear(16, 16), cn.Dropout(ns.Float(0.2))
    grid = cn.HashGrid(2, n_levels=4, hashmap_size=2**10)
    field = cn.NeuralField(grid, cn.Sequential(*layers, cn.Linear(16, 1))).build(backend)

    def batch(key):
        x, y = cn.stratified(2, key, ns.Float, 1000)
        return [x, y], [dr.sin(6 * x) * y]

    with launched() as kernels:
        cn.fit(field, batch, 3, progress=False, optimizer=cn.training.Adam(1e-3))
        p = ns.Array2f(cn.uniform(2, cn.Key(1), ns.Float, 50))
        dr.eval(field(p, cn.Key(3)), field.value_and_grad(p, cn.Key(3)))
    codes = [k["ir"].getvalue() for k in kernels if k.get("ir") is not None]
    vectors = [code for code in codes if "_optix_" in code]
    assert vectors and not [CALLS.search(code)[0] for code in vectors if CALLS.search(code)]


def test_odd_numbers_of_samples(ns, backend):
    """On CUDA, such programs ended in an illegal memory access, if fit_many() had run before."""
    layers = cn.Linear(2, 4), cn.Tanh(), cn.ConcreteDropout(0.3), cn.Linear(4, 3), cn.Tanh(), cn.ConcreteDropout(0.2)
    field = cn.NeuralField(None, cn.Sequential(*layers, cn.Linear(3, 1))).build(backend)
    for n in (33, 50, 100):
        p = cn.uniform(2, cn.Key(1), ns.Float, n)
        for step in range(3):
            assert np.isfinite(field(p, cn.Key(5, step=step)).numpy()).all()
