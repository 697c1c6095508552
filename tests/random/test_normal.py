"""Noise of parameters: numbers that are nearly normal, a function of seed, place and step."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

import coopnet as cn
from coopnet import reference as ref
from coopnet.random.normal import normal, of_parameters

#: (rows, columns, seed, step, stream) and the first numbers of the last row, times the root of 1594709.
KNOWN = [
    ((1, 2, 7, 0, 0), [127, 857]),
    ((3, 6, 2**33 + 5, 9, 1), [-953, -1163, -2013, 777, 1581, -743]),
]


def test_words_as_numbers(ns):
    words = np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32)
    words[:4] = [0, 2**32 - 1, 255, 0xFFFFFF00]
    np.testing.assert_array_equal(normal(ns.UInt32(words)).numpy(), ref.nearly_normal(words))


def test_moments():
    """Over all 2^32 words, counted: mean 0, variance 1, kurtosis 2.92."""
    from math import comb

    count, rest = np.meshgrid(np.arange(25), np.arange(256), indexing="ij")
    z = (512.0 * count + 2 * rest - 6399) / np.sqrt(1594709)
    weight = np.array([comb(24, k) for k in range(25)])[:, None] / 2.0**24 / 256
    moments = [np.sum(weight * z**power) for power in range(1, 5)]
    np.testing.assert_allclose(moments, [0, 1, 0, 2.919], atol=5e-4)


@pytest.mark.parametrize("arguments, numbers", KNOWN)
def test_known_answers(ns, arguments, numbers):
    rows, columns, seed, step, stream = arguments
    expected = ref.parameter_noise(rows, columns, seed, step, stream)
    np.testing.assert_allclose(expected[-1] * np.sqrt(1594709), numbers, rtol=1e-5)
    key, entry = cn.Key(seed, step=step), dr.arange(ns.UInt32, rows)
    found = [of_parameters(entry, ns.UInt32(block), key, stream) for block in range(-(-columns // 4))]
    found = np.stack([v.numpy() for block in found for v in block][:columns], axis=1)
    np.testing.assert_array_equal(found, expected)


def test_everything_counts_but_the_index(ns):
    def numbers(**change):
        options = dict(seed=3, step=1, index=None, stream=0) | change
        stream = options.pop("stream")
        return of_parameters(dr.arange(ns.UInt32, 8), ns.UInt32(0), cn.Key(**options), stream)[0].numpy()

    for change in (dict(seed=4), dict(seed=3 + 2**32), dict(step=2), dict(stream=1)):
        assert (numbers(**change) != numbers()).all()
    np.testing.assert_array_equal(numbers(index=5), numbers())
