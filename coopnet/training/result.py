"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(repr=False)
class FitResult:
    """The result of :func:`fit`.

    Attributes:
        steps: number of steps, those of earlier runs included if it was resumed.
        losses: mean loss of each of them.
        metrics: pairs of (step, value).
        best: the best pair, without NaN.
        skipped: number of half-precision steps that were skipped because of overflow.
        recordings: how often the step, or several in one, was traced.
        stopped: ``"steps"``, ``"patience"``, ``"interrupt"`` or ``"diverged"``.
        message: what happened, if training diverged.
        seconds: wall time, that of earlier runs included.

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
