"""The one place that decides how a network is evaluated and differentiated."""

from __future__ import annotations

from collections.abc import Sequence

import drjit as dr
import drjit.nn as drnn

from ..key import Key
from .spill import Plan, SpillOp
from .stages import Stage, buffers, forward, symbolic


def evaluate(stages: Sequence[Stage], x: drnn.CoopVec, key: Key | None) -> drnn.CoopVec:
    """Evaluate ``stages`` on the cooperative vector ``x``, differentiably.

    Which path runs:

    ========================================  ==============================================================
    weights carry no gradient                 Dr.Jit's own operations; one kernel, nothing stored
    LLVM, outside symbolic loops and calls    *spill and multiply*: reproducible, accumulated by matrix products
    everywhere else                           Dr.Jit's own operations with in-kernel accumulation
    ========================================  ==============================================================
    """
    packed = buffers(stages)
    tracked = any(dr.grad_enabled(b) for b in packed)
    if not tracked or symbolic() or dr.backend_v(x.type) != dr.JitBackend.LLVM:
        return forward(stages, x, key)
    xs = list(x)
    plan = Plan(stages, packed, wants_x=any(dr.grad_enabled(v) for v in xs))
    return drnn.CoopVec(dr.custom(SpillOp, plan, packed, xs, key))
