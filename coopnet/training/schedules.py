"""Learning-rate schedules: functions of the step number."""

from __future__ import annotations

import math
from collections.abc import Callable


def cosine(lr: float, steps: int, warmup: int = 0, final: float = 0.0) -> Callable[[int], float]:
    r"""Linear warm-up over ``warmup`` steps, then half a cosine from ``lr`` down to ``final`` at ``steps``
    (Loshchilov and Hutter 2017, without restarts).

    Returns a function from the step number to the rate, for ``fit(..., lr=...)``. Raises ``ValueError`` for rates that
    are negative or not finite, and unless ``0 <= warmup < steps``.

    >>> cn.training.cosine(1e-2, 1000)(500)
    0.005
    """
    _check("cosine", lr=lr, final=final, steps=steps, warmup=warmup)
    if not warmup < steps:
        raise ValueError(f"cosine: warmup is {warmup} of {steps} steps; 0 <= warmup < steps is needed.")

    def rate(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / (warmup + 1)
        t = min((step - warmup) / (steps - warmup), 1.0)
        return final + (lr - final) * 0.5 * (1 + math.cos(math.pi * t))

    return rate


def exponential(
    lr: float, decay: float, every: int = 1, start: int = 0, end: int | None = None
) -> Callable[[int], float]:
    r""":math:`\mathrm{lr} \cdot \mathrm{decay}^{\lfloor (\mathrm{step} - \mathrm{start}) / \mathrm{every} \rfloor}`
    from step ``start`` on; from step ``end`` on, if given, the rate stays what it is there.

    The rate decays for the first time ``every`` steps behind ``start``. tiny-cuda-nn's ``"ExponentialDecay"`` does so
    at ``decay_start`` itself: that is ``start = decay_start - decay_interval``, which may be negative.

    Returns a function from the step number to the rate, for ``fit(..., lr=...)``. Raises ``ValueError`` for a rate or
    decay that is negative or not finite, and for ``every`` below 1.

    >>> cn.training.exponential(1e-2, 0.5, every=100)(250)
    0.0025
    """
    _check("exponential", lr=lr, decay=decay)
    if every < 1:
        raise ValueError(f"exponential: every is {every}; at least 1 is needed.")
    return lambda step: lr * decay ** max(0, ((step if end is None else min(step, end)) - start) // every)


def _check(where: str, **values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{where}: {name} is {value!r}; a finite number of at least 0 is needed.")
