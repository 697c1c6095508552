"""The metric of a run, and early stopping."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check_flag, check_positive, check_type, ensure, shown
from ..jit.optimizers import snapshot
from .arguments import scalar
from .hooks import Hook
from .result import FitResult


class Metric(Hook):
    """Calls the metric, if there is one, every ``every`` steps. Stops the run after ``patience`` values in a row that
    are no better than the best.
    """

    def __init__(self, function: Any, every: int, higher_is_better: bool, patience: int | None):
        check_type("fit", "metric", function, Callable | None, "a function field -> float")
        self.every = check_positive("fit", "metric_every", every)
        self.higher = check_flag("fit", "higher_is_better", higher_is_better)
        self.patience = None if patience is None else check_positive("fit", "patience", patience)
        if patience is not None:
            ensure(function is not None, "fit: patience needs a metric.")
        self.function = function
        self.last: float | None = None  # the value after the last step, if no metric is due there

    def resumed(self, run: Any) -> str:
        """Look for the best step anew if the checkpoint has no weights of the best one. Returns what to warn of.

        A run that has ended by patience does not go on, unless it has more now.
        """
        if self.patience is None:
            return ""
        if run.best is not None or run.result.best is None:
            self._stop_if_waited(run.result)
            return ""
        run.result.best = None
        what = "fit: the checkpoint was written without patience, and has no weights of the best step so far"
        return f"{what}; the best step is now one of those to come."

    def until(self, run: Any) -> int:
        return self.every - run.result.steps % self.every if self.function is not None else sys.maxsize

    def after_step(self, run: Any) -> None:
        steps = run.result.steps
        if self.function is None or not (steps % self.every == 0 or steps >= run.steps) or not run.collect():
            return
        if steps % self.every == 0:
            self._take(run, self._value(run))
        else:
            self.last = self._value(run)

    def end(self, run: Any) -> str:
        """Add the value after the last step, which no checkpoint has: a run that continues takes no metric there."""
        steps, metrics = run.result.steps, run.result.metrics
        known = steps % self.every == 0 or (metrics and metrics[-1][0] == steps)
        if self.function is not None and run.result.stopped == "steps" and not known:
            self._take(run, self._value(run) if self.last is None else self.last)
        return ""

    def _value(self, run: Any) -> float:
        run.step.release(run.step.optimizer)
        what = f"the metric of step {run.result.steps}"
        return run.replicas.once(what, lambda: metric_value(self.function(run.step.field)))

    def _take(self, run: Any, value: float) -> None:
        if self.add(value, run.result) and self.patience is not None:
            run.best = snapshot(run.step.optimizer)

    def add(self, value: float, result: FitResult) -> bool:
        """Add a value to ``result``, and stop the run if patience ends. Returns whether it is the best so far."""
        result.metrics.append((result.steps, value))
        if self._better(value, result.best):
            result.best = (result.steps, value)
            return True
        self._stop_if_waited(result)
        return False

    def _stop_if_waited(self, result: FitResult) -> None:
        # values since the best one, or since the beginning if there is none
        waited = sum(1 for step, _ in result.metrics if result.best is None or step > result.best[0])
        if self.patience is not None and waited >= self.patience:
            result.stopped = "patience"

    def _better(self, value: float, best: tuple[int, float] | None) -> bool:
        if math.isnan(value):
            return False
        return best is None or math.isnan(best[1]) or (value > best[1] if self.higher else value < best[1])


def metric_value(value: Any) -> float:
    """The result of a metric as a float. NaN and infinities are allowed."""
    if isinstance(value, dr.ArrayBase):
        return scalar(value, "fit: metric returned", "is needed")
    if isinstance(value, (np.ndarray, np.generic)) and value.size == 1 and value.dtype.kind in "biuf":
        value = value.item()
    ensure(isinstance(value, (int, float)), f"fit: metric returned {shown(value)}; a number is needed.", TypeError)
    try:
        return float(value)
    except OverflowError:
        raise TypeError(f"fit: metric returned {shown(value)}; a number that a float can hold is needed.") from None
