"""The counting sort that Dr.Jit has for virtual calls."""

import drjit as dr
import numpy as np
import pytest

from coopnet.jit.sorting import permutation


def digits_of(ns, values):
    digits = ns.UInt32(values) + dr.opaque(ns.UInt32, 0)
    dr.eval(digits)
    return digits


@pytest.mark.parametrize("n, buckets", [(1, 1), (7, 2), (1000, 256), (100_003, 256), (5000, 2048)])
def test_stable(ns, backend, n, buckets):
    if backend == "cuda" and buckets > 256:
        pytest.skip("more than shared memory is known to hold")
    values = np.random.default_rng(n).integers(0, buckets, n)
    found = permutation(digits_of(ns, values), buckets)
    assert type(found) is ns.UInt32
    np.testing.assert_array_equal(found.numpy(), np.argsort(values, kind="stable"))


def test_recorded_on_the_cpu(ns, backend):
    if backend == "cuda":
        pytest.skip("a replay ends the process")
    frozen = dr.freeze(lambda digits: permutation(digits, 32))
    for seed in range(3):
        values = np.random.default_rng(seed).integers(0, 32, 500)
        np.testing.assert_array_equal(frozen(digits_of(ns, values)).numpy(), np.argsort(values, kind="stable"))
    assert frozen.n_recordings == 1
