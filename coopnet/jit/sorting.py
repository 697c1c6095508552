"""Sorting by small numbers.

Relies on ``detail.block_mkperm(digits, n, buckets)``, a counting sort that Dr.Jit uses for virtual calls. It is stable,
on CUDA for at most 256 buckets, which fit into shared memory. ``dr.freeze`` records it on the CPU; on CUDA, a replay
ends the process. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from typing import Any

import drjit as dr


def permutation(digits: Any, buckets: int) -> Any:
    """The permutation, as ``UInt32``, that sorts the evaluated ``UInt32`` ``digits`` < ``buckets``; stable."""
    return dr.detail.block_mkperm(digits, dr.width(digits), buckets)  # type: ignore[attr-defined]
