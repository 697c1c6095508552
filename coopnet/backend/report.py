"""The rows of ``coopnet info``: versions, backends, packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..jit.native import core, cuda
from ..version import __version__
from . import llvm
from .llvm import VARIABLE, found_llvm, llvm_cure
from .usable import BACKENDS, CURE_CUDA, CURE_OPTIX, BackendError, available, fault_of, require

DRJIT = "drjit>=1.5,<1.6"
#: Optional packages, by the extra that installs them.
EXTRAS = {
    "cli": ("typer", "pillow", "matplotlib", "safetensors", "tqdm"),
    "train": ("safetensors", "tqdm"),
}
_IMPORT_NAME = {"pillow": "PIL"}  # for packages that are imported by another name

Row = tuple[str, str, str]

# Runs in another process: drivers and compilers abort at instructions that they do not know.
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
    """Run a product of a small matrix and a cooperative vector, in half precision on CUDA, single on LLVM.

    Returns ``None`` if the result is right, otherwise a short reason.

    >>> cn.backend.runs_coopvec(cn.backend.require()) is None  # it does
    True
    """
    try:
        command = [sys.executable, "-c", _PRODUCT, require(backend)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except BackendError as error:
        return str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return f"could not be run: {error}"
    if done.returncode < 0:
        return f"the process died of signal {-done.returncode}"
    last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1:]
    if last == ["right"]:
        return None
    return last[0] if last else f"no result, exit status {done.returncode}"


def info() -> list[Row]:
    """Rows of (subject, finding, advice or empty) about this machine. Runs a product on each usable backend.

    >>> [finding for what, finding, cure in cn.backend.info() if what == "Dr.Jit"][0].startswith("1.5")
    True
    """
    faults = {name: fault_of(name) for name in BACKENDS}
    _, drjit, hint = _package_row("drjit", DRJIT)
    if not hint and not re.match(r"1\.5(\.|$)", drjit):
        hint = f'pip install "{DRJIT}"'
    return [
        ("coopnet", _version("coopnet") or "not installed, run from its sources", ""),
        ("Dr.Jit", drjit, hint),
        ("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}", ""),
        ("NumPy", *_package_row("numpy")[1:]),
        ("LLVM", *_llvm_row(faults["llvm"])),
        *_cuda_rows(faults["cuda"]),
        ("LLVM product", *_product_row("llvm", "single", faults, llvm_cure())),
        ("CUDA product", *_product_row("cuda", "half", faults, CURE_CUDA)),
        ("kernel cache", _kernel_cache_row(), ""),
        *map(_package_row, dict.fromkeys(p for extra in EXTRAS.values() for p in extra)),
    ]


def _version(package: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _package_row(package: str, requirement: str | None = None) -> Row:
    """The row of a Python package. If it cannot be imported, the advice is the command that installs it."""
    if importlib.util.find_spec(_IMPORT_NAME.get(package, package)) is None:
        return package, "missing", f'pip install "{requirement}"' if requirement else f"pip install {package}"
    return package, _version(package) or "present, version unknown", ""


def _llvm_row(fault: str | None) -> tuple[str, str]:
    named, version = os.environ.get(VARIABLE), core.llvm_version()
    path = _loaded_path() or named or "chosen by Dr.Jit"
    loaded = f"{'.'.join(map(str, version))}, {path}" if version else ""
    if fault is None:
        return loaded, ""
    others = found_llvm()
    finding = f"too old: {loaded or others[0]}" if loaded or others else "none"
    if named and named != llvm.chosen:
        finding = f"{VARIABLE}={named!r} is unsuitable"
    elif others and others[0].suitable:
        finding = f"{others[0]} is not in use"
    # the advice in the fault's text
    return finding, fault.rpartition("Cure: ")[2].rstrip(".") if "Cure: " in fault else fault


def _loaded_path() -> str:
    """The libLLVM that this process has loaded, if the system reports it."""
    with suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            if re.search(r"/libLLVM[-.][^/]*$", line.rstrip()):
                return line.split(maxsplit=5)[-1].strip()
    return ""


def _cuda_rows(fault: str | None) -> list[Row]:
    from ..jit.native import cublas  # imports Dr.Jit

    driver, version, names = cuda.driver()
    optix = cuda.has_optix()
    hint = f"for the CUDA backend: {CURE_CUDA}" if fault and "libnvoptix" not in fault else ""
    library = cublas.location()
    missing = "for training wide networks on the GPU: pip install nvidia-cublas" if names and not library else ""
    return [
        ("CUDA driver", f"{driver or 'unknown version'}, CUDA {version}" if version else "none", hint),
        ("GPU", ", ".join(names) or "none", ""),
        ("OptiX", "usable" if optix else "not found", "" if optix or not names else CURE_OPTIX),
        ("cuBLAS", library or "not found", missing),
    ]


def _product_row(name: str, precision: str, faults: dict[str, str | None], hint: str) -> tuple[str, str]:
    if faults[name]:
        return "not run: backend not usable", ""
    reason = runs_coopvec(name)
    return (reason, hint) if reason else (f"cooperative vectors run, {precision} precision", "")


def kernel_cache() -> Path:
    """The directory in which Dr.Jit keeps compiled kernels.

    >>> folder = cn.backend.kernel_cache()
    """
    if os.environ.get("DRJIT_CACHE_DIR"):
        return Path(os.environ["DRJIT_CACHE_DIR"])
    if sys.platform == "win32":
        return Path(tempfile.gettempdir()) / "drjit"
    return Path.home() / ".drjit"


def _kernel_cache_row() -> str:
    path = kernel_cache()
    sizes = []
    for file in path.rglob("*"):
        with suppress(OSError):  # another process may have deleted the file
            sizes.append(file.stat().st_size)
    size = sum(sizes)
    amount = f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
    return f"{path}, {len(sizes)} files, {amount}" if sizes else f"{path}, empty"


#: Packages in a bug report, besides those of :data:`EXTRAS`.
_REPORTED = ("drjit", "numpy", "mitsuba", "torch", "trimesh", "libigl", "nvidia-cublas")


def as_json(rows: list[Row]) -> dict[str, Any]:
    """Rows of :func:`info` as a dictionary for JSON, for bug reports.

    ``"format"`` is 1, and changes if the meaning of other entries does. ``"backends"`` are those that can be used.
    ``"found"`` has a ``"finding"`` and a ``"cure"``, which may be ``null``, for every row; ``"packages"`` has versions.

    >>> cn.backend.as_json([("GPU", "none", "install one")])["found"]
    {'GPU': {'finding': 'none', 'cure': 'install one'}}
    """
    packages = dict.fromkeys([*_REPORTED, *(p for extra in EXTRAS.values() for p in extra)])
    return {
        "format": 1,
        "coopnet": __version__,
        "backends": available(),
        "found": {what: {"finding": finding, "cure": hint or None} for what, finding, hint in rows},
        "packages": {name: _version(name) for name in packages},
    }


def format_info(rows: list[Row]) -> str:
    """Rows of :func:`info` as aligned text, with advice under its finding.

    >>> print(cn.backend.format_info([("GPU", "none", "install one")]))
    GPU  none
         -> install one
    """
    width = max((len(what) for what, _, _ in rows), default=0)
    lines = []
    for what, finding, hint in rows:
        lines.append(f"{what:<{width}}  {finding}")
        if hint:
            lines.append(f"{'':<{width}}  -> {hint}")
    return "\n".join(lines)
