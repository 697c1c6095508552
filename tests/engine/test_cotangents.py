"""Cotangents that are the same constant for every sample, behind every activation, however gradients are taken.

Dr.Jit keeps them as literals, of which it may make vectors that its LLVM backend ends the process over.
"""

from __future__ import annotations

import functools

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import all_close
from support.networks import gradients, in_order, matrices, ramp_biases

import coopnet as cn
from coopnet import reference
from coopnet.engine import FUNCTIONS
from coopnet.nn.activations import activation

ACTIVATIONS = [None, *(name for name in FUNCTIONS if name != "identity")]
SAMPLES, OUTPUTS, TURNS = 20, 3, 2


@functools.cache
def fields(backend, precision):
    """A field for each activation of the output, and the reference's weights."""
    found = []
    for number, name in enumerate(ACTIVATIONS):
        network = cn.MLP(1, OUTPUTS, depth=0, output_activation=name, bias=True)
        dtype, _ = cn.field.storage(backend, precision, "test")
        field = cn.NeuralField(None, network, in_features=1).allocate(dtype, precision, number)
        ramp_biases(field.network)
        found.append((field.pack(), *matrices(field.network)))
    return found


def pull(ns, kind, outputs):
    """Differentiate the sum of ``outputs``, those of several networks, or of one component each."""
    if kind == "one of three":
        outputs = [[y[1]] for y in outputs]
    total = sum((v for y in outputs for v in y), ns.Float(0))
    dr.backward(dr.sum(total) * dr.opaque(ns.Float, 1) if kind == "opaque" else total)


def plain(ns, kind, networks, xs):
    pull(ns, kind, [network([x]) for network, x in zip(networks, xs, strict=True)])


def in_a_loop(ns, kind, networks, xs):
    def turn(i, sums, xs):
        outputs = [network([x]) for network, x in zip(networks, xs, strict=True)]
        return i + 1, [[s + v for s, v in zip(*pair, strict=True)] for pair in zip(sums, outputs, strict=True)], xs

    state = ns.UInt32(0), [[dr.zeros(ns.Float, SAMPLES)] * OUTPUTS for _ in networks], xs
    limit = {"mode": "symbolic", "max_iterations": -1}
    pull(ns, kind, dr.while_loop(state, lambda i, *_: i < TURNS, turn, **limit)[1])


@functools.cache
def frozen(kind, ns):
    return dr.freeze(lambda networks, xs: plain(ns, kind, networks, xs))


def in_a_frozen_function(ns, kind, networks, xs):
    for _ in range(2):  # recorded and replayed
        dr.clear_grad([xs, [network["network.weights"] for network in networks]])
        frozen(kind, ns)(networks, xs)


RUNS, WANTED = (plain, in_a_frozen_function, in_a_loop), ("coordinates", "weights", "both")
#: Literals wherever they may come up; the others, which other tests have, once with each way to run and each wish.
#: Either precision meets each way to run and each wish.
CASES = [
    (run, kind, wanted, ("half", "single")[(i + j) % 2])
    for kind, places in {
        "literal": [(i, j) for i in range(3) for j in range(3)],
        "opaque": [(0, 0), (1, 1), (2, 2)],
        "one of three": [(0, 1), (1, 2), (2, 0)],
    }.items()
    for i, j in places
    for run, wanted in [(RUNS[i], WANTED[j])]
]


