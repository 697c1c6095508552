r"""Nearly normal numbers with mean 0 and variance 1, computed from integers: bitwise the same on every backend.

The number of ones among the upper 24 bits of a word has a binomial distribution. The lower 8 bits add a uniform number
that fills the gaps between its values:

.. math::
    z = \frac{512\, \mathrm{popcount}(w \gg 8) + 2\, (w \bmod 256) - 6399}{\sqrt{1594709}}

The mean is exactly 0 and the variance exactly 1, the kurtosis is 2.92 (a normal distribution has 3) and :math:`|z|` is
below 5.07. The only rounding is that of the product with the inverse root in single precision.
"""

from __future__ import annotations

import math
from typing import Any

import drjit as dr
import numpy as np

from . import streams
from .counter_words import halves
from .key import Key
from .philox import philox4x32

#: Factor of the integer.
UNIT = float(np.float32(1 / math.sqrt(1594709)))


def normal(word: Any) -> Any:
    """The number for the ``UInt32`` ``word``, in single precision."""
    uint32 = type(word)
    whole = dr.popcnt(word >> 8) * 512 + (word & 255) * 2 - 6399
    single = dr.float32_array_t(uint32)
    return single(dr.int32_array_t(uint32)(whole)) * UNIT


def of_parameters(entry: Any, block: Any, key: Key, stream: int) -> list:
    """The numbers for four parameters of row ``entry`` in a table, beginning with parameter ``4 * block``.

    They are computed from the words of Philox's counter ``(entry, block, step, 2^30 + stream)`` under the key's seed.
    The key's index is not used: all samples have the same table.
    """
    uint32 = dr.leaf_t(type(entry))
    key = key.traced(uint32)
    words = philox4x32((entry, block, key.step, streams.PARAMETERS + stream), halves(key.seed, uint32))
    return [normal(word) for word in words]
