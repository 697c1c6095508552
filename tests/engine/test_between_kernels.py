"""Wide layers as products between kernels, on the CPU: the numbers of the one kernel, and what is kept for them."""

from __future__ import annotations

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import arrays, evaluated

import coopnet as cn
from coopnet.engine import activation_cache, limits, strategies
from coopnet.engine.activation_cache import ActivationCache
from coopnet.engine.activations import FUNCTIONS
from coopnet.engine.multipliers import BetweenKernels
from coopnet.engine.row_vectors import Rows, RowVector
from coopnet.engine.situation import Network, Situation

pytestmark = pytest.mark.usefixtures("several_threads")

#: Wide enough here that layers among them are products of their own: kernels of small networks compile fast.
WIDTH = 12
MEASURED = {name: getattr(limits, f"WIDE_{name}") for name in ("TRAINED", "FITTED", "EVALUATED", "LAYER", "SAMPLES")}


@pytest.fixture
def measured(set_limits):
    """Limits as they are."""
    return set_limits(**{f"WIDE_{name}": value for name, value in MEASURED.items()})


@pytest.fixture(autouse=True)
def layerwise(backend, set_limits):
    """Processors differ in what is worth it."""
    if backend == "cuda":
        pytest.skip("a GPU multiplies in kernels")
    both = {1: (WIDTH, WIDTH)}
    set_limits(WIDE_TRAINED=both, WIDE_FITTED=both, WIDE_EVALUATED=both, WIDE_LAYER=8, WIDE_SAMPLES=100)


@pytest.fixture
def products(monkeypatch):
    """How many rows and columns were multiplied by matrices between kernels."""
    seen, multiply = [], BetweenKernels.multiply
    monkeypatch.setattr(
        BetweenKernels, "multiply", lambda self, rows: seen.append(rows.columns) or multiply(self, rows)
    )
    return seen


def points(ns, n, samples, seed=0):
    return arrays(ns, np.random.default_rng(seed).uniform(-1, 1, (n, samples)))


def biased(field, name="network.weights"):
    """``field`` with numbers for biases, which are zeros at first."""
    values = np.random.default_rng(7).normal(size=dr.width(field[name])).astype(np.float32)
    field[name] = type(field[name])(field[name] + 0.03 * type(field[name])(values))
    return field


def gradients(field, x, path, key=None, weight=None, repeat=1):
    """Outputs, weight gradient and gradient of the input."""
    x = [v + 0 for v in x]
    dr.enable_grad(x, field["network.weights"])
    dr.set_grad(field["network.weights"], 0)
    with cn.gradient_path(path):
        y = list(field(x, key))
        loss = sum((dr.square(v + 0.3) for v in y), type(x[0])(0))
        if weight is not None:
            loss = dr.select(weight == 0, 0, loss * weight)
        for _ in range(repeat):
            dr.set_grad(loss, 1)
            dr.enqueue(dr.ADMode.Backward, loss)
            last = _ == repeat - 1
            dr.traverse(dr.ADMode.Backward, dr.ADFlag.Default if last else dr.ADFlag.ClearInterior)
    dr.eval(y, dr.grad(x))
    found = [np.stack([v.numpy() for v in y]), dr.grad(field["network.weights"]).numpy().copy()]
    found.append(np.stack([dr.grad(v).numpy() for v in x]))
    dr.disable_grad(field["network.weights"])
    return found


def agree(found, expected, tolerance=2e-5):
    for a, b in zip(found, expected, strict=True):
        assert np.abs(b).max() > 0 and np.abs(a - b).max() <= tolerance * np.abs(b).max()


@pytest.mark.parametrize("activation, dropout, bias, samples", [
    ("relu", 0.0, False, 100), ("relu", 0.0, True, 1231), ("relu", 0.3, False, 2048), ("relu", 0.3, True, 999),
    ("leaky_relu", 0.0, True, 2048), ("sine", 0.0, False, 1231), ("sine", 0.3, True, 300), ("softplus", 0.0, True, 100),
    ("softplus", 0.3, False, 1231), ("tanh", 0.0, False, 999), ("tanh", 0.3, True, 2048),
])  # fmt: skip
def test_gradients_are_those_of_one_kernel(ns, backend, products, activation, dropout, bias, samples):
    net = cn.MLP(5, 3, width=WIDTH, depth=2, activation=activation, dropout=dropout, bias=bias)
    field = biased(cn.NeuralField(None, net).build(backend, seed=1))
    x, key = points(ns, 5, samples), cn.Key(3, step=ns.UInt32(5))
    found = gradients(field, x, "auto", key)
    assert len(products) == 2
    agree(found, gradients(field, x, "spill", key))
    assert len(products) == 2


