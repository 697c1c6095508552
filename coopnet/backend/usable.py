"""Which backend to use, and why one cannot be used."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from ..context import Context
from ..jit.native import core, cuda
from . import llvm
from .llvm import MIN_LLVM, VARIABLE

MIN_CUDA = (12, 8)  #: the first version with cooperative vectors in OptiX: driver R570
MIN_COMPUTE = 75  #: Turing
BACKENDS = ("cuda", "llvm")  #: in the order in which "auto" tries them

CURE_CUDA = "install an NVIDIA driver R570 or newer on a machine with a Turing (RTX 20) or newer GPU"
CURE_OPTIX = (
    "install the driver's OptiX library, libnvoptix.so.1 "
    "(containers: NVIDIA_DRIVER_CAPABILITIES=compute,graphics,utility)"
)


class BackendError(RuntimeError):
    """A backend is missing or unusable. The message says what was looked for and what to do.

    >>> try:
    ...     field = field.build("cuda")
    ... except cn.BackendError as error:
    ...     print(error)
    """

    __module__ = "coopnet.backend"  # so that tracebacks show the public name


_known: dict[Any, str] = {}  # results of require() by its argument
#: ``with preferring(backend)``: ``"auto"`` means ``backend``.
preferring = Context("backend")


def require(backend: Any = "auto") -> str:
    """The name of a usable backend, ``"cuda"`` or ``"llvm"``.

    ``backend`` is ``"auto"``, ``"cuda"``, ``"llvm"``, a ``drjit.JitBackend`` or a Dr.Jit array type. ``"auto"`` is the
    backend of the surrounding :func:`coopnet.with_backend`, if any; otherwise CUDA if it works, or LLVM. Raises
    :class:`BackendError` with advice if that backend is not usable here.

    >>> cn.backend.require("auto") in ("cuda", "llvm")
    True
    """
    auto = isinstance(backend, str) and backend == "auto"
    if auto and (preferred := preferring.get()) is not None:
        return preferred
    try:
        return _known[backend]
    except (KeyError, TypeError):
        pass
    faults = []
    for name in BACKENDS if auto else (name_of(backend),):
        fault = fault_of(name)
        if fault is None:
            _known[backend] = name  # failures are not cached, so that the next call checks again
            return name
        faults.append(fault)
    raise BackendError("\n".join(["No backend is usable."] * auto + faults[::-1]))


def name_of(backend: Any) -> str:
    """Name of the backend for an argument of :func:`require`."""
    import drjit as dr

    from ..checks import shown  # not above: it imports Dr.Jit

    what = f"backend={shown(backend)}"
    if isinstance(backend, str):
        if backend not in BACKENDS:
            raise ValueError(f'{what} is not a backend; use "auto", "llvm" (the CPU) or "cuda" (NVIDIA GPUs).')
        return backend
    if isinstance(backend, type) and dr.is_array_v(backend):
        backend = dr.backend_v(backend)
    if not isinstance(backend, dr.JitBackend):
        raise TypeError(f'{what} must be "auto", "llvm", "cuda", a drjit.JitBackend or a Dr.Jit array type.')
    if backend not in (dr.JitBackend.CUDA, dr.JitBackend.LLVM):
        hint = "use an array type of drjit.llvm.ad or drjit.cuda.ad"
        raise ValueError(f"{what} belongs to neither LLVM nor CUDA; {hint}.")
    return backend.name.lower()


def fault_of(name: str) -> str | None:
    """Why a backend cannot be used, or ``None`` if it can."""
    return _llvm_fault() if name == "llvm" else _cuda_fault()


def _llvm_fault() -> str | None:
    version = core.llvm_version()
    if version and version[0] >= MIN_LLVM:
        return None
    best = llvm.find_llvm()
    if best is None:
        return llvm.missing()
    if llvm.early and not version:
        return (
            f"Dr.Jit's LLVM backend did not start with {best}; Dr.Jit's message on standard error says why. "
            "It needs a CPU with AVX and FMA, or NEON."
        )
    loaded = f"has loaded LLVM {'.'.join(map(str, version))}" if version else "has found no usable libLLVM"
    return (
        f"The LLVM backend needs libLLVM {MIN_LLVM} or newer, but Dr.Jit {loaded} before coopnet could point it at "
        f"{best}. Cure: import coopnet before drjit, or set {VARIABLE}={best.path} before Python starts."
    )


def _cuda_fault() -> str | None:
    gpu, hint = core.gpu(), CURE_CUDA
    if gpu is None:
        why = f"Dr.Jit found no usable GPU ({_driver()})"
    elif gpu[0] < MIN_CUDA:
        why = f"the driver offers CUDA {gpu[0][0]}.{gpu[0][1]}"
    elif gpu[1] < MIN_COMPUTE:
        why = f"the GPU has compute capability {gpu[1] / 10}"
    elif not cuda.has_optix():
        why, hint = "libnvoptix.so.1 cannot be loaded", CURE_OPTIX
    else:
        return None
    head = "The CUDA backend needs an NVIDIA driver R570 or newer, OptiX and a Turing or newer GPU"
    return f"{head}; {why}. Cure: {hint}."


def _driver() -> str:
    driver, version, names = cuda.driver()
    if not version:
        return "no driver: libcuda cannot be loaded"
    return f"driver {driver or 'of unknown version'}, CUDA {version}, GPU: {', '.join(names) or 'none'}"


def available() -> tuple[str, ...]:
    """The backends usable here, a subset of ``("cuda", "llvm")``.

    >>> set(cn.backend.available()) <= {"cuda", "llvm"}
    True
    """
    return tuple(name for name in BACKENDS if fault_of(name) is None)


def namespace(backend: Any = "auto") -> ModuleType:
    """Dr.Jit's module of differentiable types of a backend: ``drjit.llvm.ad`` or ``drjit.cuda.ad``.

    >>> cn.backend.namespace("auto").__name__ in ("drjit.llvm.ad", "drjit.cuda.ad")
    True
    """
    return importlib.import_module(f"drjit.{require(backend)}.ad")
