"""Frozen functions that evaluate fields: when they are recorded anew, and what is left for Python's collector."""

from __future__ import annotations

import copy
import ctypes
import gc

import drjit as dr
import pytest

import coopnet as cn


def gradients(field, x, key):
    dr.enable_grad(*field.values())
    dr.backward(dr.mean(field(x, key)[0]))
    return [dr.grad(value) for value in field.values()]


@pytest.fixture
def x(ns):
    return cn.uniform(2, cn.Key(0), ns.Float, 100)


def test_settings_of_gradients_are_part_of_the_key(x, backend):
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend, seed=1)
    frozen = dr.freeze(gradients)

    def recorded(context):
        before = frozen.n_recordings
        with context:
            frozen(field, x, None)
        return frozen.n_recordings - before

    def contexts():
        return cn.gradient_path("auto"), cn.gradient_path("spill"), cn.gradient_path("builtin"), cn.deterministic()

    assert [recorded(context) for context in contexts()] == [1, 1, 1, 1]
    for context in contexts():  # Dr.Jit may record anew what it has seen once, to make literals opaque
        recorded(context)
    assert [recorded(context) for context in contexts()] == [0, 0, 0, 0]


def test_a_recording_does_not_hide_that_sums_have_no_fixed_order(x, backend):
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend, seed=1)

    @dr.freeze
    def in_a_loop(field, x):
        dr.enable_grad(*field.values())
        count = type(x[0])(2)
        total = dr.while_loop(
            (count, type(x[0])(0)), lambda i, y: i > 0, lambda i, y: (i - 1, y + field(x)[0]), mode="symbolic",
            max_iterations=2,
        )[1]  # fmt: skip
        dr.backward(dr.mean(total))
        return [dr.grad(value) for value in field.values()]

    in_a_loop(field, x)
    with cn.deterministic(), pytest.raises(RuntimeError) as caught:
        in_a_loop(field, x)
    causes = [caught.value]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    assert "deterministic" in str(causes[-1])


@pytest.mark.parametrize("path", ["banks", "builtin"])
def test_a_path_without_a_fixed_order_is_refused_where_one_is_asked_for(x, backend, path):
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend, seed=1)
    words = rf"^deterministic: sums of gradient_path\('{path}'\) have no fixed order; leave one of the two contexts"
    with cn.deterministic(), cn.gradient_path(path):
        with pytest.raises(RuntimeError, match=words):
            gradients(field, x, None)
        with pytest.raises(RuntimeError, match=words):
            field.explain(100)


def test_copies_under_other_settings_are_the_same_field(x, backend):
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend, seed=1)
    with cn.deterministic():
        copies = copy.deepcopy(field), dr.copy(field)
    assert {other._settings for other in copies} == {field._settings}


@pytest.mark.parametrize("name", ["mlp", "grid", "siren", "residual"])
def test_nothing_with_parameters_is_left_for_the_collector(ns, x, backend, name):
    """It may free them while a function is recorded, which ends the process if their memory is NumPy's."""
    residual = cn.Residual(cn.Sequential(cn.ReLU(), cn.Linear(8, 8)))
    field = {
        "mlp": cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1, bias=True, dropout=0.1)),
        "grid": cn.NeuralField(cn.HashGrid(2, n_levels=2, hashmap_size=64), cn.MLP(out_features=1, width=8, depth=1)),
        "siren": cn.NeuralField(None, cn.SIREN(2, 1, width=8, depth=1)),
        "residual": cn.NeuralField(None, cn.Sequential(cn.Linear(2, 8), residual, cn.Linear(8, 1))),
    }[name].build(backend, seed=1)
    frozen = dr.freeze(gradients)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for step in (1, 2):
            dr.eval(frozen(copy.deepcopy(field), x, cn.Key(1, step=ns.UInt32(step))))
            dr.eval(gradients(copy.deepcopy(field), x, cn.Key(1)))
        gc.collect()
        left = [
            type(value).__name__ for value in gc.garbage if type(value).__module__.startswith(("coopnet.", "drjit"))
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert [kind for kind in left if not issubclass(kind, ctypes.Array)] == []
