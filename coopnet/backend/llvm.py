"""Find a libLLVM that Dr.Jit can use, before Dr.Jit looks for one.

It imports only the standard library when it is loaded, so it can run before anything is installed:
``python coopnet/backend/llvm.py`` says whether there is a suitable libLLVM.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MIN_LLVM = 17  #: older ones abort the process in half-precision cooperative vectors, or are refused by Dr.Jit
VARIABLE = "DRJIT_LIBLLVM_PATH"  #: read by Dr.Jit, once, when it is imported


@dataclass(frozen=True)
class LLVM:
    """A libLLVM on this machine. An empty ``version`` means that it is older than 16 and does not report its version.

    >>> cn.backend.LLVM("/usr/lib/libLLVM-15.so.1", (15, 0, 7)).suitable
    False
    """

    path: str
    version: tuple[int, ...]

    @property
    def suitable(self) -> bool:
        return bool(self.version) and self.version[0] >= MIN_LLVM

    def __str__(self) -> str:
        return f"LLVM {'.'.join(map(str, self.version)) or 'older than 16'} ({self.path})"


def name_version(path: str) -> tuple[int, ...] | None:
    """The version in a library's path, or ``None``.

    It recognizes ``libLLVM-15.so.1``, ``libLLVM-14.0.6.so``, ``libLLVM.so.19.1``, ``libLLVM-17.dylib`` and, for names
    without version, the directories ``llvm-19/lib`` of Debian and ``Cellar/llvm/19.1.7`` of Homebrew.

    >>> cn.backend.name_version("/usr/lib/libLLVM-19.so.1")
    (19,)
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
        # a small number, such as a lone "1" or "3", is the version of an interface, not of LLVM
        if match and (version := tuple(map(int, match[1].split("."))))[0] >= 7:
            return version
    return None


def _ask_version(path: str) -> tuple[int, ...] | None:
    """The version of a library, which another process loads; ``None`` if it is not a libLLVM."""
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
    """Class and machine of an ELF file; ``None`` for other files (a linker script, another system)."""
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
    version = name_version(real) or name_version(os.path.abspath(path)) or _ask_version(real)
    return None if version is None else LLVM(real, version)


def _directories() -> list[str]:
    """The existing directories where systems put libLLVM, found without starting a process."""
    directories = [os.path.join(sys.prefix, "lib")]  # a conda environment
    if sys.platform == "win32":
        directories += os.environ.get("PATH", "").split(os.pathsep)
        directories.append(os.path.join(os.environ.get("PROGRAMFILES", ""), "LLVM", "bin"))
    elif sys.platform == "darwin":
        for brew in ("/opt/homebrew", "/usr/local"):
            directories += glob.glob(f"{brew}/opt/llvm*/lib") + glob.glob(f"{brew}/Cellar/llvm*/*/lib")
    else:
        directories += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        for conf in ["/etc/ld.so.conf", *sorted(glob.glob("/etc/ld.so.conf.d/*.conf"))]:
            with suppress(OSError, UnicodeDecodeError):
                lines = Path(conf).read_text().splitlines()
                directories += [line.strip() for line in lines if line.startswith("/")]
        triple = f"{platform.machine()}-linux-gnu"
        for root in ("/usr/lib", "/usr/local/lib"):
            directories += [root, f"{root}64", f"{root}/{triple}", *glob.glob(f"{root}*/llvm*/lib*")]
        directories += [*glob.glob("/usr/lib/llvm/*/lib*"), "/usr/lib/wsl/lib"]
    return [d for d in dict.fromkeys(directories) if d and os.path.isdir(d)]


def _candidates(directory: str) -> list[str]:
    names = "LLVM-C.dll" if sys.platform == "win32" else "libLLVM*"
    return [
        path
        for path in glob.glob(os.path.join(glob.escape(directory), names))
        # not libLLVMSupport.a, libLLVMOrcJIT.so and the other parts of a static or component build
        if re.match(r"(LLVM-C\.dll|libLLVM([-.]\d[\w.]*)?\.(so|dylib)\b)", os.path.basename(path))
    ]


def _asked() -> list[str]:
    """Libraries and directories that ``ldconfig`` and ``llvm-config`` report."""
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
    """The library that ``DRJIT_LIBLLVM_PATH`` names, or ``None``. The loader resolves a name without directory."""
    value = os.environ.get(VARIABLE, "")
    if not value:
        return None
    if os.path.basename(value) != value or os.path.exists(value):
        return _inspect(value)
    version = _ask_version(value)
    return None if version is None else LLVM(value, version)


