"""Several fields in one kernel: each lane has the weights of its own, and each field the gradient of its lanes."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.arrays import evaluated
from support.networks import gradients, in_order, matrices, ramp_biases

import coopnet as cn
from coopnet import reference as ref
from coopnet.engine import Stack, StackError, stacking
from coopnet.training.many.group import lanes_of

COUNT, DROPOUT, SEED, STEP = 5, 0.2, 11, 3


def build(backend, precision, seed):
    network = cn.MLP(3, 2, width=16, depth=2, activation="tanh", dropout=DROPOUT, bias=True)
    field = cn.NeuralField(None, network, in_features=3)
    dtype, precision = cn.field.storage(backend, precision, "test")
    field = field.allocate(dtype, precision, seed)
    ramp_biases(field.network)
    return field.pack()


def stack_of(fields, which):
    """The stack of ``fields``, and its array of weights."""
    whole = dr.concat([dr.detach(field["network.weights"]).array for field in fields])
    dr.enable_grad(whole)
    return Stack(which, len(fields), {fields[0]["network.weights"].array.index: whole}), whole


@pytest.mark.parametrize("precision, samples", [("auto", 32), ("auto", 100), ("half", 100)])
def test_values_and_gradients_are_those_of_each_field(backend, ns, precision, samples):
    samples = lanes_of(samples, dr.JitBackend.CUDA if backend == "cuda" else dr.JitBackend.LLVM)
    fields = [build(backend, precision, seed) for seed in range(COUNT)]
    half = fields[0].precision == "half"
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, COUNT * samples)).astype(np.float32)
    dy = rng.normal(size=(2, COUNT * samples)).astype(np.float32)
    lane = dr.arange(ns.UInt32, COUNT * samples)
    which = lane // samples
    stack, whole = stack_of(fields, which)
    coordinates = [ns.Float(v) for v in x]
    dr.enable_grad(coordinates)
    with stacking(stack):
        y = fields[0](coordinates, cn.Key(SEED + ns.UInt64(which), lane % samples, STEP))
    values = y.numpy()
    dr.backward(sum(v * ns.Float(d) for v, d in zip(y, dy, strict=True)))
    dx, found = np.stack([v.numpy() for v in evaluated(dr.grad(list(coordinates)))]), dr.grad(whole)
    size, tolerance = dr.width(whole) // COUNT, 2e-2 if half else 1e-5
    for k, field in enumerate(fields):
        own = slice(k * samples, (k + 1) * samples)
        weights, biases = matrices(field.network)
        dtype = np.float16 if half else np.float32
        dropout = (DROPOUT, 16, SEED + k, None, STEP)
        want_y, want_dx, dws, dbs = ref.mlp_vjp(weights, x[:, own], dy[:, own], "tanh", None, biases, dropout, dtype)
        np.testing.assert_allclose(values[:, own], want_y, atol=tolerance, rtol=tolerance)
        np.testing.assert_allclose(dx[:, own], want_dx, atol=tolerance * np.abs(want_dx).max())
        value = field["network.weights"]
        dr.enable_grad(value)
        part = dr.gather(type(found), found, dr.arange(ns.UInt32, size) + k * size)
        dr.set_grad(value, part)
        field["network.weights"] = value
        for given, want in zip(in_order(*gradients(field.network)), in_order(dws, dbs), strict=True):
            np.testing.assert_allclose(given, want, atol=tolerance * np.abs(want).max())


def test_values_without_gradients(backend, ns):
    fields = [build(backend, "auto", seed) for seed in range(3)]
    which = dr.arange(ns.UInt32, 96) // 32
    p = [ns.Float(np.random.default_rng(i).normal(size=96).astype(np.float32)) for i in range(3)]
    stack, _ = stack_of(fields, which)
    with stacking(stack), dr.suspend_grad():
        together = fields[0](p).numpy()
    alone = [fields[k]([ns.Float(v.numpy()[32 * k : 32 * k + 32]) for v in p]).numpy() for k in range(3)]
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), atol=2e-3, rtol=2e-3)
    with stacking(stack), dr.suspend_grad():  # a point of all lanes, each of which has masks of its own
        points = [ns.Float(0.5)] * 3, [dr.full(ns.Float, 0.5, 96)] * 3
        one, many = evaluated(*(fields[0](p, cn.Key(SEED)) for p in points))
    np.testing.assert_allclose(one.numpy(), many.numpy(), atol=2e-3)


def test_what_cannot_be_stacked_is_refused(backend, ns):
    fields = [build(backend, "auto", seed) for seed in range(2)]
    which = dr.arange(ns.UInt32, 64) // 32
    stack, _ = stack_of(fields, which)
    p = [dr.arange(ns.Float, 64) / 64] * 3
    with stacking(stack):
        with pytest.raises(StackError, match="a network is evaluated whose parameters are not those of the lanes"):
            fields[1](p)
        with pytest.raises(StackError, match="at 48 samples instead of 64"):
            fields[0]([dr.arange(ns.Float, 48) / 64] * 3)
        with pytest.raises(RuntimeError) as error:
            dr.while_loop(
                (ns.UInt32(0), dr.zeros(ns.Float, 64)),
                lambda i, y: i < 2,
                lambda i, y: (i + 1, y + fields[0](p)[0]),
                mode="symbolic",
            )
        assert str(error.value.__cause__).endswith("cannot be evaluated in a symbolic loop")
