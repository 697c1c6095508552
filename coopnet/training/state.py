"""Training state in a checkpoint: what a resumed run needs to go on as if it had not stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import drjit as dr
import numpy as np

if TYPE_CHECKING:
    from drjit.opt import Optimizer

    from ..field import NeuralField
    from .fit import FitResult
    from .scaler import LossScaler
    from .weights import EMA


def _flat(value: Any, name: str, out: dict[str, Any]) -> None:
    """The arrays and numbers inside an optimizer's state, by path."""
    if isinstance(value, dict):
        for k, v in value.items():
            _flat(v, f"{name}/{k}", out)
    elif isinstance(value, (tuple, list)):
        for i, v in enumerate(value):
            _flat(v, f"{name}/{i}", out)
    elif isinstance(value, dr.ArrayBase):
        out[name] = value


def _rebuilt(value: Any, name: str, tensors: dict[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        return {k: _rebuilt(v, f"{name}/{k}", tensors) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_rebuilt(v, f"{name}/{i}", tensors) for i, v in enumerate(value))
    if isinstance(value, dr.ArrayBase):
        stored = tensors.get(name)
        if stored is None or stored.size != dr.prod(value.shape):
            raise ValueError(f"fit: the checkpoint holds no optimizer state {name!r} of shape {tuple(value.shape)}.")
        array = dr.array_t(type(value))(stored.ravel())
        return type(value)(array, value.shape) if dr.is_tensor_v(value) else array
    return value


def _identity(field: NeuralField, optimizer: Optimizer, seed: int) -> dict[str, Any]:
    """What must agree between the run that wrote a checkpoint and the one that resumes it."""
    first = next(iter(field.values()))
    return {
        "seed": str(seed),
        "backend": dr.backend_v(first).name,
        "precision": field.precision,
        "optimizer": type(optimizer).__name__,
        "parameters": {k: int(dr.prod(v.shape)) for k, v in field.items()},
    }


def store(
    path: Path,
    field: NeuralField,
    optimizer: Optimizer,
    scaler: LossScaler | None,
    result: FitResult,
    seed: int,
    best: dict[str, Any] | None,
    metadata: dict[str, Any] | None = None,
    ema: EMA | None = None,
) -> None:
    """Write the field and the state of its training to ``path``."""
    from ..io import save

    arrays: dict[str, Any] = {}
    _flat(optimizer.state, "optimizer", arrays)
    if scaler is not None:
        arrays |= {"scale_factor": scaler.scale_factor, "it": scaler.it, "skipped": scaler.skipped}
    _flat(best or {}, "best", arrays)
    _flat(ema.average if ema is not None else {}, "ema", arrays)
    tensors = {k: np.atleast_1d(dr.detach(v).numpy()) for k, v in arrays.items()}
    tensors["losses"] = np.asarray(result.losses, np.float64)
    progress = {"steps": result.steps, "metrics": result.metrics, "best": result.best, "seconds": result.seconds}
    state = {"run": _identity(field, optimizer, seed), "progress": progress}
    save(path, field, tensors=tensors, metadata={**(metadata or {}), "training": json.dumps(state)})


def restore(
    path: Path,
    field: NeuralField,
    optimizer: Optimizer,
    scaler: LossScaler | None,
    result: FitResult,
    seed: int,
    ema: EMA | None = None,
) -> dict[str, Any] | None:
    """Read ``path`` into optimizer, scaler and result; returns the best parameters so far, if kept.

    Raises ``ValueError`` if it was written by a run with another seed, backend, precision, optimizer or network.
    """
    from ..io import describe, read

    architecture, metadata, tensors = read(path)
    if "training" not in metadata:
        raise ValueError(f"fit: {path} holds a field but no state of a training run; load() it and start a new run.")
    state = json.loads(metadata["training"])
    own = _identity(field, optimizer, seed)
    for name, value in own.items():
        if state["run"].get(name) != value:
            raise ValueError(
                f"fit: cannot resume {path}: its {name} is {state['run'].get(name)!r}, but this run's is {value!r}."
            )
    if architecture != describe(field):
        raise ValueError(f"fit: cannot resume {path}: it holds a field of another architecture.")
    own_tensors = {k.removeprefix("train."): v for k, v in tensors.items() if k.startswith("train.")}
    optimizer.state = _rebuilt(optimizer.state, "optimizer", own_tensors)
    for value in optimizer.state.values():
        dr.enable_grad(value[0])
    if ema is not None:
        ema.average = _rebuilt(ema.average, "ema", own_tensors)
    if scaler is not None:
        for name in ("scale_factor", "it", "skipped"):
            setattr(scaler, name, type(getattr(scaler, name))(own_tensors[name]))
    progress = state["progress"]
    result.steps, result.seconds = progress["steps"], progress["seconds"]
    result.metrics = [(int(s), float(v)) for s, v in progress["metrics"]]
    result.best = tuple(progress["best"]) if progress["best"] else None
    result.losses = [float(v) for v in own_tensors["losses"]]
    kept = {k.removeprefix("best/"): v for k, v in own_tensors.items() if k.startswith("best/")}
    return {k: type(optimizer.state[k][0])(v) for k, v in kept.items()} or None
