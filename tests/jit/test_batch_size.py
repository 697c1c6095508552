"""Recordings of frozen functions, and when they are made anew."""

import drjit as dr
import numpy as np
import pytest

from coopnet.jit.batch_size import batch_sample, batch_size_known, pin_batch_size, summed


@pytest.mark.parametrize("of", ["computed", "evaluated", "input", "nothing"])
def test_another_number_of_samples(ns, of):
    """By itself Dr.Jit replays with what was computed from the first: if no longer, there is nothing to pin."""
    pinned = of != "nothing"

    @dr.freeze
    def count(x):
        y = x * 2
        sample = batch_sample([ns.Float(0), x if of == "input" else y], dr.width(y))
        dr.eval(y, sample)
        if of == "evaluated":
            sample = batch_sample([ns.Float(0), y], dr.width(y))
        if pinned:
            pin_batch_size(sample)
        return y, dr.opaque(ns.Float, dr.width(y))

    for turn, n in enumerate((64, 64, 97, 97, 3000, 64)):
        x = dr.arange(ns.Float, n) + dr.opaque(ns.Float, turn)
        dr.eval(x)
        y, samples = count(x)
        np.testing.assert_array_equal(y.numpy(), 2 * x.numpy())
        assert samples[0] == (n if pinned else 64)
    assert count.n_recordings == (4 if pinned else 1)


def test_the_sample_depends_on_all(ns):
    one, constant, wide = dr.opaque(ns.Float, 1), dr.ones(ns.Float, 5), dr.arange(ns.Float, 5)
    for vectors, expected in (
        ([one, constant, wide], [0, 1, 2, 3, 4]),
        ([wide, wide * 2], [0, 3, 6, 9, 12]),
        ([dr.opaque(ns.Float, 2, 5)], [2] * 5),
        ([ns.Float(1)], [1] * 5),
    ):
        made = summed(vectors, 5)
        assert made.state != dr.VarState.Evaluated
        np.testing.assert_array_equal(made.numpy(), expected)


def test_callers_that_know_it(ns):
    """Where nothing is recorded, or whoever froze the function sees to other numbers of samples, nothing is pinned."""
    x = dr.arange(ns.Float, 64)
    assert batch_sample([x], 64) is None
    pin_batch_size(None)

    @dr.freeze
    def sample(x, known):
        with batch_size_known(known):
            return batch_sample([x * 2], dr.width(x))

    assert sample(x, True) is None and dr.width(sample(x, False)) == 64
