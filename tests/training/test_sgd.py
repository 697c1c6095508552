"""Steps of SGD, which are proportional to gradients: those of Adam are the same for gradients of any scale."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from drjit.opt import SGD

import coopnet as cn
from coopnet import training
from coopnet.training import Group


def build(backend, outputs=1, **options):
    return cn.NeuralField(None, cn.MLP(2, outputs, width=8, depth=1, **options)).build(backend, seed=1)


def moved(ns, backend, outputs=1, samples=60, bias=False, **options):
    """How a step of SGD moves all matrices, and its loss."""
    field = build(backend, outputs, bias=bias)
    names = [f"network.layers.{i}.weights" for i in (0, 2)]
    before = [field.matrix(name) for name in names]

    def batch(key):
        x = cn.uniform(2, key, ns.Float, samples)
        return x, [x[0]] * outputs

    losses = cn.fit(field, batch, 1, optimizer=SGD(lr=1.0), progress=False, **options).losses
    moves = [field.matrix(name) - old for name, old in zip(names, before, strict=True)]
    return np.concatenate([m.ravel() for m in moves]), losses


def l1_penalty(field):
    """A part of the penalty, whose gradient does not overflow on CUDA at the first scale of losses."""
    return 0.1 * training.l1_penalty(field)


def l2_penalty(field):
    return 0.1 * training.l2_penalty(field)


def agree(backend, found, expected):
    assert np.abs(expected[0]).max() > 0, "the step was left out"
    error = 2e-2 if backend == "cuda" else 1e-4
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=error * np.abs(expected[0]).max())
    np.testing.assert_allclose(found[1], expected[1], rtol=error)


def test_sums_of_penalties(ns, backend):
    """Each adds to the gradients of the same weights."""
    plain, one, two = (moved(ns, backend, penalty=p) for p in (None, l2_penalty, l1_penalty))
    found = moved(ns, backend, penalty=lambda field: l2_penalty(field) + l1_penalty(field))
    agree(backend, (found[0], [1]), (one[0] + two[0] - plain[0], [1]))


@pytest.mark.parametrize("path", ["spill", "banks", "builtin"])
@pytest.mark.parametrize("first", [True, False])
def test_penalties_inside_an_objective(ns, backend, path, first):
    """Before the loss or after it: neither overwrites the gradient of the other."""

    def objective(field, drawn, key):
        parts = [l2_penalty(field), dr.square(field(drawn[0], key)[0] - drawn[1][0])]
        return sum(parts if first else reversed(parts))

    with cn.gradient_path(path):
        found = moved(ns, backend, objective=objective)
        also = moved(ns, backend, penalty=l2_penalty)
    expected = moved(ns, backend, penalty=l2_penalty)
    agree(backend, also, expected)
    agree(backend, (found[0], [1]), (expected[0], [1]))


@pytest.mark.parametrize("path", ["auto", "spill", "banks"])
@pytest.mark.parametrize("outputs, samples, parts", [(3, 7, 3), (1, 60, 4), (2, 11, 2), (1, 60, 1)])
def test_chunks_of_any_size(ns, backend, path, outputs, samples, parts):
    """Also if numbers of samples occur among the settings of the field: Dr.Jit visits each small number once."""
    options = dict(outputs=outputs, samples=samples, bias=True, penalty=l2_penalty)
    with cn.gradient_path(path):
        agree(backend, moved(ns, backend, distributed=Group(chunks=parts), **options), moved(ns, backend, **options))


def test_one_loss_for_the_batch_of_a_single_process(ns, backend):
    """Samples keep their own masks."""

    def mean(y, t):
        return dr.mean(dr.square(y[0] - t[0]))

    found = []
    for group in (None, Group(), Group(chunks=1)):
        field = build(backend, dropout=0.5)
        result = cn.fit(
            field, lambda key: ((x := cn.uniform(2, key, ns.Float, 100)), [x[0]]), 2, loss=mean, optimizer=SGD(lr=0.1),
            progress=False, distributed=group,
        )  # fmt: skip
        found.append(result.losses)
    np.testing.assert_allclose(found[1], found[0], rtol=2e-2 if backend == "cuda" else 1e-5)
    np.testing.assert_allclose(found[2], found[0], rtol=2e-2 if backend == "cuda" else 1e-5)


class Settings:
    DRJIT_STRUCT = {"which": object}


@pytest.mark.parametrize("before, after", [(False, True), (1, 2), (2, 1), ("a", "b"), (1.5, 2.5)])
@pytest.mark.parametrize("kind", ["dictionary", "object"])
def test_numbers_that_change(ns, backend, kind, before, after):
    """They are among the inputs of a recorded step, although the field has the same numbers as settings."""
    field, settings = build(backend, bias=True), Settings()
    settings.which = before
    held = settings.__dict__ if kind == "dictionary" else settings

    def rate(step):
        settings.which = before if step < 2 else after
        return 0.0

    def batch(key):
        x = cn.uniform(2, key, ns.Float, 64)
        which = held["which"] if kind == "dictionary" else held.which
        return x, [x[0] * (10 if which == after else 1)]

    losses = cn.fit(field, batch, 4, lr=rate, progress=False).losses
    assert min(losses[2:]) > 20 * max(losses[:2])


def test_captured_arrays_of_another_size(ns, backend):
    """Widths of the field, too: the mean is over the samples that there are."""
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=2)).build(backend, seed=1)
    arrays = [ns.Float(np.random.default_rng(n).random(n).astype(np.float32)) for n in (8, 2, 1, 8)]
    held = {"x": arrays[0]}

    def rate(step):
        held["x"] = arrays[step]
        return 0.0

    losses = cn.fit(field, lambda key: ([held["x"], held["x"]], [held["x"]]), 4, lr=rate, progress=False).losses
    expected = [float(dr.mean(dr.square(ns.Float(field([v, v])[0]) - v)).numpy()[0]) for v in arrays]
    np.testing.assert_allclose(losses, expected, rtol=2e-2 if backend == "cuda" else 1e-5)
