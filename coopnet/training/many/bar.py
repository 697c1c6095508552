"""One progress bar for many jobs."""

from __future__ import annotations

from typing import Any

from ..progress import progress_bar


class Bar:
    """Steps of ``jobs`` jobs, ``steps`` each; it stands in for the bar of each run. ``done`` jobs have ended."""

    def __init__(self, jobs: int, steps: int, show: bool):
        self.jobs, self.done = jobs, 0
        self.bar: Any = None
        if show:
            self.bar = progress_bar("fit_many", total=jobs * steps)

    def begin(self, steps: int) -> None:
        """A job begins, of which so many steps are done."""
        if self.bar is not None:
            self.bar.initial += steps
            self.bar.update(steps)

    def update(self, steps: int) -> None:
        if self.bar is not None:
            self.bar.update(steps)

    def set_postfix_str(self, text: str) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(f"{self.done} of {self.jobs} fields, {text}", refresh=False)

    def close(self) -> None:
        """A run has ended; :meth:`end` ends the bar."""

    def end(self) -> None:
        if self.bar is not None:
            self.bar.close()
