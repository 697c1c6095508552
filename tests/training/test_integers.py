"""Random integers: the law to the bit, with and without an index, and all of 32 bits."""

from __future__ import annotations

import numpy as np
import pytest

import coopnet as cn
from coopnet import reference as ref


@pytest.mark.parametrize("n", [1, 2, 1000, 3 * 10**9, 2**32 - 1])
@pytest.mark.parametrize("stream", [0, 2**31 - 1])
def test_integers(ns, n, stream):
    seed, step, samples = 2**63 + 5, 9, 300
    drawn = cn.integers(n, cn.Key(seed, step=step), ns.UInt32, samples, stream=stream)
    assert type(drawn) is ns.UInt32 and int(drawn.numpy().max()) < n
    np.testing.assert_array_equal(drawn.numpy(), ref.integers(n, samples, seed, step, stream))
    index = np.random.default_rng(1).integers(0, samples, 5).astype(np.uint32)
    some = cn.integers(n, cn.Key(seed, index=ns.UInt32(index), step=step), ns.UInt32, stream=stream)
    np.testing.assert_array_equal(some.numpy(), drawn.numpy()[index])


def test_all_integers_are_equally_likely(ns):
    """Also those of which single precision knows every 256th only."""
    drawn = cn.integers(10, cn.Key(3), ns.UInt32, 1 << 16).numpy()
    counts = np.bincount(drawn, minlength=10)
    expected = (1 << 16) / 10
    assert len(counts) == 10 and np.sum((counts - expected) ** 2 / expected) < 28  # chi-squared, 9 degrees: p = 0.001
    assert np.unique(cn.integers(2**32 - 1, cn.Key(77), ns.UInt32, 1000).numpy() % 256).size > 200


def test_bad_arguments(ns):
    good = dict(n=3, key=cn.Key(1), dtype=ns.UInt32, samples=4)
    for change, error, words in (
        (dict(n=0), ValueError, "n is 0"), (dict(n=2**32), ValueError, "n is 4294967296"),
        (dict(n=1.5), ValueError, "n is 1.5"), (dict(key=1), TypeError, "key is a int"),
        (dict(dtype=ns.Float), TypeError, "dtype is .*unsigned"),
        (dict(dtype=ns.Array2u), TypeError, "dtype is Array2u; a 1D"),
        (dict(samples=None), ValueError, "samples is None"), (dict(samples=0), ValueError, "samples is 0"),
        (dict(stream=-1), ValueError, "stream is -1"),
    ):  # fmt: skip
        with pytest.raises(error, match=f"^integers: {words}"):
            cn.integers(**(good | change))
