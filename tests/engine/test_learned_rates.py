"""Learned rates of dropout inside a network: however it is differentiated, all gradients are those of float64."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.kernels import launched
from support.networks import gradients, matrices

import coopnet as cn
from coopnet import reference as ref

N, RATES, STREAMS = 700, (0.3, 0.15), (0, 1)
SCALES = np.array([[1.0], [-2.0]])


def network(backend, inner=None, width=6):
    inner = [cn.Linear(width, 5), cn.Tanh()] if inner is None else inner
    layers = [cn.Linear(3, width), cn.Tanh(), cn.ConcreteDropout(RATES[0]), *inner, cn.ConcreteDropout(RATES[1])]
    return cn.NeuralField(None, cn.Sequential(*layers, cn.Linear(-1, 2))).build(backend, seed=1)


def factors(rows, number, samples=N):
    """Those of the elements behind dropout ``number``, and their derivatives by the logit."""
    p, ones, eps = RATES[number], np.ones((rows, samples)), 1e-5
    logit = np.log(p / (1 - p))
    at = [1 / (1 + np.exp(-logit - e)) for e in (0, eps, -eps)]
    mid, up, down = (ref.concrete_dropout(ones, q, 9, step=4, stream=STREAMS[number]) for q in at)
    return mid, (up - down) / (2 * eps)


def expected(field, x):
    """Gradients of ``sum(SCALES * y)`` with respect to ``x``, the rates, and the matrices."""
    (a, b, c), biases = matrices(field)
    a0, b0, _ = (v.reshape(-1, 1) for v in biases)
    (f, f_slope), (g, g_slope) = factors(len(a), 0), factors(len(b), 1)
    h = np.tanh(a @ x + a0)
    k = np.tanh(b @ (h * f) + b0)
    dy = SCALES * np.ones((2, x.shape[1]))
    dk = c.T @ dy
    dz = dk * g * (1 - k**2)
    dh = b.T @ dz
    dx = dh * f * (1 - h**2)
    rates = [(dh * h * f_slope).sum(), (dk * k * g_slope).sum()]
    return [a.T @ dx, *rates, dx @ x.T, dz @ (h * f).T, dy @ (k * g).T]


def run(field, x, inputs=True):
    ns = cn.backend.namespace(field.backend)
    names = list(field)
    for name in names:
        value = type(field[name])(dr.detach(field[name]))
        dr.enable_grad(value)
        field[name] = value
    x = [v + 0 for v in x]
    if inputs:
        dr.enable_grad(x)
    y = field(x, cn.Key(9, step=4))
    dr.backward(sum(float(s) * ns.Float(v) for s, v in zip(SCALES[:, 0], y, strict=True)))
    rates = [dr.grad(field[name]) for name in names if name.endswith(".data")]
    return [dr.grad(v) for v in x] if inputs else [], rates, dr.grad(field["network.weights"])


def points(ns, samples=N):
    x = np.random.default_rng(0).normal(size=(3, samples)).astype(np.float32)
    arrays = [ns.Float(v) + 0 for v in x]
    dr.eval(arrays)
    return x.astype(np.float64), arrays


def check(field, x, found, inputs=True):
    dx, rates, weights = found
    tensor = field["network.weights"]
    dr.set_grad(tensor, type(tensor)(weights))
    of_matrices, _ = gradients(field)
    rows = [np.stack([v.numpy() for v in dx])] if inputs else [0]
    got = [*rows, *(v.numpy()[0] for v in rates), *of_matrices]
    for one, true in list(zip(got, expected(field, x), strict=True))[0 if inputs else 1 :]:
        tolerance = 2e-5 if field.precision == "single" else 1e-2
        np.testing.assert_allclose(one, true, rtol=0, atol=tolerance * np.abs(true).max())


@pytest.mark.parametrize(
    "path, inputs",
    [("auto", False), ("spill", True), ("store", True), ("banks", True), ("banks", False), ("builtin", True)],
)
def test_every_way(ns, backend, path, inputs):
    field, (x, arrays) = network(backend), points(ns)
    with cn.gradient_path(path):
        check(field, x, run(field, arrays, inputs), inputs)


def test_in_recorded_functions(ns, backend, set_limits, play_lanes, chosen):
    """Where lanes of a CPU add up gradients, and a GPU has banks."""
    if backend == "llvm":
        play_lanes(16)
        set_limits(UNROLLED_SAMPLES=1, LANE_SUM_SAMPLES=1, LANE_TURNS=20, LANES=48)
    field, (x, arrays) = network(backend), points(ns)
    frozen = dr.freeze(run)
    for _ in range(2):
        check(field, x, frozen(field, arrays))
    assert {strategy for s, strategy in chosen if s.weights} == {"lane sums" if backend == "llvm" else "banks"}


def test_in_chunks(ns, backend, set_limits):
    set_limits(KEPT_BYTES=1, KEPT_SHARE=0, PIECE_SAMPLES=128)
    field, (x, arrays) = network(backend), points(ns)
    with cn.gradient_path("spill"):
        check(field, x, run(field, arrays))


def test_rates_alone(ns, backend):
    """The weights need no gradient: only that of the rates, and of the input, is computed."""
    field, (x, arrays) = network(backend), points(ns)
    names = [name for name in field if name.endswith(".data")]
    for name in names:
        dr.enable_grad(field[name])
    y = field(arrays, cn.Key(9, step=4))
    dr.backward(sum(float(s) * v for s, v in zip(SCALES[:, 0], y, strict=True)))
    _, *true = expected(field, x)
    for name, rate in zip(names, true, strict=False):
        assert dr.grad(field[name]).numpy()[0] == pytest.approx(rate, rel=2e-5 if field.precision == "single" else 1e-2)


def test_forward_mode(ns, backend):
    """Tangents of outputs agree with gradients, for rates, weights and inputs together."""
    field, (_, arrays) = network(backend), points(ns)
    names = list(field)
    for name in names:
        value = type(field[name])(dr.detach(field[name]))
        dr.enable_grad(value)
        dr.set_grad(value, 1.0)
        field[name] = value
    y = field(arrays, cn.Key(9, step=4))
    loss = sum(float(s) * dr.sum(ns.Float(v)) for s, v in zip(SCALES[:, 0], y, strict=True))
    found = dr.forward_to(loss).numpy()[0]
    _, rates, weights = run(network(backend), arrays, inputs=False)
    true = sum(float(r.numpy()[0]) for r in rates) + float(weights.numpy().astype(np.float64).sum())
    assert found == pytest.approx(true, rel=1e-4 if field.precision == "single" else 2e-2)


def difference(ns, make, name, value):
    """The central difference of ``value(field, points)`` by the logit ``name``, in single precision: masks are those of
    every backend.
    """
    field, (_, arrays), found = make("llvm"), points(ns), []
    kept = float(field[name].numpy()[0])
    for shift in (1e-2, -1e-2):
        for other in list(field):
            dr.disable_grad(field[other])
        field[name] = dr.opaque(type(field[name]), kept + shift)
        for other in list(field):  # or masks would not be relaxed
            dr.enable_grad(field[other])
        found.append(float(value(field, arrays).numpy().astype(np.float64).sum()))
    return (found[0] - found[1]) / 2e-2


def weighted(field, arrays):
    return sum(float(s) * v for s, v in zip(SCALES[:, 0], field(arrays, cn.Key(9, step=4)), strict=True))


@pytest.mark.parametrize("around", ["residual", "skip", "heads"])
def test_in_branches(ns, llvm, backend, around):
    body = cn.Sequential(cn.Linear(6, 6), cn.Tanh(), cn.ConcreteDropout(0.2))
    inner = {
        "residual": lambda: [cn.Residual(body)],
        "skip": lambda: [cn.Skip(body)],
        "heads": lambda: [cn.Heads(None, {"a": body, "b": cn.Linear(6, 2)})],
    }[around]()
    field = network(backend, inner)
    names = [name for name in field if name.endswith(".data")]
    _, rates, _ = run(field, points(ns)[1], inputs=False)
    assert len(rates) == 3
    for name, rate in zip(names, rates, strict=True):
        slope = difference(llvm, lambda backend: network(backend, inner), name, weighted)
        assert rate.numpy()[0] == pytest.approx(slope, rel=1e-2 if field.precision == "single" else 3e-2)


def slopes(field, arrays):
    rows = field.jacobian(arrays, cn.Key(9, step=4))
    return sum(cn.backend.namespace(field.backend).Float(v) for row in rows for v in row)


def test_second_derivatives(ns, llvm, backend):
    """Of the rates, through the field's derivatives by its coordinates."""
    field, (_, arrays) = network(backend), points(ns)
    name = next(name for name in field if name.endswith(".data"))
    for other in list(field):
        dr.enable_grad(field[other])
    dr.backward(dr.sum(slopes(field, arrays)))
    expected = difference(llvm, network, name, slopes)
    found = float(dr.grad(field[name]).numpy()[0])
    assert found == pytest.approx(expected, rel=1e-2 if field.precision == "single" else 5e-2)


def test_launches_of_a_step(ns, backend):
    """One network: as many matrix products as without learned rates."""
    field, (_, arrays) = network(backend), points(ns)
    plain = cn.Sequential(cn.Linear(3, 6), cn.Tanh(), cn.Linear(6, 5), cn.Tanh(), cn.Linear(5, 2))
    counts = []
    for one in (field, cn.NeuralField(None, plain).build(backend, seed=1)):
        with launched() as kernels:
            dr.eval(run(one, arrays, inputs=False))
        counts.append(len(kernels))
    assert counts[0] <= counts[1] + 4
