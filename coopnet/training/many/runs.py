"""The runs of many jobs: one after the other, or in groups that are trained in one kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..interrupts import interrupts_held, no_collection
from ..result import FitResult
from ..unrolled import UnrolledSteps
from .bar import Bar
from .errors import errors_of
from .group_run import GroupRun
from .jobs import JobRun, Jobs

AGAIN = "to train it anew, remove its line from results.jsonl and its checkpoint, or name another directory"


class Runs:
    """Trains ``groups`` of job numbers; ``results`` are those of their jobs, and ``messages`` what to warn of."""

    def __init__(
        self, jobs: Jobs, groups: Sequence[range], samples: int, rate: Callable[[int], float], bar: Bar
    ):  # fmt: skip
        self.jobs, self.groups, self.samples, self.rate, self.bar = jobs, groups, samples, rate, bar
        self.results = {number: FitResult(stopped="interrupt") for group in groups for number in group}
        self.messages: list[str] = []
        self.unrolled = UnrolledSteps(len(self.results) * jobs.steps, rate)  # all jobs share what is traced

    def go(self) -> None:
        with interrupts_held() as interrupts, no_collection():
            for group in self.groups:
                self.train(group)
                if interrupts or any(self.results[number].stopped == "interrupt" for number in group):
                    return

    def train(self, group: range) -> None:
        """The jobs of a group: those that stand at the same step together."""
        waiting: dict[int, list[JobRun]] = {}
        for number in group:
            with errors_of(number, number):
                run = self.begin(number)
            if run is not None:
                waiting.setdefault(run.result.steps, []).append(run)
        for runs in waiting.values():
            with errors_of(runs[0].step.number, runs[-1].step.number):
                if len(runs) == 1:
                    self.alone(runs[0])
                else:
                    self.together(runs)
            for run in runs:
                with errors_of(run.step.number, run.step.number):
                    self.end(run)
            if runs[0].result.stopped == "interrupt":
                return

    def begin(self, number: int) -> JobRun | None:
        """The run of a job that is not done."""
        try:
            run = self.jobs.run(number, self.bar, self.unrolled)
        except (ValueError, OSError) as error:
            file = self.jobs.place.checkpoint(number)
            if file is None or not file.exists():
                raise
            cure = f"to begin it anew, move {str(file)!r} away or name another directory"
            kind = OSError if isinstance(error, OSError) else ValueError
            raise kind(f"it cannot go on: {error}; {cure}.") from error
        self.results[number] = run.result
        diverged = self.jobs.diverged.get(number)
        if run.result.steps < run.steps and diverged is None:
            return run
        if diverged is not None:
            run.result.stopped, run.result.message = "diverged", diverged["message"]
            self.messages.append(f"job {number} diverged in an earlier run, and is not done again; {AGAIN}.")
        run.step.release(run.step.optimizer)
        self.bar.skip(run.steps - run.result.steps)
        self.bar.done += 1
        return None

    def alone(self, run: JobRun) -> None:
        run.start = time.monotonic()
        run.step.runs = run.steps - run.result.steps
        run.go(self.rate)

    def together(self, runs: list[JobRun]) -> None:
        group = GroupRun(self.jobs.group([run.step for run in runs], self.samples), runs, self.bar)
        group.go(self.rate)
        now = time.monotonic()
        for run in runs:
            run.start = now - group.share()
            run.step.frozen = group.step.frozen  # whose recordings are reported

    def end(self, run: JobRun) -> None:
        message, number = run.finish(), run.step.number
        if message:
            self.messages.append(f"job {number}: {message}")
        if run.result.stopped != "interrupt":
            self.jobs.place.note(number, self.jobs.seed + number, run.result)
            self.bar.done += 1
