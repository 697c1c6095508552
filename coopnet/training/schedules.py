"""Learning-rate schedules: functions of the step number."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from ..checks import check, ensure, is_number, shown


def cosine(lr: float, steps: int, warmup: int = 0, final: float = 0.0) -> Callable[[int], float]:
    r"""Linear warm-up over ``warmup`` steps, then half a cosine from ``lr`` down to ``final`` at ``steps``
    (Loshchilov and Hutter 2017, without restarts).

    Returns a function from the step number to the rate, for ``fit(..., lr=...)``. Raises ``ValueError`` for rates that
    are negative or not finite, and unless ``0 <= warmup < steps``; the function raises it for a step that is not a
    number.

    >>> cn.training.cosine(1e-2, 1000)(500)
    0.005
    """
    for name, value, least in (("lr", lr, 0), ("final", final, 0), ("steps", steps, 1), ("warmup", warmup, 0)):
        _number("cosine", name, value, least)
    given = f"warmup is {shown(warmup)} of {shown(steps)} steps"
    ensure(warmup < steps, f"cosine: {given}; 0 <= warmup < steps is needed.")
    return of_steps_alone(functools.partial(_cosine, lr, steps, warmup, final))


def _cosine(lr: float, steps: int, warmup: int, final: float, step: int) -> float:
    _number("cosine", "step", step)
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    t = min((step - warmup) / (steps - warmup), 1.0)
    return final + (lr - final) * 0.5 * (1 + math.cos(math.pi * t))


def exponential(
    lr: float, decay: float, every: int = 1, start: int = 0, end: int | None = None
) -> Callable[[int], float]:
    r""":math:`\mathrm{lr} \cdot \mathrm{decay}^{\lfloor (\mathrm{step} - \mathrm{start}) / \mathrm{every} \rfloor}`
    from step ``start`` on. From step ``end`` on, if given, the rate is constant.

    The rate decays for the first time ``every`` steps after ``start``. tiny-cuda-nn's ``"ExponentialDecay"`` decays
    first at ``decay_start``; use ``start = decay_start - decay_interval`` for that, which may be negative.

    Returns a function from the step number to the rate, for ``fit(..., lr=...)``. Raises ``ValueError`` for a rate or
    decay that is negative or not finite, for ``every`` below 1, and for a start or end that is not a number; the
    function raises it for a step that is not a number.

    >>> cn.training.exponential(1e-2, 0.5, every=100)(250)
    0.0025
    """
    for name, value, minimum in (("lr", lr, 0), ("decay", decay, 0), ("every", every, 1)):
        _number("exponential", name, value, minimum)
    for name, value in {"start": start, "end": start if end is None else end}.items():
        _number("exponential", name, value)
    return of_steps_alone(functools.partial(_exponential, lr, decay, every, start, end))


def _exponential(lr: float, decay: float, every: int, start: int, end: int | None, step: int) -> float:
    _number("exponential", "step", step)
    last = step if end is None else min(step, end)
    try:
        return lr * decay ** max(0, (last - start) // every)
    except OverflowError:
        return math.inf


def of_steps_alone(rate: Callable[[int], float]) -> Callable[[int], float]:
    """``rate``, marked as a function that may be called at any time and in any order."""
    rate.of_steps_alone = True  # type: ignore[attr-defined]
    return rate


def is_of_steps_alone(rate: Callable[[int], float]) -> bool:
    """Is ``rate`` marked so? Other functions may have side effects, and are called just before each step."""
    return getattr(rate, "of_steps_alone", False)


def _number(where: str, name: str, value: Any, least: float = -math.inf) -> None:
    """Raise unless ``value`` is a finite number of at least ``least``, Python's or NumPy's."""
    bound = "" if least == -math.inf else f" of at least {least:g}"
    check(is_number(value, least), where, name, value, f"a finite number{bound}")
