"""Points of the unit square drawn by a density that is constant in each texel of a picture."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr
import mitsuba as mi
import numpy as np


def tables(picture: np.ndarray, floor: float) -> tuple[Any, Any]:
    """Two arrays for the functions below: the share of points in each texel, and the cumulative sums of these shares.

    Args:
        picture: numbers of shape (n, n), such as a luminance; row 0 is where v is 0. Numbers that are negative or not
            finite count as 0.
        floor: share of points that is uniform.
    """
    light = np.maximum(np.nan_to_num(picture.astype(np.float64), posinf=0), 0).ravel()
    mean = light.mean()
    shares = (1 - floor) * light / mean + floor if mean > 0 else np.ones_like(light)
    shares /= shares.sum()
    return mi.Float(shares.astype(np.float32)), mi.Float(np.cumsum(shares).astype(np.float32))


def sampled(tables: tuple, sample: Any) -> Any:
    """A point of the square, from two uniform numbers."""
    shares, sums = tables
    side, last = math.isqrt(dr.width(shares)), dr.width(shares) - 1
    i = dr.minimum(dr.binary_search(0, last + 1, lambda i: dr.gather(mi.Float, sums, i) <= sample.x), last)
    share = dr.gather(mi.Float, shares, i)
    rest = (sample.x - (dr.gather(mi.Float, sums, i) - share)) / share
    rest = dr.clip(rest, 0, 1 - 2**-20)
    return mi.Point2f((mi.Float(i % side) + rest) / side, (mi.Float(i // side) + sample.y) / side)


def density(tables: tuple, point: Any) -> Any:
    """The density of :func:`sampled` at a point of the square, per area; 0 elsewhere."""
    shares, _ = tables
    side = math.isqrt(dr.width(shares))
    inside = (point.x >= 0) & (point.x <= 1) & (point.y >= 0) & (point.y <= 1)
    x, y = (dr.minimum(mi.UInt32(dr.select(inside, v, 0) * side), side - 1) for v in (point.x, point.y))
    return dr.select(inside, dr.gather(mi.Float, shares, y * side + x) * side**2, 0)
