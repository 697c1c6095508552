"""Work on gradients that waits until a symbolic scope is left."""

import drjit as dr
import numpy as np
import pytest

from coopnet.jit import deferred
from coopnet.jit.scopes import symbolic


@pytest.fixture(autouse=True)
def nothing_remembered():
    deferred._cache.clear()
    yield
    deferred._cache.clear()


@pytest.mark.parametrize("inside, max_iterations", [(False, -1), (False, 5), (True, -1)])
def test_derivatives_of_older_variables_come_after_the_scope(ns, inside, max_iterations):
    """Dr.Jit differentiates a loop by tracing its body again; what the first trace made is older than that."""
    waits, ran = [], []

    class Sums:
        def sum(self):
            ran.append(symbolic())
            return ns.Float(7)

    class User(dr.CustomOp):
        def eval(self, x, later):
            return x * 2

        def backward(self):
            found = deferred.deferred_buffer(a)
            waits.append((symbolic(), found.waits()))
            found.once("sums", Sums)

    a = dr.opaque(ns.Float, 1)
    dr.enable_grad(a)

    def body(i, total):
        if inside:
            with dr.isolate_grad():
                dr.backward(dr.custom(User, ns.Float(i), deferred.deferred_buffer(a).buffer))
            return i + 1, total
        _ = a * 1  # Dr.Jit notes at ordinary operations only what a loop depends on
        return i + 1, total + dr.custom(User, ns.Float(i), deferred.deferred_buffer(a).buffer)

    start = (ns.UInt32(0), dr.zeros(ns.Float, 3))
    total = dr.while_loop(start, lambda i, _: i < 3, body, mode="symbolic", max_iterations=max_iterations)[1]
    if inside:  # nothing waits for the end of a scope that nobody differentiates
        assert waits and set(waits) == {(True, False)}
    else:
        dr.backward(dr.sum(total))
        assert waits and set(waits) == {(True, True)} and ran == [False]
        assert dr.grad(a)[0] == 7


def test_buffers_that_are_remembered(ns, monkeypatch):
    """As many as there is room for, those asked for last."""
    monkeypatch.setattr(deferred, "REMEMBERED", 2)
    a, b, c = (ns.Float(v) for v in (1, 2, 3))
    dr.enable_grad(a, b, c)
    first, second = deferred.deferred_buffer(a), deferred.deferred_buffer(b)
    assert (
        deferred.deferred_buffer(a) is first
        and deferred.deferred_buffer(b) is second
        and deferred.deferred_buffer(a) is first
    )
    deferred.deferred_buffer(c)
    assert len(deferred._cache) == 2
    assert deferred.deferred_buffer(a) is first and deferred.deferred_buffer(b) is not second


def test_what_waits_is_done_once(ns):
    """The sums left with a buffer reach it when it is differentiated, and are not kept."""

    class Sums:
        def sum(self):
            return ns.Float(5, 7)

    a = ns.Float(1, 2)
    dr.enable_grad(a)
    found = deferred.deferred_buffer(a)
    one = found.once("one", Sums)
    assert found.once("one", Sums) is one and found.once("two", Sums) is not one
    dr.set_grad(found.buffer, 1)
    dr.enqueue(dr.ADMode.Backward, found.buffer)
    dr.traverse(dr.ADMode.Backward, dr.ADFlag.ClearInterior | dr.ADFlag.ClearEdges)
    np.testing.assert_array_equal(dr.grad(a).numpy(), [10, 14])
    assert not found.finish and deferred.deferred_buffer(a) is not found


def test_waiting_is_asked_anew(ns):
    """Outside of scopes a derivative runs at once; that one did says nothing about the next."""
    a = ns.Float(1)
    dr.enable_grad(a)
    found = deferred.Deferred(a)
    assert not found.waits()
    assert not found.waits()
    found._probe = ns.Float(1)  # one whose derivative does not come
    dr.enable_grad(found._probe)
    assert found.waits()
