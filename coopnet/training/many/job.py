"""One of many fields by itself: a step that is told which."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import drjit as dr
from drjit.opt import Optimizer

from ...field import NeuralField
from ...random.key import Key
from ..captures import Captures
from ..step import Step

#: Steps that one call takes where nobody looks at what is between them: for small ones, replaying a function takes as
#: long as its kernels do. More gain little, and all of them are traced.
SEVERAL = 4


class JobStep(Step):
    """The step of :func:`coopnet.fit`, of job ``number``: an input, so that all jobs share what is frozen."""

    DRJIT_STRUCT = Step.DRJIT_STRUCT | {"job": object}

    def __init__(self, number: int, field: NeuralField, optimizer: Optimizer, batch: Callable, **options: Any):
        super().__init__(field, optimizer, batch, **options)
        self.become(number)
        self.several = dr.freeze(_take_several, state_fn=Captures(self.batch, self.loss, self.objective))

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

    def take_several(self, seed: Any, number: Any) -> None:
        """Steps from ``number`` on as they are traced, all of them complete, with the rates that ``lr`` is now."""
        rates = self.optimizer.lr
        each = [(number + i, dr.gather(self.float32, rates, self.uint32(i))) for i in range(SEVERAL)]
        dr.eval(each)  # so that all steps have the same kernels
        for one, rate in each:
            self.optimizer.lr = rate
            self.take(seed, one, whole=True)
        self.optimizer.lr = rates

    def recordings(self) -> int:
        return super().recordings() + self.several.n_recordings


# Frozen functions look into the global variables that they name, at every call: this one names none.


def _take_several(step: Any, *args: Any) -> None:
    step.take_several(*args)
