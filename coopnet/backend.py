"""Find and demarcate the backends: LLVM on the CPU, CUDA with OptiX on NVIDIA GPUs.

Dr.Jit loads its libraries in a thread that ``import drjit`` starts, so the choice of libLLVM must be made
before that import: ``coopnet`` calls :func:`prepare` first thing. Everything else calls :func:`require`,
which answers from a dictionary once a backend has been found usable and raises :class:`BackendError` with the
cure otherwise.

The module imports nothing but the standard library, so that it can be run as a script
(``python -c "import runpy; runpy.run_path('coopnet/backend.py', run_name='__main__')"``) to ask whether a
suitable libLLVM is there before anything is installed.
"""

from __future__ import annotations

import ctypes
import glob
import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

MIN_LLVM = 17  #: older ones abort the process in half-precision cooperative vectors, or are refused by Dr.Jit
MIN_CUDA = (12, 8)  #: the first with cooperative vectors in OptiX, driver R570
MIN_COMPUTE = 75  #: Turing
VARIABLE = "DRJIT_LIBLLVM_PATH"  #: read by Dr.Jit, once, when it is imported
BACKENDS = ("cuda", "llvm")  #: in the order in which "auto" tries them

#: Optional packages, by the extra that installs them.
EXTRAS = {
    "cli": ("typer", "pillow", "matplotlib", "safetensors", "tqdm"),
    "train": ("safetensors", "tqdm"),
}
_IMPORT_NAME = {"pillow": "PIL"}  # where it is not the name of the package

_CURE_CUDA = "install an NVIDIA driver R570 or newer on a machine with a Turing (RTX 20) or newer GPU"
_CURE_OPTIX = (
    "install the driver's OptiX library, libnvoptix.so.1 "
    "(containers: NVIDIA_DRIVER_CAPABILITIES=compute,graphics,utility)"
)


class BackendError(RuntimeError):
    """A backend is missing or unusable. The message says what was looked for and what mends it.

    >>> try:
    ...     field = field.build("cuda")
    ... except cn.BackendError as error:
    ...     print(error)
    """


# --------------------------------------------------------------------------------------------------
# LLVM: which libraries are there, and which one is suitable
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LLVM:
    """A libLLVM on this machine. An empty ``version`` means that it is older than 16 and does not tell."""

    path: str
    version: tuple[int, ...]

    @property
    def suitable(self) -> bool:
        return bool(self.version) and self.version[0] >= MIN_LLVM

    def __str__(self) -> str:
        return f"LLVM {'.'.join(map(str, self.version)) or 'older than 16'} ({self.path})"


def name_version(path: str) -> tuple[int, ...] | None:
    """The version that a library's path tells, or ``None``.

    Understands ``libLLVM-15.so.1``, ``libLLVM-14.0.6.so``, ``libLLVM.so.19.1``, ``libLLVM-17.dylib`` and,
    where the name says nothing, the directories ``llvm-19/lib`` of Debian and ``Cellar/llvm/19.1.7`` of
    Homebrew.
    """
    file = path.replace("\\", "/").rsplit("/", 1)[-1]
    for pattern, text in (
        (r"^libLLVM-(\d+(?:\.\d+)*)(?:git|rc\d*)?\.(?:so|dylib)\b", file),
        (r"^libLLVM\.so\.(\d+(?:\.\d+)*)", file),
        (r"^libLLVM\.(\d+(?:\.\d+)*)\.dylib$", file),
        (r"/Cellar/llvm(?:@\d+)?/(\d+(?:\.\d+)*)[^/]*/", path),
        (r"/llvm-(\d+)/lib/", path),
    ):
        match = re.search(pattern, text)
        # LLVM counts majors: a lone "1" or "3" is the version of an interface, not of LLVM
        if match and (version := tuple(map(int, match[1].split("."))))[0] >= 7:
            return version
    return None


def _ask_version(path: str) -> tuple[int, ...] | None:
    """Load a library in another process and let it tell its version; ``None`` if it is not a libLLVM."""
    code = (
        "import ctypes, sys\n"
        "lib = ctypes.CDLL(sys.argv[1])\n"
        "lib.LLVMDisposeMessage\n"
        "v = [ctypes.c_uint() for _ in range(3)]\n"
        "if hasattr(lib, 'LLVMGetVersion'):\n"  # since LLVM 16
        "    lib.LLVMGetVersion(*map(ctypes.byref, v))\n"
        "print(*(x.value for x in v))\n"
    )
    done = _run([sys.executable, "-I", "-S", "-c", code, path])
    if done is None or len(numbers := done.split()) != 3:
        return None
    return tuple(map(int, numbers)) if numbers[0] != "0" else ()


