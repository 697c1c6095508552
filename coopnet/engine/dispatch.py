"""The one place that decides how a network is evaluated and differentiated."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import drjit as dr
import drjit.nn as drnn

from ..key import Key
from .banks import SAMPLES, BankOp
from .modes import forced_path, is_deterministic
from .operation import Plan
from .spill import SpillOp
from .stages import Affine, Stage, buffers, forward, frozen, symbolic


def evaluate(stages: Sequence[Stage], x: drnn.CoopVec, key: Key | None) -> drnn.CoopVec:
    """Evaluate ``stages`` on the cooperative vector ``x``, differentiably; :func:`choose` says by which path."""
    packed = buffers(stages)
    if not any(dr.grad_enabled(b) for b in packed):
        return forward(stages, x, key)
    xs = list(x)
    path, _ = choose(stages, dr.backend_v(x.type), max(dr.width(v) for v in xs))
    if path == "builtin":
        return forward(stages, x, key)
    plan = Plan(stages, packed, wants_x=any(dr.grad_enabled(v) for v in xs))
    return drnn.CoopVec(dr.custom(SpillOp if path == "spill" else BankOp, plan, packed, xs, key))


def choose(
    stages: Sequence[Stage], backend: dr.JitBackend, samples: int, in_freeze: bool | None = None
) -> tuple[str, str]:
    """The path of the weight gradients and why it is taken; ``in_freeze`` as it is now if ``None``.

    ==================================================  ===============================================================
    in symbolic loops, conditionals and calls           ``builtin``: nothing can be evaluated there
    LLVM                                                ``spill``: reproducible, and matrix products are fastest
    CUDA, ``deterministic()``                           ``spill``
    CUDA, in a frozen function, or a small batch        ``banks``: fastest
    CUDA otherwise                                      ``spill``: banks cost Python time that only freezing saves
    ==================================================  ===============================================================
    """
    forced = forced_path()
    if symbolic():
        if is_deterministic():
            raise RuntimeError(
                "deterministic: the gradient of a network inside a symbolic loop or call accumulates with atomics, in "
                "no fixed order; evaluate the network outside, or run the loop in evaluated mode."
            )
        if backend == dr.JitBackend.CUDA and samples > WARN_BEYOND:
            _warn_stall(samples)
        return "builtin", "inside a symbolic loop, conditional or call nothing can be evaluated"
    if forced != "auto":
        if forced == "spill" and backend == dr.JitBackend.CUDA:
            _require_layouts(stages, "gradient_path")
        return forced, "gradient_path() asks for it"
    if backend == dr.JitBackend.LLVM:
        return "spill", "matrix products are the fastest way on the CPU, and reproducible"
    if is_deterministic():
        _require_layouts(stages, "deterministic")
        return "spill", "deterministic() asks for a fixed order of sums"
    if (frozen() if in_freeze is None else in_freeze) or samples <= SAMPLES or not can_spill(stages):
        return "banks", "the fastest way on the GPU that half precision does not stall"
    return "spill", "outside dr.freeze, tracing many banks would cost more than it saves"


def can_spill(stages: Sequence[Stage]) -> bool:
    """Are the packed layouts of all matrices known?"""
    return all(s.layout is not None for s in stages if isinstance(s, Affine))


def _require_layouts(stages: Sequence[Stage], where: str) -> None:
    if not can_spill(stages):
        raise RuntimeError(
            f"{where}: the path 'spill' needs to know the packed layout of every matrix, but the network has a "
            f"drjit.nn.Linear, or a layer wider than 2047; use coopnet.Linear and narrower layers."
        )


#: Samples beyond which half-precision sums in the one buffer of the built-in path may stall.
WARN_BEYOND = 1 << 15
_warned = False


def _warn_stall(samples: int) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"A network is differentiated inside a symbolic loop or conditional over {samples} samples. On CUDA its "
            f"weight gradient is accumulated in half precision there, and sums over more than about {WARN_BEYOND} "
            f"samples stall: they come out too small. Use smaller batches, or move the network out of the loop.",
            RuntimeWarning,
            stacklevel=4,
        )
