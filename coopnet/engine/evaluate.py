"""The one place that decides how a network is evaluated and differentiated."""

from __future__ import annotations

from collections.abc import Sequence

import drjit as dr
import drjit.nn as drnn

from ..jit.deferred import outside
from ..jit.scopes import frozen, inside_call, symbolic
from ..random.key import Key
from . import jets
from .banks import SAMPLES, BankOp, ScopeBankOp
from .modes import forced_path, is_deterministic, warn_stall
from .operation import Plan
from .ops import Stage, affine, buffers, forward
from .spill import SpillOp


def evaluate(stages: Sequence[Stage], x: drnn.CoopVec, key: Key | None) -> drnn.CoopVec:
    """Evaluate ``stages`` on the cooperative vector ``x``, differentiably; :func:`choose` says by which path."""
    packed = buffers(stages)
    if not any(dr.grad_enabled(b) for b in packed):
        return forward(stages, x, key)
    xs = list(x)
    path, _ = choose(stages, dr.backend_v(x.type), max(dr.width(v) for v in xs), in_call=inside_call(x.type))
    if path == "builtin":
        return forward(stages, x, key)
    plan = Plan(stages, packed, wants_x=any(dr.grad_enabled(v) for v in xs))
    return drnn.CoopVec(_operate(path, plan, packed, xs, key))


def _operate(path: str, plan: Plan, packed: list, xs: list, key: Key | None) -> list:
    """Run ``plan`` as one operation that differentiates by ``path``."""
    if symbolic():
        later = [outside(b).buffer for b in packed if dr.grad_enabled(b)]
        # Dr.Jit notes that the scope depends on a buffer at ordinary operations only, not at custom ones; without the
        # note, forward mode would lose the tangents of the weights.
        _ = [b * 1 for b in packed]
        return dr.custom(ScopeBankOp, plan, packed, xs, key, later)
    return dr.custom(SpillOp if path == "spill" else BankOp, plan, packed, xs, key)


def evaluate_jet(stages: Sequence[Stage], jet: list[drnn.CoopVec], key: Key | None) -> list[drnn.CoopVec]:
    """Evaluate ``stages`` on ``jet``, a vector and its tangents, differentiably, by the path of :func:`choose`.

    A bank holds as many terms as in a plain evaluation: of a vector and its ``k`` tangents, ``1 + k`` per sample.
    """
    packed = buffers(stages)
    if len(jet) == 1:
        return [evaluate(stages, jet[0], key)]
    most = jets.directions(stages, jet)
    if len(jet) - 1 > most:
        parts = [evaluate_jet(stages, [jet[0], *jet[i : i + most]], key) for i in range(1, len(jet), most)]
        return [parts[0][0], *(tangent for part in parts for tangent in part[1:])]
    jet = jets.widened(jet)
    if not any(dr.grad_enabled(b) for b in packed):
        return jets.forward(stages, jet, key)
    leaf, xs = jet[0].type, jets.flat(jet)
    terms = max(dr.width(v) for v in xs) * len(jet)
    path, _ = choose(stages, dr.backend_v(leaf), terms, in_call=inside_call(leaf))
    if path == "builtin":
        return jets.forward(stages, jet, key)
    plan = jets.JetPlan(stages, packed, wants_x=any(dr.grad_enabled(v) for v in xs), vectors=len(jet))
    return plan.split(_operate(path, plan, packed, xs, key))


def choose(
    stages: Sequence[Stage],
    backend: dr.JitBackend,
    samples: int,
    in_freeze: bool | None = None,
    in_call: bool = False,
) -> tuple[str, str]:
    """The path of the weight gradients and why it is taken; ``in_freeze`` as it is now if ``None``.

    ==================================================  ===============================================================
    in symbolic loops and conditionals                  ``banks``, summed when the scope is left
    in virtual calls                                    ``builtin``: there are no lane numbers to choose a bank by
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
        if in_call:
            if backend == dr.JitBackend.CUDA:
                warn_stall(None)
            return "builtin", "inside a virtual call there are no lane numbers to choose a bank by"
        if forced == "builtin":
            return forced, "gradient_path() asks for it"
        return "banks", "inside a symbolic loop or conditional nothing can be evaluated"
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
    return all(s.layout is not None for s in affine(stages))


def _require_layouts(stages: Sequence[Stage], where: str) -> None:
    if not can_spill(stages):
        raise RuntimeError(
            f"{where}: the path 'spill' needs to know the packed layout of every matrix, but the network has a "
            f"drjit.nn.Linear, or a layer wider than 2047; use coopnet.Linear and narrower layers."
        )
