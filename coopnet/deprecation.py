"""Deprecation of public names: they warn for at least two minor versions, and say what to use instead.

The rule is in ``CONTRIBUTING.md``. ``tests/test_deprecation.py`` finds every such warning in the code, and fails when
the version is reached in which the name should have been removed.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from .checks import check, check_text, ensure

_T = TypeVar("_T", bound=Callable[..., Any])

#: Minor versions that a name stays after its first warning.
STAYS = 2


def warn_deprecated(what: str, *, since: str, removed: str, instead: str, stacklevel: int = 1) -> None:
    """Warn that ``what`` is deprecated. Functions call it for arguments or values that will be removed.

    Args:
        what: for example ``"fit: the argument 'rate'"``.
        since: the version that warns first, such as ``"0.3"``.
        removed: the version without it: at least two minor versions later, or a major one.
        instead: what to use, for example ``"'lr'"``.
        stacklevel: number of calls between the caller of this function and the code that should change.

    Raises:
        ValueError: invalid versions, or versions that are too close to each other.

    Warns:
        DeprecationWarning: always.

    >>> warn_deprecated("fit: the argument 'rate'", since="0.3", removed="0.5", instead="'lr'")
    """
    check_versions(since, removed)
    warnings.warn(_message(what, since, removed, instead), DeprecationWarning, stacklevel=stacklevel + 2)


def deprecated(*, since: str, removed: str, instead: str) -> Callable[[_T], _T]:
    """A decorator for functions and methods that will be removed; arguments and errors as in :func:`warn_deprecated`.

    A class is deprecated by decorating its ``__init__``.

    >>> @deprecated(since="0.3", removed="0.5", instead="coopnet.fit")
    ... def train(field): ...
    """
    check_versions(since, removed)

    def decorate(function: _T) -> _T:
        check(callable(function), "deprecated", "function", function, "a function", TypeError)
        problem = f"deprecated: {function!r} is a class, which would no longer be one; decorate its __init__."
        ensure(not isinstance(function, type), problem, TypeError)
        name = function.__qualname__.removesuffix(".__init__")
        message = _message(name, since, removed, instead)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        call.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\nDeprecated: {message}".lstrip()
        return call  # type: ignore[return-value]

    return decorate


def check_versions(since: str, removed: str) -> None:
    """Raise ``ValueError`` unless ``removed`` is far enough from ``since``."""
    first, last = parse(since), parse(removed)
    far = last[0] > first[0] or (last[0] == first[0] and last[1] >= first[1] + STAYS)
    ensure(far, f"deprecated: {since} to {removed}; a name stays for at least {STAYS} minor versions.")


def parse(version: str) -> tuple[int, int]:
    """Major and minor number of ``"0.3"``, ``"0.3.1"`` or ``"0.3.0.dev0"``; raises ``ValueError``."""
    match = re.fullmatch(
        r"(\d+)\.(\d+)(\.\d+)?((a|b|rc|\.dev|\.post)\d+)?", check_text("deprecated", "version", version)
    )
    ensure(match, f"deprecated: version is {version!r}; one such as '0.3' is needed.")
    assert match
    return int(match[1]), int(match[2])


def _message(what: str, since: str, removed: str, instead: str) -> str:
    return f"{what} is deprecated since coopnet {since} and will be removed in {removed}; use {instead} instead."
