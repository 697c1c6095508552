"""What may be a word: the pieces of 64-bit numbers, and integers of every kind as flat arrays."""

from __future__ import annotations

import numpy as np
import pytest

from coopnet.random.counter_words import checked_words, halves
from coopnet.random.integers import integers


def test_halves(ns):
    numbers = np.array([0, 2**32 - 1, 2**32, 2**64 - 2], np.uint64)
    for low, high in (halves(numbers, np.uint32), (v.numpy() for v in halves(ns.UInt64(numbers), ns.UInt32))):
        assert low.dtype == high.dtype == np.uint32
        assert low.tolist() == [0, 2**32 - 1, 0, 2**32 - 2] and high.tolist() == [0, 0, 1, 2**32 - 1]
    low, high = halves(ns.UInt32(7), ns.UInt32)
    assert (low.numpy().tolist(), high.numpy().tolist()) == ([7], [0])


def test_integers_of_every_kind(ns):
    for value in ([[1, 2**63 + 1]], np.array([[1, 2**63 + 1]], np.uint64)):
        found, shape = integers("f", "x", value, np.float32)
        assert found.dtype == np.uint64 and found.tolist() == [1, 2**63 + 1] and shape == (1, 2)
    for value, tp in ((ns.Int([1, 2]), ns.UInt32), (ns.Int64([1, 2]), ns.UInt64), (ns.UInt32([1, 2]), ns.UInt32)):
        found, shape = integers("f", "x", value, ns.Float)
        assert type(found) is tp and found.numpy().tolist() == [1, 2] and shape == (2,)
        assert integers("f", "x", value, np.float32)[0].tolist() == [1, 2]
    for bad in ([-1], [2**64], [0.5], [], ns.Int([1, -1])):
        with pytest.raises(ValueError, match=r"^f: x "):
            integers("f", "x", bad, ns.Float)


def test_words_are_taken_as_they_are(ns):
    word, more = ns.UInt32([1, 2]), np.zeros(2, np.uint32)
    first, *others = checked_words((word, 0, np.int64(3), 4), (5, 6))
    assert first is word and others == [0, 3, 4, 5, 6]
    assert checked_words([1, 2, 3, 4], [5, 6]) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(TypeError, match="cannot be mixed"):
        checked_words((word, more, 0, 0), (0, 0))
