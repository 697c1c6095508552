"""Copies on another backend with derivatives; without a GPU, on the same one, where Dr.Jit does nothing else."""

import gc

import drjit as dr
import numpy as np
import pytest

from coopnet import backend as backends
from coopnet.jit.backend_copies import copied, differentiable_copies


@pytest.fixture(params=["llvm", "cuda"])
def other(request):
    """The flat type of a backend to cross to: of the one that there is, if there is one."""
    name = request.param if request.param in backends.available() else backends.available()[0]
    return backends.namespace(name).Float


def test_copies_have_memory_of_their_own(ns, other):
    x = ns.Float(np.arange(5000, dtype=np.float32))
    dr.eval(x)
    y = copied(x, other)
    assert type(y) is other
    dr.scatter(x, 7, ns.UInt32(0))
    dr.eval(x)
    np.testing.assert_array_equal(y.numpy(), np.arange(5000))
    host = copied(y, np.ndarray)
    host[:] = 0
    assert y.numpy()[1] == 1
    assert dr.width(copied(ns.Float(), other)) == 0


def crossing(value, tp):
    return differentiable_copies([value], [tp])[0]


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_derivatives(ns, other, mode):
    x = ns.Float(1, 2, 3)
    dr.enable_grad(x)
    y = crossing(crossing(x * x, other) * 2, type(x)) + x
    if mode == "forward":
        dr.forward(x)
        found = dr.grad(y)
    else:
        dr.backward(y)
        found = dr.grad(x)
    np.testing.assert_array_equal(found.numpy(), [5, 9, 13])


def test_cotangents_meet(ns, other):
    """Two crossings of what has one origin: each passes on its own part, and nothing twice."""
    x = ns.Float(1, 2)
    dr.enable_grad(x)
    inner = x * x
    y = crossing(inner, other) * crossing(inner * 3, other)
    dr.backward(y)
    np.testing.assert_allclose(dr.grad(x).numpy(), 12 * np.array([1.0, 8]))


def test_nothing_stays_alive(ns, other):
    """Bridge and anchor hold each other only as long as somebody holds the copy."""

    def count():
        gc.collect()
        return len(dr.whos_ad(True).splitlines())

    before = count()
    for _ in range(20):
        x = ns.Float(1, 2)
        dr.enable_grad(x)
        dr.backward(crossing(x * 2, other))
        crossing(x * 2, other)
        del x
    assert count() <= before
