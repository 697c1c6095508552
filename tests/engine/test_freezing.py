"""``dr.freeze`` around dropout: keys are arguments, and new seeds, steps and batches replay one recording.

Seeds and steps go in as opaque values: Dr.Jit records anew for every new Python int. Inputs are computed by Dr.Jit: for
arrays that lie in NumPy's memory it records anew whenever their alignment differs.
"""

from __future__ import annotations

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from drjit.opt import Adam
from support.arrays import values

import coopnet as cn
from coopnet import reference
from coopnet.engine import limits

N, P = 96, 0.25
SEEDS = (0, 2**32 - 1, 2**40 + 3, 2**64 - 1)


def inputs(ns, rng, rows=3, n=N):
    x = [ns.Float(v) + 1e-3 for v in rng.uniform(-1, 1, (rows, n))]
    dr.eval(x)
    return x


def key_of(ns, seed, step=0, index=None):
    if index is not None:
        index = dr.opaque(ns.UInt32, 0) + ns.UInt32(index)
        dr.eval(index)
    return cn.Key(dr.opaque(ns.UInt64, seed), index, dr.opaque(ns.UInt32, step))


def network(backend, seed=1, **options):
    options = {"width": 8, "depth": 1, "dropout": P, "activation": "tanh"} | options
    return cn.NeuralField(None, cn.MLP(3, 2, **options)).build(backend, seed=seed)


def close(backend, found, known, factor=1.0):
    tolerance = factor * (2e-2 if backend == "cuda" else 2e-6)
    np.testing.assert_allclose(found, known, rtol=0, atol=tolerance * max(np.abs(known).max(), 1e-6))


# ---- Forward -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["list", "nested", "tensor", "coopvec"])
@pytest.mark.parametrize("index", [False, True])
def test_dropout(ns, kind, index):
    """Seed, step, index and input change; the masks are those of the law."""
    if kind == "tensor":
        frozen = dr.freeze(lambda x, key: cn.dropout(ns.TensorXf(dr.concat(x), (9, N)), P, key).array)
    else:
        make = {"list": list, "nested": ns.ArrayXf, "coopvec": drnn.CoopVec}[kind]
        frozen = dr.freeze(lambda x, key: list(cn.dropout(make(x), P, key)))
    rng = np.random.default_rng(0)
    for turn, seed in enumerate(SEEDS):
        x = inputs(ns, rng, 9)
        ids = rng.permutation(5 * N)[:N] if index else np.arange(N)
        y = frozen(x, key_of(ns, seed, turn**9, ids if index else None))
        y = y.numpy().reshape(9, N) if kind == "tensor" else values(y)
        expected = reference.dropout(values(x), P, seed, ids, turn**9)
        np.testing.assert_allclose(y, expected, rtol=1e-6)
        np.testing.assert_array_equal(y != 0, expected != 0)
    assert frozen.n_recordings == 1


def test_unrolled(backend, ns, set_limits, chosen):
    """Matrices that stand in the code entry by entry are read anew by every replay, for values and for gradients."""
    set_limits(UNROLLED_SAMPLES=1)
    field = network(backend, bias=True)
    first = dr.copy(dr.detach(field["network.weights"]))

    def run(field, weights, x, key):
        field.update({"network.weights": weights})
        before = list(field(x, key))
        dr.enable_grad(weights)
        field.update({"network.weights": weights})
        y = field(x, key)
        dr.backward(dr.square(y[0]) + y[1])
        return [*before, *(dr.detach(v) for v in y), dr.grad(weights).array]

    frozen, rng = dr.freeze(run), np.random.default_rng(1)
    for turn in range(3):
        weights = type(first)(first * (1 + 0.5 * turn))
        dr.eval(weights)
        x, key = inputs(ns, rng), key_of(ns, 5, turn)
        found, known = frozen(field, type(first)(weights), x, key), run(field, type(first)(weights), x, key)
        for a, b in zip(found, known, strict=True):
            close(backend, a.numpy(), b.numpy())
    assert frozen.n_recordings < 3
    assert any(strategy == "unrolled" for _, strategy in chosen) == (backend == "llvm")