def _inspect_all(paths: list[str], named: LLVM | None = None) -> list[LLVM]:
    """The libraries in ``paths``, and ``named``, newest first."""
    unique = {os.path.realpath(p): p for p in reversed(paths)}  # many names lead to one library
    libraries = {llvm for llvm in (named, *map(_inspect, unique.values())) if llvm is not None}
    return sorted(libraries, key=lambda llvm: (llvm.version, llvm.path), reverse=True)


def _usual(directories: list[str] | None) -> list[str]:
    return [p for d in (_directories() if directories is None else directories) for p in _candidates(d)]


def found_llvm(directories: list[str] | None = None) -> list[LLVM]:
    """Every libLLVM found, suitable or not, newest first.

    Looks at ``DRJIT_LIBLLVM_PATH``, then at library names in ``directories`` (the system's usual ones unless
    given) and, without ``directories``, asks ``ldconfig`` and every ``llvm-config`` on ``PATH``.

    >>> all(library.path for library in cn.backend.found_llvm())
    True
    """
    paths = _usual(directories) + (_asked() if directories is None else [])
    return _inspect_all(paths, _named())


def find_llvm(directories: list[str] | None = None) -> LLVM | None:
    """The libLLVM to use: the one ``DRJIT_LIBLLVM_PATH`` names, else the newest if it is new enough.

    If the variable is set but names no suitable library, the result is ``None``. Other programs are called only if the
    usual directories hold no suitable library.

    >>> library = cn.backend.find_llvm()  # None if there is none that is new enough
    >>> library is None or library.version[0] >= cn.backend.MIN_LLVM
    True
    """
    named = bool(os.environ.get(VARIABLE))
    libraries = _inspect_all([] if named else _usual(directories), _named())
    if not named and directories is None and not (libraries and libraries[0].suitable):
        libraries = found_llvm()
    return libraries[0] if libraries and libraries[0].suitable else None


def llvm_cure() -> str:
    """The command that installs a suitable libLLVM on this kind of machine.

    >>> "llvm" in cn.backend.llvm_cure().lower()
    True
    """
    if sys.platform == "darwin":
        return "brew install llvm"
    if sys.platform == "win32":
        return f"install LLVM {MIN_LLVM} or newer for Windows and put its bin folder (LLVM-C.dll) on PATH"
    if shutil.which("apt-get"):
        return "apt-get install libllvm19"
    return f"install your distribution's package of libLLVM {MIN_LLVM} or newer (Debian, Ubuntu: libllvm19)"


def missing() -> str:
    """The error message if there is no suitable libLLVM: what was looked for, what was found, and what to do."""
    head, value, libraries = (
        f"The LLVM backend needs libLLVM {MIN_LLVM} or newer",
        os.environ.get(VARIABLE),
        found_llvm(),
    )
    if not value:
        return (
            f"{head}. Looked for it in {VARIABLE} (not set), the system's library directories, ldconfig and "
            f"llvm-config; found: {', '.join(map(str, libraries)) or 'none'}. "
            f"Cure: {llvm_cure()}, or set {VARIABLE} to the library's path before Python starts."
        )
    content = _named() or ("no libLLVM at all" if os.path.exists(value) else "a file that does not exist")
    suitable = libraries and libraries[0].suitable
    better = (
        f", or set it to {libraries[0].path}" if suitable else f" and {llvm_cure()}, or set it to a suitable library"
    )
    return f"{head}, but {VARIABLE}={value!r} names {content}. Cure: unset {VARIABLE}{better}."


chosen: str | None = None  #: the path to which prepare() has set the variable
early = False  #: did prepare() run before Dr.Jit was imported?


def prepare() -> None:
    """Point Dr.Jit at the newest suitable libLLVM. Called when ``coopnet`` is imported; never raises.

    It does not change a ``DRJIT_LIBLLVM_PATH`` that is set. It does nothing if Dr.Jit was imported before: a thread of
    Dr.Jit has then chosen a library, or is still reading the environment.

    >>> cn.backend.prepare()  # has no effect: importing coopnet has called it
    """
    global chosen, early
    if "drjit" in sys.modules:
        return
    early = True
    with suppress(Exception):
        llvm = find_llvm()
        if llvm is None:
            from ..jit.native.core import drjit

            drjit()  # waits until Dr.Jit has printed its warning
        elif not os.environ.get(VARIABLE):
            os.environ[VARIABLE] = chosen = llvm.path


if __name__ == "__main__":  # is there a suitable libLLVM? Asked by scripts/setup-system.sh
    best = find_llvm()
    print(best or missing())
    sys.exit(best is None)
