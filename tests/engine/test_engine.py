"""Every way to a weight gradient is right, whatever the batch size, and says when it cannot be."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import arrays, evaluated
from support.engine import described
from support.kernels import launched
from support.networks import gradients, matrices, ramp_biases

import coopnet as cn
from coopnet import reference
from coopnet.checks import shown_bytes
from coopnet.engine import FUNCTIONS, Affine, Branching, activations, banks, elementwise, limits, ops
from coopnet.engine.evaluate import INPUT_GRADIENT_BY, OPERATIONS, STRATEGIES
from coopnet.engine.memory import bytes_per_sample, chunk_size
from coopnet.engine.network_op import Plan
from coopnet.engine.situation import Situation
from coopnet.engine.strategies import (
    BATCHES,
    EVALUATION,
    GRADIENTS,
    INPUT_GRADIENTS,
    LIBRARIES,
    LOSSES,
    MATRICES,
    OFFERS,
    SCOPES,
    TABLES,
    TANGENTS,
    GradientScope,
    Matrix,
    Products,
    StepBatch,
    StepLoss,
    caller_multiplies,
    choose,
    wide,
    worth_unrolling,
)  # fmt: skip
from coopnet.nn.activations import activation as as_activation
from coopnet.nn.sequential import known_ops, segments

PATHS = ["auto", "spill", "store", "banks", "builtin"]


def network(ns, backend, n_in=3, n_out=2, width=8, depth=2, seed=0, **options):
    """A packed network and its weights and biases in float64."""
    tensor = ns.TensorXf16 if backend == "cuda" else ns.TensorXf
    net = ramp_biases(cn.MLP(n_in, n_out, width=width, depth=depth, **options).alloc(tensor, n_in, dr.rng(seed)))
    weights, biases = matrices(net)
    return drnn.pack(net, layout="training"), weights, biases if options.get("bias") else None


def differentiate(net, ns, backend, x, dy, key=None, path="auto", wants_x=True):
    leaf = ns.Float16 if backend == "cuda" else ns.Float
    xs = [leaf(v) for v in arrays(ns, x)]
    if wants_x:
        dr.enable_grad(xs)
    buffer = net["weights"]
    dr.disable_grad(buffer)
    dr.enable_grad(buffer)
    with cn.gradient_path(path):
        y = list(net(drnn.CoopVec(xs), key))
        dr.backward(sum((ns.Float(a) * d for a, d in zip(y, arrays(ns, dy), strict=True)), ns.Float(0)))
    dx = evaluated(dr.grad(xs), dr.grad(buffer))[0]
    weights, biases = gradients(net)
    return weights, biases, np.stack([v.numpy() for v in dx]) if wants_x else None


def agree(got, expected, backend, factor=1.0):
    """Within a fraction of the largest entry; in half precision a few samples may lie on the other side of a kink."""
    for g, e in zip(got, expected, strict=True):
        scale = max(np.abs(e).max(), 1e-6)
        if backend == "cuda" and e.size > 500:
            assert np.mean(np.abs(g - e) > factor * 2e-2 * scale) < 0.01
            continue
        assert np.abs(g - e).max() <= factor * (5e-2 if backend == "cuda" else 2e-5) * scale


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("bias", [False, True])
def test_paths_agree_with_the_reference(ns, backend, path, bias):
    rng = np.random.default_rng(3)
    net, weights, biases = network(ns, backend, bias=bias, dropout=0.25)
    x, dy = rng.random((3, 700)), rng.standard_normal((2, 700)) / 700
    got = differentiate(net, ns, backend, x, dy, cn.Key(9, step=4), path)
    _, dx, dw, db = reference.mlp_vjp(
        weights, x, dy, "relu", biases=biases, dropout=reference.MLPDropout(0.25, seed=9, step=4)
    )
    agree(got[0], dw, backend)
    agree([got[2]], [dx], backend)
    if bias:
        agree(got[1], db, backend)


NAMES = ["relu", "leaky_relu", "tanh", "sigmoid", "softplus", "squareplus", "gelu", "silu", "sine", "exp", "identity"]


def test_what_is_known_of_activations():
    """Formulas spare kernels the tape of Dr.Jit's derivatives: of a dropped-out output alone, and of the slope."""
    masked = {name for name, f in FUNCTIONS.items() if f.dropped_slope is not None}
    flat = {name for name, f in FUNCTIONS.items() if f.piecewise_linear}
    assert masked == {"relu", "sigmoid", "softplus", "squareplus", "exp"}
    assert flat == {"relu", "leaky_relu", "identity"}
    assert {name for name, f in FUNCTIONS.items() if f.curvature is not None} == set(FUNCTIONS) - flat
    with pytest.raises(FrozenInstanceError):
        FUNCTIONS["identity"].piecewise_linear = False
    assert FUNCTIONS["identity"].array(2) == 2 and FUNCTIONS["identity"].array(2, 3, 1) == 7


@pytest.mark.parametrize("half", [False, True], ids=["single", "half"])
def test_slopes_at_extreme_outputs(ns, half):
    """They are exactly 0, 1 or the slope of the layer, for the least positive number, too."""
    least = 2.0**-24 if half else 2.0**-149
    y = np.array([0, -0.0, least, -least, 1, -1, 65504, -65504, np.inf, -np.inf], np.float64)
    leaf = ns.Float16 if half else ns.Float
    x = drnn.CoopVec([leaf(y.astype(np.float16 if half else np.float32)), leaf(1)])

    def slope(name, *params, at=x):
        return next(iter(FUNCTIONS[name].slope(at, x, *params))).numpy().astype(np.float64)

    np.testing.assert_array_equal(slope("relu"), y > 0)
    for a in (0.0, 0.01, 0.3, 2.0, -0.5):
        small = a if not half else float(np.float16(a))
        expected = np.where(y > 0, 1, small).astype(np.float32 if not half else np.float64)
        np.testing.assert_array_equal(slope("leaky_relu", a), expected)
    dropped = next(iter(FUNCTIONS["relu"].dropped_slope(x, leaf(1.25)))).numpy()
    np.testing.assert_array_equal(dropped, np.where(y > 0, 1.25, 0))


@pytest.mark.parametrize("omega", [1.0, 4.0, 30.0])
def test_sines_in_half_precision(ns, omega, monkeypatch):
    """As on a GPU, right within two hundred periods, bounded beyond, and NaN where the argument is."""
    monkeypatch.setattr(activations, "_of_vectors", lambda x: True)
    near = np.concatenate([np.linspace(-s / omega, s / omega, 20_001) for s in (1, 10, 100, 1200)])
    far = np.array([30_000, -30_000, 1e4, 3e3, -2e3]) / omega
    none = np.array([np.nan, np.inf, -np.inf])
    x = np.concatenate([near, far, none]).astype(np.float16)
    vector, f = drnn.CoopVec([ns.Float16(x)]), FUNCTIONS["sine"]
    y = f.coopvec(vector, omega)
    assert np.isnan(next(iter(y)).numpy()[-3:]).all()
    pairs = (y, np.sin), (f.slope(vector, y, omega), lambda v: omega * np.cos(v))
    for found, function in pairs:
        (found,), n = (v.numpy().astype(np.float64) for v in found), len(near)
        np.testing.assert_allclose(found[:n], function(omega * x[:n].astype(np.float64)), atol=3e-3 * max(1, omega))
        assert np.nanmax(np.abs(found[n:-3])) <= 3 * max(1, omega)


