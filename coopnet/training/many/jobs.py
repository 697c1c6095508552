"""All jobs: their shared parts, their beginning, and their runs, one after the other or in groups."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence

from drjit.opt import Optimizer

from ...field import NeuralField
from ...jit.collection import no_collection
from ..interrupts import interrupts_held
from ..progress import Bar
from ..result import FitResult
from ..state import File
from ..step import Options
from ..unrolled import UnrolledSteps
from .directory import Directory
from .errors import errors_of
from .group import GroupStep
from .group_run import GroupRun
from .job import JobRun, JobStep

AGAIN = "to train it anew, remove its line from results.jsonl and its checkpoint, or name another directory"


class Jobs:
    """Job ``number`` trains ``fields[number]`` for ``steps`` steps with ``seed + number``.

    ``results`` are those of the jobs that this process trains, and ``messages`` its warnings.

    Args:
        optimizer: one without parameters, of which each job gets a copy.
        options: of their steps.
        place: where results are written.
        every: seconds between checkpoints.
    """

    def __init__(
        self, fields: Sequence[NeuralField], batch: Callable, steps: int, seed: int, optimizer: Optimizer,
        options: Options, place: Directory, every: float,
    ):  # fmt: skip
        self.fields, self.batch, self.steps, self.seed = fields, batch, steps, seed
        self.optimizer, self.options, self.place, self.every = optimizer, options, place, every
        self.diverged = place.diverged()
        self._first: JobStep | None = None  # the others are copies of it, and share its frozen functions
        self._groups: dict[int, GroupStep] = {}  # the same for groups, by their size
        self.results: dict[int, FitResult] = {}
        self.messages: list[str] = []

    def step(self, number: int) -> JobStep:
        """The step of a job, whose optimizer has the parameters of the field."""
        field, optimizer = self.fields[number], copy.deepcopy(self.optimizer)
        if self._first is None:
            self._first = JobStep(number, field, optimizer, self.batch, self.options)
        step = self._first.of(number, field, optimizer)
        step.optimizer.update(field)
        return step

    def run(self, number: int) -> JobRun:
        """The run of a job, which continues from its checkpoint if there is one."""
        path, step, seed = self.place.checkpoint(number), self.step(number), self.seed + number
        file = File(path, self.every, path is not None, None, step.field, seed)
        return JobRun(step, self.steps, seed, file, self.bar, self.unrolled)

    def group(self, steps: Sequence[JobStep], samples: int) -> GroupStep:
        """Steps of several jobs as one."""
        seeds = [self.seed + step.number for step in steps]
        group = GroupStep(steps, seeds, samples, self._groups.get(len(steps)))
        return self._groups.setdefault(len(steps), group) and group

    # ---- runs ---------------------------------------------------------------

    def train(self, groups: Sequence[range], samples: int, rate: Callable[[int], float], bar: Bar) -> None:
        """Train ``groups`` of job numbers; ``samples`` is the number of samples in a batch."""
        self.samples, self.rate, self.bar = samples, rate, bar
        self.results = {number: FitResult(stopped="interrupt") for group in groups for number in group}
        self.unrolled = UnrolledSteps(len(self.results) * self.steps, rate)  # all jobs share recordings
        with interrupts_held() as interrupts, no_collection():
            for group in groups:
                self._train(group)
                if interrupts or any(self.results[number].stopped == "interrupt" for number in group):
                    return

    def _train(self, group: range) -> None:
        """Train the jobs of a group; those that are at the same step together."""
        waiting: dict[int, list[JobRun]] = {}
        for number in group:
            with errors_of(number, number):
                run = self._begin(number)
            if run is not None:
                waiting.setdefault(run.result.steps, []).append(run)
        for runs in waiting.values():
            with errors_of(runs[0].step.number, runs[-1].step.number):
                if len(runs) == 1:
                    self._alone(runs[0])
                else:
                    self._together(runs)
            for run in runs:
                with errors_of(run.step.number, run.step.number):
                    self._end(run)
            if runs[0].result.stopped == "interrupt":
                return

    def _begin(self, number: int) -> JobRun | None:
        """The run of a job that is not done."""
        try:
            run = self.run(number)
        except (ValueError, OSError) as error:
            file = self.place.checkpoint(number)
            if file is None or not file.exists():
                raise
            hint = f"to begin it anew, move {str(file)!r} away or name another directory"
            kind = OSError if isinstance(error, OSError) else ValueError
            raise kind(f"it cannot continue: {str(error).rstrip('.')}; {hint}.") from error
        self.results[number] = run.result
        diverged = self.diverged.get(number)
        if run.result.steps < run.steps and diverged is None:
            return run
        if diverged is not None:
            run.result.stopped, run.result.message = "diverged", diverged["message"]
            self.messages.append(f"job {number} diverged in an earlier run, and is not trained again; {AGAIN}.")
        run.step.release(run.step.optimizer)
        self.bar.skip(run.steps - run.result.steps)
        self.bar.done += 1
        return None

    def _alone(self, run: JobRun) -> None:
        run.start = time.monotonic()
        run.step.runs = run.steps - run.result.steps
        run.go(self.rate)

    def _together(self, runs: list[JobRun]) -> None:
        group = GroupRun(self.group([run.step for run in runs], self.samples), runs, self.bar)
        group.go(self.rate)
        now = time.monotonic()
        for run in runs:
            run.start = now - group.share()
            run.step.frozen = group.step.frozen  # whose recordings are reported

    def _end(self, run: JobRun) -> None:
        message, number = run.finish(), run.step.number
        if message:
            self.messages.append(f"job {number}: {message}")
        if run.result.stopped != "interrupt":
            self.place.note(number, self.seed + number, run.result)
            self.bar.done += 1
