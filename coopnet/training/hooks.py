"""What happens between the steps of a run: a bar, a metric, checkpoints, looking for divergence, each one hook."""

from __future__ import annotations

import sys
from typing import Any


class Hook:
    """One thing that a :class:`Run` does besides its steps; this one does nothing.

    ``run`` is that of all methods. They are called for one hook after the other, in the order in which the run has
    them; ``leave`` and ``end`` in the reverse order.
    """

    def begin(self, run: Any) -> None:
        """Before the first step. The result of the run and its optimizer may be changed here: it goes on from them."""

    def until(self, run: Any) -> int:
        """How many steps may be taken before :meth:`after_step` is called again."""
        return sys.maxsize

    def due(self) -> bool:
        """Has its time come, whatever the step? Where processes train together, that of process 0 is ``run.due``."""
        return False

    def after_step(self, run: Any) -> None:
        """After a step, or several in one call."""

    def look(self, run: Any, losses: list[float], at_end: bool) -> None:
        """Whenever ``losses``, all since the last time, have come to the host; ``at_end`` for the last time."""

    def leave(self, run: Any) -> None:
        """After the last step, or in place of it: whatever ends them, an exception included."""

    def end(self, run: Any) -> str:
        """At the end of a run that no exception has ended; returns what to warn of, if anything."""
        return ""
