"""Contexts that change how gradients are computed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from ..checks import check_choice, check_flag
from ..context import Context

#: The names of the strategies that :func:`gradient_path` accepts.
PATHS = ("auto", "spill", "store", "banks", "builtin")


_deterministic, _path = Context("deterministic", False), Context("path", "auto")
#: Is a fixed order of sums asked for? Which strategy of weight gradients is asked for?
is_deterministic: Callable[[], bool] = _deterministic.get
forced_path: Callable[[], str] = _path.get


def modes() -> str:
    """What differs from the usual, in words: a part of the key of frozen functions that evaluate fields."""
    order, path = " deterministic" if is_deterministic() else "", forced_path()
    return order if path == "auto" else f"{order} gradient_path={path}"


@contextlib.contextmanager
def deterministic(enabled: bool = True) -> Iterator[None]:
    """Within this context, weight gradients are bitwise reproducible from run to run on CUDA, too.

    They are computed as products over samples instead of by in-kernel atomics, which takes longer and needs memory for
    activations. Networks that are differentiated inside symbolic loops or calls raise ``RuntimeError``, because
    their gradients cannot be reproduced. On LLVM, gradients outside loops are always reproducible.

    >>> with cn.deterministic():
    ...     dr.backward(dr.mean(field(p)[0]))
    """
    with _deterministic(check_flag("deterministic", "enabled", enabled)):
        yield


@contextlib.contextmanager
def gradient_path(name: str) -> Iterator[None]:
    """For experiments: within this context, weight gradients of networks are computed by the strategy ``name``.

    In symbolic loops and conditionals, where nothing can be evaluated, ``"spill"`` and ``"store"`` have no effect. In
    virtual calls, all are built-in.

    Args:
        name: ``"auto"``, ``"spill"``, ``"store"``, ``"banks"`` or ``"builtin"`` (see
            ``docs/performance/gradients.md``).

    Raises:
        ValueError: another name.

    >>> with cn.gradient_path("builtin"):
    ...     dr.backward(dr.mean(field(p)[0]))
    """
    with _path(check_choice("gradient_path", "name", name, PATHS)):
        yield