@pytest.mark.parametrize("scope", ["loop", "conditional", "call"])
def test_unrolled_in_symbolic_code(backend, ns, set_limits, chosen, scope):
    """Evaluations in a recorded loop or conditional; in a call, weights are data of the call. Equal to the bit."""
    set_limits(UNROLLED_SAMPLES=1)
    field = network(backend, bias=True)
    rng = np.random.default_rng(1)
    few = ns.Bool(rng.random(N) < 0.3)

    def run(field, x, key, few):
        if scope == "loop":
            start = ns.UInt32(0), ns.ArrayXf(field(x, key)), few
            body = lambda i, y, few: (i + 1, y + ns.ArrayXf(field([v + y[0] for v in x], key)), few)  # noqa: E731
            return dr.while_loop(start, lambda i, y, few: few & (i < 3), body, mode="symbolic")[1]
        other = lambda x: ns.Array2f(x.x, x.y)  # noqa: E731
        if scope == "conditional":
            inside = lambda x: ns.Array2f(*field(list(x), key))  # noqa: E731
            return dr.if_stmt((ns.Array3f(x),), few, inside, other, mode="symbolic")
        # there is no number of a lane in a call, and no dropout without a key
        return dr.switch(ns.UInt32(few), [lambda x: ns.Array2f(*field(list(x))), other], ns.Array3f(x), mode="symbolic")

    frozen = dr.freeze(run)
    for turn in range(2):
        x, key = inputs(ns, rng), key_of(ns, 5, turn)
        found = frozen(field, x, key, few).numpy()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "UNROLLED_SAMPLES", 1 << 30)
            close(backend, found, run(field, x, key, few).numpy())
    assert any(strategy == "unrolled" for _, strategy in chosen) == (backend == "llvm" and scope != "call")


def test_network(backend, ns):
    """A packed field, evaluated without gradients; one recording per network, key or none, and batch size."""
    field = network(backend)

    def run(field, x, key):
        return list(field(x, key))

    frozen, rng = dr.freeze(run), np.random.default_rng(1)
    for turn, seed in enumerate(SEEDS):
        x, key = inputs(ns, rng), key_of(ns, seed, turn)
        np.testing.assert_array_equal(values(frozen(field, x, key)), values(run(field, x, key)))
    assert frozen.n_recordings == 1
    x = inputs(ns, rng)
    plain = values(frozen(field, x, None))
    np.testing.assert_array_equal(plain, values(run(field, x, None)))
    assert frozen.n_recordings == 2 and not np.array_equal(plain, values(frozen(field, x, key)))
    assert frozen.n_recordings == 2


def test_new_weights_replay(backend, ns):
    """The buffer of weights is an input like any other."""
    field = network(backend)

    def run(field, x, key):
        return list(field(x, key))

    frozen, x = dr.freeze(run), inputs(ns, np.random.default_rng(1))
    for turn in range(3):
        found = values(frozen(field, x, key_of(ns, 3, turn)))
        np.testing.assert_array_equal(found, values(run(field, x, key_of(ns, 3, turn))))
        weights = field["network.weights"] * 1.5
        dr.eval(weights)
        field["network.weights"] = weights
    assert frozen.n_recordings == 1


def test_folding_inside(backend, ns):
    """Steps made inside the function, by a number or a loop, follow the key that goes in."""
    field = network(backend)

    def run(field, x, key):
        y = field(x, key.fold_in(key.step + 5))
        return dr.while_loop(
            (ns.UInt32(0), list(y)),
            lambda i, y: i < 2,
            lambda i, y: (i + 1, [a + b for a, b in zip(y, field(x, key.fold_in(key.step + i)), strict=True)]),
            mode="symbolic",
        )[1]

    frozen, rng = dr.freeze(run), np.random.default_rng(1)
    for step in (0, 3, 2**32 - 6):
        x = inputs(ns, rng)
        found = values(frozen(field, x, key_of(ns, 8, step)))
        close(backend, found, sum(values(field(x, cn.Key(8, step=step + k))) for k in (0, 1, 5)))
    assert frozen.n_recordings == 1


