"""Sorting by small numbers.

Relies on ``detail.block_mkperm(digits, n, buckets)``, a counting sort that Dr.Jit has for virtual calls: that it is
stable, on CUDA for the 256 buckets that shared memory holds, and that ``dr.freeze`` records it on the CPU (on CUDA, a
replay ends the process). Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from typing import Any

import drjit as dr


def permutation(digits: Any, buckets: int) -> Any:
    """The order, as ``UInt32`` positions, in which the evaluated ``UInt32`` ``digits`` < ``buckets`` ascend; stable."""
    return dr.detail.block_mkperm(digits, dr.width(digits), buckets)  # type: ignore[attr-defined]
