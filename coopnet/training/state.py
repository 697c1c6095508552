"""Training state in a checkpoint: all that a resumed run needs to continue as if it had not stopped."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check_flag, check_number, check_type, ensure, shown
from ..field import NeuralField
from ..io import save
from ..io.architecture import difference
from ..io.checkpoint import TRAIN, Checkpoint, prepare, read_file
from ..io.files import file_name
from ..jit.optimizers import set_state, values
from .average import TOTAL, averages, set_averages
from .hooks import Hook
from .result import FitResult
from .step import Step
from .trees import mapped, named

_COUNTERS = ("scale_factor", "it", "skipped")
#: The entry of the progress for the argument ``loss_scale``. Files before version 0.2 have none.
SCALE = "loss_scale"


def check_every(where: str, every: Any) -> None:
    """Raise unless ``every`` is a number of seconds between checkpoints; ``math.inf`` means never."""
    if not (isinstance(every, float) and every == math.inf):
        check_number(where, "checkpoint_every", every, 0)


def check_file(path: Any, every: Any, resume: Any, metadata: Any) -> None:
    """Raise unless these are valid arguments of :class:`File`."""
    check_type("fit", "checkpoint", path, str | os.PathLike | None, "a string or path")
    check_every("fit", every)
    check_flag("fit", "resume", resume)
    ensure(not resume or path is not None, "fit: resume=True needs a checkpoint to resume from.")
    check_type("fit", "metadata", metadata, Mapping | None, "a mapping from names to values")


class File(Hook):
    """The checkpoint of a run, if it has one: its path, how often it is written, metadata, and whether this process
    ``writes`` it."""

    def __init__(
        self, path: Any, every: float, resume: bool, metadata: Mapping | None, field: NeuralField, seed: int,
        writes: bool = True,
    ):  # fmt: skip
        if path is not None and writes:
            prepare(path, field, metadata)  # so that errors are raised now and not after hours
        self.path = None if path is None else Path(file_name(path, "fit", "checkpoint"))
        self.every, self.resume, self.metadata, self.seed = every, resume, metadata, seed
        self.written = time.monotonic()

    def due(self) -> bool:
        return self.path is not None and time.monotonic() - self.written >= self.every

    def begin(self, run: Any) -> None:
        content = run.replicas.once("the checkpoint to resume from", self.content)
        run.best = self.restore(content, run.step, run.result)
        run.result.skipped = run.step.skipped()

    def after_step(self, run: Any) -> None:
        if (self.due() if run.replicas.alone else run.due) and run.collect():
            run.step.release(run.step.optimizer)
            self._save(run)

    def end(self, run: Any) -> str:
        # a step that was broken off may have left parameters of two steps, and without a step nothing was learned that
        # would be worth another run's checkpoint
        untrained = run.result.stopped == "interrupt" and run.result.steps == 0
        if not (run.stepping or untrained) and run.result.stopped != "diverged":
            self._save(run)
        return ""

    def _save(self, run: Any) -> None:
        """Write the state of ``run``, whose parameters are the same in all processes."""
        steps = run.result.steps
        run.replicas.agree_on(f"the parameters after {steps} steps", lambda: state_arrays(run.step))
        run.replicas.once(f"the checkpoint after {steps} steps", lambda: self.write(run.step, run.result, run.best))

    def write(self, step: Step, result: FitResult, best: dict[str, Any] | None) -> None:
        """Write the field and the state of its training, with the ``best`` parameters so far, if kept."""
        if self.path is None:
            return
        arrays = named(_trees(step) | {"best": best or {}})
        tensors = {name: np.atleast_1d(dr.detach(array).numpy()) for name, array in arrays.items()}
        tensors["losses"] = np.asarray(result.losses, np.float64)
        progress = {"steps": result.steps, "metrics": result.metrics, "best": result.best, "seconds": result.seconds}
        progress[SCALE] = None if step.loss_scale is None else float(step.loss_scale)
        state = {"run": _identity(step, self.seed), "progress": progress}
        save(self.path, step.field, tensors=tensors, metadata={**(self.metadata or {}), "training": json.dumps(state)})
        self.written = time.monotonic()

    def content(self) -> Checkpoint | None:
        """The content of the file, if it exists and the run is to be resumed."""
        if self.path is None or not self.resume or not self.path.exists():
            return None
        return read_file(self.path, "fit", training=True)

    def restore(self, content: Checkpoint | None, step: Step, result: FitResult) -> dict[str, Any] | None:
        """Go on from the ``content`` of the file, if any; returns the best parameters so far, if kept.

        Raises ``ValueError`` if it was written by a run with another seed, backend, precision, optimizer or network, or
        is damaged; nothing has been changed then.
        """
        if content is None:
            return None
        architecture, metadata, tensors = content
        arrays = {name.removeprefix(TRAIN): array for name, array in tensors.items() if name.startswith(TRAIN)}
        trees = _trees(step)
        if step.ema is not None and step.ema.total is not None:  # an older file's average began as the initial weights
            arrays.setdefault(f"ema/{TOTAL}", np.ones(1, np.float32))
        if any(name.startswith("best/") for name in arrays):
            trees["best"] = values(step.optimizer)
        try:
            has_training = "training" in metadata
            ensure(has_training, "it holds a field but no state of a training run; load() it and start a new run.")
            other = difference(architecture, step.field)
            ensure(not other, f"it holds a field of another architecture: {other}.")
            progress = _progress(metadata["training"], _identity(step, self.seed), arrays.get("losses"))
            known = "best" not in trees or progress["best"] is not None
            ensure(known, "it holds best parameters, but no best metric.")
            flat = named(trees)
            _check_arrays(arrays, flat)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"fit: cannot resume {str(self.path)!r}: {error}") from None
        trees = _rebuilt(trees, (arrays[name] for name in flat))
        # all checks are done: a run is resumed completely or not at all
        set_state(step.optimizer, trees["optimizer"])
        other_scale = step.loss_scale is not None and step.loss_scale != progress[SCALE]
        del progress[SCALE]
        for name in _COUNTERS:
            if name in trees and not (name == "scale_factor" and other_scale):
                setattr(step.scaler, name, trees[name])
        if step.ema is not None:
            set_averages(step.ema, trees["ema"])
        for name, value in progress.items():
            setattr(result, name, value)
        return trees.get("best")


def state_arrays(step: Step) -> dict[str, Any]:
    """The state of a run beside the field: flat arrays by name."""
    return named(_trees(step))


def _rebuilt(tree: Any, tensors: Iterator[np.ndarray]) -> Any:
    """``tree`` with other arrays, which :func:`_check_arrays` has accepted, in the order of :func:`named`."""

    def replaced(old: Any) -> Any:
        array = dr.array_t(type(old))(next(tensors).ravel())
        return type(old)(array, old.shape) if dr.is_tensor_v(old) else array

    return mapped(replaced, tree)


def _identity(step: Step, seed: int) -> dict[str, Any]:
    """Settings that must be equal in the run that wrote a checkpoint and in the one that resumes it."""
    return {
        "seed": str(seed),
        "backend": step.field.backend.upper(),
        "precision": step.field.precision,
        "optimizer": type(step.optimizer).__name__,
        "parameters": {k: int(dr.prod(v.shape)) for k, v in step.field.items()},
    }


def _trees(step: Step) -> dict[str, Any]:
    """The state of a training step beside its field, under the names that files use."""
    counters = {} if step.scaler is None else {name: getattr(step.scaler, name) for name in _COUNTERS}
    return {"optimizer": step.optimizer.state, **counters} | ({} if step.ema is None else {"ema": averages(step.ema)})


# ---- checks of a file ---------------------------------------------------


def _progress(text: Any, identity: dict[str, Any], losses: np.ndarray | None) -> dict[str, Any]:
    """Attributes of the result that a checkpoint's metadata holds; raises ``ValueError`` saying what is wrong."""
    try:
        state = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the state of its training cannot be understood: {error}") from None
    _check_keys(state, {"run", "progress"}, "the state of its training")
    run, progress = state["run"], state["progress"]
    _check_keys(run, set(identity), "'run'")
    for name, expected in identity.items():
        # compared as text, since in Python True equals 1 and 1.0
        same = json.dumps(run[name], sort_keys=True) == json.dumps(expected, sort_keys=True)
        be = "are" if name == "parameters" else "is"
        differs = f"its {name} {be} {shown(run[name])}, but this run's {be} {shown(expected)}"
        ensure(same, f"{differs}; another run needs another file.")
    progress = {SCALE: None} | progress if isinstance(progress, dict) else progress
    _check_keys(progress, {"steps", "metrics", "best", "seconds", SCALE}, "'progress'")
    steps, metrics, best, seconds = (progress[name] for name in ("steps", "metrics", "best", "seconds"))
    _need(type(steps) is int and 0 <= steps < 2**32, "its number of steps", steps, "an int in [0, 2^32)")
    if losses is None or losses.dtype != np.float64 or losses.shape != (steps,):
        shape = "none" if losses is None else f"{losses.dtype} of shape {losses.shape}"
        raise ValueError(f"its losses are {shape}; float64, one for each of {steps} steps, is needed.")
    scale = progress[SCALE]
    _need(scale is None or (type(scale) is float and 0 < scale < math.inf), "its loss scale", scale, "a number or null")
    _need(type(seconds) is float and 0 <= seconds < math.inf, "its time", seconds, "a number of seconds")
    pairs: list[Any] = metrics if isinstance(metrics, list) else [None]
    for pair in [*pairs, *([] if best is None else [best])]:
        right = isinstance(pair, list) and [type(v) for v in pair] == [int, float]
        _need(right, "one of its metrics, or the best,", pair, "a pair (step, value)")
    at = [step for step, _ in pairs]
    right = at == sorted(set(at)) and (not at or 0 < at[0] <= at[-1] <= steps)
    _need(right, "the list of its metrics' steps", at, f"one that ascends up to {steps}")
    one = best is None or json.dumps(best) in map(json.dumps, pairs)  # compared as text, because of NaN
    _need(one, "its best metric", best, "one of its metrics")
    return progress | {"metrics": list(map(tuple, pairs)), "best": best and tuple(best), "losses": losses.tolist()}