def numpy_mlp(field, x, bias):
    """The outputs and the gradient of half the sum of their squares, in double precision."""
    matrices = []
    for layer in field.network.layers:
        if isinstance(layer, cn.Linear):
            matrices.append(unpacked(layer))
    hs = [x]
    for i, (w, b) in enumerate(matrices):
        z = w @ hs[-1] + (0 if b is None else b.reshape(-1, 1))
        hs.append(z if i == len(matrices) - 1 else np.maximum(z, 0))
    d, grads = hs[-1], []
    for i in reversed(range(len(matrices))):
        grads.append((d @ hs[i].T, d.sum(1)))
        d = matrices[i][0].T @ d * (hs[i] > 0)
    return hs[-1], grads[::-1]


def unpacked(layer):
    """Matrix and bias in double precision."""
    flat = layer.weights.buffer.numpy().astype(float)
    (m, n), at = layer.weights.shape, layer.weights.offset
    bias = None if layer.bias is None else flat[layer.bias.offset : layer.bias.offset + m]
    return flat[at : at + m * n].reshape(m, n), bias


@pytest.mark.parametrize("bias", [False, True])
def test_against_double_precision(ns, backend, products, set_limits, bias):
    set_limits(WIDE_LAYER=32)
    field = biased(cn.NeuralField(None, cn.MLP(6, 2, width=48, depth=3, bias=bias)).build(backend, seed=2))
    x = points(ns, 6, 3000)
    expected, grads = numpy_mlp(field, np.stack([v.numpy() for v in x]).astype(float), bias)
    dr.enable_grad(field["network.weights"])
    y = field(x)
    dr.backward(dr.sum(sum((dr.square(v) for v in y), ns.Float(0))) * 0.5)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
    flat = dr.grad(field["network.weights"]).numpy()
    linear = [layer for layer in field.network.layers if isinstance(layer, cn.Linear)]
    for layer, (dw, db) in zip(linear, grads, strict=True):
        (m, n), at = layer.weights.shape, layer.weights.offset
        assert np.abs(flat[at : at + m * n].reshape(m, n) - dw).max() <= 1e-5 * np.abs(dw).max()
        if bias:
            at = layer.bias.offset
            assert np.abs(flat[at : at + m] - db).max() <= 1e-5 * np.abs(db).max()
    assert len(products) == 3


@pytest.mark.parametrize("memory", [1 << 28, 1])
@pytest.mark.parametrize("bias, dropout", [(True, 0.0), (False, 0.4)])
def test_evaluation_without_gradients(ns, backend, set_limits, products, bias, dropout, memory):
    """The same outputs, also in chunks."""
    set_limits(WIDE_BYTES=memory)
    net = cn.MLP(5, 9, width=WIDTH, depth=2, activation="silu", dropout=dropout, bias=bias)
    field = biased(cn.NeuralField(None, net).build(backend, seed=1))
    x, key = points(ns, 5, 3001), cn.Key(3, dr.arange(ns.UInt32, 3001) + 9, ns.UInt32(5))
    found = field(x, key).numpy()
    assert len(products) == 3 * (1 if memory > 1 else 3)
    set_limits(WIDE_SAMPLES=1 << 30)
    in_kernel = list(field(x, key))
    dr.eval(in_kernel)
    expected = np.stack([v.numpy() for v in in_kernel])
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_gradients_of_inputs_alone(ns, backend, products, set_limits):
    """NaN where an intermediate number is not finite, unless the loss leaves the sample out."""
    field = cn.NeuralField(None, cn.MLP(3, 1, width=WIDTH, depth=2, activation="softplus")).build(backend, seed=1)

    def slopes():
        x = points(ns, 3, 500)
        lane = dr.arange(ns.UInt32, 500)
        x[0] = dr.select((lane == 7) | (lane == 8), dr.nan, x[0])
        dr.enable_grad(x)
        dr.backward(dr.select(lane == 8, 0, field(x)[0]))
        return np.array([v.numpy() for v in evaluated(dr.grad(x))])

    found = slopes()
    assert products
    products.clear()
    set_limits(WIDE_SAMPLES=1 << 30, COPIES_SAMPLES=1 << 30)
    expected = slopes()
    assert not products and np.isnan(found[:, 7]).all() and (found[:, 8] == 0).all()
    agree(np.delete(found, [7, 8], 1), np.delete(expected, [7, 8], 1), 1e-5)


