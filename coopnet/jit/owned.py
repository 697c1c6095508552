"""Arrays in memory of Dr.Jit's own, which frozen functions need for arrays that virtual calls read.

Calls find arrays by addresses, which a replay replaces by those of its own inputs. It only knows addresses of memory
that Dr.Jit has allocated. For other memory, such as NumPy's or PyTorch's behind an array that was made without a copy,
it keeps the address of the recording, and reads whatever is there later.

Relies on LLVM's arrays sharing memory with the NumPy arrays that they are made of, and on ``dr.select`` with a
condition that depends on the lane being computed; ``dr.copy``, ``x + 0`` and a gather of every entry in order copy
nothing. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from typing import Any

import drjit as dr
import numpy as np


def owned(value: Any) -> Any:
    """A copy of ``value``, a flat array, in memory of Dr.Jit's own. Evaluates it."""
    if not dr.width(value):
        return value
    lane = dr.arange(dr.uint32_array_t(type(value)), dr.width(value))
    copy = dr.select(lane == 0xFFFFFFFF, type(value)(0), value)  # a value that no lane has, which Dr.Jit does not know
    dr.eval(copy)
    return copy


def from_numpy(numbers: np.ndarray, tp: type) -> Any:
    """The entries of a flat NumPy array as a ``tp`` with memory of its own."""
    shared = tp(numbers)
    if dr.backend_v(tp) != dr.JitBackend.LLVM:
        return shared
    copy = owned(shared)
    dr.sync_thread()  # NumPy's memory may be freed together with ``numbers``
    return copy
