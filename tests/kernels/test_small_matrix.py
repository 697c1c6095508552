"""Products with small trained matrices."""

from __future__ import annotations

import drjit as dr
import numpy as np
from support.kernels import launched
from support.networks import gradients_in_orders

import coopnet as cn
from coopnet.kernels.small_matrix import project


def test_gradient_of_a_small_matrix_takes_few_kernels(ns):
    """One sum per coordinate, not per entry."""
    x, dy = ([ns.Float(np.ones(50, np.float32)) for _ in range(n)] for n in (2, 8))
    for trained in (False, True):
        matrix = ns.Float(np.arange(16, dtype=np.float32))
        dr.eval(matrix)
        if trained:
            dr.enable_grad(matrix)
        ys = project(matrix, x)
        np.testing.assert_array_equal([v[0] for v in ys], 1 + 4 * np.arange(8))
        assert dr.grad_enabled(ys) == trained
    for y, d in zip(ys, dy, strict=True):
        dr.set_grad(y, d)
        dr.enqueue(dr.ADMode.Backward, y)
    with launched() as kernels:
        dr.traverse(dr.ADMode.Backward)
        gradient = dr.grad(matrix)
        dr.eval(gradient)
    np.testing.assert_array_equal(gradient.numpy(), 50)
    assert len(kernels) <= 8


def test_trained_frequencies_in_a_loop_and_outside(ns, backend):
    """Gradients of several uses add up, whichever comes first."""
    encoding = cn.Fourier(3, scale=1.0, trained=True)
    network = cn.MLP(out_features=1, width=6, depth=1, activation="silu", dropout=0.1)
    field = cn.NeuralField(encoding, network, in_features=2).build(backend, seed=1)
    x = [dr.linspace(ns.Float, 0, 1, 64), dr.linspace(ns.Float, 1, 0, 64)]
    uses = [lambda: dr.sum(cn.mc_dropout(field, x, cn.Key(1), 4)[0][0]), lambda: dr.sum(field(x)[0])]
    found = gradients_in_orders(field, uses, lambda: dr.grad(field["encoding.data"]).numpy())
    for both in found[2:]:
        np.testing.assert_allclose(both, found[0] + found[1], rtol=2e-2 if backend == "cuda" else 1e-4, atol=1e-3)
