"""Which backend is used, and what is said of one that cannot be."""

import sys

import drjit as dr
import pytest
from support.machines import pretend

from coopnet import backend as b
from coopnet.backend import llvm, usable
from coopnet.jit.native import cuda


def test_what_is_said_of_llvm(monkeypatch):
    best = b.LLVM("/lib/libLLVM.so.19.1", (19, 1))
    monkeypatch.setattr(llvm, "find_llvm", lambda: best)
    for version in ((17, 0, 0), (19, 1, 7)):
        pretend(monkeypatch, llvm_version=version)
        assert usable._llvm_fault() is None
    pretend(monkeypatch, llvm_version=(16, 9, 9))
    monkeypatch.setattr(llvm, "early", True)
    assert "has loaded LLVM 16.9.9 before coopnet" in usable._llvm_fault()  # coopnet would have chosen another
    pretend(monkeypatch, active=False)
    assert "did not start with LLVM 19.1 (/lib/libLLVM.so.19.1)" in usable._llvm_fault()
    monkeypatch.setattr(llvm, "early", False)
    assert "found no usable libLLVM before coopnet" in usable._llvm_fault()
    assert "DRJIT_LIBLLVM_PATH=/lib/libLLVM.so.19.1 before Python starts" in usable._llvm_fault()
    monkeypatch.setattr(llvm, "find_llvm", lambda: None)
    monkeypatch.setattr(llvm, "missing", lambda: "none here")
    assert usable._llvm_fault() == "none here"


def test_what_is_said_of_cuda(monkeypatch):
    monkeypatch.setattr(cuda, "has_optix", lambda: True)
    monkeypatch.setattr(cuda, "driver", lambda: ("570.1", "12.8", ["GPU 1", "GPU 2"]))
    for facts in ({}, {"cuda_version": (13, 0)}, {"cuda_compute_capability": 120}):
        pretend(monkeypatch, **facts)
        assert usable._cuda_fault() is None
    for facts, words in [
        ({"active": False}, "no usable GPU (driver 570.1, CUDA 12.8, GPU: GPU 1, GPU 2). Cure: install an NVIDIA"),
        ({"cuda_version": (12, 7)}, "the driver offers CUDA 12.7. Cure: install an NVIDIA driver"),
        ({"cuda_compute_capability": 70}, "compute capability 7.0. Cure: install"),
    ]:
        pretend(monkeypatch, **facts)
        assert words in usable._cuda_fault()
    pretend(monkeypatch)
    monkeypatch.setattr(cuda, "has_optix", lambda: False)
    assert "libnvoptix.so.1 cannot be loaded. Cure: install the driver's OptiX" in usable._cuda_fault()
    monkeypatch.setattr(cuda, "driver", lambda: ("", "12.8", []))
    assert usable._driver() == "driver of unknown version, CUDA 12.8, GPU: none"
    monkeypatch.setattr(cuda, "driver", lambda: ("", "", []))
    assert usable._driver() == "no driver: libcuda cannot be loaded"


@pytest.mark.parametrize("name", ["", "LLVM", "cpu", "gpu", "opencl"])
def test_unknown_name(name):
    with pytest.raises(ValueError, match=f'^backend={name!r}.*"auto", "llvm" .* or "cuda"'):
        b.require(name)


@pytest.mark.parametrize("value", [None, 3, 1.5, [], {}, int, object(), b])
def test_not_a_backend(value):
    with pytest.raises(TypeError, match=r"^backend="):
        b.require(value)


def test_types_of_no_backend():
    import drjit.scalar

    for value in (drjit.scalar.ArrayXf, dr.JitBackend.Invalid, dr.JitBackend.Metal):
        with pytest.raises(ValueError, match="neither LLVM nor CUDA"):
            b.require(value)


def test_require(backend, ns):
    which = {"llvm": dr.JitBackend.LLVM, "cuda": dr.JitBackend.CUDA}[backend]
    for value in (backend, which, ns.Float, ns.Array3f, ns.TensorXf16, ns.UInt64, ns.ArrayXb):
        assert b.require(value) == backend
        assert b.require(value) == backend  # from the dictionary
    assert b.require("auto") == b.require() == b.available()[0]
    assert b.namespace(ns.Float) is ns is sys.modules[f"drjit.{backend}.ad"]


@pytest.mark.skipif("cuda" in b.available(), reason="this machine has a usable GPU")
def test_no_cuda():
    import drjit.cuda.ad

    for value in ("cuda", dr.JitBackend.CUDA, drjit.cuda.ad.Float):
        with pytest.raises(b.BackendError, match=r"(?s)CUDA backend needs.*R570.*Turing.*Cure: install"):
            b.require(value)
    assert "Cure" in b.runs_coopvec("cuda")
