"""Sums in fixed point."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

from coopnet.kernels import fixed_point


@pytest.mark.parametrize("largest", [1e-30, 0.75, 1.0, 3e20])
@pytest.mark.parametrize("terms", [1, 1000, 2**31])
def test_scales_leave_room_for_every_sum(ns, largest, terms):
    """Powers of two; the largest sum has 59 to 61 bits, or what the bounds of the exponent leave."""
    s = float(fixed_point.scale(ns.Float(largest), ns.Float(terms))[0])
    mantissa, exponent = np.frexp(s)
    assert mantissa == 0.5 and -120 <= exponent - 1 <= 120
    total = largest * terms * s
    assert total <= 2**61 and (total > 2**59 or exponent - 1 == 120)
    assert fixed_point.scale(ns.Float(0), ns.Float(terms))[0] == 1


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_sums(ns, width, own):
    """Of a thousand small numbers beside a large one, in any order; what is broken says so. With an array for each
    thread and without.
    """
    values = np.full(1001, 2.0**-30, np.float32)
    values[500] = 1024
    totals, threshold = [], dr.expand_threshold()
    try:
        dr.set_expand_threshold(threshold if own else 1)
        for order in (slice(None), slice(None, None, -1)):
            sums, s = dr.zeros(ns.Int64, 2 * width), fixed_point.scale(ns.Float(1024), ns.Float(1001))
            packet = [ns.Float(values[order]) * (s * 2**k) for k in range(width)]
            fixed_point.add(sums, packet, ns.UInt32(0))
            fixed_point.add(sums, [ns.Float(7) * s] * width, ns.UInt32(1), ns.Bool(False))
            expected = [(1024 + 1000 * 2.0**-30) * 2**k for k in range(width)] + [0] * width
            np.testing.assert_array_equal(sums.numpy() / float(s[0]), expected)
            totals.append(fixed_point.finish(sums, s, ns.Float(0)).numpy())
            assert np.isnan(fixed_point.finish(sums, s, ns.Float(1)).numpy()).all()
        np.testing.assert_array_equal(*totals)
    finally:
        dr.set_expand_threshold(threshold)


def test_what_is_broken(ns):
    """A number that is not finite, and not a sum of finite ones that would be."""
    for values, bad in (([3e38, 3e38], False), ([1, np.inf], True), ([np.nan, 1], True), ([-np.inf, 1], True)):
        most = dr.max(fixed_point.bound([ns.Float(values), ns.Float(3e38)]))
        assert (fixed_point.broken(most)[0] != 0) == bad, values
