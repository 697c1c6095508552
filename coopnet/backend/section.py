"""Sections of a program that run on another backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..checks import check_type
from .transfer import back, place, to
from .usable import preferring, require

F = TypeVar("F", bound=Callable[..., Any])


def with_backend(backend: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)`` on ``backend``: arguments are moved there, results back to where they came from.

    Everything is moved as by :func:`to`, derivatives included. Results go to where the first array among the arguments
    was that had to be moved; fields, optimizers and averages stay if that is NumPy. Without such, all results stay.
    Within, ``"auto"`` means this backend, as in ``field.build()``; afterwards it means what it did before, also when
    ``function`` raises. Sections nest, and each thread has its own.

    What ``function`` changes are copies: return what is to be kept, such as a field that it trains.

    Args:
        backend: ``"llvm"``, ``"cuda"`` or ``"auto"``.
        function: anything that can be called.
        args, kwargs: its arguments.

    Raises:
        BackendError, TypeError, ValueError, RuntimeError: as :func:`to`.

    >>> field = cn.with_backend("cuda", train, field, points)
    """
    check_type("with_backend", "function", function, Callable, "a function")
    name = require(backend)
    home = place((args, kwargs), name)
    args, kwargs = to((args, kwargs), name)
    with preferring(name):
        result = function(*args, **kwargs)
    return result if home is None else back(result, home)


def on_backend(backend: Any) -> Callable[[F], F]:
    """A decorator: the function runs on ``backend``, see :func:`with_backend`.

    Raises:
        BackendError: when the function is called, if ``backend`` is not usable here.

    >>> @cn.on_backend("cuda")
    ... def train(field, points):
    ...     cn.fit(field, batches(points), 1000)
    ...     return field
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def on_it(*args: Any, **kwargs: Any) -> Any:
            return with_backend(backend, function, *args, **kwargs)

        return on_it  # type: ignore[return-value]

    return decorate
