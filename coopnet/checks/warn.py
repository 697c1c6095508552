"""Warnings that point to the line of the user's code that called the library."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

#: Top-level packages whose frames are between the user's code and a warning.
_PASSED = ("coopnet", "drjit", "mitsuba", "contextlib", "functools")


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn with the place of the innermost call from outside coopnet, Dr.Jit and Mitsuba."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
