"""Warns if a batch is not as random as it looks: of draws that repeat each other, and of what Python changes.

Both go unnoticed otherwise. From coordinates and noise that are equal, a field learns the noise. A counter or a data
loader in ``batch`` stands still, because Dr.Jit records the function once and then replays what it recorded.

The first batch is checked, before anything is recorded.
"""

from __future__ import annotations

from typing import Any

import drjit as dr

from .trees import leaves

#: Share of the entries that may differ, and by how much of the largest: atomics add in another order each time.
SHARE, TOLERANCE = 0.01, 1e-3


def repeated(draws: list[tuple[int, tuple]]) -> str:
    """The warning if two of ``draws`` (:func:`coopnet.training.sampling.noting_draws`) are the same numbers."""
    streams = [stream for stream, _ in draws]
    several = [(stream, words) for stream, words in draws if streams.count(stream) > 1]
    dr.eval([v for _, words in several for v in words if dr.width(v) == 1])
    seen = set()
    for stream, words in several:
        # two keys of the same numbers are other variables
        name = (stream, *(int(v.numpy()[0]) if dr.width(v) == 1 else v.index for v in words))
        if name in seen:
            equal = f"two draws with the same key and stream {stream} are the same random numbers"
            return f"fit: {equal}; give one of them another stream, as in cn.uniform(..., stream={stream + 1})."
        seen.add(name)
    return ""


def changed(first: Any, again: Any) -> str:
    """The warning if a batch differs from the one that ``batch`` returned for the same key before."""
    a, b = _arrays(first), _arrays(again)
    # Dr.Jit gives equal expressions the same number, so that nothing needs to be evaluated in most cases
    pairs = [(v, w) for v, w in zip(a, b, strict=False) if v.index != w.index]
    dr.eval(pairs)
    if len(a) == len(b) and not any(_differ(v, w) for v, w in pairs):
        return ""
    problem = "batch() has returned other values for the same key when it was called again"
    why = "It is recorded once and then replayed, so counters, data loaders and random generators of Python stand still"
    cure = "Draw with the key instead, rows of a table by cn.integers(count, key, UInt32, n) and dr.gather()"
    return f"fit: {problem}. {why}. {cure}."


def _arrays(tree: Any) -> list[Any]:
    """The arrays in a PyTree, flat and without their gradients."""
    return [dr.detach(v.array if dr.is_tensor_v(v) else v) for v in leaves(tree)]


def _differ(v: Any, w: Any) -> bool:
    if type(v) is not type(w) or dr.width(v) != dr.width(w):
        return True
    if not dr.is_float_v(v):
        return bool(dr.any(v != w))
    least = TOLERANCE * dr.max(dr.abs(v))
    different = (dr.abs(v - w) > least) | (dr.isnan(v) != dr.isnan(w))
    return bool(dr.count(different)[0] > SHARE * dr.width(v))
