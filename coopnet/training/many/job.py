"""One of many fields by itself: a step that is told which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drjit as dr
from drjit.opt import Optimizer

from ...field import NeuralField
from ...random.key import Key
from ..step import Step


class JobStep(Step):
    """The step of :func:`coopnet.fit`, of job ``number``: an input, so that all jobs share what the ``first`` froze."""

    DRJIT_STRUCT = Step.DRJIT_STRUCT | {"job": object}

    def __init__(
        self, number: int, first: JobStep | None, field: NeuralField, optimizer: Optimizer, batch: Callable,
        **options: Any,
    ):  # fmt: skip
        super().__init__(field, optimizer, batch, **options)
        self.job = dr.opaque(dr.uint32_array_t(self.float32), number)
        self.number = number
        if first is not None:
            self.frozen, self.rest = first.frozen, first.rest

    def draw(self, key: Key) -> Any:
        return self.batch(key, self.job)
