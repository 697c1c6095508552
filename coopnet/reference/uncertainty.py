"""What a field does not know: rates of dropout, posteriors, ensembles, and how good an uncertainty is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def posthoc_dropout(loss: Callable[[float], float], tolerance: float = 0.05) -> float:
    """The largest rate of dropout whose ``loss(rate)`` is at most ``1 + tolerance`` times that at 0 (Sun et al. 2024).

    Bisection of the logarithm between 2^-28 and 2^-0.01, rounded to single precision; 0 if the smallest is too large.

    >>> round(ref.posthoc_dropout(lambda p: 1 + p, 0.1), 3)
    0.1
    """
    limit = (1 + tolerance) * loss(0.0)
    fits, fails = -28.0, -0.01
    if loss(2**fits) > limit:
        return 0.0
    for _ in range(12):
        middle = (fits + fails) / 2
        if loss(float(np.float32(2**middle))) <= limit:
            fits = middle
        else:
            fails = middle
    return float(np.float32(2**fits))