def _run(command: list[str]) -> str | None:
    """Standard output of a command that succeeds, else ``None``."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _machine(path: str) -> bytes | None:
    """Class and machine of an ELF file, ``None`` for anything else (a linker script, another system)."""
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return None
    return head[4:6] + head[18:20] if len(head) == 20 and head[:4] == b"\x7fELF" else None


def _inspect(path: str) -> LLVM | None:
    """The libLLVM in a file, or ``None`` if there is no such file or this process could not load it."""
    real = os.path.realpath(path)
    if not os.path.isfile(real):
        return None
    if sys.platform == "linux" and _machine(real) != _machine(sys.executable):
        return None
    version = name_version(real) or name_version(os.path.abspath(path))
    if version is None:
        version = _ask_version(real)
    return None if version is None else LLVM(real, version)


def _directories() -> list[str]:
    """Where systems put libLLVM, without starting any process."""
    found = [os.path.join(sys.prefix, "lib")]  # a conda environment
    if sys.platform == "win32":
        found += os.environ.get("PATH", "").split(os.pathsep)
        found.append(os.path.join(os.environ.get("PROGRAMFILES", ""), "LLVM", "bin"))
    elif sys.platform == "darwin":
        for brew in ("/opt/homebrew", "/usr/local"):
            found += glob.glob(f"{brew}/opt/llvm*/lib") + glob.glob(f"{brew}/Cellar/llvm*/*/lib")
    else:
        found += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        for conf in ["/etc/ld.so.conf", *sorted(glob.glob("/etc/ld.so.conf.d/*.conf"))]:
            with suppress(OSError, UnicodeDecodeError):
                lines = Path(conf).read_text().splitlines()
                found += [line.strip() for line in lines if line.startswith("/")]
        triple = f"{platform.machine()}-linux-gnu"
        for root in ("/usr/lib", "/usr/local/lib"):
            found += [root, f"{root}64", f"{root}/{triple}", *glob.glob(f"{root}*/llvm*/lib*")]
        found += [*glob.glob("/usr/lib/llvm/*/lib*"), "/usr/lib/wsl/lib"]
    return [d for d in dict.fromkeys(found) if d and os.path.isdir(d)]


def _candidates(directory: str) -> list[str]:
    names = "LLVM-C.dll" if sys.platform == "win32" else "libLLVM*"
    return [
        path
        for path in glob.glob(os.path.join(glob.escape(directory), names))
        # not libLLVMSupport.a, libLLVMOrcJIT.so and the other parts of a static or component build
        if re.match(r"(LLVM-C\.dll|libLLVM([-.]\d[\w.]*)?\.(so|dylib)\b)", os.path.basename(path))
    ]


def _asked() -> list[str]:
    """Libraries and directories that ``ldconfig`` and ``llvm-config`` tell about."""
    paths = []
    ldconfig = shutil.which("ldconfig", path=os.environ.get("PATH", "") + os.pathsep + "/sbin:/usr/sbin")
    if ldconfig and sys.platform == "linux":
        paths += re.findall(r"^\s*libLLVM[-.].* => (\S+)$", _run([ldconfig, "-p"]) or "", re.MULTILINE)
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        for tool in glob.glob(os.path.join(glob.escape(directory), "llvm-config*")):
            if re.fullmatch(r"llvm-config(-\d+)?(\.exe)?", os.path.basename(tool)):
                libdir = (_run([tool, "--libdir"]) or "").strip()
                paths += _candidates(libdir) if libdir else []
    return paths


def _named() -> LLVM | None:
    """The library that ``DRJIT_LIBLLVM_PATH`` names, if there is one. The loader resolves a bare name."""
    value = os.environ.get(VARIABLE, "")
    if not value:
        return None
    if os.path.basename(value) != value or os.path.exists(value):
        return _inspect(value)
    version = _ask_version(value)
    return None if version is None else LLVM(value, version)


def found_llvm(directories: list[str] | None = None) -> list[LLVM]:
    """Every libLLVM found, suitable or not, newest first.

    Looks at ``DRJIT_LIBLLVM_PATH``, then at library names in ``directories`` (the system's usual ones unless
    given) and, without ``directories``, asks ``ldconfig`` and every ``llvm-config`` on ``PATH``.
    """
    named = _named()
    paths = [p for d in (_directories() if directories is None else directories) for p in _candidates(d)]
    if directories is None:
        paths += _asked()
    return _newest_first(([named] if named else []) + _inspect_all(paths))


def find_llvm(directories: list[str] | None = None) -> LLVM | None:
    """The libLLVM to use: the one ``DRJIT_LIBLLVM_PATH`` names, else the newest if it is new enough.

    An explicit variable is respected: if it names nothing suitable, the answer is ``None``. Other programs
    are asked only if the usual directories hold no suitable library.
    """
    if os.environ.get(VARIABLE):
        named = _named()
        return named if named is not None and named.suitable else None
    usual = _directories() if directories is None else directories
    quick = _newest_first(_inspect_all([p for d in usual for p in _candidates(d)]))
    if not (quick and quick[0].suitable) and directories is None:
        quick = _newest_first(quick + _inspect_all(_asked()))
    return quick[0] if quick and quick[0].suitable else None


def _inspect_all(paths: list[str]) -> list[LLVM]:
    unique = {os.path.realpath(p): p for p in reversed(paths)}  # many names lead to one library
    return [llvm for p in unique.values() if (llvm := _inspect(p)) is not None]


def _newest_first(found: list[LLVM]) -> list[LLVM]:
    return sorted(dict.fromkeys(found), key=lambda llvm: (llvm.version, llvm.path), reverse=True)


_chosen: str | None = None  # what prepare() put into the variable
_early = False  # did prepare() run before Dr.Jit was imported?


def prepare() -> None:
    """Point Dr.Jit at the newest suitable libLLVM. Called when ``coopnet`` is imported; never raises.

    Leaves a ``DRJIT_LIBLLVM_PATH`` that is set alone, and does nothing if Dr.Jit was imported before: it has
    made its choice by then, in a thread that may still be reading the environment.
    """
    global _chosen, _early
    if "drjit" in sys.modules:
        return
    _early = True
    with suppress(Exception):
        llvm = find_llvm()
        if llvm is None:
            _drjit()  # it will warn: let it do so now, see there
        elif not os.environ.get(VARIABLE):
            os.environ[VARIABLE] = _chosen = llvm.path


def _drjit() -> ModuleType:
    """Dr.Jit, once the thread that looks for backends is done.

    Dr.Jit 1.5.0 prints its warnings from that thread with its own lock held, and needs Python's lock to do
    so. A call that takes them in the other order, ``has_backend`` for one, then hangs for good.
    ``sync_thread`` waits without Python's lock.
    """
    import drjit as dr

    dr.sync_thread()
    return dr


# --------------------------------------------------------------------------------------------------
# Which backend to use
# --------------------------------------------------------------------------------------------------

_known: dict[Any, str] = {}  # argument of require() -> its answer


def require(backend: Any = "auto") -> str:
    """The name of a usable backend, ``"cuda"`` or ``"llvm"``.

    ``backend`` is ``"auto"`` (CUDA where it works, else LLVM), ``"cuda"``, ``"llvm"``, a ``drjit.JitBackend``
    or a Dr.Jit array type. Raises :class:`BackendError` with the cure if that backend is not usable here.
    """
    try:
        return _known[backend]
    except (KeyError, TypeError):
        pass
    name = _resolve(backend)
    _known[backend] = name  # only answers are kept: a failure is worth a new look
    return name


def _resolve(backend: Any) -> str:
    if isinstance(backend, str):
        if backend == "auto":
            return _auto()
        if backend not in BACKENDS:
            raise ValueError(f'require: backend={_shown(backend)} is not a backend; use "auto", "llvm" or "cuda".')
        name = backend
    else:
        name = _name_of(backend)
    fault = _fault(name)
    if fault:
        raise BackendError(fault)
    return name


def _name_of(backend: Any) -> str:
    """Name of the backend that a ``JitBackend`` or an array type stands for."""
    import drjit as dr

    if isinstance(backend, dr.JitBackend):
        kind = backend
    elif isinstance(backend, type) and dr.is_array_v(backend):
        kind = dr.backend_v(backend)
    else:
        raise TypeError(
            f'require: backend={_shown(backend)} must be "auto", "llvm", "cuda", a drjit.JitBackend or a Dr.Jit array '
            f"type."
        )
    names = {dr.JitBackend.CUDA: "cuda", dr.JitBackend.LLVM: "llvm"}
    if kind not in names:
        raise ValueError(
            f"require: backend={_shown(backend)} belongs to neither LLVM nor CUDA; "
            "use an array type of drjit.llvm.ad or drjit.cuda.ad."
        )
    return names[kind]


def _shown(value: Any) -> str:
    from .checks import shown  # not above: this file also runs by itself

    return shown(value)


def _auto() -> str:
    faults = {}
    for name in BACKENDS:
        fault = _fault(name)
        if fault is None:
            return name
        faults[name] = fault
    raise BackendError(f"No backend is usable.\n{faults['llvm']}\n{faults['cuda']}")


def _fault(name: str) -> str | None:
    return _llvm_fault() if name == "llvm" else _cuda_fault()


def llvm_cure() -> str:
    """The command that brings a suitable libLLVM to this kind of machine."""
    if sys.platform == "darwin":
        return "brew install llvm"
    if sys.platform == "win32":
        return f"install LLVM {MIN_LLVM} or newer for Windows and put its bin folder (LLVM-C.dll) on PATH"
    if shutil.which("apt-get"):
        return "apt-get install libllvm19"
    return f"install your distribution's package of libLLVM {MIN_LLVM} or newer (Debian, Ubuntu: libllvm19)"


def _llvm_missing() -> str:
    """What was looked for, what was found instead, and the cure, when no suitable libLLVM is there."""
    value = os.environ.get(VARIABLE, "")
    head = f"The LLVM backend needs libLLVM {MIN_LLVM} or newer"
    if value:
        nothing = "no libLLVM at all" if os.path.exists(value) else "a file that does not exist"
        what = str(_named() or nothing)
        others = [llvm for llvm in found_llvm() if llvm.suitable]
        cure = f"set it to {others[0].path}" if others else llvm_cure()
        return f"{head}, but {VARIABLE}={value!r} names {what}. Cure: unset {VARIABLE}" + (
            f", or {cure}." if others else f" and {cure}, or set it to a suitable library."
        )
    found = ", ".join(map(str, found_llvm())) or "none"
    return (
        f"{head}. Looked for it in {VARIABLE} (not set), the system's library directories, ldconfig and "
        f"llvm-config; found: {found}. "
        f"Cure: {llvm_cure()}, or set {VARIABLE} to the library's path before Python starts."
    )


def _llvm_fault() -> str | None:
    """What keeps Dr.Jit's LLVM backend from being used, or ``None``."""
    dr = _drjit()
    active = dr.has_backend(dr.JitBackend.LLVM)
    version = tuple(dr.detail.llvm_version())
    if active and version[0] >= MIN_LLVM:
        return None
    best = find_llvm()
    if best is None:
        return _llvm_missing()
    loaded = f"has loaded LLVM {'.'.join(map(str, version))}" if active else "has found no usable libLLVM"
    if not _early or active:
        return (
            f"The LLVM backend needs libLLVM {MIN_LLVM} or newer, but Dr.Jit {loaded} before coopnet could "
            f"point it at {best}. Cure: import coopnet before drjit, "
            f"or set {VARIABLE}={best.path} before Python starts."
        )
    return (
        f"Dr.Jit's LLVM backend did not start with {best}; Dr.Jit's message on standard error says why. "
        "It needs a CPU with AVX and FMA, or NEON."
    )


