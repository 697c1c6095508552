"""The largest density of a medium: measured at random points, and checked at others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drjit as dr
import mitsuba as mi
import numpy as np

from ...checks import check_number, check_positive, check_unsigned, ensure
from ...checks.warn import warn
from ...random import streams
from ...random.key import Key
from ...training.sampling import uniform

#: Points at which a density is measured: all over the box, and then around the densest of them.
POINTS, DENSEST, AROUND = 1 << 15, 256, 64
#: A measured majorant is the largest value found times this factor.
MARGIN = 1.1


def check_maximum(where: str, maximum: Any) -> float | None:
    """``maximum``, if it is ``None`` or a positive number; raises ``TypeError`` or ``ValueError`` otherwise."""
    if maximum is None:
        return None
    maximum = check_number(where, "maximum", maximum)
    ensure(maximum > 0, f"{where}: maximum is {maximum:g}; None or a positive number is needed.")
    return maximum


def measured(values: Callable[[list], Any]) -> float:
    """:data:`MARGIN` times the largest of ``values`` found at points of the unit cube.

    Two rounds: at random points all over the cube, and at random points of the small cubes around the densest.
    """
    u = uniform(3, Key(0), mi.Float, POINTS, stream=streams.DENSITIES)
    first = values(u).numpy()
    densest = np.argpartition(first, -DENSEST)[-DENSEST:].astype(np.uint32)
    cell = dr.repeat(mi.UInt32(densest), AROUND)
    offsets = uniform(3, Key(0, step=1), mi.Float, DENSEST * AROUND, stream=streams.DENSITIES)
    side = POINTS ** (-1 / 3)
    around = [
        dr.clip(dr.gather(mi.Float, x, cell) + (v - 0.5) * 2 * side, 0, 1) for x, v in zip(u, offsets, strict=True)
    ]
    second = values(around).numpy()
    return MARGIN * float(max(first.max(), second.max(), 1e-6))


def exceeded(where: str, values: Callable[[list], Any], limit: float, samples: int, seed: int) -> tuple[float, float]:
    """The share of random points where ``values`` are above ``limit``, and the largest value divided by ``limit``."""
    samples, seed = check_positive(where, "samples", samples), check_unsigned(where, "seed", seed)
    y = values(uniform(3, Key(seed), mi.Float, samples, stream=streams.DENSITY_CHECKS))
    count, most = int(dr.count(y > limit)[0]), float(dr.max(y)[0]) / limit
    if count:
        cut = f"at {count} of {samples} points the density is above the majorant, by up to {most:.3g} times, and is cut"
        warn(f"{where}: {cut}; give a larger maximum, or measure again.")
    return count / samples, most
