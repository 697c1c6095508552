"""libdrjit-core: the backends that it found, and functions that Dr.Jit's Python package does not offer.

``coopnet.backend.prepare`` must run before ``import drjit``, which starts the search for libraries in a thread. So this
file imports Dr.Jit only when a function needs it.

Relies on ``sync_thread`` to wait for that thread, on ``detail.llvm_version``, ``detail.cuda_version`` and
``detail.cuda_compute_capability``, and on the mangled names of ``jit_llvm_set_target``, ``jit_llvm_vector_width``,
``jit_llvm_target_cpu``, ``jit_cuda_stream`` and ``jit_cuda_device_raw``. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from types import ModuleType
from typing import Any


def drjit() -> ModuleType:
    """The module ``drjit``, after its search for backends has finished.

    The thread of this search holds Dr.Jit's lock while it prints warnings, for which it needs Python's lock. A call
    that takes the locks in the other order, such as ``has_backend``, would cause a deadlock. ``sync_thread`` waits
    without Python's lock.
    """
    import drjit as dr

    dr.sync_thread()
    return dr


def llvm_version() -> tuple[int, ...] | None:
    """Version of the LLVM that Dr.Jit uses, or ``None`` if it found none."""
    dr = drjit()
    return tuple(dr.detail.llvm_version()) if dr.has_backend(dr.JitBackend.LLVM) else None


def gpu() -> tuple[tuple[int, ...], int] | None:
    """CUDA version of the driver and compute capability (75 for 7.5) of the GPU that Dr.Jit uses, or ``None``."""
    dr = drjit()
    if not dr.has_backend(dr.JitBackend.CUDA):
        return None
    return tuple(dr.detail.cuda_version()), dr.detail.cuda_compute_capability()


def compute_capability() -> int:
    """That of the GPU, see :func:`gpu`. There must be one; unlike there, nothing is waited for."""
    import drjit as dr

    return dr.detail.cuda_compute_capability()


@functools.cache
def function(symbol: str) -> Any:
    """The function that libdrjit-core exports as ``symbol``, or ``None``."""
    import drjit

    try:
        return getattr(ctypes.CDLL(str(Path(drjit.__file__).with_name("libdrjit-core.so"))), symbol)
    except (OSError, AttributeError):
        return None


def cuda_stream() -> int:
    """The address of the CUDA stream that Dr.Jit uses in this thread."""
    current = function("_Z15jit_cuda_streamv")
    current.restype = ctypes.c_void_p
    return current() or 0


def cuda_device() -> int:
    """The driver's number of the GPU that Dr.Jit uses in this thread."""
    return int(function("_Z19jit_cuda_device_rawv")())


def llvm_lanes() -> int:
    """Lanes of a vector that LLVM compiles for, or 0 if that is not known."""
    lanes = function("_Z21jit_llvm_vector_widthv")
    return int(lanes()) if lanes is not None else 0


def stored_lanes() -> int:
    """Lanes that the processor stores at a time. Zen 4 stores a vector of 16 lanes in two halves."""
    name = function("_Z19jit_llvm_target_cpuv")
    if name is None:
        return llvm_lanes()
    name.restype = ctypes.c_char_p
    return min(llvm_lanes(), 8) if name() == b"znver4" else llvm_lanes()


def set_llvm_target(cpu: str, width: int) -> None:
    """Make LLVM compile for another processor. This one must be able to run its code.

    Args:
        cpu: LLVM's name of the processor, such as ``"haswell"``.
        width: lanes of a vector, a power of two.
    """
    if llvm_version() is None:
        raise RuntimeError("set_llvm_target: Dr.Jit has found no LLVM, and so there is no target to replace.")
    # void jit_llvm_set_target(const char *cpu, const char *features, uint32_t width)
    function("_Z19jit_llvm_set_targetPKcS0_j")(cpu.encode(), None, ctypes.c_uint32(width))
