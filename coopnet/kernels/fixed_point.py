r"""Sums that don't depend on the order of threads.

Floating point additions don't commute with rounding, so that atomics give another last bit in every run. Integers do
commute: numbers are rounded to multiples of a power of two :math:`1/s`, added up as 64-bit integers, and divided by
:math:`s` at the end. :math:`s` is chosen from the largest number so that no sum can overflow, which leaves about
:math:`61 - \log_2 n` bits of :math:`n` numbers: more than a float has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..jit.kinds import nested_type


def scale(largest: Any, terms: Any) -> Any:
    """The power of two :math:`s` for sums of ``terms`` numbers, none of them above ``largest``; both are arrays."""
    # floor() makes it a power of two, by which dividing is exact; the bounds keep it finite
    exponent = dr.clip(dr.floor(61 - dr.log2(largest) - dr.log2(terms)), -120, 120)
    return dr.select(largest > 0, dr.exp2(exponent), 1)


def add(sums: Any, scaled: Sequence[Any], index: Any, active: Any = True) -> None:
    """Add numbers that are multiplied by :math:`s` already to the ``Int64`` array ``sums``, at ``len(scaled) * index``
    and behind it."""
    # In one packet, which the CPU adds up several times as fast as one number after the other. Where Dr.Jit gives each
    # thread an array of its own, which it does up to a size, nothing else comes near; beyond it would take atomics that
    # look for lanes with the same index, but lanes of a large array hardly have any.
    own = dr.width(sums) <= dr.expand_threshold()
    mode = dr.ReduceMode.Auto if own or dr.backend_v(sums) != dr.JitBackend.LLVM else dr.ReduceMode.Direct
    packet = nested_type(type(sums))([type(sums)(dr.round(v)) for v in scaled])
    dr.scatter_reduce(dr.ReduceOp.Add, sums, packet, index, active, mode)


def finish(sums: Any, s: Any, broken: Any) -> Any:
    """The sums in the type of ``s``. Where ``broken`` is not zero, an infinity or NaN was among the numbers, which must
    not vanish: the loss scaler looks for it."""
    return dr.select(broken == 0, type(s)(sums) / s, dr.nan)
