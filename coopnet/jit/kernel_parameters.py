"""Numbers as parameters of kernels, so that a new number needs no new kernel.

In a virtual call of a function that is being frozen, ``dr.opaque`` allocates memory that is freed before the function
is replayed, and the call would read garbage. There, a number becomes a literal instead, a part of the kernel. A
recording is valid for one number anyway. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from typing import Any

import drjit as dr

from .literals import is_literal
from .scopes import frozen, inside_call, recording, symbolic


def kernel_parameter(tp: type, value: Any) -> Any:
    """``value`` as an array with one entry of the Dr.Jit type ``tp``."""
    literal = frozen() and symbolic() and inside_call(tp)
    return tp(value) if literal else dr.opaque(tp, value)


def kept(value: Any) -> Any:
    """``value`` in memory, if it is a number that would be a constant in kernels, so that one kernel serves for all
    numbers.

    Unchanged while something is recorded or traced symbolically.
    """
    if recording() or dr.width(value) > 1 or dr.grad_enabled(value) or not is_literal(value):
        return value
    return dr.opaque(type(value), value[0])
