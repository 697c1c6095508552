"""Errors that say which jobs they are of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...checks.sizes import NoRoom
from ...engine import StackError

_KINDS = (ValueError, TypeError, RuntimeError, OSError, NoRoom)


@contextmanager
def errors_of(first: int, last: int) -> Iterator[None]:
    """A block in which errors are of the jobs ``first`` to ``last``, and their messages begin with these numbers.

    Errors of other kinds, which may not be made of a message alone, stay as they are.
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
    """A block in which several fields are evaluated in one kernel: what the engine cannot do is said with the cure."""
    try:
        yield
    except StackError as error:
        raise RuntimeError(f"fit_many: {error}; pass together=1.") from error
