"""Products over samples by NumPy's BLAS: in slices, in pieces, on one thread each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coopnet.engine import products as blas


@pytest.fixture
def threads(monkeypatch):
    """Numbers of threads that BLAS was told to use, and those that Dr.Jit has."""
    told = []

    class Drjit:
        @staticmethod
        def thread_count():
            return 3

    monkeypatch.setattr(blas, "_controls", lambda: (lambda: 7, told.append))
    monkeypatch.setattr(blas, "dr", Drjit)
    blas._pool.cache_clear()
    yield told
    blas._pool.cache_clear()


@pytest.mark.parametrize("samples", [1, 5, 4095, 4096, 8192, 16_384, 30_001])
def test_products(threads, monkeypatch, samples):
    """Whatever slices and pieces there are; slices are what threads take."""
    monkeypatch.setattr(blas, "LEAST", 1 << 12)
    a, b = (np.random.default_rng(i).random((samples, n), np.float32) for i, n in enumerate((3, 5)))
    found = blas.product(a, b)
    assert found.shape == (3, 5) and found.dtype == np.float32
    np.testing.assert_allclose(found, a.T.astype(np.float64) @ b, rtol=3e-7 * min(samples, 8))
    assert threads == [1, 7]  # one at a time, and then as before
    assert (blas._pool.cache_info().currsize == 1) == (samples >= 2 << 12)


def test_pieces_are_added_up_in_double_precision(threads):
    """In single precision, 2^24 + 1 is 2^24 however often it is done."""
    a = np.zeros((4 * blas.PIECE, 1), np.float32)
    a[:: blas.PIECE, 0] = [4096, 1, 1, 1]
    assert blas.product(a, a)[0, 0] == np.float32(2**24 + 3) > 2**24


def test_infinities_are_left_to_the_caller(threads, recwarn):
    a = np.array([[np.inf], [1], [-np.inf]], np.float32)
    assert np.isnan(blas.product(a, np.ones((3, 1), np.float32)))
    assert not recwarn.list


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (64, 64), (1, 17)])
def test_results_are_aligned(shape):
    values = np.random.default_rng(0).random(shape)
    keep = [blas._aligned(values, np.dtype(np.float32)) for _ in range(20)]
    for found in keep:
        assert found.ctypes.data % 64 == 0 and found.flags.c_contiguous
        np.testing.assert_array_equal(found, values.astype(np.float32))


def test_a_numpy_of_another_make(monkeypatch):
    """Without a way to tell BLAS the number of threads it is not used, and nothing is told."""
    monkeypatch.setattr(blas, "_controls", lambda: None)
    assert not blas.available()
    with blas._one_thread():
        pass


@pytest.fixture
def libraries(monkeypatch):
    """OpenBLAS libraries that are found, by path: names of their functions, or None where loading fails."""
    found = {}

    class Library:
        def __init__(self, path):
            if found[path] is None:
                raise OSError
            vars(self).update((name, f"{path}:{name}") for name in found[path])

    def listed(pattern):
        folder = pattern.split("/")[-2]
        return [path for path in found if path.startswith(folder) and "openblas" in pattern]

    monkeypatch.setattr(blas.glob, "glob", listed)
    monkeypatch.setattr(blas.ctypes, "CDLL", Library)
    blas._controls.cache_clear()
    yield found
    blas._controls.cache_clear()


@pytest.mark.parametrize("folder", ["numpy.libs", ".dylibs"])
@pytest.mark.parametrize("prefix, suffix", [("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")])
def test_names_that_numpy_gives_to_openblas(libraries, folder, prefix, suffix):
    name = f"{prefix}openblas_{{}}_num_threads{suffix}"
    libraries.update({f"{folder}/a": None, f"{folder}/b": ["other"]})
    libraries[f"{folder}/c"] = [name.format("get"), name.format("set")]
    assert blas._controls() == (f"{folder}/c:{name.format('get')}", f"{folder}/c:{name.format('set')}")
    assert blas.available()


def test_no_openblas(libraries):
    libraries["numpy.libs/a"] = ["openblas_get_num_threads"]
    assert blas._controls() is None and not blas.available()


def test_the_openblas_of_numpy_takes_one_thread():
    if not list((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*")):
        pytest.skip("not a NumPy with a library of its own")
    get, _ = blas._controls()
    before = get()
    with blas._one_thread():
        assert get() == 1
    assert get() == before


def test_threads_are_as_before_after_an_error(threads):
    with pytest.raises(RuntimeError), blas._one_thread():
        raise RuntimeError
    assert threads == [1, 7]