def test_a_gradient_where_something_is_not_finite(ns, backend, products):
    net = cn.MLP(3, 1, width=WIDTH, depth=2, activation="softplus")
    field = cn.NeuralField(None, net).build(backend, seed=1)
    p = ns.Array3f(points(ns, 3, 500))
    p.x = dr.select(dr.arange(ns.UInt32, 500) == 7, dr.nan, p.x)
    y, slope = (v.numpy() for v in evaluated(*field.value_and_grad(p)))
    assert products and np.isnan(y[..., 7]).all() and np.isnan(slope[:, 7]).all()
    assert np.isfinite(np.delete(y, 7, -1)).all() and np.isfinite(np.delete(slope, 7, 1)).all()


def test_a_gradient_where_memory_is_short(ns, backend, set_limits, products):
    """In the kernel, as for fewer samples."""
    field = cn.NeuralField(None, cn.MLP(3, 1, width=WIDTH, depth=2)).build(backend, seed=1)
    p = ns.Array3f(points(ns, 3, 1500))
    expected = [v.numpy() for v in evaluated(*field.value_and_grad(p))]
    assert products
    products.clear()
    set_limits(KEPT_BYTES=1)
    agree([v.numpy() for v in evaluated(*field.value_and_grad(p))], expected, 1e-5)
    assert not products


def test_chunks_with_a_seed_for_each_sample(ns, backend, set_limits, products):
    """As virtual calls in evaluated mode pass keys on."""
    field = cn.NeuralField(None, cn.MLP(3, 2, width=WIDTH, depth=2, dropout=0.3)).build(backend, seed=1)
    x, seeds = points(ns, 3, 2500), np.random.default_rng(0).integers(0, 3, 2500)
    key = cn.Key(ns.UInt64(seeds), dr.arange(ns.UInt32, 2500), ns.UInt32(2))
    expected = field(x, key).numpy().copy()
    set_limits(WIDE_BYTES=1)
    found = field(x, key).numpy()
    assert len(products) > 4 and np.array_equal(found, expected)


def test_branches_stay_in_one_kernel(ns, backend, products):
    """What goes into several layers would be read as often."""
    net = cn.Sequential(cn.Linear(3, 12), cn.Residual(cn.Sequential(cn.Linear(12, 12), cn.ReLU())), cn.Linear(12, 1))
    field = cn.NeuralField(None, net).build(backend, seed=1)
    x = points(ns, 3, 600)
    dr.eval(field(x))
    assert not products
    agree(gradients(field, x, "store"), gradients(field, x, "spill"))  # right, where it is asked for
    assert products


@pytest.mark.parametrize("activation", ["softplus", "relu"])
def test_gradients_of_inputs(ns, backend, set_limits, products, activation):
    net = cn.MLP(3, 1, width=WIDTH, depth=3, activation=activation, bias=True)
    field = biased(cn.NeuralField(None, net).build(backend, seed=1))
    p = ns.Array3f(points(ns, 3, 1500))
    y, slope = (v.numpy() for v in evaluated(*field.value_and_grad(p)))
    assert len(products) == 3
    set_limits(WIDE_SAMPLES=1 << 30)
    expected, slopes = (v.numpy() for v in evaluated(*field.value_and_grad(p)))
    agree([y, slope], [expected, slopes], 1e-5)


def test_second_derivatives(ns, backend, products):
    """Weight gradients of a loss of values and slopes: bundles of several vectors."""
    net = cn.MLP(3, 1, width=WIDTH, depth=2, activation="softplus", bias=True)
    field = biased(cn.NeuralField(None, net).build(backend, seed=1))
    p, found = ns.Array3f(points(ns, 3, 1200)), []
    for path in ("store", "spill"):
        dr.enable_grad(field["network.weights"])
        dr.set_grad(field["network.weights"], 0)
        with cn.gradient_path(path):
            y, slope = field.value_and_grad(p)
            dr.backward(dr.squared_norm(slope) + dr.square(y[0]))
        found.append([dr.grad(field["network.weights"]).numpy().copy()])
    agree(*found, 1e-4)
    assert products


