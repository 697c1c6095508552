"""Loss functions: a value per sample, to be averaged over samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drjit as dr


def l2(y: Any, target: Any) -> Any:
    r"""Mean over components of :math:`(y - t)^2`."""
    return _mean([dr.square(a - b) for a, b in zip(y, target, strict=True)])


def l1(y: Any, target: Any) -> Any:
    r"""Mean over components of :math:`|y - t|`."""
    return _mean([dr.abs(a - b) for a, b in zip(y, target, strict=True)])


def huber(y: Any, target: Any, delta: float = 1.0) -> Any:
    r"""Mean over components of :math:`\tfrac12 e^2` for :math:`|e| \le \delta`, else
    :math:`\delta(|e| - \tfrac12\delta)` (Huber 1964)."""

    def one(e: Any) -> Any:
        return dr.select(dr.abs(e) <= delta, 0.5 * dr.square(e), delta * (dr.abs(e) - 0.5 * delta))

    return _mean([one(a - b) for a, b in zip(y, target, strict=True)])


def _mean(parts: list) -> Any:
    return sum(parts[1:], parts[0]) * (1 / len(parts))


LOSSES: dict[str, Callable[[Any, Any], Any]] = {"l2": l2, "l1": l1, "huber": huber}


def loss_function(value: Any, where: str) -> Callable[[Any, Any], Any]:
    """A loss from its name, or a function ``(y, target) -> value per sample`` itself."""
    if callable(value):
        return value
    if isinstance(value, str) and value in LOSSES:
        return LOSSES[value]
    raise ValueError(
        f"{where}: loss is {value!r}; accepted are a function (y, target) -> array, or one of {sorted(LOSSES)}."
    )
