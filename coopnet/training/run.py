"""A run: its steps, and what happens between them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import drjit as dr

from ..jit.optimizers import set_values, snapshot
from . import arguments
from .divergence import Watch
from .result import FitResult
from .state import restore, store
from .step import Step

WINDOW = 256  #: steps after which losses are brought to the host, if nothing asked for them before


class Metric:
    """A metric that is asked for now and then, until it has not become better for ``patience`` times."""

    def __init__(self, function: Callable, every: int, higher_is_better: bool, patience: int | None):
        self.function, self.every, self.higher, self.patience = function, every, higher_is_better, patience

    def better(self, value: float, best: tuple[int, float] | None) -> bool:
        if math.isnan(value):
            return False
        return best is None or math.isnan(best[1]) or (value > best[1] if self.higher else value < best[1])

    def exhausted(self, result: FitResult) -> bool:
        """Have there been too many values since the best, or at all if there is none?"""
        since = sum(1 for step, _ in result.metrics if result.best is None or step > result.best[0])
        return self.patience is not None and since >= self.patience


class File:
    """The checkpoint of a run: where, and what to keep in it besides."""

    def __init__(self, path: Any, every: float, metadata: Mapping[str, Any] | None, seed: int):
        self.path, self.every, self.metadata, self.seed = Path(path), every, metadata, seed
        self.written = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self.written >= self.every

    def write(self, step: Step, result: FitResult, best: dict[str, Any] | None) -> None:
        store(self.path, step, result, self.seed, best, self.metadata)
        self.written = time.monotonic()


class Run:
    """Steps up to number ``steps``; ``result`` says how far it is, and ``stopped`` in it whether to go on."""

    def __init__(
        self, step: Step, steps: int, seed: int, metric: Metric | None, file: File | None, resume: bool, progress: bool
    ):
        self.step, self.steps, self.metric, self.file = step, steps, metric, file
        self.result = FitResult()
        self.best: dict[str, Any] | None = None  # parameters of the best metric
        if resume and file is not None and file.path.exists():
            self.best = restore(file.path, step, self.result, seed)
            self.result.skipped = step.skipped()
        # the optimizer keeps literal zeros and counters; made opaque, they don't change the kernels of later steps
        dr.make_opaque(step.optimizer.state)
        self.watch = Watch(step, seed, self.result)
        self.uint32 = dr.uint32_array_t(step.float32)
        self.seed = dr.opaque(dr.uint64_array_t(step.float32), seed)
        self.losses: list[Any] = []  # of the last steps, on the device
        self.stepping = False  # between the beginning of a step and its end?
        self.start = time.monotonic()
        self.bar = _bar(steps, self.result.steps) if progress else None

    def goes_on(self) -> bool:
        return self.result.steps < self.steps and self.result.stopped == "steps"

    def take_step(self, rate: float) -> None:
        self.step.optimizer.lr = dr.opaque(self.step.float32, rate)
        number = dr.opaque(self.uint32, self.result.steps)
        self.stepping = True
        self.losses.append(self.step(self.seed, number))
        self.result.steps += 1
        self.stepping = False

    def collect(self, at_end: bool = False) -> bool:
        """Bring the losses of the steps since the last call to the host, which waits for the device; is all finite?"""
        result = self.result
        first = result.steps - len(self.losses)
        result.losses[first:] = [float(v.numpy()[0]) for v in self.losses]
        self.losses.clear()
        result.skipped = self.step.skipped()
        if self.watch.diverged(
            result.losses[first:], result.steps, result.skipped, at_end or result.steps >= self.steps
        ):
            result.stopped = "diverged"
        return result.stopped != "diverged"

    def after_step(self) -> None:
        """Losses, metric and checkpoint, whichever are due."""
        result, metric = self.result, self.metric
        if len(self.losses) >= WINDOW and not self.collect():
            return
        if self.bar is not None:
            self.bar.update(1)
        if metric is not None and (result.steps % metric.every == 0 or result.steps >= self.steps):
            if not self.collect():
                return
            self.measure(metric)
        if self.bar is not None and len(result.losses) == result.steps:
            measured = bool(result.metrics) and result.metrics[-1][0] == result.steps
            self.bar.set_postfix_str(
                f"loss {result.losses[-1]:.3g}" + (f", metric {result.metrics[-1][1]:.4g}" if measured else "")
            )
        if self.file is not None and self.file.due():
            self.write()

    def measure(self, metric: Metric) -> None:
        """Ask for the metric, and keep parameters that it says are the best."""
        result, optimizer = self.result, self.step.optimizer
        self.step.release(optimizer)
        value = arguments.metric_value(metric.function(self.step.field))
        result.metrics.append((result.steps, value))
        if metric.better(value, result.best):
            result.best = (result.steps, value)
            self.best = snapshot(optimizer) if metric.patience is not None else None
        elif metric.exhausted(result):
            result.stopped = "patience"

    def write(self) -> None:
        """Write the checkpoint, if there is one, unless training has diverged."""
        if self.file is not None and self.collect():
            self.step.release(self.step.optimizer)
            self.file.write(self.step, self.result, self.best)

    def leave(self, turn: bool) -> None:
        """Leave the last parameters to the field, whatever ends the run, if this thread has the ``turn``."""
        if self.bar is not None:
            self.bar.close()
        if turn:
            self.step.release(self.step.field if self.stepping else self.step.optimizer)

    def finish(self) -> str:
        """Look at the last losses, write the checkpoint, and go back to parameters that are better; what to warn of."""
        step, result, watch = self.step, self.result, self.watch
        diverged = not self.collect(at_end=True)
        result.recordings = step.frozen.n_recordings
        result.seconds += time.monotonic() - self.start
        if not self.stepping:  # a step that was broken off may have left parameters of two steps
            self.write()
        if diverged:
            self.best = watch.kept
            if step.ema is not None:
                step.ema.average = watch.kept_average
        if self.best is not None and result.stopped in ("patience", "diverged"):
            set_values(step.optimizer, self.best)
        step.release(step.optimizer)
        result.message = watch.message() if diverged else ""
        return result.message or watch.skipped_message()


def _bar(steps: int, done: int) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError(
            "fit: progress=True needs tqdm; run pip install coopnet[train], or pass progress=False."
        ) from None
    return tqdm(total=steps, initial=done, unit="step", dynamic_ncols=True)
