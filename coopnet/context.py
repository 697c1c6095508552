"""Values that hold in a ``with`` block."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any


class Context:
    """A value that holds in a ``with`` block of one thread. The innermost block determines it."""

    def __init__(self, name: str, default: Any = None):
        self._variable = contextvars.ContextVar(name, default=default)
        #: Returns the value.
        self.get = self._variable.get

    @contextlib.contextmanager
    def __call__(self, value: Any) -> Iterator[None]:
        token = self._variable.set(value)
        try:
            yield
        finally:
            self._variable.reset(token)
