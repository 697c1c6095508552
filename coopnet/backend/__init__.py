"""Find the backends, LLVM on the CPU and CUDA with OptiX on NVIDIA GPUs, and say what is missing.

Dr.Jit loads its libraries in a thread that ``import drjit`` starts, so libLLVM must be chosen before that
import: ``coopnet`` calls :func:`prepare` first. All other code calls :func:`require`, which caches usable backends, and
raises :class:`BackendError` with advice if a backend is not usable.

================  ================================================================
:mod:`.llvm`      finding a libLLVM before Dr.Jit looks for one
:mod:`.usable`    which backend to use, and why one cannot be used
:mod:`.report`    what is installed, for ``coopnet info``
:mod:`.transfer`  moving arrays and fields to another backend, or to NumPy
:mod:`.section`   functions and calls that run on another backend
================  ================================================================
"""

from ..jit.native.cuda import has_optix
from .llvm import LLVM, MIN_LLVM, VARIABLE, find_llvm, found_llvm, llvm_cure, name_version, prepare
from .report import EXTRAS, as_json, format_info, info, kernel_cache, runs_coopvec
from .usable import BACKENDS, MIN_COMPUTE, MIN_CUDA, BackendError, available, namespace, require

__all__ = [
    "BACKENDS", "EXTRAS", "LLVM", "MIN_COMPUTE", "MIN_CUDA", "MIN_LLVM", "VARIABLE", "BackendError", "as_json",
    "available", "find_llvm", "format_info", "found_llvm", "has_optix", "info", "kernel_cache", "llvm_cure",
    "name_version", "namespace", "prepare", "require", "runs_coopvec",
]  # fmt: skip
