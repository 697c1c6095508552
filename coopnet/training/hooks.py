"""Hooks: the bar, the metric, checkpoints, checks for divergence and whatever else happens between the steps of a
run.
"""

from __future__ import annotations

import sys
from typing import Any


class Hook:
    """Something that a :class:`Run` does besides its steps; this base class does nothing.

    Methods are called for one hook after the other, in the order in which the run has them; ``leave`` and ``end`` in
    the reverse order.
    """

    def begin(self, run: Any) -> None:
        """Before the first step. It may change the result and the optimizer of the run, which continues from them."""

    def until(self, run: Any) -> int:
        """How many steps may be taken before :meth:`after_step` is called again."""
        return sys.maxsize

    def due(self) -> bool:
        """Is the hook due by the clock, whatever the step? If several processes train, ``run.due`` is the value of
        process 0.
        """
        return False

    def after_step(self, run: Any) -> None:
        """After a step, or several in one call."""

    def on_losses(self, run: Any, losses: list[float], at_end: bool) -> None:
        """After ``losses``, all since the previous call, were copied to the host; ``at_end`` in the last call."""

    def leave(self, run: Any) -> None:
        """After the steps, also if an exception has ended them."""

    def end(self, run: Any) -> str:
        """At the end of a run without an exception; returns a warning, or nothing."""
        return ""
