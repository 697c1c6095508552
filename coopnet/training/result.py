"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(repr=False)
class FitResult:
    """The result of :func:`fit`.

    ``losses`` holds the mean loss of every step since step 0 (resumed runs included); ``metrics`` pairs of (step,
    value); ``best`` the best of them, NaN left out; ``skipped`` the half-precision steps dropped because of overflow;
    ``recordings`` how often the step, or several in one, was traced; ``stopped`` is ``"steps"``, ``"patience"``,
    ``"interrupt"`` or ``"diverged"``, and ``message`` says what happened in the latter case; ``seconds`` is the wall
    time of all runs.

    >>> result = cn.fit(field, batch, 1000)
    >>> print(result.losses[-1], result.stopped)
    """

    steps: int = 0
    losses: list[float] = field(default_factory=list)
    metrics: list[tuple[int, float]] = field(default_factory=list)
    best: tuple[int, float] | None = None
    skipped: int = 0
    recordings: int = 0
    seconds: float = 0.0
    stopped: str = "steps"
    message: str = ""

    def __repr__(self) -> str:
        last = f", last loss {self.losses[-1]:.4g}" if self.losses else ""
        return (
            f"<FitResult: {self.steps} steps in {self.seconds:.1f} s, stopped={self.stopped!r}{last}, "
            f"{len(self.metrics)} metrics, best={self.best}, skipped={self.skipped}, recordings={self.recordings}>"
        )
