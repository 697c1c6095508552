"""Half precision on CPUs that cannot compute in it.

LLVM removes casts from half to single precision if it can. So the maximum of two such numbers becomes a maximum in
half, for which a CPU without AVX512-FP16 has no instruction. LLVM then inserts a call of a library function. Dr.Jit's
kernels cannot call any, so the process ends. This concerns reductions (``dr.max`` and ``dr.min`` over components), but
not ``dr.maximum`` and ``dr.minimum``, which consist of comparisons.

Relies on LLVM not knowing the condition of :func:`widened`. Checked with Dr.Jit 1.5.0, LLVM 19.1.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import drjit as dr

from .literals import never


def largest(values: Sequence[Any]) -> Any:
    """The largest of ``values`` in each lane, like ``dr.max(..., axis=0)``."""
    return functools.reduce(dr.maximum, values)


def widened(values: Sequence[Any], single: type) -> list[Any]:
    """``values`` as arrays of the single-precision type ``single``.

    LLVM cannot narrow results that are computed from them. Each is the result of a ``dr.select`` under a condition that
    always holds, which LLVM does not know.
    """
    wide = [single(v) for v in values]
    if dr.backend_v(single) != dr.JitBackend.LLVM or not dr.is_half_v(values[0]):
        return wide
    return [dr.select(never(v), 0, v) for v in wide]
