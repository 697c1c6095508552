"""Fixtures shared by all tests: one run of a test per usable backend, and another processor to compile for."""

import ctypes
import gc
import os
from pathlib import Path

import drjit as dr
import pytest

from coopnet import backend as backends

backends.prepare()
pytest_plugins = ["support.lost_workers"]

try:
    from hypothesis import settings
except ImportError:  # a GPU machine's own Python may lack it; the tests that need it are skipped there
    pass
else:
    # The same examples everywhere, so that a failure on one machine is a failure on all.
    settings.register_profile(
        "coopnet",
        deadline=None,
        derandomize=True,
        print_blob=True,
        max_examples=int(os.environ.get("COOPNET_EXAMPLES", "30")),
    )
    settings.load_profile("coopnet")

#: Another processor than this one for LLVM, as "name:vector width": haswell:8, skylake-avx512:16, znver4:16 and so on.
TARGET = os.environ.get("COOPNET_TARGET", "")


def _set_target(target: str) -> None:
    """Make LLVM compile for another processor, which this one must be able to stand in for."""
    cpu, _, width = target.partition(":")
    library = ctypes.CDLL(str(Path(dr.__file__).with_name("libdrjit-core.so")))
    set_target = library._Z19jit_llvm_set_targetPKcS0_j  # Dr.Jit's Python package does not show it
    set_target(cpu.encode(), None, ctypes.c_uint32(int(width)))


if TARGET:
    backends.require("llvm")  # there is a target to replace only once the backend has started
    _set_target(TARGET)


def pytest_report_header() -> list[str]:
    return [f"backends: {', '.join(backends.available()) or 'none'}; LLVM compiles for {TARGET or 'this processor'}"]


@pytest.fixture(scope="session", params=backends.available() or ["none"])
def backend(request):
    """Name of a backend: "llvm" or "cuda"."""
    if request.param == "none":
        backends.require("auto")  # fails the test with the cure
    return request.param


@pytest.fixture(scope="session")
def ns(backend):
    """Dr.Jit's module of differentiable types of the backend."""
    return backends.namespace(backend)


@pytest.fixture(autouse=True)
def collection_between_tests():
    """Python's cyclic collector runs between tests only.

    Memory of NumPy's that it frees while Dr.Jit records a frozen function aborts the process, whoever left it behind.
    """
    gc.disable()
    yield
    gc.enable()
