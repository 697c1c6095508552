"""Contexts that change how gradients are computed."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

from ..checks import check_choice, check_flag
from ..context import Context
from . import limits

#: The names of the ways to compute weight gradients.
PATHS = ("auto", "spill", "store", "banks", "builtin")


_deterministic, _path = Context("deterministic", False), Context("path", "auto")
#: Is a fixed order of sums asked for? Which way to compute weight gradients is asked for?
is_deterministic: Callable[[], bool] = _deterministic.get
forced_path: Callable[[], str] = _path.get
#: ``with only_traced(True)``: outputs of networks are traced, but not computed. No layer is evaluated between kernels.
only_traced = Context("only traced", False)


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
    """For experiments: within this context, weight gradients of networks are computed in the way ``name``.

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


_warned = False


def warn_stall(samples: int | None) -> None:
    """Warn, once, if weight gradients over so many samples are about to be added up in half precision.

    ``None``: their number is not known, as in virtual calls.
    """
    global _warned
    if not _warned and (samples is None or samples > limits.STALL_SAMPLES):
        _warned = True
        many = "" if samples is None else f" over {samples} samples"
        warnings.warn(
            f"A network is differentiated inside a virtual call, or by dr.backward() inside a symbolic loop{many}. On "
            f"CUDA its weight gradient is accumulated in half precision there, and sums over more than about "
            f"{limits.STALL_SAMPLES} samples stall: they come out too small. In a loop, enter "
            f"coopnet.gradient_banks(field) around it; with Mitsuba, use the integrator neural_path, which evaluates "
            f"networks outside of calls, or neural_volpath with media of the type neural_medium.",
            RuntimeWarning,
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """Stack levels from the caller of this function to the user's code, past coopnet, Dr.Jit and Mitsuba."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in ("coopnet", "drjit", "mitsuba"):
        level, frame = level + 1, frame.f_back
    return level