def _cuda_fault() -> str | None:
    """What keeps cooperative vectors from being used on CUDA, or ``None``."""
    dr = _drjit()
    head = "The CUDA backend needs an NVIDIA driver R570 or newer, OptiX and a Turing or newer GPU"
    if not dr.has_backend(dr.JitBackend.CUDA):
        return f"{head}; Dr.Jit found no usable GPU ({_describe_cuda()}). Cure: {_CURE_CUDA}."
    cuda = tuple(dr.detail.cuda_version())
    if cuda < MIN_CUDA:
        return f"{head}; the driver offers CUDA {cuda[0]}.{cuda[1]}. Cure: {_CURE_CUDA}."
    compute = dr.detail.cuda_compute_capability()
    if compute < MIN_COMPUTE:
        return f"{head}; the GPU has compute capability {compute / 10}. Cure: {_CURE_CUDA}."
    if not has_optix():
        return f"{head}; libnvoptix.so.1 cannot be loaded. Cure: {_CURE_OPTIX}."
    return None


def available() -> tuple[str, ...]:
    """The backends usable here, a subset of ``("cuda", "llvm")``."""
    return tuple(name for name in BACKENDS if _fault(name) is None)


def namespace(backend: Any = "auto") -> ModuleType:
    """Dr.Jit's module of differentiable types of a backend: ``drjit.llvm.ad`` or ``drjit.cuda.ad``."""
    import importlib

    return importlib.import_module(f"drjit.{require(backend)}.ad")