def _check_arrays(given: dict[str, np.ndarray], needed: dict[str, Any]) -> None:
    """Raise ``ValueError`` unless a checkpoint has the ``needed`` arrays, and no others but an average."""
    averaged = any(name.startswith("ema/") for name in needed)
    ensure(
        not averaged or any(name.startswith("ema/") for name in given),
        "it has no average of the weights; resume without ema=.",
    )
    known = {*needed, "losses", *(name for name in given if name.startswith("ema/") and not averaged)}
    for names, what in ((set(needed) - set(given), "lacks"), (set(given) - known, "has the unknown")):
        first = shown(min(names, default=""))
        ensure(not names, f"of the {len(needed)} arrays of optimizer, scaler and average, it {what} {first}.")
    for name, value in needed.items():
        dtype, size = np.dtype(dr.type_v(value).name.lower()), math.prod(dr.shape(value))
        array = given[name]
        valid, kind = array.dtype == dtype and array.size == size, f"{array.dtype} of shape {array.shape}"
        ensure(valid, f"its {name} is {kind}; {dtype} of {size} entries is needed.")


def _check_keys(value: Any, needed: set[str], what: str) -> None:
    right = isinstance(value, dict) and set(value) == needed
    names = sorted(value) if isinstance(value, dict) else value
    _need(right, what, names, f"a dictionary of {', '.join(sorted(needed))}")


def _need(right: bool, what: str, value: Any, needed: str) -> None:
    if not right:
        raise ValueError(f"{what} is {shown(value)}; {needed} is needed.")
