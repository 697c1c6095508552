"""Numbers that are the same for all lanes: read anew by every kernel, and no variable outlives its use."""

from __future__ import annotations

import ctypes

import drjit as dr
import numpy as np
import pytest

from coopnet.jit.native.core import function
from coopnet.jit.uniform import available, uniform


def test_uniform(ns, backend):
    if backend == "cuda":
        pytest.skip("for kernels on the CPU")
    assert available()
    references = function("_Z11jit_var_refj")
    buffer = ns.Float(0) + dr.arange(ns.Float, 8)
    dr.eval(buffer)
    before = references(ctypes.c_uint32(buffer.index))

    def use():
        a, b = uniform(buffer, 3, 2)
        y = dr.fma(a, dr.opaque(ns.Float, 10, 20), b)
        dr.eval(y)
        return np.array(y), [references(ctypes.c_uint32(v.index)) for v in (a, b)]

    y, counts = use()
    np.testing.assert_array_equal(y, np.full(20, 34))
    assert counts == [1, 1] and references(ctypes.c_uint32(buffer.index)) == before


def test_of_an_array_that_tracks_gradients(ns, backend):
    if backend == "cuda":
        pytest.skip("for kernels on the CPU")
    buffer = ns.Float([1, 2, 3])
    dr.enable_grad(buffer)
    (a,) = uniform(buffer, 1, 1)
    assert not dr.grad_enabled(a) and a.numpy()[0] == 2
