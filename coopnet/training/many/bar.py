"""One progress bar for many jobs."""

from __future__ import annotations

from typing import Any

from ..progress import Progress, progress_bar


class Bar(Progress):
    """Steps of ``jobs`` jobs, ``steps`` each: a hook of all their runs. ``done`` jobs have ended."""

    def __init__(self, jobs: int, steps: int, show: bool):
        super().__init__()
        self.jobs, self.done = jobs, 0
        self.bar = progress_bar("fit_many", total=jobs * steps) if show else None

    def begin(self, run: Any) -> None:
        self.skip(run.result.steps)

    def skip(self, steps: int) -> None:
        """So many are done already."""
        if self.bar is not None:
            self.bar.initial += steps
            self.bar.update(steps)

    def after_step(self, run: Any) -> None:
        if self.bar is not None:
            super().after_step(run)

    def say(self, text: str) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(f"{self.done} of {self.jobs} fields, {text}", refresh=False)

    def leave(self, run: Any) -> None:
        """A run has ended; :meth:`close` ends the bar."""

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
