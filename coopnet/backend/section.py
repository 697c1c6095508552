"""Functions and calls that run on another backend."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ..checks import check_type, ensure
from .transfer import back, home, to
from .usable import name_of, preferring, require

F = TypeVar("F", bound=Callable[..., Any])


def with_backend(backend: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function(*args, **kwargs)`` on ``backend``: arguments are moved there, and results back.

    Arguments and results are moved as by :func:`to`, with derivatives. Results go to the backend of the first Dr.Jit
    object among the arguments that had to be moved. If only NumPy arrays had to be moved, results become NumPy arrays,
    except for fields, optimizers and averages. If nothing had to be moved, results stay on ``backend``. Fields get back
    the precision that they had. During the call, ``"auto"`` means this backend, for example in ``field.build()``.
    Such calls may be nested, and affect their own thread only.

    ``function`` gets copies of moved arguments: return everything to be kept, such as a field that it trains. Objects
    that ``function`` itself holds, such as the object of a method, are not moved.

    Args:
        backend: ``"llvm"``, ``"cuda"`` or ``"auto"``.
        function: anything that can be called.
        args, kwargs: arguments of ``function``.

    Raises:
        BackendError, TypeError, ValueError, RuntimeError: as :func:`to`.

    >>> field = cn.with_backend("cuda", train, field, points)
    """
    check_type("with_backend", "function", function, Callable, "a function")
    name = require(backend)
    place, precision = home((args, kwargs), name)
    args, kwargs = to((args, kwargs), name)
    with preferring(name):
        result = function(*args, **kwargs)
    return result if place is None else back(result, place, precision)


def on_backend(backend: Any) -> Callable[[F], F]:
    """A decorator: the function runs on ``backend``, see :func:`with_backend`.

    Raises:
        BackendError: when the function is called, if ``backend`` is not usable here.
        ValueError, TypeError: ``backend`` is invalid; the function is a generator or coroutine, which would run later.

    >>> @cn.on_backend("cuda")
    ... def train(field, points):
    ...     cn.fit(field, batches(points), 1000)
    ...     return field
    """

    if inspect.isfunction(backend):
        raise TypeError('on_backend: backend is a function; write its name, @coopnet.on_backend("cuda").')
    if not (isinstance(backend, str) and backend == "auto"):
        name_of(backend)

    def decorate(function: F) -> F:
        later = inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)
        problem = f"{getattr(function, '__name__', function)} is a generator or coroutine, which runs after the section"
        ensure(not later, f"on_backend: {problem}; call with_backend() inside it.", TypeError)

        @functools.wraps(function)
        def on_it(*args: Any, **kwargs: Any) -> Any:
            return with_backend(backend, function, *args, **kwargs)

        return on_it  # type: ignore[return-value]

    return decorate
