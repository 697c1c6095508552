"""Warnings about batches that are not as random as they look."""

from __future__ import annotations

import itertools
import re
import warnings

import drjit as dr
import numpy as np
import pytest
from support.kernels import launched

import coopnet as cn
from coopnet.training.arguments import trace_first_batch
from coopnet.training.optimizers import Adam
from coopnet.training.step import Options, Step

REPEATED = r"^fit: two draws with the same key and stream 0 are the same random numbers; .*stream=1\)\.$"
CHANGED = r"^fit: batch\(\) has returned other values for the same key .* stand still\. Draw with the key instead"


def told(backend, batch, **options):
    """What a fit of one input says about its batch."""
    field = cn.NeuralField(None, cn.MLP(1, 1, width=8, depth=1)).build(backend)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        cn.fit(field, batch, 2, progress=False, **options)
    about = [str(w.message) for w in found]
    return [message for message in about if message.startswith(("fit: two draws", "fit: batch()"))]


@pytest.mark.parametrize("draw", ["uniform", "integers", "stratified"])
def test_noise_that_equals_the_coordinates(backend, ns, draw):
    def noise(key, **options):
        if draw == "integers":
            return ns.Float(cn.integers(1000, key, ns.UInt32, 64, **options)) / 1000
        return getattr(cn, draw)(1, key, ns.Float, 64, **options)[0]

    def batch(key, **options):
        (x,) = cn.uniform(1, key, ns.Float, 64)
        return [x], [x + noise(key, **options)]

    (message,) = told(backend, batch)
    assert re.search(REPEATED, message)
    assert not told(backend, lambda key: batch(key, stream=1))
    assert not told(backend, lambda key: ([cn.uniform(1, key, ns.Float, 64)[0]], [noise(key.fold_in(7))]))


@pytest.mark.parametrize("kind", ["fold_in", "keys", "sizes"])
def test_equal_numbers_of_other_keys_and_sizes(backend, ns, kind):
    def batch(key):
        one, other = {
            "fold_in": lambda: (key.fold_in(3), key.fold_in(3)),
            "keys": lambda: (cn.Key(5, step=key.step), cn.Key(5, step=key.step)),
            "sizes": lambda: (key, key),
        }[kind]()
        (x,) = cn.uniform(1, one, ns.Float, 64)
        (noise,) = cn.uniform(1, other, ns.Float, 65 if kind == "sizes" else 64)
        return [x], [x + dr.gather(ns.Float, noise, dr.arange(ns.UInt32, 64))]

    (message,) = told(backend, batch)
    assert re.search(REPEATED, message)
    distinct = lambda key: ([cn.uniform(1, key.fold_in(3), ns.Float, 64)[0]], cn.uniform(1, key, ns.Float, 64))  # noqa: E731
    assert not told(backend, distinct)


def test_integers_that_python_changes(backend, ns):
    count = itertools.count()

    def batch(key):
        return dr.arange(ns.UInt32, 10) + next(count)

    (message,) = told(backend, batch, objective=lambda f, rows, key: dr.square(f([ns.Float(rows)])[0]))
    assert re.search(CHANGED, message)


def test_an_objective_that_draws_what_the_batch_drew(backend, ns):
    def objective(stream):
        return lambda f, x, key: dr.square(f(x)[0] - cn.uniform(1, key, ns.Float, 64, stream=stream)[0])

    batch = lambda key: cn.uniform(1, key, ns.Float, 64)  # noqa: E731
    (message,) = told(backend, batch, objective=objective(0))
    assert re.search(REPEATED, message)
    assert not told(backend, batch, objective=objective(1))


@pytest.mark.parametrize("kind", ["counter", "python", "numpy", "drjit", "sizes"])
def test_what_python_changes(backend, ns, kind):
    count, rng, jit = itertools.count(), np.random.default_rng(0), dr.rng(3)
    chunks = [ns.Float(i, 1, 2, 3) for i in range(20)]
    dr.eval(chunks)

    def batch(key):
        x = {
            "counter": lambda: chunks[next(count)],
            "python": lambda: cn.uniform(1, key, ns.Float, 4)[0] + rng.random(),
            "numpy": lambda: chunks[0] * float(rng.random()),
            "drjit": lambda: jit.random(ns.Float, 4),
            "sizes": lambda: dr.linspace(ns.Float, 0, 1, 5 + (next(count) == 0)),
        }[kind]()
        return [x], [dr.sin(x)]

    (message,) = told(backend, batch)
    assert re.search(CHANGED, message)


def test_batches_that_are_functions_of_the_key(backend, ns):
    """Also if Dr.Jit cannot see it: loops, and arrays that are evaluated in the batch."""
    table = dr.linspace(ns.Float, -1, 1, 1000)
    dr.eval(table)

    def gathered(key):
        return dr.gather(ns.Float, table, cn.integers(1000, key, ns.UInt32, 64))

    def looped(key):
        (x,) = cn.uniform(1, key, ns.Float, 64)
        return dr.while_loop((x, ns.UInt32(0)), lambda x, i: i < 3, lambda x, i: (x * x, i + 1))[0]

    def nan(key):
        return dr.select(gathered(key.fold_in(5)) < 0, dr.nan, looped(key.fold_in(3)))

    for x in (gathered, looped):
        assert not told(backend, lambda key, x=x: ([x(key)], [dr.sin(x(key.fold_in(9)))]))
    batch = lambda key: ([looped(key)], [dr.select(dr.isnan(nan(key)), 0, ns.Float(1))])  # noqa: E731
    assert not told(backend, batch)


def test_nothing_is_evaluated_for_it(backend, ns):
    """Equal expressions are one variable."""
    batch = lambda key: ([cn.uniform(1, key, ns.Float, 333)[0]], [cn.uniform(1, key, ns.Float, 333, stream=1)[0]])  # noqa: E731
    field = cn.NeuralField(None, cn.MLP(1, 1, width=8, depth=1)).build(backend)
    with launched() as kernels:
        _, _, found = trace_first_batch(Step(field, Adam(lr=1e-2), batch, Options()), cn.Key(0))
    assert not found and 333 not in [k["size"] for k in kernels]
