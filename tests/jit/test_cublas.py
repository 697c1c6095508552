"""NVIDIA's cuBLAS, by ``ctypes``; its interface is played where there is none."""

import contextlib
import ctypes
import ctypes.util
import importlib

import drjit as dr
import numpy as np
import pytest

from coopnet.jit.native import cublas


@pytest.fixture
def on_cuda(backend):
    if backend != "cuda" or not cublas.available():
        pytest.skip("needs CUDA and cuBLAS")


@pytest.mark.parametrize("shape", [(1, 64, 8, 8), (3, 1024, 64, 16), (5, 8, 24, 72), (2, 1000, 8, 128)])
def test_products(on_cuda, ns, shape):
    pieces, length, m, n = shape
    a, b = (np.random.default_rng(k).integers(-4, 5, (pieces, length, w)) for k, w in enumerate((m, n)))
    left, right = (ns.Float16(v.ravel().astype(np.float16)) for v in (a, b))
    dr.eval(left, right)
    for _ in range(2):  # the second time with the handle of the first
        got = cublas.batched(left, right, pieces, length, m, n).numpy().reshape(pieces, m, n)
        np.testing.assert_array_equal(got, np.einsum("plm,pln->pmn", a, b))


def test_sums_are_single_precision(on_cuda, ns):
    ones = ns.Float16(np.ones(4096 * 8, np.float16))
    dr.eval(ones)
    assert (cublas.batched(ones, ones, 1, 4096, 8, 8).numpy() == 4096).all()  # half precision stalls at 2048


class Library:
    """Remembers what it is called with; ``code`` is what it answers."""

    def __init__(self, code=0):
        self.code, self.calls = code, []

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, args)) or self.code


@pytest.fixture(scope="module")
def llvm():
    if not dr.has_backend(dr.JitBackend.LLVM):
        pytest.skip("needs LLVM")
    return importlib.import_module("drjit.llvm.ad")


@pytest.fixture
def played(monkeypatch):
    """cuBLAS on LLVM's arrays: its library, its handle, and the current stream."""
    library = Library()
    monkeypatch.setattr(cublas, "_library", lambda: library)
    monkeypatch.setattr(cublas, "_context", contextlib.nullcontext)
    monkeypatch.setattr(cublas, "_handle", lambda: "handle")
    monkeypatch.setattr(cublas, "_stream", lambda: "stream")
    return library


def address(array):
    return array.numpy().ctypes.data


def test_what_is_called(played, llvm):
    """The product of transposes, as cuBLAS counts columns first."""
    assert cublas.available()
    a, b = llvm.Float16(np.arange(2 * 16 * 8)), llvm.Float16(np.arange(2 * 16 * 24))
    dr.eval(a, b)
    result = cublas.batched(a, b, 2, 16, 8, 24)
    assert dr.width(result) == 2 * 8 * 24 and type(result) is llvm.Float
    (name, args), (product, given) = played.calls
    assert (name, args) == ("cublasSetStream_v2", ("handle", "stream")) and product == "cublasGemmStridedBatchedEx"
    # handle, operations, sizes; then addresses, types, leading dimensions and strides of the operands and the result
    assert given[:6] == ("handle", 0, 1, 24, 8, 16)
    assert given[7:11] == (address(b), 2, 24, 16 * 24) and given[11:15] == (address(a), 2, 8, 16 * 8)
    assert given[16:20] == (address(result), 0, 24, 8 * 24)
    assert given[20:] == (2, 68, -1)  # pieces; sums in single precision; any algorithm


def test_failures_are_errors(played, llvm):
    played.code = 13
    ones = llvm.Float16(np.ones(8))
    dr.eval(ones)
    with pytest.raises(RuntimeError, match=r"cublasSetStream returned 13.*gradient_path"):
        cublas.batched(ones, ones, 1, 1, 8, 8)


def test_where_it_is_looked_for(monkeypatch, tmp_path):
    folder = tmp_path / "cu13" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcublas.so.13").write_bytes(b"")

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(cublas.importlib.util, "find_spec", lambda name: Spec() if name == "nvidia" else None)
    first, *others = cublas._places()
    assert first == str(folder / "libcublas.so.13") and "libcublas.so.12" in others
    monkeypatch.setattr(cublas.importlib.util, "find_spec", lambda name: None)
    assert list(cublas._places()) == others
    # a file that is no library, and names that nobody has: there is none
    monkeypatch.setattr(cublas, "_places", lambda: iter([str(folder / "libcublas.so.13"), "libnothing.so.1"]))
    assert cublas._library.__wrapped__() is None
    monkeypatch.setattr(cublas, "_places", lambda: iter([ctypes.util.find_library("c") or "libc.so.6"]))
    assert cublas._library.__wrapped__() is None  # one without its functions


def test_a_library_that_the_driver_does_not_take(monkeypatch):
    """It is newer than the driver: another may do."""

    class Drjit:
        @staticmethod
        def has_backend(which):
            return True

    monkeypatch.setattr(cublas, "drjit", Drjit)
    monkeypatch.setattr(cublas, "_context", contextlib.nullcontext)
    good, bad = Library(), Library(1)
    assert cublas._works(good) and not cublas._works(bad)
    assert [name for name, _ in good.calls] == ["cublasCreate_v2", "cublasDestroy_v2"]
    assert [name for name, _ in bad.calls] == ["cublasCreate_v2"]