@pytest.mark.parametrize("beta", [0.3, 1.0, 10.0])
def test_squareplus_in_half_precision(ns, beta, monkeypatch):
    """By powers and logarithms of two, from numbers whose squares overflow to those next to 0."""
    monkeypatch.setattr(activations, "_of_vectors", lambda x: True)
    x = np.concatenate([np.linspace(-s / beta, s / beta, 20_001) for s in (5, 50, 1000, 600_000)])
    x = np.concatenate([x[np.abs(x) < 65_000], [np.inf, np.nan]]).astype(np.float16)
    vector, f = drnn.CoopVec([ns.Float16(x)]), FUNCTIONS["squareplus"]
    y = f.coopvec(vector, beta)
    scaled = x[:-2].astype(np.float64) * beta
    root = np.sqrt(scaled**2 + 4)
    value = np.where(scaled > 0, (scaled + root) / 2, 2 / (root - scaled)) / beta
    for result, exact, least in ((y, value, 0.01), (f.slope(vector, y, beta), (1 + scaled / root) / 2, 1)):
        found = next(iter(result)).numpy().astype(np.float64)
        assert np.all(np.abs(found[:-2] - exact) <= 5e-3 * np.maximum(exact, least)) and np.isnan(found[-1])


def test_dropout_is_differentiated_with_the_activation_before():
    relu, tanh, mask = (
        elementwise.Nonlinearity(cn.ReLU()),
        elementwise.Nonlinearity(cn.Tanh()),
        elementwise.Mask(cn.Dropout(0.5)),
    )

    def kinds(*chain):
        return [type(op).__name__ for op in elementwise.fused(chain)]

    assert kinds(relu, mask) == ["MaskedNonlinearity"]
    assert kinds(mask, relu) == ["Mask", "Nonlinearity"]
    assert kinds(tanh, mask) == ["MaskedNonlinearity"]
    assert kinds(relu, mask, mask) == ["MaskedNonlinearity", "Mask"]


def test_ops_are_made_once(ns, backend):
    """For as long as the layers are the same ones; what they hold is asked at every use."""
    net, *_ = network(ns, backend, dropout=0.2)
    first = segments([net])
    assert segments([net]) is first and len(first) == 1
    net.layers[2].p = 0.5
    net["weights"] = net["weights"] * 2
    assert segments([net]) is first
    assert first[0].ops[0].weights.buffer is net.layers[0].weights.buffer
    net.layers = (*net.layers, cn.Tanh())
    assert segments([net]) is not first and len(segments([net])[0].layers) == len(first[0].layers) + 1
    assert known_ops([cn.Linear(2, 2), drnn.Cast(), cn.ReLU()]) is None and known_ops([]) == []


def test_layers_may_change_between_calls(ns, backend):
    """Their settings, what stands in them, and what stands in a body; nothing that was made before is used then."""
    net = cn.Sequential(cn.LeakyReLU(0.5), cn.Residual(cn.Sequential(cn.Linear(2, 2), cn.Tanh())), cn.Dropout(0.5))
    field = cn.NeuralField(None, net, in_features=2).build(backend)
    slope, residual, dropout = field.network.layers
    p, key = ns.Array2f([-1, 0.5], [0.25, -2]), cn.Key(3)

    def changed(change):
        before, slopes = field(p, key).numpy().copy(), field.jacobian(p, key)[0].numpy().copy()
        change()
        fresh = field.__class__(None, cn.Sequential(*field.network.layers), in_features=2)
        fresh.precision = field.precision
        np.testing.assert_array_equal(field(p, key).numpy(), fresh(p, key).numpy())
        np.testing.assert_array_equal(field.jacobian(p, key)[0].numpy(), fresh.jacobian(p, key)[0].numpy())
        return (field(p, key).numpy() != before).any() or (field.jacobian(p, key)[0].numpy() != slopes).any()

    assert changed(lambda: setattr(slope, "negative_slope", -3.0))
    assert changed(lambda: setattr(residual, "body", cn.Sequential(residual.body.layers[0], cn.Sine())))
    assert changed(lambda: setattr(residual.body, "layers", residual.body.layers[:1]))
    assert changed(lambda: setattr(dropout, "p", 0.25))
    assert not changed(lambda: None)


@pytest.mark.parametrize("body", [0, 1])
@pytest.mark.parametrize("merge", ["sum", "concatenate"])
def test_gradients_of_inputs_that_nobody_wants(ns, backend, body, merge):
    """The first matrix is visited, and then it is over, also in a fork."""
    net, *_ = network(ns, backend, n_in=2, n_out=2, width=2, depth=0)
    first = known_ops(net.layers)[0]
    x = drnn.CoopVec(*[dr.ones(type(net["weights"]), 3)] * 2)
    for before in ([], [elementwise.Nonlinearity(cn.Tanh())]):
        for chain in ([first], [Branching([[first], []][: 1 + body], merge)]):
            for wanted in (False, True):
                visited = []
                tape = ops.evaluate([*before, *chain], [x], None)
                dx = ops.pullback(tape, tape.y, None, wanted, lambda op, *_: visited.append(op))  # noqa: B023
                assert visited == [first]
                assert len(dx[0]) == 2 if wanted else dx is None


@pytest.mark.parametrize("name, path", [
    *((name, "store") for name in NAMES), *itertools.product(["relu", "sigmoid", "tanh"], ["spill", "banks"]),
    ("silu", "banks"),
])  # fmt: skip
def test_activations_with_dropout(ns, backend, name, path):
    """Activation and dropout in one step: the adjoint from the output alone equals the one from the mask."""
    rng = np.random.default_rng(1)
    net, weights, _ = network(ns, backend, width=4, depth=1, activation=name, dropout=0.3)
    x, dy = rng.uniform(-1, 1, (3, 300)), rng.standard_normal((2, 300)) / 300
    got = differentiate(net, ns, backend, x, dy, cn.Key(1), path)
    _, dx, dw, _ = reference.mlp_vjp(weights, x, dy, name, dropout=reference.MLPDropout(0.3, seed=1))
    agree(got[0], dw, backend, 2)
    agree([got[2]], [dx], backend, 2)


