"""How many steps one call takes: several, if steps are short and nothing needs the state between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import limits
from .schedules import is_of_steps_alone


class UnrolledSteps:
    """Decides for runs that share their frozen functions, with ``ahead`` steps in all and the learning rates
    ``rate``.
    """

    def __init__(self, ahead: int, rate: Callable[[int], float]):
        self.ahead, self.several = ahead, False
        self.foreseen = is_of_steps_alone(rate)
        self.taken, self.seconds = 0, 0.0  # of the measured steps

    def next(self, most: int) -> int:
        """Number of steps in the next call, at most ``most``."""
        return limits.UNROLLED_STEPS if self.several and most >= limits.UNROLLED_STEPS else 1

    def learn(self, step: Any, taken: int, seconds: float) -> None:
        """``taken`` steps like ``step`` took ``seconds``, tracing included if they were the first."""
        self.ahead -= taken
        self.taken += taken
        self.seconds += seconds
        if self.taken < limits.UNROLLED_STEPS_SEEN:
            return
        # a step that leaves products to a library calls it between two kernels
        able = self.foreseen and not step.left
        short = self.seconds <= self.taken * limits.UNROLLED_SECONDS
        self.several = self.several or (able and short and self.ahead >= limits.UNROLLED_STEPS_LEFT)
        self.taken, self.seconds = 0, 0.0
