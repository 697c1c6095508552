"""Switches that change how gradients are computed."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

#: The paths by name.
PATHS = ("auto", "spill", "banks", "builtin")

_deterministic: contextvars.ContextVar[bool] = contextvars.ContextVar("deterministic", default=False)
_path: contextvars.ContextVar[str] = contextvars.ContextVar("path", default="auto")


@contextlib.contextmanager
def deterministic(enabled: bool = True) -> Iterator[None]:
    """Within this context, weight gradients are bitwise reproducible from run to run on CUDA, too.

    They are computed by *spill and multiply* instead of in-kernel atomics, which takes longer and needs memory for the
    spilled activations. What cannot be reproduced raises ``RuntimeError``: networks differentiated inside symbolic
    loops or calls. On LLVM gradients outside loops are reproducible anyway.

    >>> with cn.deterministic():
    ...     dr.backward(loss)
    """
    token = _deterministic.set(enabled)
    try:
        yield
    finally:
        _deterministic.reset(token)


@contextlib.contextmanager
def gradient_path(name: str) -> Iterator[None]:
    """For experiments: evaluate networks so that their weight gradients take the path ``name``.

    Args:
        name: ``"auto"``, ``"spill"``, ``"banks"`` or ``"builtin"``.
    """
    if name not in PATHS:
        raise ValueError(f"gradient_path: name is {name!r}; accepted are {', '.join(map(repr, PATHS))}.")
    token = _path.set(name)
    try:
        yield
    finally:
        _path.reset(token)


def is_deterministic() -> bool:
    return _deterministic.get()


def forced_path() -> str:
    return _path.get()
