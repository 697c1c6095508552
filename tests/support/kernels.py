"""What Dr.Jit launches."""

from __future__ import annotations

import contextlib

import drjit as dr


@contextlib.contextmanager
def launched():
    """A list that holds, after this context, the kernels launched within it, as in ``dr.kernel_history()``."""
    found = []
    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        dr.kernel_history_clear()
        yield found
        found += dr.kernel_history([dr.KernelType.JIT])