@pytest.mark.parametrize("index", [False, True])
def test_another_batch_size_records_once(backend, ns, index):
    field, sizes = network(backend), (96, 96, 33, 33, 96, 33, 2000, 2000, 96)

    def run(field, x, key):
        return list(field(x, key))

    frozen, rng = dr.freeze(run), np.random.default_rng(1)
    for turn, n in enumerate(sizes):
        x = inputs(ns, rng, n=n)
        ids = rng.permutation(n) + 7 if index else None
        found = values(frozen(field, x, key_of(ns, turn, 2, ids)))
        assert found.shape == (2, n)
        np.testing.assert_array_equal(found, values(run(field, x, key_of(ns, turn, 2, ids))))
        # at most: replays of one recording may fit several sizes
        assert frozen.n_recordings <= len(set(sizes[: turn + 1]))


def test_python_numbers_are_recorded_anew(ns):
    """The reason why seeds and steps are to be opaque; the masks are right all the same."""
    frozen = dr.freeze(lambda x, key: list(cn.dropout(x, P, key)))
    x = inputs(ns, np.random.default_rng(1), 9)
    for turn in range(3):
        expected = reference.dropout(values(x), P, 4, None, turn)
        np.testing.assert_allclose(values(frozen(x, cn.Key(4, step=turn))), expected, rtol=1e-6)
    assert frozen.n_recordings == 3


# ---- Training ----------------------------------------------------------------------------------------------


def train(backend, ns, frozen, batches, seeds, index=False, sized=False):
    """A run of training; returns losses, weights, recordings after each step."""
    field = network(backend, width=16, depth=2, bias=True)
    opt = Adam(lr=1e-2, params=field)
    dr.make_opaque(opt.state)

    def step(field, opt, x, key, size=None):
        field.update(opt)
        y = field(x, key)
        target = dr.sin(3 * x[0]) * x[1]
        loss = dr.mean(dr.square(y[0] - target) + dr.square(y[1] - x[2]))
        dr.backward(loss)
        opt.step(eval=False)
        dr.eval(opt.state, loss)
        return dr.detach(loss)

    run = dr.freeze(step) if frozen else step
    rng, losses, recordings = np.random.default_rng(7), [], []
    for turn, (n, seed) in enumerate(zip(batches, seeds, strict=True)):
        x = inputs(ns, rng, n=n)
        ids = rng.permutation(10 * n)[:n] if index else None
        loss = run(field, opt, x, key_of(ns, seed, turn, ids), n if sized else None)
        losses.append(loss.numpy()[0])
        recordings.append(run.n_recordings if frozen else 0)
    field.update(opt)
    return np.array(losses), field["network.weights"].numpy().astype(np.float64), recordings


@pytest.mark.parametrize("index", [False, True])
def test_training(backend, ns, index):
    """Weights, optimizer state and key replay: losses and weights are those of the unfrozen run."""
    batches, seeds = [N] * 8, [5, 5, 5, 2**40, 2**64 - 1, 9, 9, 0]
    losses, weights, recordings = train(backend, ns, True, batches, seeds, index)
    expected, expected_weights, _ = train(backend, ns, False, batches, seeds, index)
    close(backend, losses, expected, 5)
    close(backend, weights, expected_weights, 5)
    # the first step has the optimizer's state of width 1, so that the second may be recorded once more
    assert recordings[-1] == recordings[1] <= 2
    other = train(backend, ns, True, batches, [*seeds[:-1], 1], index)
    close(backend, other[0][:-1], losses[:-1], 5)
    assert not np.array_equal(other[1], weights)  # the seed of the last step counts


