"""Facts that must be equal on all processes of a run: its arguments and parameters, and the first batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import drjit as dr
import numpy as np

from ...checks import shown
from ...io import describe
from ...version import __version__
from .. import divergence, state
from ..sampling import samples_by_index
from .replicas import Replicas, digest

#: Entries of an array that are compared, and how many of them may differ. Different types of processors round
#: differently, and so may draw a sample at another place.
ENTRIES, OTHERS = 64, 16
#: Largest difference of two equal entries, relative to the largest entry.
TOLERANCE = 1e-2


def facts(run: Any, metric: Any, rate: Callable[[int], float]) -> dict[str, Any]:
    """Everything that determines a ``run``, under the names that messages use."""
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
        "a hash of the parameters": digest(state.state_arrays(step)),
    }


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def compare_batches(replicas: Replicas, step: Any, drawn: Any) -> None:
    """Raise ``ValueError``, on all, unless the processes have drawn the same batch.

    Functions decorated with ``by_index`` are not compared: each process draws only its own samples, and may have only
    their data.
    """
    if replicas.alone or samples_by_index(step.batch) is not None:
        return
    entries: list = []
    with replicas.noting():
        entries = _entries(step, drawn)
    gathered = replicas.exchange("the first batch", entries)
    for rank, other in enumerate(gathered):
        if difference := _difference(gathered[0], other, rank):
            replicas.failed = True
            hint = "have all read the same data, or draw by number: coopnet.training.by_index"
            raise ValueError(f"fit: the processes differ: {difference}; {hint}.")


def _entries(step: Any, drawn: Any) -> list[tuple[int, list[float]]]:
    """The size and some entries of every floating point array of the batch."""
    flat = divergence.float_arrays(drawn)
    dr.eval(flat)  # in one kernel
    places = [np.linspace(0, dr.width(v) - 1, min(ENTRIES, dr.width(v))).astype(np.uint32) for v in flat]
    parts = [dr.gather(type(v), v, step.uint32(i)) for v, i in zip(flat, places, strict=True)]
    return [(dr.width(v), part.numpy().astype(float).tolist()) for v, part in zip(flat, parts, strict=True)]


def _difference(first: list, other: list, rank: int) -> str:
    """How the batches of two processes differ, in words."""
    sizes = [[size for size, _ in entries] for entries in (first, other)]
    if sizes[0] != sizes[1]:
        return f"the arrays of a batch have {shown(sizes[0])} entries on process 0 and {shown(sizes[1])} on {rank}"
    for i, ((size, a), (_, b)) in enumerate(zip(first, other, strict=True)):
        largest = max((abs(v) for v in (*a, *b) if np.isfinite(v)), default=0.0)
        wrong = np.flatnonzero(~np.isclose(a, b, rtol=0, atol=TOLERANCE * largest, equal_nan=True))
        if len(wrong) * ENTRIES > OTHERS * len(a):
            k = int(wrong[0])
            entry = f"entry {(size - 1) * k // max(len(a) - 1, 1)} of array {i} of the first batch"
            return f"{entry} is {a[k]:.6g} on process 0 and {b[k]:.6g} on process {rank}"
    return ""
