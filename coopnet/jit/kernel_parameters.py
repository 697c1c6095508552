"""Numbers as parameters of kernels, so that another number needs no other kernel.

In a virtual call of a function that is being frozen, ``dr.opaque`` makes memory that is gone when the function is
replayed: the call then reads anything. There a number becomes a literal, part of the kernel, as the recording is of one
number anyway. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from typing import Any

import drjit as dr

from .scopes import frozen, inside_call, symbolic


def kernel_parameter(tp: type, value: Any) -> Any:
    """``value`` as an array with one entry of the Dr.Jit type ``tp``."""
    literal = frozen() and symbolic() and inside_call(tp)
    return tp(value) if literal else dr.opaque(tp, value)
