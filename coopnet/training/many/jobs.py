"""All jobs: what they have in common, and how one begins."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import drjit as dr
from drjit.opt import Optimizer

from ...field import NeuralField
from ..divergence import DivergenceMonitor
from ..run import Run
from ..state import File
from ..step import Options
from ..unrolled import UnrolledSteps
from .bar import Bar
from .directory import Directory
from .group import GroupStep
from .job import JobStep


class JobRun(Run):
    """The run of a job, whose checkpoint and monitor are known by name to runs of several at once."""

    step: JobStep

    def __init__(self, step: JobStep, steps: int, seed: int, file: File, bar: Bar, unrolled: UnrolledSteps):
        self.file, self.monitor = file, DivergenceMonitor()
        super().__init__(step, steps, seed, (file, bar, self.monitor), unrolled=unrolled)


class Jobs:
    """Job ``number`` trains ``fields[number]`` for ``steps`` steps with ``seed + number``.

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
        self.uint32 = dr.uint32_array_t(dr.leaf_t(dr.array_t(type(next(iter(fields[0].values()))))))
        self.diverged = place.diverged()
        self._first: JobStep | None = None  # of which the others are copies: all share its frozen functions
        self._groups: dict[int, GroupStep] = {}  # the same for groups, by their size

    def step(self, number: int) -> JobStep:
        """The step of a job, whose optimizer has the parameters of the field."""
        field, optimizer = self.fields[number], copy.deepcopy(self.optimizer)
        if self._first is None:
            self._first = JobStep(number, field, optimizer, self.batch, self.options)
        step = self._first.of(number, field, optimizer)
        step.optimizer.update(field._held())
        return step

    def run(self, number: int, bar: Bar, unrolled: UnrolledSteps) -> JobRun:
        """The run of a job, which goes on from its checkpoint if there is one."""
        path, step, seed = self.place.checkpoint(number), self.step(number), self.seed + number
        file = File(path, self.every, path is not None, None, step.field, seed)
        return JobRun(step, self.steps, seed, file, bar, unrolled)

    def group(self, steps: Sequence[JobStep], samples: int) -> GroupStep:
        """Steps of several jobs as one."""
        seeds = [self.seed + step.number for step in steps]
        group = GroupStep(steps, seeds, samples, self._groups.get(len(steps)))
        return self._groups.setdefault(len(steps), group) and group
