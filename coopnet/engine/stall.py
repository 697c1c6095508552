"""The warning about weight gradients that are added up in half precision."""

from __future__ import annotations

from ..checks.warn import warn
from . import limits

_warned = False


def warn_stall(samples: int | None) -> None:
    """Warn, once, if weight gradients over so many samples are about to be added up in half precision.

    ``None``: their number is not known, as in virtual calls.
    """
    global _warned
    if not _warned and (samples is None or samples > limits.STALL_SAMPLES):
        _warned = True
        many = "" if samples is None else f" over {samples} samples"
        warn(
            f"A network in half precision is differentiated inside a virtual call, or by dr.backward() inside a "
            f"symbolic loop{many}. Its weight gradient is accumulated in half precision there, and sums over more than "
            f"about {limits.STALL_SAMPLES} samples stall: they come out too small. In a loop, enter "
            f"coopnet.gradient_banks(field) around it; with Mitsuba, use the integrator neural_path, which evaluates "
            f"networks outside of calls, or neural_volpath with media of the type neural_medium; on a CPU, build the "
            f"field in single precision."
        )
