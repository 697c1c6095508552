"""A run of one job by itself."""

from __future__ import annotations

from collections.abc import Callable

import drjit as dr

from ..run import Run
from ..step import WINDOW
from .job import SEVERAL, JobStep


class JobRun(Run):
    """As :class:`Run`, but one call takes several steps where that is asked for, by ``several``."""

    step: JobStep
    several = False

    def take_step(self, rate: Callable[[int], float]) -> None:
        first = self.result.steps
        if not self.several or min(self.steps - first, WINDOW - self.taken) < SEVERAL:
            self.stride = 1
            super().take_step(rate)
            return
        step, self.stride = self.step, SEVERAL
        step.optimizer.lr = step.float32([rate(first + i) for i in range(SEVERAL)])
        number = dr.opaque(step.uint32, first)
        self.stepping = True
        step.several(step, self.seed, number)
        step.untouched = False  # the single step before has said so
        self.result.steps += SEVERAL
        self.taken += SEVERAL
        self.stepping = False
