"""Products over the sample axis by NumPy's BLAS, on the memory of LLVM arrays."""

from __future__ import annotations

import functools

import drjit as dr
import numpy as np

from ..jit.openblas import one_thread
from ..jit.pool import parallel

#: Samples that are summed in single precision. One long sum would drift: equal increments all round the same way.
PIECE = 2048
#: Samples of a slice below which another thread is not worth starting.
LEAST = 1 << 13
#: Bytes: what a vector register of any CPU is loaded from fastest, and what Dr.Jit looks for.
ALIGNMENT = 64


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a.T @ b`` for single-precision ``a`` of shape ``(samples, m)`` and ``b`` of shape ``(samples, n)``.

    Dr.Jit's threads each take a slice of the samples and call BLAS on one thread. BLAS's own threads spin while they
    wait, as do Dr.Jit's, and together they slow each other down several times.
    """
    slices = max(1, min(dr.thread_count(), len(a) // LEAST))
    bounds = [len(a) * i // slices for i in range(slices + 1)]

    def part(i: int) -> np.ndarray:
        out = np.empty((a.shape[1], b.shape[1]), a.dtype)
        total = np.zeros(out.shape, np.float64)
        with np.errstate(all="ignore"):  # infinities and NaN are for the caller to find
            for start in range(bounds[i], bounds[i + 1], PIECE):
                rows = slice(start, min(start + PIECE, bounds[i + 1]))
                # with out=, NumPy calls BLAS without the interpreter's lock
                total += np.dot(a[rows].T, b[rows], out=out)
        return total

    with one_thread():
        # in this order, whichever is done first
        return _aligned(functools.reduce(np.add, parallel(part, slices)), a.dtype)


def _aligned(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``values`` as ``dtype`` at a multiple of :data:`ALIGNMENT`.

    Dr.Jit compiles another kernel for memory at other addresses, and NumPy's allocator returns varying alignments.
    """
    size = values.size * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    out = memory[start : start + size].view(dtype).reshape(values.shape)
    out[...] = values
    return out