# Run in a process of its own: a driver or compiler that does not know an instruction aborts.
_PRODUCT = """
import sys
import drjit as dr, drjit.nn as nn
cuda = sys.argv[1] == "cuda"
if cuda:
    from drjit.cuda.ad import Float16 as Float, TensorXf16 as Tensor
else:
    from drjit.llvm.ad import Float32 as Float, TensorXf as Tensor
matrix = nn.pack(Tensor(dr.arange(Float, 12) / 8, (3, 4)), layout="inference")
y = list(nn.matvec(matrix, nn.CoopVec(*(Float(i + 1, i + 2) for i in range(4)))))
want = [[2.5, 3.25], [7.5, 10.25], [12.5, 17.25]]
got = [[float(v) for v in row] for row in y]
print("right" if got == want else f"wrong: {got} instead of {want}")
"""


def runs_coopvec(backend: Any = "auto") -> str | None:
    """Multiply a small matrix with a cooperative vector for real, in half precision on CUDA, single on LLVM.

    Returns ``None`` if the result is right, otherwise a short reason.
    """
    try:
        name = require(backend)
    except BackendError as error:
        return str(error)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PRODUCT, name], capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"could not be run: {error}"
    if done.returncode < 0:
        return f"the process died of signal {-done.returncode}"
    last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1:]
    if last == ["right"]:
        return None
    return last[0] if last else f"no result, exit status {done.returncode}"