@pytest.mark.parametrize("activation", ["relu", "softplus"])
def test_what_is_not_finite_stays_in_its_lane(ns, backend, activation):
    """Such outputs are NaN; where nobody wants their gradient they add nothing to that of the weights."""
    field = cn.NeuralField(None, cn.MLP(3, 2, width=WIDTH, depth=3, activation=activation)).build(backend, seed=1)
    x = points(ns, 3, 1200)
    lane = dr.arange(ns.UInt32, 1200)
    wrong = [dr.select(lane == 7, dr.nan, dr.select(lane == 800, dr.inf, x[0])), *x[1:]]
    used = ns.Float((lane != 7) & (lane != 800))
    y, weights, dx = gradients(field, wrong, "store", weight=used)
    expected = gradients(field, x, "store", weight=used)
    ordinary = used.numpy() == 1
    assert not np.isfinite(y[:, ~ordinary]).any() and np.array_equal(y[:, ordinary], expected[0][:, ordinary])
    np.testing.assert_allclose(weights, expected[1], rtol=1e-5, atol=1e-4)
    assert np.array_equal(dx[:, ordinary], expected[2][:, ordinary])
    *_, dx = gradients(field, wrong, "store")
    assert np.isfinite(dx[:, ordinary]).all()


def test_one_point_with_many_masks(ns, backend):
    """It has one row, but as many outputs as the key has numbers."""
    field = cn.NeuralField(None, cn.MLP(3, 2, width=24, depth=2, dropout=0.3)).build(backend, seed=1)
    x, key = [ns.Float(v) for v in (0.3, -0.7, 1.1)], cn.Key(5, dr.arange(ns.UInt32, 400), 2)
    found = gradients(field, x, "store", key)
    agree(found, gradients(field, x, "spill", key))
    assert found[0].shape == (2, 400)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_in_chunks_and_again(ns, backend, set_limits, monkeypatch, products, memory, dropout):
    """Where there is no room for what all samples need, and where the way back is taken twice."""
    net = cn.MLP(4, 2, width=WIDTH, depth=2, activation="sine", bias=True, dropout=dropout)
    field = biased(cn.NeuralField(None, net).build(backend, seed=1))
    x, key = points(ns, 4, 3001), cn.Key(3, step=ns.UInt32(5))
    expected = gradients(field, x, "spill", key)
    seen, count = [], activation_cache.vectors_together
    monkeypatch.setattr(activation_cache, "vectors_together", lambda s, whole: seen.append(whole) or count(s, whole))
    set_limits(KEPT_BYTES=memory)
    agree(gradients(field, x, "store", key), expected)
    assert products and set(seen) == {memory > 1}  # are caches of whole batches?
    seen.clear()
    set_limits(KEPT_BYTES=2 << 30)
    again = gradients(field, x, "store", key, repeat=2)
    agree([again[0], again[1] / 2, again[2] / 2], expected)
    assert seen[0] and not any(seen[1:])  # the second way back fills a cache anew


def test_forward_mode(ns, backend):
    field = cn.NeuralField(None, cn.MLP(4, 2, width=WIDTH, depth=2, activation="tanh")).build(backend, seed=1)
    found = []
    for path in ("store", "spill"):
        x = points(ns, 4, 700)
        dr.enable_grad(field["network.weights"], x)
        with cn.gradient_path(path):
            y = list(field(x))
        dr.set_grad(field["network.weights"], 0.1)
        for v in x:
            dr.set_grad(v, 0.2)
        dr.forward_to(*y)
        found.append([v.numpy() for v in evaluated(dr.grad(y))])
        dr.disable_grad(field["network.weights"])
    agree(*found)


@pytest.mark.parametrize("samples", [1231, 2048])
@pytest.mark.parametrize("activation, dropout", [("relu", 0.0), ("relu", 0.3), ("softplus", 0.0)])
def test_frozen(ns, backend, products, activation, dropout, samples):
    """Replays with other weights, points and keys."""
    net = cn.MLP(5, 3, width=WIDTH, depth=3, activation=activation, dropout=dropout, bias=True)
    field = biased(cn.NeuralField(None, net).build(backend, seed=1))

    def run(field, weights, x, step):
        x = [v + 0.5 for v in x]
        weights = type(weights)(weights)
        dr.enable_grad(weights, x)
        field.update({"network.weights": weights})
        y = field(x, cn.Key(1, step=step))
        dr.backward(sum((dr.square(v) for v in y), ns.Float(0)))
        return [dr.grad(weights).array, *(dr.grad(v) for v in x), *(dr.detach(v) for v in y)]

    frozen = dr.freeze(run)
    first = dr.detach(field["network.weights"])
    for turn in range(3):
        weights = type(first)(first * (1 + 0.1 * turn))
        x = [dr.opaque(ns.Float, 0, samples) + v for v in points(ns, 5, samples, turn)]
        dr.eval(weights, x)
        step = dr.opaque(ns.UInt32, turn)
        found = [v.numpy().copy() for v in evaluated(frozen(field, weights, x, step))]
        agree(found, [v.numpy().copy() for v in evaluated(run(field, weights, x, step))])
    assert frozen.n_recordings < 3 and products


