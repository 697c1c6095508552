"""Gradients with respect to the input that nobody differentiates: backwards, and the same as by tangents."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.arrays import evaluated
from support.engine import described, module
from support.kernels import launched

import coopnet as cn
from coopnet.engine import strategies
from coopnet.engine.situation import Situation


def field(backend, width=12, encoding=None, depth=2, **options):
    options = {"activation": "tanh", "bias": True} | options
    n_in = 3 if encoding is None else -1
    return cn.NeuralField(encoding, cn.MLP(n_in, 1, width=width, depth=depth, **options)).build(backend, seed=3)


def points(ns, samples):
    return ns.Array3f(*cn.uniform(3, cn.Key(5), ns.Float, samples))


def by_tangents(net, p, key=None, active=True):
    """What a field says that is going to be differentiated."""
    q = type(p)(p)
    dr.enable_grad(q)
    y, gradient = net.value_and_grad(q, key, active)
    return [dr.detach(v).numpy() for v in evaluated(y, gradient)]


def found(result):
    return [np.asarray(v.numpy()) for v in evaluated(list(result))]


@pytest.fixture
def ask_for(monkeypatch):
    """``ask_for(way)`` has gradients come about in that way, where there is memory."""

    def ask(strategy):
        first = strategies.Row(strategy, lambda s: s.memory_left and not s.stacked, "the test asks for it")
        monkeypatch.setattr(module("evaluate"), "INPUT_GRADIENTS", (first, *strategies.INPUT_GRADIENTS))

    return ask


@pytest.fixture
def forced(set_limits, ask_for):
    """Every gradient by a kernel for each layer."""
    ask_for("store")
    set_limits(LONG_VECTOR=8, KERNEL_WEIGHT_BYTES=(0, 0))


@pytest.fixture(params=["chosen", "stored", "again"])
def strategy(request):
    """As chosen, by a kernel for each layer, or with activations that are evaluated again."""
    if request.param == "stored":
        request.getfixturevalue("forced")
    elif request.param == "again":
        request.getfixturevalue("set_limits")(LONG_VECTOR=8)  # so that layers know where their transposes lie
        request.getfixturevalue("ask_for")("activations again")
    return request.param


NETWORKS = {
    "tanh": {},
    "relu": {"activation": "relu", "bias": False},
    "softplus": {"activation": "softplus"},
    "odd": {"width": 11, "activation": "silu"},
    "dropout": {"dropout": 0.2},
    "dropped relu": {"dropout": cn.Dropout(0.3, bits=8, rounds=7), "activation": "relu"},
    "frequencies": {"encoding": cn.Frequency(2, in_features=3)},
    "grid": {
        "encoding": cn.HashGrid(
            3, n_levels=2, hashmap_size=2**10, base_resolution=4, per_level_scale=1.7, init_scale=0.1
        )
    },
}


@pytest.mark.parametrize("name", NETWORKS)
def test_as_by_tangents(ns, backend, strategy, name):
    if strategy != "chosen" and name in ("softplus", "frequencies"):
        pytest.skip("this way is the same for all activations and encodings: the others here show it")
    net, p, key = field(backend, **NETWORKS[name]), points(ns, 777), cn.Key(9, step=2)
    tolerance = 2e-2 if backend == "cuda" else 2e-5
    for result, expected in zip(found(net.value_and_grad(p, key)), by_tangents(net, p, key), strict=True):
        far = np.abs(result - expected) > tolerance * max(1, np.abs(expected).max())
        assert far.mean() <= (0.01 if backend == "cuda" else 0)  # in half precision, few lie beyond a kink
    assert np.abs(by_tangents(net, p, key)[1]).max() > 1e-3


def test_forks(ns, backend, strategy):
    body = cn.Sequential(cn.Linear(16, 16), cn.Tanh())
    network = cn.Sequential(cn.Linear(3, 16), cn.Residual(body), cn.Tanh(), cn.Linear(16, 1))
    net, p = cn.NeuralField(None, network).build(backend, seed=1), points(ns, 300)
    for result, expected in zip(found(net.value_and_grad(p)), by_tangents(net, p), strict=True):
        np.testing.assert_allclose(result, expected, atol=2e-2 if backend == "cuda" else 1e-5)


def test_frozen_at_several_sizes(ns, backend, strategy):
    """Replays at other sizes, odd ones, too, and with other weights."""
    frozen = dr.freeze(lambda net, p: net.value_and_grad(p))
    net, other = field(backend), field(backend).build(backend, seed=8)
    for samples in (96, 1000, 96, 517):
        for each in (net, other):
            p = points(ns, samples)
            dr.make_opaque(p)
            for result, expected in zip(found(frozen(each, p)), by_tangents(each, p), strict=True):
                np.testing.assert_allclose(result, expected, atol=2e-2 if backend == "cuda" else 1e-5)


def test_masked_lanes_and_what_is_not_finite(ns, backend, strategy):
    net, p = field(backend), points(ns, 100)
    p.x = dr.select(dr.arange(ns.UInt32, 100) == 7, dr.nan, p.x)
    active = dr.arange(ns.UInt32, 100) % 2 == 0
    y, gradient = found(net.value_and_grad(p, None, active))
    assert np.isfinite(y).all() and np.isfinite(gradient).all() and not gradient[:, 1::2].any()
    y, gradient = found(net.value_and_grad(p))
    y = y.reshape(-1)
    assert np.isnan(y[7]) and np.isfinite(np.delete(y, 7)).all()
    assert np.isfinite(np.delete(gradient, 7, axis=1)).all()


def test_in_a_symbolic_loop(ns, backend):
    """Newton's steps to the zero of a field, with its gradient."""
    net, p = field(backend), points(ns, 64)

    def step(i, p):
        y, g = net.value_and_grad(p)
        return i + 1, p - g * (y[0] / dr.maximum(dr.squared_norm(g), 1e-2)) * 0.5

    _, symbolic = dr.while_loop((ns.UInt32(0), ns.Array3f(p)), lambda i, p: i < 3, step, mode="symbolic")
    q = ns.Array3f(p)
    for _ in range(3):
        _, q = step(0, q)
    np.testing.assert_allclose(symbolic.numpy(), q.numpy(), atol=5e-2 if backend == "cuda" else 1e-4)


