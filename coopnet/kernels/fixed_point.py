r"""Sums that don't depend on the order of threads.

Sums of floating point numbers depend on the order of additions, so atomics give different last bits in every run. Sums
of integers do not. Here, numbers are rounded to multiples of a power of two :math:`1/s`, added up as 64-bit integers,
and divided by :math:`s` at the end. :math:`s` is computed from the largest number, so that no sum can overflow. This
leaves about :math:`61 - \log_2 n` bits for :math:`n` numbers, more than a float has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..jit.half import largest
from ..jit.kinds import nested_type


def scale(largest: Any, terms: Any) -> Any:
    """The power of two :math:`s` for sums of ``terms`` numbers of at most ``largest``; both are arrays."""
    # floor() makes it a power of two, by which dividing is exact; the bounds keep it finite
    exponent = dr.clip(dr.floor(61 - dr.log2(largest) - dr.log2(terms)), -120, 120)
    return dr.select(largest > 0, dr.exp2(exponent), 1)


def add(sums: Any, scaled: Sequence[Any], index: Any, active: Any = True) -> None:
    """Add the numbers ``scaled``, multiplied by :math:`s`, to row ``index`` of the ``Int64`` array ``sums``."""
    # A CPU adds up a packet several times as fast as its numbers one by one. Up to some size, Dr.Jit gives each thread
    # an array of its own, which is the fastest way by far. Beyond that size, by default, it would use atomics that
    # search for lanes with the same index, of which a large array has hardly any.
    per_thread = dr.width(sums) <= dr.expand_threshold()
    mode = dr.ReduceMode.Auto if per_thread or dr.backend_v(sums) != dr.JitBackend.LLVM else dr.ReduceMode.Direct
    packet = nested_type(type(sums))([type(sums)(dr.round(v)) for v in scaled])
    dr.scatter_reduce(dr.ReduceOp.Add, sums, packet, index, active, mode)


def bound(values: Sequence[Any]) -> Any:
    """The largest of the absolute ``values``. Infinite where one is not finite, as a maximum would skip NaN."""
    return largest([dr.select(dr.isfinite(v), dr.abs(v), dr.inf) for v in values])


def broken(most: Any) -> Any:
    """1 if ``most``, a maximum of :func:`bound`, shows that a number is not finite, otherwise 0."""
    return dr.select(dr.isfinite(most), type(most)(0), type(most)(1))


def finish(sums: Any, s: Any, broken: Any) -> Any:
    """The sums in the type of ``s``; NaN where ``broken`` is not zero, because a number was infinite or NaN.

    The loss scaler looks for such results.
    """
    return dr.select(broken == 0, type(s)(sums) / s, dr.nan)