@pytest.mark.parametrize("what", ["value", "slope"])
def test_frozen_evaluations(ns, backend, products, set_limits, what):
    """Another number of samples is recorded anew, and replays see other points; the larger batch goes in chunks."""
    set_limits(WIDE_BYTES=1 << 16, UNROLLED_SAMPLES=1 << 30)
    field = cn.NeuralField(None, cn.MLP(3, 1, width=WIDTH, depth=2)).build(backend, seed=1)

    def run(field, x):
        if what == "value":
            return list(field(x))
        y, dy = field.value_and_grad(x)
        return [*y, *dy]

    frozen = dr.freeze(run)
    for turn, (samples, recordings) in enumerate([(500, 1), (2500, 2), (2500, 2), (500, 3)]):
        x = [dr.opaque(ns.Float, 0, samples) + v for v in points(ns, 3, samples, turn)]
        dr.eval(x)
        found = [v.numpy().copy() for v in evaluated(frozen(field, x))]
        agree(found, [v.numpy().copy() for v in evaluated(run(field, x))])
        assert frozen.n_recordings == recordings and products


def test_large_and_small_batches_of_one_field(ns, backend, set_limits):
    """Gradients of whole layers and of their parts, left outside of a frozen step, are added up."""
    set_limits(CUT_MULTIPLICATIONS=1, WIDE_SAMPLES=1000)
    found = []
    for path in ("auto", "spill"):
        net = cn.MLP(3, 1, width=WIDTH, depth=2, bias=True)
        field = biased(cn.NeuralField(None, net).build(backend, seed=1))

        def objective(field, drawn, key):
            large, small = drawn
            return dr.square(field(large)[0] - 1) + dr.sum(dr.square(field(small)[0])) * 1e-3

        def batch(key):
            return cn.uniform(3, key, ns.Float, 2000), [dr.linspace(ns.Float, 0, 1 + i, 700) for i in range(3)]

        with cn.gradient_path(path):
            cn.fit(field, batch, 4, objective=objective, lr=1e-2, progress=False)
        found.append(field["network.weights"].numpy().copy())
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name, slope", [*((name, 0.1) for name in sorted(FUNCTIONS)), ("leaky_relu", -0.1)])
def test_slopes_from_outputs_alone(ns, name, slope):
    function = FUNCTIONS[name]
    params = {"leaky_relu": (slope,), "softplus": (2.0,), "squareplus": (2.0,), "sine": (3.0,), "identity": (2.0, 0.5)}
    x = drnn.CoopVec([ns.Float(np.random.default_rng(0).normal(size=200)), ns.Float(np.linspace(-3, 3, 200))])
    y = function.coopvec(x, *params.get(name, ()))
    without = drnn.CoopVec([ns.Float(dr.nan), ns.Float(dr.nan)])
    derivatives = [function.slope] + [function.curvature] * (function.curvature is not None)
    same = []
    for derivative in derivatives:
        one = drnn.CoopVec([ns.Float(1)] * 2)
        expected, found = (list(one * derivative(v, y, *params.get(name, ()))) for v in (x, without))
        same += [np.array_equal(a.numpy(), b.numpy()) for a, b in zip(expected, found, strict=True)]
    assert all(same) if function.from_output(*params.get(name, ())) else not all(same)


def test_cotangents_of_zero_stay_zero(llvm):
    """Also if the derivative of a masked lane is infinite."""
    rows = Rows([llvm.Float([0, 1, 0])], 3)
    dr.eval(rows.numbers)
    vector = RowVector(rows, 1, llvm.Float, in_place=True)
    found = vector.slope(lambda dy: drnn.CoopVec([next(iter(dy)) * dr.inf]))
    np.testing.assert_array_equal(found.rows.numbers.numpy()[:3], [0, np.inf, 0])