@pytest.mark.parametrize("sized", [False, True])
def test_training_with_changing_batches(backend, ns, sized):
    """A changed batch size records once; with the size among the arguments, only one that was not seen before does.

    Dr.Jit tells recordings apart by the types of inputs and which of them are equally wide, not by how wide. The
    network makes a replay with another number of samples fail its checks, and Dr.Jit then replaces the recording. A
    Python number among the arguments tells them apart.
    """
    batches = [N, N, N, 33, 33, N, 33, 1500, 1500, N]
    seeds = list(range(len(batches)))
    losses, weights, recordings = train(backend, ns, True, batches, seeds, sized=sized)
    expected, expected_weights, _ = train(backend, ns, False, batches, seeds)
    close(backend, losses, expected, 5)
    close(backend, weights, expected_weights, 5)
    for turn in range(2, len(batches)):
        new = batches[turn] not in batches[:turn] if sized else batches[turn] != batches[turn - 1]
        assert recordings[turn] - recordings[turn - 1] == new, recordings


def test_gradient_of_the_input(backend, ns):
    """Gradient of dropout in a recording: the mask of the key of the day."""

    def run(x, dy, key):
        dr.enable_grad(x)
        dr.backward(sum(a * d for a, d in zip(cn.dropout(x, P, key), dy, strict=True)))
        return [dr.grad(v) for v in x]

    frozen, rng = dr.freeze(run), np.random.default_rng(1)
    for turn, seed in enumerate(SEEDS):
        x, dy = inputs(ns, rng, 9), inputs(ns, rng, 9)
        found = values(frozen(x, dy, key_of(ns, seed, turn)))
        np.testing.assert_allclose(found, reference.dropout(values(dy), P, seed, None, turn), rtol=1e-6)
    assert frozen.n_recordings == 1


def test_calls_read_loaded_tables(backend, ns, tmp_path):
    """Those of the field that is given, not of the one that the function was recorded with."""

    def inside(field, x, which):
        return dr.switch(which, [lambda *x: list(field(list(x))), lambda *x: [x[0]] * 3], *x)

    fields = []
    for seed in (1, 2):
        made = cn.NeuralField(cn.HashGrid(2, n_levels=2, hashmap_size=2**6), cn.MLP(out_features=3, width=16, depth=1))
        cn.save(tmp_path / "field.safetensors", made.build(backend, seed=seed))
        fields.append(cn.load(tmp_path / "field.safetensors", backend=backend))
    x, which = cn.uniform(2, cn.Key(1), ns.Float, 100), dr.arange(ns.UInt32, 100) % 2
    frozen = dr.freeze(inside)
    for field in fields:
        for a, b in zip(frozen(field, x, which), inside(field, x, which), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("precision", ["half", "single"])
def test_numbers_in_calls(backend, ns, precision):
    """What a call makes of Python's numbers (seed and step of a key, factors) is still there at replays."""
    if backend == "cuda" and precision == "single":
        pytest.skip("half precision only")
    net = cn.MLP(2, 1, width=8, depth=1, dropout=0.5)
    fields = [cn.NeuralField(None, net).build(backend, precision, seed=s) for s in (1, 2)]

    def evaluate(field, seed, x, y, index):
        return field([x, y], cn.Key(seed, index, 5))[0]

    @dr.freeze
    def choose(fields, which, x, y, index):
        return dr.switch(
            which, [lambda *p: evaluate(fields[0], 3, *p), lambda *p: evaluate(fields[1], 4, *p)], x, y, index
        )

    for turn in range(5):
        x, y = cn.uniform(2, cn.Key(turn), ns.Float, 64)
        index, which = dr.arange(ns.UInt32, 64) + turn, dr.arange(ns.UInt32, 64) % 2
        dr.eval(x, y, index, which)
        found = choose(fields, which, x, y, index).numpy()
        other = [dr.opaque(ns.Float, 7.0 + i) for i in range(50)]  # takes memory that was given back
        wanted = [evaluate(f, s, x, y, index).numpy() for f, s in zip(fields, (3, 4), strict=True)]
        np.testing.assert_allclose(found, np.where(which.numpy() == 0, *wanted), atol=2e-3)
        del other
