"""The progress bar of one run or many, by tqdm: it counts steps, and shows the last loss and metric.

Without tqdm, which is optional, lines of text say the same less often.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from . import limits
from .hooks import Hook


def progress_bar(name: str, **options: Any) -> Any:
    """A bar that counts steps, for the function ``name``; lines of text if tqdm is not installed."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return Lines(name, **options)
    return tqdm(unit="step", dynamic_ncols=True, **options)


class Lines:
    """In place of a bar: a line on standard error for the first step, every few seconds, and at the end."""

    def __init__(self, name: str, total: int, initial: int = 0):
        self.name, self.total, self.initial, self.n = name, total, initial, initial
        self.text, self.written, self.shown = "", -1, -math.inf  # the step of the last line, and its time

    def update(self, steps: int) -> None:
        self.n += steps

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        self.text = f", {text}"
        if time.monotonic() - self.shown >= limits.LINES_SECONDS:
            self._write()

    def close(self) -> None:
        if self.n != self.written:
            self._write()

    def _write(self) -> None:
        self.written, self.shown = self.n, time.monotonic()
        print(f"{self.name}: step {self.n} of {self.total}{self.text}", file=sys.stderr)


class Progress(Hook):
    """The bar of one run."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.metrics, self.shown = 0, -math.inf  # number of metric values and time, when the loss was last shown

    def begin(self, run: Any) -> None:
        self.bar = progress_bar("fit", total=run.steps, initial=run.result.steps)

    def after_step(self, run: Any) -> None:
        """Count the steps, and show the last loss: at the start, with every metric, twice a second, and at the end.
        Reading the loss waits for the device, so doing it more often would cost time.
        """
        self.bar.update(run.stride)
        metrics, at_end = run.result.metrics, run.result.steps >= run.steps
        if at_end or len(metrics) > self.metrics or time.monotonic() - self.shown >= limits.PROGRESS_SECONDS:
            self.metrics, self.shown = len(metrics), time.monotonic()
            loss = run.step.losses.numpy()[(run.result.steps - 1) % limits.WINDOW_STEPS]
            self.say(f"loss {loss:.3g}{f', metric {metrics[-1][1]:.4g}' if metrics else ''}")

    def say(self, text: str) -> None:
        """Write ``text`` after the bar."""
        self.bar.set_postfix_str(text)

    def leave(self, run: Any) -> None:
        if self.bar is not None:
            self.bar.close()


class Bar(Progress):
    """Steps of ``jobs`` jobs, ``steps`` each: a hook of all their runs. ``done`` jobs have ended."""

    def __init__(self, jobs: int, steps: int, show: bool):
        super().__init__()
        self.jobs, self.done = jobs, 0
        self.bar = progress_bar("fit_many", total=jobs * steps) if show else None

    def begin(self, run: Any) -> None:
        self.skip(run.result.steps)

    def skip(self, steps: int) -> None:
        """Count steps that were done before."""
        if self.bar is not None:
            self.bar.initial += steps
            self.bar.update(steps)

    def after_step(self, run: Any) -> None:
        if self.bar is not None:
            super().after_step(run)

    def say(self, text: str) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(f"{self.done} of {self.jobs} fields, {text}", refresh=False)

    def leave(self, run: Any) -> None:
        """A run has ended; :meth:`close` ends the bar."""

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
