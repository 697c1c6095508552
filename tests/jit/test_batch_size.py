"""Recordings of frozen functions, and when they are made anew."""

import drjit as dr
import numpy as np
import pytest

from coopnet.jit.batch_size import batch_sample, pin_batch_size


@pytest.mark.parametrize("pinned", [True, False])
def test_another_number_of_samples(ns, pinned):
    """By itself Dr.Jit replays with what was computed from the first: if no longer, there is nothing to pin."""

    @dr.freeze
    def count(x):
        y = x * 2
        dr.eval(y)
        if pinned:
            pin_batch_size(batch_sample([ns.Float(0), y], dr.width(y)))
        return y, dr.opaque(ns.Float, dr.width(y))

    for turn, n in enumerate((64, 64, 97, 97, 3000, 64)):
        x = dr.arange(ns.Float, n) + dr.opaque(ns.Float, turn)
        dr.eval(x)
        y, samples = count(x)
        np.testing.assert_array_equal(y.numpy(), 2 * x.numpy())
        assert samples[0] == (n if pinned else 64)
    assert count.n_recordings == (4 if pinned else 1)


def test_the_sample_is_no_constant(ns):
    wide = dr.arange(ns.Float, 5)
    assert batch_sample([ns.Float(1), dr.ones(ns.Float, 5), wide], 5) is wide
    made = batch_sample([ns.Float(1)], 5)
    assert dr.width(made) == 5