@pytest.mark.parametrize("name", NAMES)
def test_kept_slopes(ns, name):
    """Slopes that are computed with the values are those that the backward pass computes."""
    leaf, rng = ns.Float, np.random.default_rng(2)
    x, dy = (drnn.CoopVec([leaf(rng.normal(size=100)) for _ in range(3)]) for _ in range(2))
    layer = as_activation(name, "MLP")
    from_output = FUNCTIONS[name].from_output(*layer.params())
    for dropout, key in ((None, None), (cn.Dropout(0.4), cn.Key(1)), (cn.GaussianDropout(0.4), cn.Key(1))):
        chain = elementwise.fused([layer.op(), *([] if dropout is None else [dropout.op()])])
        again, kept = (ops.evaluate(chain, [x], key, slopes=slopes) for slopes in (False, True))
        from_dropped = type(dropout) is cn.Dropout and FUNCTIONS[name].dropped_slope is not None
        expected = not from_output if dropout is None else not from_dropped and name != "identity"
        assert len(chain) == 1 and again.records[0].slope is None
        assert (kept.records[0].slope is not None) == expected
        found, right = (ops.pullback(tape, [dy], key, True, lambda *_: None)[0] for tape in (kept, again))
        np.testing.assert_allclose([v.numpy() for v in found], [v.numpy() for v in right], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("path", ["spill", "store", "banks"])
@pytest.mark.parametrize("name", ["relu", "sigmoid"])
def test_dropout_first_and_activation_last(ns, backend, name, path):
    """Nothing comes before a first layer, and least of all the last."""
    tensor, leaf = (ns.TensorXf16, ns.Float16) if backend == "cuda" else (ns.TensorXf, ns.Float)
    last = {"relu": cn.ReLU(), "sigmoid": cn.Sigmoid()}[name]
    net = cn.Sequential(cn.Dropout(0.4), cn.Linear(5, 3, bias=False), last).alloc(tensor, 5, dr.rng(2))
    weights = net.layers[1].weights.numpy().astype(np.float64)
    net = drnn.pack(net, layout="training")
    dr.enable_grad(net["weights"])
    rng = np.random.default_rng(0)
    x, dy = rng.uniform(-1, 1, (5, 200)), rng.standard_normal((3, 200)) / 200
    xs = [leaf(ns.Float(v)) for v in x]
    dr.enable_grad(xs)
    with cn.gradient_path(path):
        y = list(net(drnn.CoopVec(xs), cn.Key(1)))
        dr.backward(sum((ns.Float(a) * ns.Float(d) for a, d in zip(y, dy, strict=True)), ns.Float(0)))
    dropped = reference.dropout(x, 0.4, 1, None, 0, 0)
    z = weights @ dropped
    slope = (z > 0) * 1.0 if name == "relu" else (s := 1 / (1 + np.exp(-z))) * (1 - s)
    dx = reference.dropout(weights.T @ (dy * slope), 0.4, 1, None, 0, 0)
    agree([np.stack([v.numpy() for v in evaluated(dr.grad(xs))])], [dx], backend)
    agree(gradients(net)[0], [(dy * slope) @ dropped.T], backend)


@pytest.mark.parametrize("samples", [1, 31, 8191, 8193, 30_001])
@pytest.mark.parametrize("path", ["spill", "store", "banks"])
def test_batch_sizes(ns, backend, samples, path):
    """Borders of chunks, pieces and banks; positive activations and gradients of one sign, so that sums grow."""
    net, weights, biases = network(ns, backend, bias=True)
    x = np.random.default_rng(0).random((3, samples))
    dy = np.full((2, samples), 1 / 64)
    got = differentiate(net, ns, backend, x, dy, None, path, wants_x=False)
    _, _, dw, db = reference.mlp_vjp(weights, x, dy, "relu", biases=biases)
    factor = 0.2 if backend == "cuda" else 2
    agree(got[0], dw, backend, factor)
    agree(got[1], db, backend, factor)


@pytest.mark.parametrize("given_index", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_chunks(ns, backend, set_limits, bias, given_index):
    """A batch that does not fit the memory for spilling, and is no multiple of a chunk."""
    set_limits(KEPT_BYTES=2**20)
    samples = 20_001
    net, weights, biases = network(ns, backend, bias=bias, dropout=0.2)
    rng = np.random.default_rng(1)
    x, dy = rng.random((3, samples)), rng.standard_normal((2, samples)) / 64
    index = rng.permutation(samples).astype(np.uint32) if given_index else None
    key = cn.Key(1, index=ns.UInt32(index) if given_index else None)
    got = differentiate(net, ns, backend, x, dy, key, "spill")
    mask = reference.MLPDropout(0.2, seed=1, index=index)
    _, dx, dw, db = reference.mlp_vjp(weights, x, dy, "relu", biases=biases, dropout=mask)
    agree(got[0], dw, backend)
    agree([got[2]], [dx], backend)
    if bias:
        agree(got[1], db, backend)


@pytest.mark.parametrize("bias, numbers", [(False, 3 + 2), (True, 3 + 1 + 2)])
def test_bytes_of_a_sample(llvm, bias, numbers):
    """A bias is the weight of one more input."""
    net = cn.Sequential(cn.Linear(3, 2, bias=bias)).alloc(llvm.TensorXf)
    assert bytes_per_sample(known_ops([net]), 4) == 4 * numbers


def test_chunks_fit_the_memory(ns, backend, set_limits):
    set_limits(KEPT_BYTES=2 << 30)
    net, _, _ = network(ns, backend, 16, 3, 128, 3)
    affine = [Affine(m) for m in net.layers if isinstance(m, cn.Linear)]
    for itemsize in (2, 4):
        per_sample = bytes_per_sample(affine, itemsize)
        assert per_sample == itemsize * (16 + 6 * 128 + (8 if itemsize == 2 else 3))  # tensor cores take eights
        for samples in (1, 1000, 2**17, 2**22, 2**22 + 1):
            chunk = chunk_size(affine, samples, itemsize)
            assert chunk * per_sample <= limits.KEPT_BYTES
            assert chunk == samples or -(-samples // chunk) * chunk - samples < 1024 * -(-samples // chunk)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 70, 4, 1), (70, 1, 4, 1), (5, 7, 13, 2), (16, 3, 33, 0)])
def test_shapes(ns, backend, shape):
    n_in, n_out, width, depth = shape
    rng = np.random.default_rng(2)
    x, dy = rng.uniform(-1, 1, (n_in, 50)), rng.standard_normal((n_out, 50)) / 50
    for path in ("spill", "store", "banks"):
        net, weights, _ = network(ns, backend, n_in, n_out, width, depth)
        got = differentiate(net, ns, backend, x, dy, None, path)
        _, dx, dw, _ = reference.mlp_vjp(weights, x, dy, "relu")
        agree(got[0], dw, backend)
        agree([got[2]], [dx], backend)


@pytest.mark.parametrize("path", ["auto", "spill", "store", "banks"])
def test_frozen_with_changing_batches(ns, backend, path):
    """A frozen step is recorded anew for another number of samples, and only then."""
    field = cn.NeuralField(None, cn.MLP(3, 2, width=8, depth=1, dropout=0.2)).build(backend)

    def step(field, x, seed):
        y = field(x, cn.Key(seed))
        dr.backward((y[0] + 2 * y[1]) * (1 / 1000))
        return dr.grad(field["network.weights"])

    frozen = dr.freeze(step)
    rng, recordings = np.random.default_rng(0), []
    for samples in (9000, 9000, 9000, 20_000, 20_000, 20_000):
        # computed, not taken over from NumPy: Dr.Jit records anew when the alignment of its inputs changes
        x = [ns.Float(v) + 1e-3 for v in rng.random((3, samples))]
        dr.eval(x)
        seed = dr.opaque(ns.UInt64, samples)
        results = []
        for function in (frozen, step):
            buffer = field["network.weights"]
            dr.disable_grad(buffer)
            dr.enable_grad(buffer)
            with cn.gradient_path(path):
                results.append(function(field, x, seed).numpy().astype(np.float64))
        agree(results[:1], results[1:], backend, 0.5)
        recordings.append(frozen.n_recordings)
    assert recordings[2] == recordings[1] and recordings[5] == recordings[4]
    assert recordings[4] > recordings[2]


def test_frozen_chunks_of_changing_batches(ns, backend, set_limits):
    """The number of chunks is part of a recording, too."""
    set_limits(KEPT_BYTES=2**20)
    field = cn.NeuralField(None, cn.MLP(3, 1, width=8, depth=1)).build(backend)

    def step(field, x):
        dr.backward(field(x)[0] * (1 / 1000))
        return dr.grad(field["network.weights"])

    frozen = dr.freeze(step)
    for samples in (30_001, 30_001, 50_000, 9000):
        x = [ns.Float(v) + 1e-3 for v in np.random.default_rng(0).random((3, samples))]
        dr.eval(x)
        results = []
        for function in (frozen, step):
            dr.disable_grad(field["network.weights"])
            dr.enable_grad(field["network.weights"])
            with cn.gradient_path("spill"):
                results.append(function(field, x).numpy().astype(np.float64))
        agree(results[:1], results[1:], backend, 0.5)
    assert frozen.n_recordings == 3


@pytest.mark.parametrize("path", ["spill", "store", "banks"])
@pytest.mark.parametrize("samples", [500, 5000])
def test_the_gradient_of_the_input_is_computed_along(ns, backend, path, samples):
    """Left to whoever reads it, it would take another run through the whole network."""
    net, _, _ = network(ns, backend)
    leaf = ns.Float16 if backend == "cuda" else ns.Float
    xs = [leaf(ns.Float(v)) for v in np.random.default_rng(0).random((3, samples))]
    dr.enable_grad(net["weights"], xs)
    with cn.gradient_path(path):
        dr.backward(next(iter(net(drnn.CoopVec(xs)))))
    with launched() as rest:
        dr.eval([dr.grad(v) for v in xs])
    assert sum(k["operation_count"] for k in rest) < 20


@pytest.mark.parametrize("path", ["auto", "store", "banks"])
def test_frozen_constant_gradients(ns, backend, path):
    """A gradient that is the same for all samples is a constant, which does not follow the number of samples."""
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=0)).build(backend)

    def step(field, x):
        dr.backward(dr.sum(field(x)[0]) * (1 / 1000))
        return dr.grad(field["network.weights"])

    frozen = dr.freeze(step)
    for samples in (3000, 3000, 1500, 5000):
        x = [ns.Float(v) + 1e-3 for v in np.random.default_rng(0).random((2, samples))]
        dr.eval(x)
        results = []
        for function in (frozen, step):
            dr.disable_grad(field["network.weights"])
            dr.enable_grad(field["network.weights"])
            with cn.gradient_path(path):
                results.append(function(field, x).numpy().astype(np.float64))
        agree(results[:1], results[1:], backend, 0.5)


def test_one_bank_is_no_call(ns, backend, monkeypatch):
    net, *_ = network(ns, backend, depth=0)
    monkeypatch.setattr(banks.dr, "switch", lambda *_: pytest.fail("a call costs more than the network"))
    x, dy = np.ones((3, 8)), np.ones((2, 8))
    weights, *_ = differentiate(net, ns, backend, x, dy, path="banks")
    np.testing.assert_array_equal(weights, [np.full((2, 3), 8)])


@pytest.mark.parametrize("samples", [1025, 5000, 5003])
def test_samples_are_spread_evenly_over_banks(ns, backend, monkeypatch, samples):
    """A bank that got more than its share would stall where sums are half precision."""
    tensor = ns.TensorXf16 if backend == "cuda" else ns.TensorXf
    net = drnn.pack(cn.Linear(1, 2, bias=False).alloc(tensor, 1), layout="training")
    leaf = type(net["weights"])
    count, shares, total = banks.banks_for(samples), [], banks.Banks.sum

    def spy(self):
        shares.extend(float(dr.grad(bank).numpy().astype(np.float64).max()) for bank in self.banks)
        return total(self)

    monkeypatch.setattr(banks.Banks, "sum", spy)
    dr.enable_grad(net["weights"])
    x = dr.opaque(leaf, 1, samples)
    with cn.gradient_path("banks"):
        dr.backward(next(iter(net(drnn.CoopVec([x])))))
    assert len(shares) == count == -(-samples // 256) and sum(shares) == samples
    warps = -(-samples // 32)
    assert max(shares) <= 32 * -(-warps // count) and min(shares) >= 32 * (warps // count) - 31


def test_neighbouring_warps_have_banks_of_their_own(ns, backend, monkeypatch):
    """They run at the same time, and would queue for the same addresses."""
    seen, switch = [], banks.dr.switch
    monkeypatch.setattr(banks.dr, "switch", lambda index, *args: seen.append(index.numpy()) or switch(index, *args))
    net, *_ = network(ns, backend, depth=0)
    differentiate(net, ns, backend, np.ones((3, 3 * 1024)), np.ones((2, 3 * 1024)), path="banks")
    np.testing.assert_array_equal(seen[0], np.arange(3 * 1024) // 32 % 12)


@pytest.mark.parametrize(
    "samples, few",
    [(1, 1), (1024, 1), (1025, 5), (32 << 10, 128), (1 << 19, 128), ((1 << 19) + 1, 129), (1 << 30, 512)],
)
def test_number_of_banks(samples, few):
    assert banks.banks_for(samples) == few


def test_number_of_banks_in_a_scope():
    """As for a loop of eight turns, but no more banks than warps."""
    assert banks.banks_in_scope(1024) == 8
    assert banks.banks_in_scope(1024, vectors=3) == 24
    assert banks.banks_in_scope(100) == 1 and banks.banks_in_scope(129) == 2
    assert banks.banks_in_scope(64, vectors=1000) == 2 and banks.banks_in_scope(65, vectors=1000) == 3
    assert banks.banks_in_scope(1 << 30) == 512


def test_gradients_accumulate(ns, backend):
    """Two backward passes, and two calls in one expression, add up."""
    net, _, _ = network(ns, backend)
    leaf = ns.Float16 if backend == "cuda" else ns.Float
    x = [leaf(ns.Float(v)) for v in np.random.default_rng(0).random((3, 100))]
    buffer = net["weights"]

    def run(*expressions):
        dr.disable_grad(buffer)
        dr.enable_grad(buffer)
        for expression in expressions:
            dr.backward(expression() * 0.01)
        return dr.grad(buffer).numpy().astype(np.float64)

    def once():
        return next(iter(net(drnn.CoopVec(x))))

    single = run(once)
    agree([run(once, once)], [2 * single], backend)
    agree([run(lambda: once() + once())], [2 * single], backend)


def test_nan_reaches_the_gradient(ns, backend):
    """An overflow must not be lost on the way: the loss scaler looks for it."""
    for path in ("spill", "store", "banks"):
        net, _, _ = network(ns, backend, dropout=0.2)
        dy = np.full((2, 64), np.inf)
        weights, _, _ = differentiate(net, ns, backend, np.random.default_rng(0).random((3, 64)), dy, cn.Key(1), path)
        assert not all(np.isfinite(w).all() for w in weights)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_deterministic(ns, backend, dropout):
    net, _, _ = network(ns, backend, dropout=dropout, bias=True)
    rng = np.random.default_rng(0)
    x, dy = rng.random((3, 40_000)), rng.standard_normal((2, 40_000))
    with cn.deterministic():
        runs = [differentiate(net, ns, backend, x, dy, cn.Key(1)) for _ in range(20)]
    for weights, biases, dx in runs[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(weights + biases, runs[0][0] + runs[0][1], strict=True))
        assert np.array_equal(dx, runs[0][2])


def test_deterministic_grid(ns, backend):
    field = cn.NeuralField(
        cn.HashGrid(2, n_levels=4, base_resolution=4, hashmap_size=2**8), cn.MLP(out_features=1, width=8, depth=1)
    ).build(backend)
    p = [ns.Float(v) for v in np.random.default_rng(0).random((2, 20_000))]
    runs = []
    for _ in range(5):
        for name in field:
            dr.disable_grad(field[name])
            dr.enable_grad(field[name])
        with cn.deterministic():
            dr.backward(field(p)[0])
        runs.append([dr.grad(field[name]).numpy() for name in field])
    assert all(np.array_equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0], strict=True))


def test_deterministic_refuses_loops(ns, backend):
    net, _, _ = network(ns, backend)
    leaf = ns.Float16 if backend == "cuda" else ns.Float
    dr.enable_grad(net["weights"])

    def body(i, x):
        return i + 1, next(iter(net(drnn.CoopVec([x] * 3))))

    with cn.deterministic(), pytest.raises(RuntimeError, match="symbolic loop"):
        try:
            dr.while_loop((ns.UInt32(0), leaf([1, 2])), lambda i, x: i < 2, body, mode="symbolic", max_iterations=-1)
        except RuntimeError as error:
            raise error.__cause__ or error from None


CUDA, LLVM = dr.JitBackend.CUDA, dr.JitBackend.LLVM
FROZEN = {"frozen": True, "caller": True}  # in fit, where a library is at hand


@pytest.mark.parametrize(
    ("backend", "samples", "width", "options", "strategy"),
    [
        (LLVM, 1, 32, {}, "spill"),
        (LLVM, 1 << 20, 31, {}, "spill"),
        (LLVM, 1 << 20, 64, {}, "store"),
        (LLVM, 1 << 20, 64, {"forced": "spill"}, "spill"),
        (LLVM, 1 << 13, 32, {"frozen": True, "lanes": 16}, "lane sums"),
        (LLVM, (1 << 13) - 1, 32, {"frozen": True, "lanes": 16}, "spill"),
        (LLVM, 1 << 13, 32, {"frozen": True, "lanes": 16, "vectors": 3}, "spill"),
        (LLVM, 1 << 13, 32, {"frozen": True, "lanes": 16, "forced": "spill"}, "spill"),
        (LLVM, 1 << 13, 32, {"frozen": True}, "spill"),
        (LLVM, 1 << 13, 32, {"lanes": 16}, "spill"),
        (LLVM, 1 << 20, 32, FROZEN | {"lanes": 16}, "spill"),
        (LLVM, 1 << 20, 64, {"symbolic": True}, "loop sums"),
        (LLVM, 1 << 20, 32, {"layouts_known": False, "forced": "spill"}, "spill"),
        (CUDA, 1024, 32, {}, "banks"),
        (CUDA, 1025, 32, {}, "spill"),
        (CUDA, 1024, 33, {}, "spill"),
        (CUDA, 1025, 65, {}, "store"),
        (CUDA, 512, 32, {"vectors": 3}, "spill"),
        (CUDA, 1 << 20, 32, {"frozen": True}, "banks"),
        (CUDA, 1 << 20, 32, {"layouts_known": False}, "banks"),
        (CUDA, 100, 32, {"deterministic": True}, "spill"),
        (CUDA, 100, 65, {"deterministic": True}, "store"),
        (CUDA, 100, 32, {"forced": "store"}, "store"),
        (LLVM, 100, 32, {"forced": "store"}, "store"),
        (CUDA, 1 << 20, 96, FROZEN, "store"),
        (CUDA, 1 << 20, 97, FROZEN, "store"),
        (CUDA, 1 << 10, 97, FROZEN, "store"),
        (CUDA, 1 << 10, 96, FROZEN, "banks"),  # too little to do for a library
        (CUDA, 1, 97, {}, "store"),
        (CUDA, 1 << 20, 64, FROZEN | {"dropout": 0.1}, "banks"),
        (CUDA, 1 << 20, 65, FROZEN | {"dropout": 0.1}, "store"),
        (CUDA, 1 << 20, 96, {"frozen": True}, "banks"),
        (CUDA, 1 << 20, 97, {"frozen": True}, "store"),
        (CUDA, 1 << 20, 64, {"frozen": True, "dropout": 0.1}, "banks"),
        (CUDA, 1 << 20, 65, {"frozen": True, "dropout": 0.1}, "store"),
        (CUDA, 1 << 20, 128, FROZEN | {"layouts_known": False}, "banks"),
        (CUDA, 1 << 20, 64, FROZEN | {"runs": 2000}, "store"),
        (CUDA, 1 << 20, 64, {"frozen": True, "runs": 2000}, "banks"),
        (CUDA, 1 << 20, 32, FROZEN | {"runs": 2000}, "banks"),
        (CUDA, 1 << 20, 64, FROZEN | {"runs": 6000}, "banks"),
        (CUDA, 1 << 14, 64, FROZEN | {"runs": 7000}, "store"),
        (CUDA, 1 << 14, 64, FROZEN | {"runs": 10_000}, "banks"),
        (CUDA, 1 << 14, 64, FROZEN | {"runs": 10_000, "dropout": 0.1}, "store"),
        (CUDA, 1 << 14, 64, FROZEN | {"runs": 15_000, "dropout": 0.1}, "banks"),
        (CUDA, 100, 32, {"forced": "builtin"}, "builtin"),
        (CUDA, 100, 32, {"forced": "spill"}, "spill"),
        (CUDA, 1 << 20, 32, {"forced": "store", "deterministic": True}, "store"),
        (LLVM, 1 << 20, 32, {"symbolic": True, "forced": "banks"}, "loop banks"),
        (CUDA, 1 << 20, 32, {"symbolic": True}, "loop banks"),
        (CUDA, 100, 32, {"symbolic": True, "forced": "spill"}, "loop banks"),
        (LLVM, 1 << 20, 32, {"symbolic": True, "forced": "builtin"}, "builtin"),
        (LLVM, 1, 32, {"symbolic": True, "in_call": True}, "builtin"),
        (CUDA, 1, 32, {"symbolic": True, "in_call": True, "forced": "banks"}, "builtin"),
        (CUDA, 1, 32, {"stacked": True, "symbolic": True}, "stacked fields"),
    ],
)
def test_choice(backend, samples, width, options, strategy):
    options = dict(options)
    net = cn.MLP(3, 2, width=width, depth=3, dropout=options.pop("dropout", 0.0))
    network = described(net, options.pop("layouts_known", True))
    assert choose(GRADIENTS, Situation(network, backend, samples, **options))[0] == strategy


def test_every_way_has_a_function():
    """And every function is the strategy of a row."""
    rows = {row.strategy for table in (GRADIENTS, EVALUATION) for row in table}
    assert rows - {None} == STRATEGIES.keys()
    assert {row.strategy for row in INPUT_GRADIENTS} - {"tangents"} == INPUT_GRADIENT_BY.keys()


@pytest.mark.parametrize("lanes", [1, 4, 8, 16, 32])
@pytest.mark.parametrize("question", TABLES)
def test_every_situation_has_a_row(question, lanes):
    """Or an error that says what to do instead; on GPUs, too, and for vectors of any number of lanes."""
    for s in everything(question, lanes):
        try:
            strategy, why = choose(TABLES[question], s)
        except RuntimeError as error:
            cures = "; use coopnet.Linear", "evaluate the network outside", "leave one of the two contexts"
            assert any(cure in str(error) for cure in cures)
        else:
            assert strategy and why


def everything(question, lanes):
    """A grid of situations that a table answers for."""
    table, flags = TABLES[question], (False, True)
    if table is MATRICES:
        for rows, columns, itemsize, *options in itertools.product(
            (1, 16, 64, 200), (1, 64, 300), (2, 4), *[flags] * 3, [row.strategy for row in OFFERS]
        ):
            transposed, plain, turns, offer = options
            yield Matrix(rows, columns, itemsize, lanes, transposed, plain, offer, turns)
    elif table is LIBRARIES:
        for backend, frozen, by_caller, found in itertools.product((CUDA, LLVM), *[flags] * 3):
            yield Products(backend, frozen, by_caller, found)
    elif table is LOSSES:
        yield from itertools.starmap(StepLoss, itertools.product(flags, OPERATIONS))
    elif table is BATCHES:
        yield from itertools.starmap(StepBatch, itertools.product(*[flags] * 2))
    elif table is TANGENTS:
        net = described(cn.MLP(3, 1, width=64, depth=2), True)
        for backend, vectors, samples, *needed in itertools.product((CUDA, LLVM), (2, 9), (1, 1 << 20), *[flags] * 2):
            yield Situation(net, backend, samples, vectors, lanes, *needed)
    elif table is SCOPES:
        yield from itertools.starmap(GradientScope, itertools.product(*[flags] * 2))
    else:
        nets = [
            described(cn.MLP(3, 1, width=width, depth=2, activation=activation, dropout=dropout), known)
            for width, activation, dropout, known in [
                (32, "relu", 0.0, True),
                (64, "tanh", 0.1, True),
                (128, "relu", 0.0, False),
            ]
        ]
        for net, backend, samples, *options in itertools.product(
            nets, (CUDA, LLVM), (1, 1 << 12, 1 << 20), *[flags] * 8
        ):
            weights, inputs, symbolic, in_call, frozen, deterministic, caller, room = options
            for forced in ("auto", "spill", "builtin"):
                s = Situation(
                    net, backend, samples, 1, lanes, weights, inputs, symbolic or in_call, in_call, frozen, False,
                    deterministic, forced, caller, 100 * caller, room,
                )  # fmt: skip
                yield from (
                    [Plan(s, strategy) for strategy in (*OPERATIONS, *INPUT_GRADIENT_BY)] if table is OFFERS else [s]
                )


@pytest.mark.parametrize("lanes, width, options, expected", [
    (16, 64, {"weights": True}, True), (16, 68, {"weights": True}, False), (8, 64, {"weights": True}, True),
    (8, 64, {"weights": True, "linear": False}, False), (8, 48, {"weights": True, "linear": False}, True),
    (16, 128, {}, True), (16, 144, {}, False), (8, 72, {}, True), (8, 80, {}, False), (16, 64, {"vectors": 4}, True),
    (16, 64, {"vectors": 5}, False), (16, 64, {"samples": 2047}, False), (16, 64, {"frozen": False}, False),
    (16, 64, {"inputs": True}, True), (16, 68, {"inputs": True}, False),
    (16, 64, {"inputs": True, "symbolic": True}, False),
    (16, 64, {"runs": 1 << 14}, True), (16, 64, {"runs": (1 << 14) - 1}, False), (16, 64, {"symbolic": True}, True),
    (16, 64, {"symbolic": True, "weights": True}, False), (16, 64, {"symbolic": True, "in_call": True}, False),
    (16, 64, {"single": False}, False), (16, 0, {}, False), (16, 64, {"backend": CUDA}, False),
])  # fmt: skip
def test_when_matrices_are_unrolled(lanes, width, options, expected):
    given = {"piecewise_linear": options.pop("linear", True), "single_precision": options.pop("single", True)}
    network = SimpleNamespace(multiplications=width * (16 + 2 * width + 3), **given)
    where = {"backend": LLVM, "samples": 2048, "lanes": lanes, "frozen": True, "weights": False} | options
    assert worth_unrolling(Situation(network, **where)) == expected


@pytest.mark.parametrize("path", ["auto", "builtin"])
def test_one_point_under_many_masks(ns, backend, path):
    """The input has one lane, outputs as many as the key, and cotangents are constants. A bias gets all of them."""
    field = cn.NeuralField(None, cn.MLP(2, 1, width=16, depth=2, dropout=0.3, bias=True)).build(backend, seed=1)
    dr.enable_grad(field["network.weights"])
    if (backend, path) == ("cuda", "builtin"):
        pytest.skip("Dr.Jit's own operation needs an input with as many lanes as the key")
    with cn.gradient_path(path):
        y = field([ns.Float(0.3), ns.Float(0.7)], cn.Key(3, index=dr.arange(ns.UInt32, 1000)))[0]
        dr.backward(dr.sum(y) * 1e-3)
    (bias,) = field.gradient("layers.6.bias")
    assert bias == pytest.approx(1, rel=1e-5 if backend == "llvm" else 1e-2)


def test_paths_have_names():
    with pytest.raises(ValueError, match="name is 'fast'"), cn.gradient_path("fast"):
        pass


def test_explain(ns, backend, play_lanes, set_limits):
    play_lanes(16)
    set_limits(KEPT_BYTES=2 << 30)
    field = cn.NeuralField(None, cn.MLP(16, 3, width=64, depth=3)).build(backend)
    big, small = field.explain(2**22), field.explain(100)
    assert (big.samples, big.backend, big.frozen) == (2**22, backend, True)
    if backend == "cuda":
        assert (big.path, big.banks, big.chunks) == ("banks", 512, 1)
        assert (small.path, small.banks) == ("banks", 1)
        assert big.memory == 512 * 2 * dr.width(field["network.weights"])
        assert f"in 512 bank(s), {big.memory / 2**20:.1f} MiB in all" in str(big)
        assert field.explain(2**20, frozen=False).path == "spill"
    else:
        # activations and deltas of four matrices in single precision
        row = 4 * (16 + 3 * 64 + 3 * 64 + 3)
        chunk = chunk_size([Affine(m) for m in field.network.layers if isinstance(m, cn.Linear)], 2**22, 4)
        assert (big.path, big.banks, big.memory) == ("spill", 1, chunk * row)
        assert big.chunks == -(-(2**22) // chunk) > 1 and type(big.chunks) is int
        assert f"in {big.chunks} chunk(s), {big.memory / 2**30:.1f} GiB at a time" in str(big)
        assert (small.chunks, small.memory) == (1, 100 * row) and f"{100 * row / 1024:.1f} KiB" in str(small)
    for found in (big, small):
        assert str(found).startswith(f"{backend.upper()}, {found.samples} samples, inside dr.freeze: {found.path}, ")
        assert f"because {found.reason};" in str(found)
    assert "outside dr.freeze" in str(field.explain(100, frozen=False))
    with cn.deterministic():
        spilled = field.explain(2**22)
    assert spilled.path == "spill"
    assert spilled.chunks > 1 and spilled.memory <= limits.KEPT_BYTES
    with cn.gradient_path("builtin"):
        builtin = field.explain(2**22)
    assert (builtin.path, builtin.memory, builtin.chunks, builtin.banks) == ("builtin", 0, 1, 1)
    assert "Dr.Jit's own operation" in str(builtin)
    if backend == "llvm":
        for activation, outputs in (("relu", 0), ("sine", 3)):
            wide = cn.NeuralField(None, cn.MLP(16, 3, width=160, depth=3, activation=activation)).build(backend)
            found = wide.explain(4096)
            row = 4 * (16 + 6 * 160 + 3 + outputs * 160)
            assert (found.path, found.memory) == ("store", 4096 * row) and wide.explain(1024).path == "spill"
    with cn.gradient_path("banks"):
        found = field.explain(5000)
    assert (found.path, found.banks, found.chunks) == ("banks", 20, 1)
    assert found.memory == 20 * (2 if backend == "cuda" else 4) * dr.width(field["network.weights"])
    with pytest.raises(ValueError, match=r"explain: batch is 0"):
        field.explain(0)
    with pytest.raises(ValueError, match="not built"):
        cn.NeuralField(None, cn.MLP(1, 1)).explain(5)


@pytest.mark.parametrize(
    "count, text",
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (1536 << 10, "1.5 MiB"), (1 << 30, "1.0 GiB")],
)
def test_sizes_in_words(count, text):
    assert shown_bytes(count) == text


def test_unknown_layouts_are_not_spilled():
    """A layer of drjit.nn on CUDA: its gradient could only be written to the wrong places."""
    s = Situation(described(cn.MLP(3, 2, width=32), False), CUDA, 100)
    with pytest.raises(RuntimeError, match=r"deterministic: .* use coopnet\.Linear"):
        choose(GRADIENTS, s._replace(deterministic=True))
    with pytest.raises(RuntimeError, match=r"gradient_path: the path 'spill' .* use coopnet\.Linear"):
        choose(GRADIENTS, s._replace(forced="spill"))


def test_what_is_chosen_from(ns, backend, chosen):
    """What is asked for, and what is being traced."""
    net, *_ = network(ns, backend)
    dr.enable_grad(net["weights"])
    x = drnn.CoopVec([dr.opaque(type(net["weights"]), 1, 7)] * 3)
    net(x)
    with cn.deterministic(), cn.gradient_path("spill"):
        net.jvp(x, [x, x])
    (one, _), _, (two, _) = chosen  # the second question is how tangents are computed
    assert one.backend == dr.backend_v(net["weights"]) and (one.terms, two.terms) == (7, 21)
    assert one.network.width == 8 and one.network.layouts_known == (backend == "cuda") and not one.network.dropout
    assert one.weights and not (
        one.symbolic or one.in_call or one.frozen or caller_multiplies(one) or wide(one) or one.deterministic
    )
    assert (one.forced, two.forced, two.deterministic, one.runs) == ("auto", "spill", True, 0)


@pytest.mark.parametrize(
    "width, samples, path", [(8, 300, "auto"), (8, 5000, "auto"), (70, 3000, "auto"), (8, 300, "store")]
)
@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_explained_is_what_runs(ns, backend, chosen, set_limits, width, samples, path, frozen):
    set_limits(UNROLLED_RUNS=0)  # the number of steps is not known to explain()
    field = cn.NeuralField(None, cn.MLP(2, 1, width=width, depth=1)).build(backend, seed=1)

    def batch(key):
        p = cn.uniform(2, key, ns.Float, samples)
        return p, [p[0]]

    with cn.gradient_path(path):
        explained = field.explain(samples, frozen)
        if frozen:
            cn.fit(field, batch, 1, progress=False)
        else:
            dr.enable_grad(field["network.weights"])
            dr.backward(field(list(batch(cn.Key(1))[0]))[0])
    ran = [strategy for s, strategy in chosen if s.weights and s.frozen == frozen and s.samples == samples]
    assert ran and set(ran) == {explained.path}


@pytest.mark.parametrize("width, samples", [(64, 1 << 13), (96, 1 << 12), (16, 300)])
def test_what_is_explained_of_functions_of_ones_own(ns, backend, chosen, width, samples):
    """No library can multiply in them."""
    field = cn.NeuralField(None, cn.MLP(2, 1, width=width, depth=2)).build(backend, seed=1)
    x = list(cn.uniform(2, cn.Key(1), ns.Float, samples))
    dr.eval(x)

    @dr.freeze
    def step(field, x):
        dr.enable_grad(field["network.weights"])
        dr.backward(field(x)[0])
        return dr.grad(field["network.weights"])

    dr.eval(step(field, x))
    ran = {strategy for s, strategy in chosen if s.weights}
    assert ran == {field.explain(samples, fit=False).path}


def test_what_is_explained_of_short_runs(backend, set_limits):
    """On CUDA they take a way that compiles faster, if a library is found."""
    field = cn.NeuralField(None, cn.MLP(16, 3, width=64, depth=3)).build(backend, seed=1)
    long, short = (field.explain(1 << 20, steps=steps).path for steps in (1_000_000, 10))
    assert (long, short) in {"llvm": [("spill", "spill")], "cuda": [("banks", "store"), ("banks", "banks")]}[backend]
    # the engine does not know how often a function of one's own runs
    assert field.explain(1 << 16, fit=False, steps=10).path == field.explain(1 << 16, fit=False).path
    with pytest.raises(ValueError, match="explain: steps is -1; an int from 0 on is needed"):
        field.explain(10, steps=-1)
    with pytest.raises(ValueError, match="explain: fit is 2"):
        field.explain(10, fit=2)


@pytest.mark.usefixtures("as_if_unwarned")
def test_calls_on_cuda_warn_once(ns, backend):
    """Whatever the number of samples, which is not known there."""
    net, *_ = network(ns, backend)
    dr.enable_grad(net["weights"])
    leaf = type(net["weights"])

    def call():
        return dr.switch(
            dr.zeros(ns.UInt32, 7), [lambda x: list(net(drnn.CoopVec([x, x, x])))] * 2, dr.opaque(leaf, 1, 7)
        )

    if backend == "cuda":
        with pytest.warns(RuntimeWarning, match="virtual call"):
            call()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call()


@pytest.mark.parametrize("path", ["auto", "banks", "builtin"])  # products of rows, calls, and Dr.Jit's own way
def test_two_networks_share_an_encoding(ns, backend, path):
    """Both reach the grid's parameters and the coordinates; the packed weights are two buffers."""
    rng = np.random.default_rng(5)
    options = dict(n_levels=3, n_features_per_level=2, base_resolution=3, hashmap_size=2**7, per_level_scale=2.0)
    tensor, leaf = (ns.TensorXf16, ns.Float16) if backend == "cuda" else (ns.TensorXf, ns.Float)
    grid = cn.HashGrid(2, init_scale=1.0, **options).alloc(tensor, 2, dr.rng(1))
    nets, weights = [], []
    for seed in (1, 2):
        net, w, _ = network(ns, backend, 6, 2, seed=seed, activation="tanh")
        dr.enable_grad(net["weights"])
        nets.append(net)
        weights.append(w)
    x, dys = rng.random((2, 400)), rng.standard_normal((2, 2, 400)) / 400
    p = [ns.Float(v) for v in x]
    dr.enable_grad(p, grid["data"])
    with cn.gradient_path(path):
        features = grid(p)
        total = ns.Float(0)
        for net, dy in zip(nets, dys, strict=True):
            y = list(net(drnn.CoopVec([leaf(v) for v in features])))
            total += sum(ns.Float(a) * ns.Float(d) for a, d in zip(y, dy, strict=True))
        dr.backward(total)
    params = grid["data"].numpy().astype(np.float64)
    levels = [level.scale for level in grid.grid.value.levels]
    encoded = reference.hash_grid(x, params, **options, level_scales=levels)
    dfeatures = 0
    for net, w, dy in zip(nets, weights, dys, strict=True):
        _, dx, dw, _ = reference.mlp_vjp(w, encoded, dy, "tanh")
        agree(gradients(net)[0], dw, backend)
        dfeatures = dfeatures + dx
    dcoordinates, dparams = reference.hash_grid_vjp(x, params, dfeatures, **options, level_scales=levels)
    agree([dr.grad(grid["data"]).numpy()], [dparams], backend, 2)
    agree([np.stack([v.numpy() for v in evaluated(dr.grad(p))])], [dcoordinates], backend, 10)


def test_against_finite_differences(ns, backend):
    """The derivative along a random direction of all parameters of a field, without any reference code."""
    if backend == "cuda":
        pytest.skip("half precision is too coarse for differences")
    grid = cn.HashGrid(2, n_levels=3, base_resolution=3, hashmap_size=2**7, init_scale=0.5)
    net = cn.MLP(out_features=2, width=16, depth=2, activation="silu", dropout=0.2, bias=True)
    field = cn.NeuralField(grid, net).build(backend, seed=4)
    rng = np.random.default_rng(0)
    p = [ns.Float(v) for v in rng.random((2, 3000))]
    start = {k: v.numpy().copy() for k, v in field.items()}  # not views of what is overwritten
    step = {k: rng.standard_normal(v.shape).astype(np.float32) for k, v in start.items()}

    def loss(t):
        for k, v in start.items():
            field[k] = type(field[k])(v + np.float32(t) * step[k])
            dr.enable_grad(field[k])
        y = field(p, cn.Key(3))
        return dr.mean(dr.square(y[0]) + y[0] * y[1])

    dr.backward(loss(0))
    slope = sum(float((dr.grad(field[k]).numpy().astype(np.float64) * step[k]).sum()) for k in start)
    t = 2e-3
    difference = (loss(t).numpy()[0].astype(np.float64) - loss(-t).numpy()[0]) / (2 * t)
    assert slope == pytest.approx(difference, rel=5e-3)


@pytest.mark.parametrize("samples", [1025, 5000, 5024])
def test_banks_of_odd_batches(ns, backend, samples):
    """Whatever fills the last warp up adds nothing, to weights, biases and inputs; masks are those of the samples."""
    rng = np.random.default_rng(0)
    x, dy = rng.uniform(-1, 1, (5, samples)), rng.standard_normal((2, samples)) / samples
    for key in (cn.Key(3), cn.Key(3, index=ns.UInt32(np.arange(samples)[::-1].copy()))):
        found = []
        for path in ("spill", "banks"):
            net, _, _ = network(ns, backend, 5, 2, 8, bias=True, dropout=0.3)
            weights, biases, dx = differentiate(net, ns, backend, x, dy * 1e3, key, path)
            found.append([*weights, *biases, dx])
        agree(*found[::-1], backend)


@pytest.mark.parametrize("path", ["spill", "store"])
def test_a_graph_that_is_walked_twice(ns, backend, path):
    """What was stored is gone after the first backward pass, and computed again."""
    net, _, _ = network(ns, backend, bias=True)
    buffer = net["weights"]
    dr.enable_grad(buffer)
    x = [type(buffer)(ns.Float(v)) for v in np.random.default_rng(0).random((3, 100))]
    with cn.gradient_path(path):
        y = sum(net(drnn.CoopVec(x)))
        found = []
        for _ in range(2):
            dr.clear_grad(buffer)
            dr.backward(y, flags=dr.ADFlag.ClearVertices)
            found.append(dr.grad(buffer).numpy().astype(np.float64))
    assert np.abs(found[0]).max() > 0
    agree(found[:1], found[1:], backend)


def test_explained_inside_a_call(ns, backend):
    """As the network would be evaluated in this place."""
    field, found = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend), []

    def call(x):
        found.append(field.explain(1000).path)
        return x

    dr.switch(dr.zeros(ns.UInt32, 4), [call], dr.arange(ns.Float, 4))
    assert set(found) == {"builtin"}
