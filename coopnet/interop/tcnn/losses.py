"""Losses of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drjit as dr

from ... import training
from ...checks import ensure
from ...training.losses import of_size
from .keys import choice, read


def _huber(y: Any, target: Any, *, pdf: Any = None) -> Any:
    """instant-ngp's ``"Huber"``: the squared error up to an error of 0.1, then a line."""
    return 2 * training.huber(y, target, 0.1, pdf=pdf)


_huber.samplewise = True  # type: ignore[attr-defined]


def _size(error: Any) -> Any:
    """The absolute value of an error, with the derivative 1 at 0, as in tiny-cuda-nn; Dr.Jit's is 0."""
    return dr.copysign(error, 1)


def _of_size(name: str) -> Callable[..., Any]:
    """The loss of that ``name``, with tiny-cuda-nn's derivative where prediction and target are equal."""

    def loss(y: Any, target: Any, *, pdf: Any = None) -> Any:
        return of_size(name, y, target, pdf, _size)

    loss.__name__ = loss.__qualname__ = name
    loss.samplewise = True  # type: ignore[attr-defined]
    return loss


#: Losses by their name there; the last three are instant-ngp's for radiance fields, by formulas in its
#: ``nerf_device.cuh``.
LOSSES: dict[str, str | Callable[..., Any]] = {
    "L1": _of_size("l1"),
    "L2": "l2",
    "RelativeL1": _of_size("relative_l1"),
    "RelativeL2": "relative_l2",
    "RelativeL2Luminance": "relative_l2_luminance",
    "MAPE": _of_size("mape"),
    "SMAPE": _of_size("smape"),
    "CrossEntropy": "cross_entropy",
    "Variance": "variance",
    "Huber": _huber,
    "SmoothL1": _huber,
    "LogL1": _of_size("log_l1"),
}


def read_loss(given: dict[str, Any], n_out: int) -> str | Callable[..., Any]:
    name, loss = choice("loss.otype", given.get("otype", "RelativeL2"), LOSSES)
    read("loss", given, {})
    valid = loss != "relative_l2_luminance" or n_out >= 3
    ensure(valid, f"from_config: loss.otype is {name!r}, which needs at least 3 outputs, not {n_out}.")
    return loss
