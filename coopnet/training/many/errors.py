"""Errors that name the jobs in which they occurred."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...checks.memory import NoRoom
from ...engine import StackError

_KINDS = (ValueError, TypeError, RuntimeError, OSError, NoRoom)


@contextmanager
def errors_of(first: int, last: int) -> Iterator[None]:
    """A block for the jobs ``first`` to ``last``: messages of errors begin with these numbers.

    Errors whose type may need other arguments than a message stay as they are.
    """
    try:
        yield
    except _KINDS as error:
        if type(error) not in _KINDS or getattr(error, "errno", None) is not None:
            raise
        jobs = f"job {first}" if first == last else f"jobs {first} to {last}"
        raise type(error)(f"fit_many: {jobs}: {error}") from error


@contextmanager
def one_kernel() -> Iterator[None]:
    """A block that evaluates several fields in one kernel. If the engine cannot do that, the error says what to do."""
    try:
        yield
    except StackError as error:
        raise RuntimeError(f"fit_many: {error}; pass together=1.") from error
