"""Arrays in memory that Dr.Jit has allocated. Frozen functions need them for arrays that virtual calls read.

Calls read arrays by address. A replay replaces the addresses by those of its own inputs, but only addresses of memory
that Dr.Jit has allocated. For other memory, such as NumPy's or PyTorch's in an array that was made without a copy, it
keeps the address of the recording, and reads whatever is there later.

Relies on LLVM's arrays sharing memory with the NumPy arrays from which they are made, and on Dr.Jit computing a
``dr.select`` with a condition that depends on the lane; ``dr.copy``, ``x + 0`` and a gather of every entry in order
copy nothing. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from typing import Any

import drjit as dr
import numpy as np


def owned(value: Any) -> Any:
    """An evaluated copy of ``value``, a flat array, in memory that Dr.Jit has allocated."""
    if not dr.width(value):
        return value
    lane = dr.arange(dr.uint32_array_t(type(value)), dr.width(value))
    copy = dr.select(lane == 0xFFFFFFFF, type(value)(0), value)  # no lane has this number, which Dr.Jit does not know
    dr.eval(copy)
    return copy


def own(value: Any) -> None:
    """Replace the content of ``value``, a flat array or a tensor, by a copy in Dr.Jit's memory. If it has gradients,
    which an optimizer's has, it stays.
    """
    flat = value.array if dr.is_tensor_v(value) else value
    if not dr.grad_enabled(flat):
        flat[:] = owned(flat)


def from_numpy(numbers: np.ndarray, tp: type) -> Any:
    """The entries of a flat NumPy array as a ``tp`` that shares no memory with it."""
    shared = tp(numbers)
    if dr.backend_v(tp) != dr.JitBackend.LLVM:
        return shared
    copy = owned(shared)
    dr.sync_thread()  # NumPy's memory may be freed together with ``numbers``
    return copy