@pytest.mark.parametrize("run, kind, wanted, precision", CASES)
def test_gradients_of_every_activation(backend, ns, run, kind, wanted, precision):
    points = np.linspace(-0.7, 1, SAMPLES, dtype=np.float32)
    dy = np.zeros((OUTPUTS, SAMPLES))
    dy[1 if kind == "one of three" else slice(None)] = TURNS if run is in_a_loop else 1
    precision = precision if backend == "llvm" else "half"
    known = fields(backend, precision)
    xs = [dr.linspace(ns.Float, -0.7, 1, SAMPLES) + 0 * dr.opaque(ns.Float, i) for i in range(len(known))]
    dr.eval(xs)
    for x, (field, *_) in zip(xs, known, strict=True):
        weights = field["network.weights"]
        dr.disable_grad(weights)
        (dr.enable_grad if wanted != "weights" else dr.disable_grad)(x)
        (dr.enable_grad if wanted != "coordinates" else dr.disable_grad)(weights)
    run(ns, kind, [field for field, *_ in known], xs)
    dr.eval(dr.grad([*xs, *(field["network.weights"] for field, *_ in known)]))
    tolerance = 2e-2 if precision == "half" else 2e-5
    for name, x, (field, weights, biases) in zip(ACTIVATIONS, xs, known, strict=True):
        _, dx, *expected = reference.mlp_vjp(weights, points[None], dy, None, name, biases)
        if wanted != "weights":
            all_close([dr.grad(x).numpy()], dx, tolerance)
        if wanted != "coordinates":
            all_close(in_order(*gradients(field.network)), in_order(*expected), tolerance)


def test_layers_by_themselves(ns, backend):
    """Activations of vectors that have been through no network."""
    points = np.linspace(-0.7, 1, SAMPLES, dtype=np.float32)
    names = [name for name in ACTIVATIONS if name is not None]
    leaf = ns.Float16 if backend == "cuda" else ns.Float
    xs = [leaf(points) for _ in names]
    dr.enable_grad(xs)
    ys = [activation(name, "test")(drnn.CoopVec(x, x * 0.5)) for name, x in zip(names, xs, strict=True)]
    dr.backward(sum((v for y in ys for v in y), leaf(0)))
    dr.eval([dr.grad(x) for x in xs])
    for name, x in zip(names, xs, strict=True):
        slope = reference.activation_named(name)[1]
        all_close(
            [dr.grad(x).numpy()], [slope(points) + 0.5 * slope(points * 0.5)], 2e-2 if backend == "cuda" else 2e-5
        )


def test_constants_and_scales(ns, backend):
    """Tangents and cotangents of one, times numbers that are the same for all samples, forward and back."""
    network = cn.Sequential(cn.Identity(2.0, 1.0), cn.Linear(1, 1, bias=False), cn.Identity(2.0, 0.5))
    field = cn.NeuralField(None, network, in_features=1).build(backend)
    weights, x, name = field["network.weights"], dr.linspace(ns.Float, -0.7, 1, SAMPLES), "network.layers.1.weights"
    slope, of_weight = 4 * field.matrix(name)[0, 0], 2 * (2 * x.numpy() + 1).sum()

    def value():
        return field([x])[0]

    def derivative():
        return field.value_and_grad([x])[1][0]

    def backward(y):
        dr.backward(y)
        of_x = [dr.grad(x).numpy()] if dr.grad_enabled(x) else []
        return of_x, [field.gradient(name)] if dr.grad_enabled(weights) else []

    tolerance = 2e-3 if backend == "cuda" else 1e-5
    all_close([derivative().numpy(), field.jvp([x], [ns.Float(1)])[1][0].numpy()], [[slope] * SAMPLES] * 2, tolerance)
    for wanted in ([x], [weights], [x, weights]):
        dr.disable_grad(x, weights)
        dr.enable_grad(wanted)
        if wanted[0] is x:
            y = value()
            dr.forward(x)
            all_close([dr.grad(y).numpy()], [[slope] * SAMPLES], tolerance)
        dr.clear_grad([x, weights])
        of_x, of_weights = backward(value())
        all_close(of_x, [[slope] * SAMPLES] * len(of_x), tolerance)
        all_close(of_weights, [[[of_weight]]] * len(of_weights), tolerance)
        dr.clear_grad([x, weights])
        _, of_weights = backward(derivative())
        all_close(of_weights, [[[4 * SAMPLES]]] * len(of_weights), tolerance)
