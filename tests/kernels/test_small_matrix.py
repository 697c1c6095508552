"""Products with small trained matrices."""

from __future__ import annotations

import drjit as dr
import numpy as np
from support.kernels import launched

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
