"""Fields in virtual calls of frozen functions: what calls read must be there when the function is replayed."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.kernels import launched

import coopnet as cn

N = 64


def branches(ns, function):
    """A frozen function with a call of two targets, ``function(v, p, lane)`` and its negative."""

    def run(field, p, lane, made):
        targets = [lambda p, i, s=s: s * function(field, p, i, made(lane)) for s in (1, -1)]
        return dr.switch(lane % 2, targets, p, lane)

    return run


def replays(ns, run, field, made=lambda lane: None):
    """What the first and later calls give; in between, small arrays take memory that is free."""
    p, lane = ns.Array2f(dr.linspace(ns.Float, 0.1, 0.9, N), 0.5), dr.arange(ns.UInt32, N)
    dr.eval(p, lane)
    frozen = dr.freeze(lambda field, p, lane: run(field, p, lane, made))
    found = []
    for i in range(5):
        held = [dr.opaque(tp, 1000 + i + j) for j in range(8) for tp in (ns.UInt32, ns.Bool)]
        found.append(frozen(field, p, lane).numpy())
        del held
    assert frozen.n_recordings == 1
    return run(field, p, lane, made).numpy(), found


def network(backend, dropout=0.0):
    return cn.NeuralField(None, cn.MLP(2, 1, width=16, depth=1, dropout=dropout)).build(backend, seed=1)


CASES = {
    "a key of literals": (0.5, lambda ns: lambda f, p, i, key: f(p, cn.Key(5, i, key.step))[0]),
    "constant coordinates": (0.0, lambda ns: lambda f, p, i, key: f(ns.Array2f(0.25, 0.5))[0] + p.x),
    "Monte Carlo dropout": (0.2, lambda ns: lambda f, p, i, key: cn.mc_dropout(f, p, cn.Key(5, i), 8)[1][0]),
}


@pytest.mark.parametrize("case", CASES)
def test_replays(ns, backend, case):
    dropout, make = CASES[case]
    key = (lambda lane: cn.Key(5, step=ns.UInt32(9))) if case == "a key of literals" else (lambda lane: None)
    expected, found = replays(ns, branches(ns, make(ns)), network(backend, dropout), key)
    assert np.abs(expected).max() > 1e-3
    for y in found:
        np.testing.assert_allclose(y, expected, rtol=0, atol=(2e-2 if backend == "cuda" else 1e-5))


@pytest.mark.parametrize("part", ["index", "step"])
@pytest.mark.parametrize("what", ["value", "gradient"])
def test_a_point_that_many_masks_share(ns, backend, part, what):
    """Its gradient is the sum over the masks, as for as many copies of the point."""
    mlp = cn.MLP(2, 1, width=16, depth=1, activation="silu", dropout=0.2)
    field = cn.NeuralField(None, mlp).build(backend, seed=1)
    key = cn.Key(5, **{part: dr.arange(ns.UInt32, N)})

    def slopes(*x):
        dr.enable_grad(x)
        p = ns.Array2f(*x)
        y = field(p, key)[0] if what == "value" else dr.squared_norm(ns.Array2f(field.value_and_grad(p, key)[1]))
        dr.backward(dr.sum(y))
        return [dr.grad(v).numpy().sum() for v in x]

    one = slopes(ns.Float(0.3), ns.Float(0.6))
    copies = slopes(dr.full(ns.Float, 0.3, N), dr.full(ns.Float, 0.6, N))
    np.testing.assert_allclose(one, copies, rtol=3e-2 if backend == "cuda" else 1e-4, atol=1e-3)


def test_numpy_indices_are_refused_while_recording(ns, backend):
    frozen = dr.freeze(lambda field, p, key: field(p, key)[0])
    p = ns.Array2f(dr.linspace(ns.Float, 0, 1, N), 0.5)
    dr.eval(p)
    with pytest.raises(RuntimeError) as caught:
        frozen(network(backend, 0.2), p, cn.Key(5, index=np.arange(N)))
    error = caught.value
    while error.__cause__ is not None:
        error = error.__cause__
    assert "make the key outside, with index=UInt32(index)" in str(error)


def test_numbers_in_arrays_compile_nothing_new(ns, backend):
    """Rates of dropout and distances of differences, as arrays made of a Python number."""
    field = network(backend, 0.1)
    layer = next(v for v in field.network.layers if isinstance(v, cn.Dropout))
    x = ns.Array2f(dr.linspace(ns.Float, 0, 1, N), 0.5)
    dr.eval(x)
    kernels = []
    for value in (0.1, 0.15, 0.2):
        with launched() as history:
            layer.p = ns.Float(value)
            dr.eval(field(x, cn.Key(1)))
            dr.eval(cn.numerical_gradient(field, x, ns.Float(value)), cn.numerical_gradient(field, x, value))
        kernels.append([k["hash"] for k in history])
    assert kernels[0] == kernels[1] == kernels[2]


def test_numbers_of_grids_compile_nothing_new(ns, backend):
    volume = cn.NeuralField(None, cn.MLP(3, 4, width=16, depth=1)).build(backend, seed=1)
    grid = cn.render.OccupancyGrid(8, backend=backend)
    kernels = []
    for turn, number in enumerate((0.1, 0.15, 0.2, 0.3)):
        with launched() as history:
            grid.update(volume, cn.Key(1, step=turn), decay=number, threshold=number)
            grid.set_density(dr.full(ns.Float, 0.25, grid.cells), threshold=number)
            assert grid.share() == (number < 0.25)
        kernels.append([k["hash"] for k in history])
    assert kernels[1] == kernels[2] == kernels[3]  # the first one starts with a grid of constants


@pytest.mark.parametrize("mode", ["loop", "replay", "wide"])
def test_a_ray_that_many_masks_share(ns, backend, mode):
    volume = cn.NeuralField(None, cn.MLP(3, 4, width=16, depth=1, activation="silu", dropout=0.1)).build(
        backend, seed=0
    )
    key = cn.Key(5, index=dr.arange(ns.UInt32, N))

    def march(o):
        dr.enable_grad(o)
        seen = cn.render.ray_march(volume, o, ns.Array3f(0.05, 0.1, 1), 1.0, 3.0, 8, mode=mode, key=key)
        assert dr.width(seen.color) == N
        dr.backward(dr.sum(seen.color.x))
        return dr.detach(seen.color.x).numpy(), np.array([v.numpy().sum() for v in dr.grad(o)])

    one = march(ns.Array3f(0.1, 0.2, -2))
    copies = march(ns.Array3f(dr.full(ns.Float, 0.1, N), 0.2, -2))
    for a, b in zip(one, copies, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=(5e-2 if backend == "cuda" else 1e-4) * np.abs(b).max())


def test_fields_that_differ_in_one_setting(ns, backend):
    """Dr.Jit compares Python objects, such as 16 or True, only where it finds them first."""

    def noisy(bits):
        layers = cn.MLP(-1, 1, width=16, dropout=cn.Dropout(0.4, bits=bits))
        return cn.NeuralField(cn.Sinusoidal(8, in_features=2), layers).build(backend, seed=1)

    def periodic(last):
        blobs = [cn.OneBlob(4, 1, periodic=v) for v in (True, False, last)]
        return cn.NeuralField(cn.Composite(blobs, [1, 1, 1]), cn.MLP(-1, 1, width=16)).build(backend, seed=1)

    for make, settings, count in ((noisy, (8, 16), 2), (periodic, (True, False), 3)):
        p = [ns.Float(0.03, 2.6)] * count
        key = cn.Key(ns.UInt64(5))
        recorded = dr.freeze(lambda field, p, key: field(p, key)[0])
        found = []
        for setting in settings:
            field = make(setting)
            found.append(recorded(field, p, key).numpy())
            np.testing.assert_allclose(found[-1], field(p, key)[0].numpy(), rtol=1e-5 if backend == "llvm" else 1e-2)
        assert recorded.n_recordings == 2 and abs(found[0] - found[1]).max() > 1e-3
        np.testing.assert_array_equal(recorded(make(settings[1]), p, key).numpy(), found[1])
        assert recorded.n_recordings == 2
