"""Errors that say why a step could not be recorded. Dr.Jit's error says "see above", even if nothing is above."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..checks.warn import warn
from . import limits
from .hooks import Hook
from .interrupts import caused_by_interrupt

CURE = (
    "A step is recorded and then replayed, so batch, loss, objective and penalty cannot read values of arrays, as "
    "x.numpy(), print(x), x[0] and 'if x' do; look at them outside, as in print(batch(coopnet.Key(0)))."
)
#: What Dr.Jit says of an array that a virtual function uses and that it has not found; and what is said instead.
_UNKNOWN_IN_CALL = "virtual function call involving"
_IN_CALL = (
    "a virtual function, such as a method of a BSDF written in Python, uses an array or field that is not found there. "
    "Keep it as an attribute of the object, as in self.field = field"
)
#: What Dr.Jit says of an array that it has not found before, on the CPU and on a GPU; and what is said instead.
_UNKNOWN_TO_DR_JIT = ("was created before recording was started", "but the source pointer")
_UNKNOWN = (
    "it uses an array that was created inside the recorded function. Create arrays such as Float([1, 2, 3]) before fit "
    "and refer to them by name. Arrays in objects of your own are found only if their class has a DRJIT_STRUCT."
)


@contextmanager
def reasons() -> Iterator[None]:
    """A block that gives Dr.Jit's errors while recording the message of their cause; Ctrl-C is passed on unchanged."""
    try:
        yield
    except RuntimeError as error:
        first = error.__cause__
        if first is None or "recording a frozen function" not in str(error) or caused_by_interrupt(error):
            raise
        while first.__cause__ is not None:
            first = first.__cause__
        reason = str(first) if isinstance(first, RuntimeError) else f"{type(first).__name__}: {first}"
        if "while recording" in reason:  # the rest of Dr.Jit's message is a guess
            reason = f"{reason.partition('!')[0]}. {CURE}"
        elif _UNKNOWN_IN_CALL in reason:
            reason = _IN_CALL
        elif any(words in reason for words in _UNKNOWN_TO_DR_JIT):
            reason = _UNKNOWN
        raise RuntimeError(f"fit: a step could not be recorded: {reason.rstrip('.')}.") from error


class RecordingMonitor(Hook):
    """Warns, once, if most steps are recorded again instead of replayed."""

    def __init__(self) -> None:
        self.steps, self.warned = 0, False

    def after_step(self, run: Any) -> None:
        self.steps += run.stride
        count = run.step.recordings()
        if not self.warned and count >= limits.RECORDINGS and 2 * count > self.steps and run.replicas.leads:
            self.warned = True
            what = f"fit: the step was recorded {count} times in {self.steps} steps, which takes longer than the steps"
            cause = "numbers in lists and dictionaries, and the sizes of arrays, are part of a recording"
            warn(f"{what}; {cause}. Use a Float for a number that changes.")
