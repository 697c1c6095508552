"""Weight gradients that lanes of a CPU's kernel sum up, each over samples of its own."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.networks import gradients, matrices

import coopnet as cn
from coopnet import reference as ref
from coopnet.engine.lane_sums import lanes_for

#: No multiple of the lanes, nor of the samples that a lane keeps.
N = 700


@pytest.fixture
def in_lanes(set_limits, play_lanes, chosen):
    """Short batches are summed in lanes; returns what was chosen where weights were differentiated."""
    play_lanes(16)
    set_limits(UNROLLED_SAMPLES=1, LANE_SUM_SAMPLES=1, LANE_TURNS=20, LANES=48)
    return lambda: {strategy for s, strategy in chosen if s.weights}


def network(width=13, depth=2, activation="relu", dropout=0.0, bias=True):
    mlp = cn.MLP(5, 3, width=width, depth=depth, activation=activation, bias=bias, dropout=dropout)
    return cn.NeuralField(None, mlp).build("llvm", seed=1)


def points(ns, samples=N, seed=0):
    x = [ns.Float(v) + 0 for v in np.random.default_rng(seed).normal(size=(5, samples)).astype(np.float32)]
    dr.eval(x)  # in Dr.Jit's memory: functions are recorded again for other alignments of NumPy's
    return x


def gradient(field, x, key=None, scale=None, inputs=False):
    """Value, gradients of the weights and, if asked for, of ``x``."""
    weights = dr.copy(dr.detach(field["network.weights"]))
    dr.enable_grad(weights)
    if inputs:
        x = [v + 0 for v in x]
        dr.enable_grad(x)
    field.update({"network.weights": weights})
    y = field(x, key)
    scale = 1 if scale is None else scale
    loss = sum((i + 1) * dr.square(v) for i, v in enumerate(y))
    dr.backward(loss * scale)
    return [dr.detach(loss), dr.grad(weights).array, *(dr.grad(v) for v in x if inputs)]


def both(field, *args, **options):
    """:func:`gradient` in lanes and by rows."""
    frozen = dr.freeze(lambda field, *args: gradient(field, *args, **options))
    found = [v.numpy() for v in frozen(field, *args)]
    with cn.gradient_path("spill"):
        expected = [v.numpy() for v in dr.freeze(lambda field, *args: gradient(field, *args, **options))(field, *args)]
    return found, expected


def alike(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=3e-6 * np.abs(b).max())


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "width, activation, dropout", [(13, "relu", 0), (8, "gelu", 0), (17, "tanh", 0.3), (4, "relu", 0.5)]
)
def test_equal_to_products(llvm, in_lanes, width, activation, dropout, bias, inputs):
    field = network(width, activation=activation, dropout=dropout, bias=bias)
    key = cn.Key(llvm.UInt64(3), step=llvm.UInt32(2)) if dropout else None
    alike(*both(field, points(llvm), key, inputs=inputs))
    assert in_lanes() == {"lane sums", "spill"}


def test_against_float64(llvm, in_lanes):
    field, x = network(activation="tanh"), points(llvm)
    weights, biases = matrices(field)
    frozen = dr.freeze(gradient)
    _, packed = frozen(field, x)
    tensor = field["network.weights"]
    dr.set_grad(tensor, type(tensor)(packed))
    p = np.array([v.numpy() for v in x], np.float64)
    y = ref.mlp(weights, p, "tanh", None, biases)
    dy = 2 * y * np.arange(1, 4)[:, None]
    *_, expected, of_biases = ref.mlp_vjp(weights, p, dy, "tanh", None, biases)
    found = gradients(field)
    for got, known in zip([*found[0], *found[1]], [*expected, *of_biases], strict=True):
        np.testing.assert_allclose(got.reshape(known.shape), known, rtol=0, atol=2e-6 * np.abs(known).max())
    assert in_lanes() == {"lane sums"}


@pytest.mark.parametrize("part", ["index", "step", "seed"])
def test_keys_with_a_part_for_each_sample(llvm, in_lanes, part):
    """A sample has the same mask in whatever lane and turn it is."""
    numbers = llvm.UInt32(np.random.default_rng(1).integers(0, 1000, N).astype(np.uint32))
    parts = {"seed": llvm.UInt64(5), part: llvm.UInt64(numbers) if part == "seed" else numbers}
    alike(*both(network(dropout=0.4), points(llvm), cn.Key(**parts)))
    assert in_lanes() == {"lane sums", "spill"}


def test_samples_that_the_loss_leaves_out(llvm, in_lanes):
    """Their inputs may be anything: they add nothing."""
    used = llvm.Bool(np.random.default_rng(2).random(N) < 0.5)
    x = points(llvm)
    wild = [dr.select(used, v, dr.nan if i % 2 else dr.inf) for i, v in enumerate(x)]
    dr.eval(wild, used)

    def run(field, x, used):
        weights = dr.copy(dr.detach(field["network.weights"]))
        dr.enable_grad(weights)
        field.update({"network.weights": weights})
        dr.backward(dr.select(used, field(x)[0], 0))
        return dr.grad(weights).array

    frozen = dr.freeze(run)
    one, other = (frozen(network(), v, used).numpy() for v in (x, wild))
    assert np.isfinite(other).all() and in_lanes() == {"lane sums"}
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-6 * np.abs(one).max())


def test_constant_cotangents_and_inputs(llvm, in_lanes):
    def run(field, x):
        weights = dr.copy(dr.detach(field["network.weights"]))
        dr.enable_grad(weights)
        field.update({"network.weights": weights})
        dr.backward(field([*x[:4], llvm.Float(0.25)])[1])
        return dr.grad(weights).array

    found = dr.freeze(run)(network(), points(llvm)).numpy()
    expected = run(network(), points(llvm)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    assert in_lanes() == {"lane sums", "spill"}


def test_infinite_gradients_are_not_lost(llvm, in_lanes):
    x = points(llvm)
    x[1] = dr.select(dr.arange(llvm.UInt32, N) == 77, dr.inf, x[1])
    dr.eval(x)
    _, packed = dr.freeze(gradient)(network(activation="gelu"), x)
    assert not np.isfinite(packed.numpy()).all() and in_lanes() == {"lane sums"}


def test_replays(llvm, in_lanes):
    """Of other samples and masks; another number of samples is recorded anew."""
    frozen = dr.freeze(gradient)
    for turn, samples in enumerate((N, N, N + 5, 1, N)):
        x, key = points(llvm, samples, turn), cn.Key(llvm.UInt64(turn), step=llvm.UInt32(turn))
        field = network(dropout=0.2)
        found = [v.numpy() for v in frozen(field, x, key)]
        with cn.gradient_path("spill"):
            alike(found, [v.numpy() for v in gradient(field, x, key)])
    assert "lane sums" in in_lanes()


def test_evaluated_loops_are_asked_for(llvm, in_lanes):
    """The loops of this way are part of its kernel all the same."""
    with (
        dr.scoped_set_flag(dr.JitFlag.SymbolicLoops, False),
        dr.scoped_set_flag(dr.JitFlag.SymbolicConditionals, False),
    ):
        found = dr.freeze(gradient)(network(dropout=0.2), points(llvm), cn.Key(1))[1].numpy()
    with cn.gradient_path("spill"):
        expected = gradient(network(dropout=0.2), points(llvm), cn.Key(1))[1].numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * np.abs(expected).max())
    assert "lane sums" in in_lanes()


def test_a_layer_that_is_there_twice(llvm, in_lanes):
    layer = cn.Linear(8, 8)
    net = cn.Sequential(cn.Linear(5, 8), cn.ReLU(), layer, cn.Tanh(), layer, cn.ReLU(), cn.Linear(8, 3))
    alike(*both(cn.NeuralField(None, net).build("llvm", seed=2), points(llvm)))
    assert in_lanes() == {"lane sums", "spill"}


def test_sums_do_not_depend_on_the_machine(llvm, in_lanes):
    """Neither on the number of threads nor on that of a vector's lanes, up to the order of additions in a lane."""
    field, x, threads = network(), points(llvm), dr.thread_count()
    results = []
    try:
        for count in (1, 2, 3):
            dr.set_thread_count(count)
            results.append(dr.freeze(gradient)(field, x)[1].numpy())
    finally:
        dr.set_thread_count(threads)
    assert all(np.array_equal(r, results[0]) for r in results) and in_lanes() == {"lane sums"}
    assert [lanes_for(n) for n in (1, 16 * 20, 16 * 20 + 320, 10**6)] == [16, 16, 32, 48]


def test_explained(llvm, in_lanes):
    """4 by 4 blocks of matrices of 13 x (5 + 1), 13 x (13 + 1) and 3 x (13 + 1), for each of 48 lanes."""
    found = network().explain(N)
    assert (found.path, found.memory) == ("lane sums", 48 * 4 * 16 * (4 * 2 + 4 * 4 + 1 * 4))
    assert "each lane sums the outer products of its own samples, 84.0 KiB in all" in str(found)
