"""A run of several jobs in one kernel."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from .. import limits
from ..divergence import not_finite
from ..progress import Bar
from ..run import Run
from .group import GroupStep, restart
from .job import JobRun


class GroupRun(Run):
    """Steps of several jobs at once, which all start at the same step.

    ``runs`` are those of the single jobs. Their fields, files and results are updated by ``unstack``: when checkpoints
    are written, when something is not finite, and at the end.
    """

    step: GroupStep

    def __init__(self, group: GroupStep, runs: Sequence[JobRun], bar: Bar):
        super().__init__(group, runs[0].steps, runs[0].seed_number)
        self.runs, self.bar = runs, bar
        self.result.steps = runs[0].result.steps

    def after_step(self) -> None:
        if self.bar.bar is not None:
            self.bar.bar.update(len(self.runs))
        if self.taken == limits.WINDOW_STEPS:
            self.collect()
        if self.runs[0].file.due():
            self.write()

    def collect(self, at_end: bool = False) -> bool:
        """Copy the losses of all fields to the host; if something is not finite, check each field."""
        if not self.taken:
            return True
        group, steps = self.step, self.result.steps
        window = group.losses.numpy().reshape(limits.WINDOW_STEPS, -1)
        losses = window[np.arange(steps - self.taken, steps) % limits.WINDOW_STEPS]
        self.taken = 0
        going = [k for k, run in enumerate(self.runs) if run.result.stopped != "diverged"]
        skipped = None if group.scales is None else group.scales.skipped.numpy()
        streaks = np.zeros(len(self.runs)) if group.scales is None else group.scales.streak.numpy()
        stuck = (streaks[going] >= limits.DIVERGED_STEPS).any()
        finite = not not_finite({"state": group.optimizer.state})
        fine, last = finite and np.isfinite(losses[:, going]).all() and not stuck, steps == self.steps
        if last or not fine:
            group.unstack()
        for k in going:
            run, result = self.runs[k], self.runs[k].result
            result.steps = steps
            result.losses += losses[:, k].tolist()
            result.skipped = result.skipped if skipped is None else int(skipped[k])
            if (last or not fine) and run.monitor.diverged(losses[:, k].tolist(), last, finite):
                result.stopped = "diverged"
        if math.isfinite(mean := float(losses[-1, going].mean()) if going else math.nan):
            self.bar.say(f"mean loss {mean:.3g}")
        if not (last or fine):
            self._settle()
        return True

    def _settle(self) -> None:
        """Jobs that have diverged continue from their last finite state, so that they do not slow the others down."""
        for run in self.runs:
            if run.result.stopped == "diverged":
                restart(run.step, run.monitor.kept)
        self.step.stack()

    def leave(self, turn: bool) -> None:
        """Give all jobs their parameters and losses."""
        for run in self.runs:
            if self.result.stopped == "interrupt" and run.result.stopped == "steps":
                run.result.stopped = "interrupt"
            run.stepping = self.stepping
        if turn and not self.stepping:
            self.collect()
            if self.result.steps < self.steps:
                self.step.unstack()

    def write(self) -> None:
        """Write the checkpoints of all jobs."""
        self.collect()
        self.step.unstack()
        for run in self.runs:
            run.file.written = time.monotonic()  # also of a job that diverged, whose file stays as it was
            if run.result.stopped != "diverged" and not run.monitor.diverged([], at_end=False):
                run.result.seconds, before = run.result.seconds + self.share(), run.result.seconds
                run.file.write(run.step, run.result, None)
                run.result.seconds = before

    def share(self) -> float:
        """Seconds that a job has taken up to now: its share of the time of all."""
        return (time.monotonic() - self.start) / len(self.runs)
