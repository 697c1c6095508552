"""A single job of many: a step that has the job's number, and its run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import drjit as dr
from drjit.opt import Optimizer

from ...field import NeuralField
from ...random.key import Key
from ..divergence import DivergenceMonitor
from ..progress import Bar
from ..run import Run
from ..state import File
from ..step import Options, Step
from ..unrolled import UnrolledSteps


class JobStep(Step):
    """The step of :func:`coopnet.fit` for job ``number``, which is an input, so that all jobs share the frozen
    function.
    """

    DRJIT_STRUCT = Step.DRJIT_STRUCT | {"job": object}

    def __init__(self, number: int, field: NeuralField, optimizer: Optimizer, batch: Callable, options: Options):
        super().__init__(field, optimizer, batch, options)
        self.become(number)

    def become(self, number: int) -> None:
        self.job = dr.opaque(dr.uint32_array_t(self.float32), number)
        self.number = number

    def of(self, number: int, field: NeuralField, optimizer: Optimizer) -> JobStep:
        """The step of another job, whose field has the same architecture."""
        other = copy.copy(self)
        other.field, other.optimizer = field, optimizer
        other.become(number)
        other.begin()
        return other

    def draw(self, key: Key) -> Any:
        return self.batch(key, self.job)


class JobRun(Run):
    """The run of a job, with its checkpoint and monitor as attributes, for runs of several jobs at once."""

    step: JobStep

    def __init__(self, step: JobStep, steps: int, seed: int, file: File, bar: Bar, unrolled: UnrolledSteps):
        self.file, self.monitor = file, DivergenceMonitor()
        super().__init__(step, steps, seed, (file, bar, self.monitor), unrolled=unrolled)
