"""A run of several jobs in one kernel."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import drjit as dr
import numpy as np

from .. import limits
from ..divergence import not_finite
from ..interrupts import caused_by_interrupt, interrupts_held, no_collection
from ..recording import reasons
from ..run import Run
from ..turns import TURNS
from .bar import Bar
from .group import GroupStep, restart


class GroupRun:
    """Steps of several jobs at once, all from the same number on.

    ``runs`` are the jobs' own, whose fields, files and results have everything between two :meth:`hand_back`: when
    checkpoints are written, when something is not finite, and at the end.
    """

    def __init__(self, group: GroupStep, runs: Sequence[Run], bar: Bar):
        self.group, self.runs, self.bar = group, runs, bar
        self.steps, self.last = runs[0].result.steps, runs[0].steps
        self.taken, self.stepping, self.start = 0, False, time.monotonic()
        self.interrupts: list = []
        self.uint32 = dr.uint32_array_t(group.float32)

    def go(self, rate: Callable[[int], float]) -> None:
        with self.going():
            while self.steps < self.last:
                if self.interrupts:
                    raise KeyboardInterrupt
                TURNS.hand_on()
                self.take_step(rate(self.steps))
                if self.taken == limits.WINDOW_STEPS or self.steps == self.last:
                    self.collect()
                if self.runs[0].file.due():
                    self.write()

    @contextmanager
    def going(self) -> Iterator[None]:
        """As :meth:`Run.going`, for all runs; they have their parameters and losses when it is left."""
        try:
            with interrupts_held() as self.interrupts, no_collection():
                yield
        except (KeyboardInterrupt, RuntimeError) as error:
            if not caused_by_interrupt(error) or not TURNS.held():
                raise
            for run in self.runs:
                run.result.stopped = "interrupt" if run.result.stopped == "steps" else run.result.stopped
                run.stepping = self.stepping
        if TURNS.held() and not self.stepping:
            self.collect()
            if self.steps < self.last:
                self.hand_back()

    def take_step(self, rate: float) -> None:
        self.group.optimizer.lr = dr.opaque(self.group.float32, rate)
        self.stepping = True
        with reasons():
            self.group(None, dr.opaque(self.uint32, self.steps))
        self.steps += 1
        self.taken += 1
        self.stepping = False
        self.bar.update(len(self.runs))

    def collect(self) -> None:
        """Bring the losses of all fields to the host; where something is not finite, look at each field."""
        if not self.taken:
            return
        found = self.group.losses.numpy().reshape(limits.WINDOW_STEPS, -1)
        losses = found[np.arange(self.steps - self.taken, self.steps) % limits.WINDOW_STEPS]
        self.taken = 0
        going = [k for k, run in enumerate(self.runs) if run.result.stopped != "diverged"]
        skipped = None if self.group.scales is None else self.group.scales.skipped.numpy()
        before = [run.monitor.skipped for run in self.runs]
        stuck = skipped is not None and (skipped - before >= len(losses))[going].any()
        finite = not not_finite({"state": self.group.optimizer.state})
        fine, last = finite and np.isfinite(losses[:, going]).all() and not stuck, self.steps == self.last
        if last or not fine:
            self.hand_back()
        for k in going:
            run, result = self.runs[k], self.runs[k].result
            result.steps = self.steps
            result.losses += losses[:, k].tolist()
            result.skipped = result.skipped if skipped is None else int(skipped[k])
            if (last or not fine) and run.monitor.diverged(losses[:, k].tolist(), last, finite):
                result.stopped = "diverged"
        if math.isfinite(mean := float(losses[-1, going].mean()) if going else math.nan):
            self.bar.set_postfix_str(f"mean loss {mean:.3g}")
        if not (last or fine):
            self.settle()

    def settle(self) -> None:
        """What has diverged goes on from where it was finite, for nobody: it must not slow the others down."""
        for run in self.runs:
            if run.result.stopped == "diverged":
                restart(run.step, run.monitor.kept)
        self.group.stack()

    def hand_back(self) -> None:
        """Give the jobs their parameters."""
        self.group.unstack()

    def write(self) -> None:
        """Write the checkpoints of all jobs."""
        self.collect()
        self.hand_back()
        for run in self.runs:
            run.file.written = time.monotonic()  # also of a job that diverged, whose file stays as it was
            if run.result.stopped != "diverged" and not run.monitor.diverged([], at_end=False):
                run.result.seconds, before = run.result.seconds + self.share(), run.result.seconds
                run.file.write(run.step, run.result, None)
                run.result.seconds = before

    def share(self) -> float:
        """Seconds that a job has taken up to now: its part of those of all."""
        return (time.monotonic() - self.start) / len(self.runs)
