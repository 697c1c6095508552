"""Training state in a checkpoint: what a resumed run needs to go on as if it had not stopped."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import drjit as dr
import numpy as np

from ..checks import shown
from ..nn.parameters import NUMPY_TYPES

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
    """``value`` with the arrays of ``tensors``, which :func:`_check_arrays` has passed."""
    if isinstance(value, dict):
        return {k: _rebuilt(v, f"{name}/{k}", tensors) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_rebuilt(v, f"{name}/{i}", tensors) for i, v in enumerate(value))
    return _like(value, tensors[name]) if isinstance(value, dr.ArrayBase) else value


def _like(value: Any, stored: np.ndarray) -> Any:
    array = dr.array_t(type(value))(stored.ravel())
    return type(value)(array, value.shape) if dr.is_tensor_v(value) else array


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
        arrays |= {name: getattr(scaler, name) for name in _COUNTERS}
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
    """Read ``path`` into optimizer, scaler, result and average; returns the best parameters so far, if kept.

    Raises ``ValueError`` if it was written by a run with another seed, backend, precision, optimizer or network, or is
    damaged; nothing has been changed then.
    """
    from ..io import describe, read

    architecture, metadata, tensors = read(path)
    if "training" not in metadata:
        raise ValueError(
            f"fit: cannot resume {str(path)!r}: it holds a field but no state of a training run; load() it and start a "
            f"new run."
        )
    arrays = {k.removeprefix("train."): v for k, v in tensors.items() if k.startswith("train.")}
    try:
        progress = _progress(metadata["training"], _identity(field, optimizer, seed), arrays.get("losses"))
        if architecture != describe(field):
            raise ValueError("it holds a field of another architecture.")
        expected: dict[str, Any] = {}
        _flat(optimizer.state, "optimizer", expected)
        counters = {} if scaler is None else {name: getattr(scaler, name) for name in _COUNTERS}
        expected |= counters
        averaged = {} if ema is None else {f"ema/{name}": value for name, value in ema.average.items()}
        parameters = {f"best/{name}": value for name, value in optimizer.items()}
        _check_arrays(arrays, expected | averaged, parameters, progress["best"] is not None, ema is not None)
        state = _rebuilt(optimizer.state, "optimizer", arrays)
        scale = {name: _like(value, arrays[name]) for name, value in counters.items()}
        average = {k.removeprefix("ema/"): _like(v, arrays[k]) for k, v in averaged.items()}
        best = {k.removeprefix("best/"): _like(v, arrays[k]) for k, v in parameters.items() if k in arrays}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"fit: cannot resume {str(path)!r}: {error}") from None
    for value in state.values():
        dr.enable_grad(value[0])
    # from here on nothing can fail: a run is resumed as a whole or not at all
    optimizer.state = state
    for name, value in scale.items():
        setattr(scaler, name, value)
    if ema is not None:
        ema.average = average
    for name, value in progress.items():
        setattr(result, name, value)
    return best or None


# ---- what a file may say ------------------------------------------------

_COUNTERS = ("scale_factor", "it", "skipped")
_DTYPES = NUMPY_TYPES | {dr.VarType.UInt32: np.uint32, dr.VarType.UInt64: np.uint64, dr.VarType.Int32: np.int32}


def _progress(text: Any, identity: dict[str, Any], losses: np.ndarray | None) -> dict[str, Any]:
    """Attributes of the result that a checkpoint's metadata holds; raises ``ValueError`` saying what is wrong."""
    try:
        state = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the state of its training cannot be understood: {error}") from None
    _check_keys(state, {"run", "progress"}, "the state of its training")
    run, progress = state["run"], state["progress"]
    _check_keys(run, set(identity), "'run'")
    for name, own in identity.items():
        # as text, since to Python True is 1 and 1.0, too
        if json.dumps(run[name], sort_keys=True) != json.dumps(own, sort_keys=True):
            raise ValueError(f"its {name} is {shown(run[name])}, but this run's is {shown(own)}.")
    _check_keys(progress, {"steps", "metrics", "best", "seconds"}, "'progress'")
    steps, metrics, best, seconds = (progress[name] for name in ("steps", "metrics", "best", "seconds"))
    if type(steps) is not int or not 0 <= steps < 2**32:
        raise ValueError(f"its number of steps is {shown(steps)}; an int in [0, 2^32) is needed.")
    if losses is None or losses.dtype != np.float64 or losses.shape != (steps,):
        found = "none" if losses is None else f"{losses.dtype} of shape {losses.shape}"
        raise ValueError(f"its losses are {found}; float64, one for each of {steps} steps, is needed.")
    if type(seconds) is not float or not 0 <= seconds < math.inf:
        raise ValueError(f"its time is {shown(seconds)}; a number of seconds is needed.")
    pairs: list[Any] = metrics if isinstance(metrics, list) else [None]
    for pair in [*pairs, *([] if best is None else [best])]:
        if not isinstance(pair, list) or [type(v) for v in pair] != [int, float]:
            raise ValueError(f"its metrics or the best of them are {shown(pair)}; pairs (step, value) are needed.")
    at = [step for step, _ in pairs]
    if at != sorted(set(at)) or (at and not 0 < at[0] <= at[-1] <= steps):
        raise ValueError(f"its metrics are of the steps {shown(at)}; ascending ones up to {steps} are needed.")
    if best is not None and json.dumps(best) not in map(json.dumps, pairs):  # as text, for NaN
        raise ValueError(f"its best metric is {shown(best)}, which is none of its metrics.")
    return {
        "steps": steps,
        "seconds": seconds,
        "metrics": [(step, value) for step, value in pairs],
        "best": None if best is None else (best[0], best[1]),
        "losses": losses.tolist(),
    }


def _check_arrays(
    given: dict[str, np.ndarray], needed: dict[str, Any], best: dict[str, Any], any_best: bool, averaged: bool
) -> None:
    """Raise ``ValueError`` unless a checkpoint has the arrays that are ``needed``, and all of ``best`` or none."""
    kept = {name: value for name, value in best.items() if any(k.startswith("best/") for k in given)}
    if kept and not any_best:
        raise ValueError("it holds best parameters, but no best metric.")
    needed = needed | kept
    # an average that this run does not go on with is left
    known = {*needed, "losses", *(k for k in given if k.startswith("ema/") and not averaged)}
    for names, what in ((set(needed) - set(given), "lacks"), (set(given) - known, "has the unknown")):
        if names:
            raise ValueError(f"it {what} {shown(min(names))} of {len(needed)} arrays of optimizer, scaler and average.")
    for name, value in needed.items():
        dtype, size = _DTYPES[dr.type_v(value)], math.prod(dr.shape(value))
        if given[name].dtype != dtype or given[name].size != size:
            raise ValueError(
                f"its {name} is {given[name].dtype} of shape {given[name].shape}; {np.dtype(dtype)} of {size} entries "
                f"is needed."
            )


def _check_keys(value: Any, needed: set[str], what: str) -> None:
    if not isinstance(value, dict) or set(value) != needed:
        found = sorted(value) if isinstance(value, dict) else value
        raise ValueError(f"{what} is {shown(found)}; a dictionary of {', '.join(sorted(needed))} is needed.")