def test_what_is_kept(ns, backend):
    """Outputs of layers whose functions need them on the way back, and no others."""
    for activation, dropout, key, kept in [
        ("relu", 0.0, None, 1), ("tanh", 0.0, None, 1), ("sine", 0.0, None, 3), ("relu", 0.3, cn.Key(1), 1),
        ("relu", 0.3, None, 3), ("tanh", 0.3, cn.Key(1), 3),
    ]:  # fmt: skip
        net = cn.MLP(4, 2, width=WIDTH, depth=3, activation=activation, dropout=dropout)
        field = cn.NeuralField(None, net).build(backend, seed=1)
        dr.enable_grad(field["network.weights"])
        before = set(ActivationCache._all)
        y = field(points(ns, 4, 300), key)
        (cache,) = set(ActivationCache._all) - before
        found = [vector for vector in cache._kept if vector.product is not None]
        # that of the last wide layer is followed by one that is no product of its own on the way forward
        assert len(found) == kept - (1 if kept == 1 else 0), (activation, dropout)
        del y


@pytest.mark.parametrize("lanes, width, activation, samples, expected", [
    (8, 48, "relu", 1 << 11, True), (8, 47, "relu", 1 << 20, False), (8, 48, "softplus", 1 << 11, True),
    (8, 48, "relu", (1 << 11) - 1, False), (16, 72, "relu", 1 << 11, True), (16, 71, "relu", 1 << 20, False),
    (16, 72, "softplus", 1 << 11, True), (16, 71, "softplus", 1 << 20, False), (4, 64, "relu", 1 << 11, True),
])  # fmt: skip
def test_when(backend, play_lanes, measured, lanes, width, activation, samples, expected):
    play_lanes(lanes)
    field = cn.NeuralField(None, cn.MLP(16, 3, width=width, depth=2, activation=activation)).build(backend)
    assert (field.explain(samples).path == "store") == expected


@pytest.mark.parametrize("lanes, width, activation, samples, expected", [
    (8, 64, "relu", 1 << 17, "spill"), (8, 72, "relu", 1 << 17, "store"), (8, 55, "tanh", 1 << 17, "spill"),
    (8, 56, "tanh", 1 << 17, "store"), (16, 128, "relu", 1 << 17, "spill"), (16, 160, "relu", 1 << 17, "store"),
    (16, 96, "tanh", 1 << 17, "store"), (16, 95, "tanh", 1 << 17, "spill"), (16, 128, "relu", 1 << 11, "store"),
])  # fmt: skip
def test_when_the_caller_multiplies(llvm, measured, lanes, width, activation, samples, expected):
    """By a library, if there is enough to multiply."""
    net = cn.NeuralField(None, cn.MLP(16, 3, width=width, depth=2, activation=activation)).build("llvm", seed=1).network
    network = Network([layer.op() for layer in net.layers])
    s = Situation(network, dr.JitBackend.LLVM, samples, lanes=lanes, stored_lanes=lanes, frozen=True, caller=True)
    assert strategies.caller_multiplies(s) == (samples > 1 << 11)
    assert strategies.choose(strategies.GRADIENTS, s)[0] == expected


@pytest.mark.parametrize("lanes, width, activation, expected", [
    (8, 64, "relu", False), (8, 96, "relu", True), (8, 64, "silu", True), (16, 160, "relu", True),
    (16, 64, "silu", False),
])  # fmt: skip
def test_when_it_is_evaluated_only(ns, backend, play_lanes, measured, lanes, width, activation, expected, products):
    play_lanes(lanes)
    field = cn.NeuralField(None, cn.MLP(3, 1, width=width, depth=2, activation=activation)).build(backend)
    dr.eval(field(points(ns, 3, 1 << 11)))
    assert bool(products) == expected


def test_inputs_of_a_type_without_derivatives(backend, ns, products):
    """Parameters always have one with them; the product of both was refused."""
    network = cn.MLP(5, 3, width=WIDTH, depth=2, activation="silu", bias=True, dropout=0.2)
    field = biased(cn.NeuralField(None, network).build(backend, seed=1))
    x = points(ns, 5, 200)
    plain = [dr.detach(v, preserve_type=False) for v in x]
    expected, values = field(x, cn.Key(3)), field(plain, cn.Key(3))
    assert products and type(values[0]) is type(plain[0])
    assert [v.numpy().tolist() for v in values] == [v.numpy().tolist() for v in expected]
