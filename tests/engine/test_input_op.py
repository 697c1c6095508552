"""Gradients with respect to the input alone: by copies of transposed matrices on a CPU, by Dr.Jit elsewhere."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.networks import matrices

import coopnet as cn
from coopnet import reference as ref

N = 70


def network(backend, width=24, activation="relu", dropout=0.0):
    mlp = cn.MLP(5, 2, width=width, depth=2, activation=activation, bias=True, dropout=dropout)
    return cn.NeuralField(None, mlp).build(backend, seed=1)


def points(ns, samples=N):
    return [ns.Float(column) for column in np.random.default_rng(0).normal(size=(5, samples)).astype(np.float32)]


def backward(ns, field, x, key):
    dr.enable_grad(x)
    y = field(x, key)
    dr.backward(dr.square(y[0]) + dr.sin(y[1]))
    return [dr.detach(y[0]), dr.detach(y[1]), *map(dr.grad, x)]


def forward(ns, field, x, key):
    x = [v + 0 for v in x]
    dr.enable_grad(x)
    for i, v in enumerate(x):
        dr.set_grad(v, i + 1.0)
    return dr.forward_to(list(field(x, key)))


@pytest.mark.parametrize("how", [backward, forward])
@pytest.mark.parametrize(
    "frozen, width, activation, dropout",
    [(True, 24, "relu", 0.0), (True, 24, "gelu", 0.0), (True, 24, "relu", 0.3)]
    + [(False, 136, "sine", 0.0), (False, 136, "relu", 0.3)],  # which compile at once
)
def test_equal_to_derivatives_of_drjit(backend, ns, set_limits, chosen, how, activation, dropout, frozen, width):
    set_limits(UNROLLED_SAMPLES=1, COPIES_SAMPLES=1)
    field = network(backend, width, activation, dropout)
    key = cn.Key(3, step=2) if dropout else None

    def run(field, x):
        return how(ns, field, x, key)

    found = (dr.freeze(run) if frozen else run)(field, points(ns))
    dr.eval(found)  # at once: one kernel
    assert {strategy for s, strategy in chosen if s.inputs} == {
        "kernel, forward and back" if backend == "llvm" else "builtin"
    }
    set_limits(UNROLLED_SAMPLES=1 << 30, COPIES_SAMPLES=1 << 30)
    expected = run(field, points(ns))
    dr.eval(expected)
    assert len(found) == len(expected) and any(np.abs(v).max() > 0.1 for v in expected)
    for a, b in zip((v.numpy() for v in found), (v.numpy() for v in expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=(2e-2 if backend == "cuda" else 1e-5) * np.abs(b).max())


@pytest.mark.parametrize("how", [backward, forward])
@pytest.mark.parametrize("kept", [1 << 30, 1 << 14])
@pytest.mark.parametrize("activation, dropout", [("relu", 0.3), ("gelu", 0.0)])
@pytest.mark.parametrize("frozen", [False, True])
def test_wide_layers_between_kernels(llvm, set_limits, chosen, how, kept, activation, dropout, frozen):
    """Also in chunks, if activations of all samples take too much memory. No gradients of weights are computed."""
    set_limits(WIDE_EVALUATED={8: (40, 40)}, WIDE_TRAINED={8: (40, 40)}, WIDE_SAMPLES=1, KEPT_BYTES=kept)
    field, key = network("llvm", 40, activation, dropout), cn.Key(3, step=2) if dropout else None

    def run(field, x):
        return how(llvm, field, x, key)

    found = (dr.freeze(run) if frozen else run)(field, points(llvm))
    dr.eval(found)
    assert {strategy for s, strategy in chosen if s.inputs} == {"store"}
    set_limits(WIDE_SAMPLES=1 << 30, COPIES_SAMPLES=1 << 30)
    expected = run(field, points(llvm))
    dr.eval(expected)
    for a, b in zip((v.numpy() for v in found), (v.numpy() for v in expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())


def test_against_finite_differences(llvm, set_limits, chosen):
    set_limits(UNROLLED_SAMPLES=1)
    field, step = network("llvm", activation="tanh"), 1e-2

    @dr.freeze
    def gradient(field, x):
        dr.enable_grad(x)
        dr.backward(field(x)[1])
        return [dr.grad(v) for v in x]

    found = gradient(field, points(llvm))
    assert [strategy for s, strategy in chosen if s.inputs] == ["kernel, forward and back"]
    for i, derivative in enumerate(found):
        above, below = points(llvm), points(llvm)
        above[i] += step
        below[i] -= step
        expected = (field(above)[1] - field(below)[1]) / (2 * step)
        np.testing.assert_allclose(derivative.numpy(), expected.numpy(), atol=1e-3)


def test_lanes_without_cotangents(backend, ns, set_limits):
    """Samples that a loss leaves out may have any input: their gradient is 0, that of the others is as before."""
    set_limits(UNROLLED_SAMPLES=1)
    field = network(backend, activation="exp")

    def run(field, x, used):
        dr.enable_grad(x)
        y = field(x)
        dr.backward(dr.select(used, y[0], 0))
        return [dr.grad(v) for v in x]

    used = np.random.default_rng(1).random(N) < 0.5
    x = points(ns)
    expected = run(field, points(ns), ns.Bool(used))
    dr.eval(expected)
    wild = [dr.select(ns.Bool(used), v, 1e4) for v in x]
    dr.eval(wild)
    for a, b in zip(dr.freeze(run)(field, wild, ns.Bool(used)), expected, strict=True):
        np.testing.assert_allclose(a.numpy()[used], b.numpy()[used], rtol=2e-2 if backend == "cuda" else 1e-5)
        if backend == "llvm":
            assert np.all(a.numpy()[~used] == 0)


@pytest.mark.parametrize("tangent", [0.0, 0.5])
def test_tangents_of_weights_that_are_constants(backend, ns, tangent):
    """Products with tangents of the weights are left out if these are zero, and only then."""
    field, x = network(backend, activation="tanh"), points(ns)
    weights = field["network.weights"].array
    dr.enable_grad(weights)
    dr.set_grad(weights, tangent)
    field["network.weights"] = type(field["network.weights"])(weights)
    dr.enable_grad(x[0])
    dr.set_grad(x[0], 1)
    found = dr.forward_to(field(x)[0]).numpy()
    old, biases = matrices(network(backend, activation="tanh"))
    at = np.array([v.numpy() for v in x], dtype=np.float64)

    def value(turn):
        moved = [[m + turn * tangent for m in parts] for parts in (old, biases)]
        return ref.mlp(moved[0], at + turn * np.eye(5)[:, :1], "tanh", None, moved[1])[0]

    expected = (value(1e-5) - value(-1e-5)) / 2e-5
    np.testing.assert_allclose(found, expected, atol=(3e-2 if backend == "cuda" else 1e-5) * np.abs(expected).max())
