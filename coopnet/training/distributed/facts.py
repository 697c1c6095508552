"""What must be the same on all processes of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import drjit as dr

from ...io import describe
from ...version import __version__
from ..state import arrays
from .replicas import digest


def facts(run: Any, metric: Any, rate: Callable[[int], float]) -> dict[str, Any]:
    """What a ``run`` is about to do, by what a message calls it."""
    step, done = run.step, run.result.steps
    return {
        "the version of coopnet": __version__,
        "the version of Dr.Jit": dr.__version__,
        "the architecture": json.dumps(describe(step.field), sort_keys=True),
        "the precision": step.field.precision,
        "seed": run.seed_number,
        "steps": run.steps,
        "the step to go on from": done,
        "the number of samples": step.samples,
        "the number of losses": step.total,
        "chunks": step.group.chunks,
        "the optimizer": type(step.optimizer).__name__,
        "the optimizer's settings": {
            name: v for name, v in vars(step.optimizer).items() if isinstance(v, (int, float))
        },
        "lr": [rate(step) for step in sorted({done, (done + run.steps) // 2, max(done, run.steps - 1)})],
        "a hash of the multipliers": digest(step.multipliers),
        "loss_scale": step.loss_scale,
        "the batch": _name(step.batch),
        "the loss": _name(step.loss if step.objective is None else step.objective),
        "penalty": _name(step.penalty),
        "weight_decay": step.weight_decay,
        "clip_norm": step.clip_norm,
        "the decay of ema": step.ema and step.ema.decay,
        "the correction of ema": step.ema is not None and step.ema.total is not None,
        "metric": metric.function is not None,
        "metric_every": metric.every,
        "higher_is_better": metric.higher,
        "patience": metric.patience,
        "a hash of the parameters": digest(arrays(step)),
    }


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