# --------------------------------------------------------------------------------------------------
# What is here: `coopnet info`
# --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def has_optix() -> bool:
    """Can OptiX be loaded? It comes with the driver, but containers often leave it out."""
    if sys.platform == "win32":
        return True  # Dr.Jit finds it beside the display driver
    try:
        ctypes.CDLL(os.environ.get("DRJIT_LIBOPTIX_PATH") or "libnvoptix.so.1")
    except OSError:
        return False
    return True


@lru_cache(maxsize=1)
def _cuda_driver() -> tuple[str, str, list[str]]:
    """Driver version, CUDA version and GPU names as the driver tells them, empty where there is none."""
    try:
        if sys.platform == "win32":
            lib = ctypes.CDLL("nvcuda.dll")
        else:
            lib = ctypes.CDLL(os.environ.get("DRJIT_LIBCUDA_PATH") or "libcuda.so.1")
    except OSError:
        return "", "", []
    number, count, names = ctypes.c_int(), ctypes.c_int(), []
    lib.cuDriverGetVersion(ctypes.byref(number))
    cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    if lib.cuInit(0) == 0 and lib.cuDeviceGetCount(ctypes.byref(count)) == 0:
        for i in range(count.value):
            device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
            if lib.cuDeviceGet(ctypes.byref(device), i) == 0 and lib.cuDeviceGetName(name, 256, device) == 0:
                names.append(name.value.decode(errors="replace"))
    driver = ""
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text()
        match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
        driver = match[1] if match else ""
    return driver, cuda, names


def _describe_cuda() -> str:
    driver, cuda, names = _cuda_driver()
    if not cuda:
        return "no driver: libcuda cannot be loaded"
    return f"driver {driver or 'of unknown version'}, CUDA {cuda}, GPU: {', '.join(names) or 'none'}"


def kernel_cache() -> Path:
    """The directory in which Dr.Jit keeps compiled kernels."""
    if os.environ.get("DRJIT_CACHE_DIR"):
        return Path(os.environ["DRJIT_CACHE_DIR"])
    if sys.platform == "win32":
        import tempfile

        return Path(tempfile.gettempdir()) / "drjit"
    return Path.home() / ".drjit"


def _kernel_cache_row() -> str:
    path = kernel_cache()
    sizes = []
    for file in path.rglob("*"):
        with suppress(OSError):  # another process may be sweeping
            sizes.append(file.stat().st_size)
    size = sum(sizes)
    amount = f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
    return f"{path}, {len(sizes)} files, {amount}" if sizes else f"{path}, empty"


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _package_row(package: str, requirement: str | None = None) -> tuple[str, str, str]:
    """Row of a Python package that must be importable, with the command that installs it."""
    import importlib.util

    there = importlib.util.find_spec(_IMPORT_NAME.get(package, package)) is not None
    if not there:
        return package, "missing", f'pip install "{requirement}"' if requirement else f"pip install {package}"
    return package, _version(package) or "present, version unknown", ""