def test_what_is_differentiated_stays_so(ns, backend, strategy):
    net, p = field(backend), points(ns, 64)
    dr.enable_grad(net["network.weights"])
    _, gradient = net.value_and_grad(p)
    dr.backward(dr.squared_norm(gradient))
    assert np.abs(net["network.weights"].grad.numpy()).max() > 0


def test_one_kernel_in_a_kernel(ns, backend):
    if backend == "cuda":
        pytest.skip("tangents there")
    net, p = field(backend), points(ns, 4096)
    dr.make_opaque(p)
    with launched() as kernels:
        dr.eval(net.value_and_grad(p))
    assert len(kernels) == 1


@pytest.mark.parametrize("width, depth, samples, activation, symbolic, expected", [
    (80, 5, 1 << 16, "tanh", False, "activations again"), (80, 5, 1 << 16, "relu", False, "activations again"),
    (80, 5, 1 << 16, "tanh", True, "tangents"), (80, 5, (1 << 16) - 1, "tanh", False, "tangents"),
    (64, 5, 1 << 16, "tanh", False, "tangents"), (96, 6, 1 << 16, "tanh", False, "tangents"),
    (112, 6, 1 << 16, "tanh", False, "store"), (112, 6, 1 << 16, "relu", False, "tangents"),
])  # fmt: skip
def test_which_way_on_gpus(width, depth, samples, activation, symbolic, expected):
    net = cn.MLP(3, 1, width=width, depth=depth, activation=activation)
    s = Situation(described(net), dr.JitBackend.CUDA, samples, symbolic=symbolic, weights=False)
    assert strategies.choose(strategies.INPUT_GRADIENTS, s)[0] == expected


def test_tangents_in_kernels_of_their_own(ns, backend, set_limits, ask_for, monkeypatch):
    """A kernel for each direction where a vector more does not fit, unless somebody wants to differentiate them."""
    ask_for("tangents")
    set_limits(LAUNCHES_SAMPLES=256)
    for name in ("evaluate", "strategies"):
        monkeypatch.setattr(module(name), "tangents_at_a_time", lambda s: 1)
    net, p = field(backend, activation="relu", dropout=0.1), points(ns, 500)
    dr.make_opaque(p)
    key = cn.Key(1)
    with launched() as kernels:
        result = net.value_and_grad(p, key)
        dr.eval(result)
    assert len(kernels) == 4  # three directions, and what scales the tangents back
    for value, expected in zip(found(result), by_tangents(net, p, key), strict=True):
        np.testing.assert_allclose(value, expected, atol=2e-2 if backend == "cuda" else 1e-5)
    with launched() as kernels:
        dr.eval(net.value_and_grad(points(ns, 200), key))
    assert len(kernels) == 1


def test_no_memory_for_it(ns, backend, forced, set_limits):
    set_limits(KEPT_BYTES=1000)
    net, p = field(backend), points(ns, 2000)
    for result, expected in zip(found(net.value_and_grad(p)), by_tangents(net, p), strict=True):
        np.testing.assert_allclose(result, expected, atol=2e-2 if backend == "cuda" else 1e-5)