def _cure_of(fault: str) -> str:
    """The part of a fault's text that mends it."""
    return fault.rpartition("Cure: ")[2].rstrip(".") if "Cure: " in fault else ""


def info() -> list[tuple[str, str, str]]:
    """What is here, as rows of (what, finding, cure or empty). Runs a product on each usable backend."""
    rows = [("coopnet", _version("coopnet") or "not installed, run from its sources", "")]
    _, finding, cure = _package_row("drjit", "drjit>=1.5,<1.6")
    if not cure and not re.match(r"1\.5(\.|$)", finding):
        cure = 'pip install "drjit>=1.5,<1.6"'
    rows.append(("Dr.Jit", finding, cure))
    rows.append(("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}", ""))
    rows.append(("NumPy", *_package_row("numpy")[1:]))

    faults: dict[str, str | None] = dict.fromkeys(BACKENDS, "Dr.Jit is not installed")
    with suppress(ImportError):
        faults = {name: _fault(name) for name in BACKENDS}

    rows.append(("LLVM", *_llvm_row(faults["llvm"])))
    driver, cuda, names = _cuda_driver()
    fault = faults["cuda"]
    cure = f"for the CUDA backend: {_CURE_CUDA}" if fault and "libnvoptix" not in fault else ""
    rows.append(("CUDA driver", f"{driver or 'unknown version'}, CUDA {cuda}" if cuda else "none", cure))
    rows.append(("GPU", ", ".join(names) or "none", ""))
    optix = has_optix()
    rows.append(("OptiX", "usable" if optix else "not found", "" if optix or not names else _CURE_OPTIX))
    for name, precision in (("llvm", "single"), ("cuda", "half")):
        label = f"{'LLVM' if name == 'llvm' else 'CUDA'} product"
        if faults[name]:
            rows.append((label, "not run: backend not usable", ""))
            continue
        reason = runs_coopvec(name)
        fine = f"cooperative vectors run, {precision} precision"
        cure = "" if reason is None else llvm_cure() if name == "llvm" else _CURE_CUDA
        rows.append((label, reason or fine, cure))
    rows.append(("kernel cache", _kernel_cache_row(), ""))
    for package in dict.fromkeys(p for extra in EXTRAS.values() for p in extra):
        rows.append(_package_row(package))
    return rows


def _llvm_row(fault: str | None) -> tuple[str, str]:
    loaded = ""
    with suppress(ImportError):
        dr = _drjit()
        if dr.has_backend(dr.JitBackend.LLVM):
            version = ".".join(map(str, dr.detail.llvm_version()))
            loaded = f"{version}, {_loaded_path() or os.environ.get(VARIABLE) or 'chosen by Dr.Jit'}"
    if fault is None:
        return loaded, ""
    others = found_llvm()
    finding = f"too old: {loaded}" if loaded else f"too old: {others[0]}" if others else "none"
    if os.environ.get(VARIABLE) and os.environ[VARIABLE] != _chosen:
        finding = f"{VARIABLE}={os.environ[VARIABLE]!r} is unsuitable"
    elif others and others[0].suitable:
        finding = f"{others[0]} is not in use"
    return finding, _cure_of(fault) or fault


def _loaded_path() -> str:
    """The libLLVM that this process has loaded, where the system tells."""
    with suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            if re.search(r"/libLLVM[-.][^/]*$", line.rstrip()):
                return line.split(maxsplit=5)[-1].strip()
    return ""


def format_info(rows: list[tuple[str, str, str]]) -> str:
    """Rows of :func:`info` as aligned text, each cure under its finding."""
    width = max((len(what) for what, _, _ in rows), default=0)
    lines = []
    for what, finding, cure in rows:
        lines.append(f"{what:<{width}}  {finding}")
        if cure:
            lines.append(f"{'':<{width}}  -> {cure}")
    return "\n".join(lines)


if __name__ == "__main__":  # is there a suitable libLLVM? Asked by scripts/setup-system.sh
    _best = find_llvm()
    print(_best if _best else _llvm_missing())
    sys.exit(_best is None)
