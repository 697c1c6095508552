"""The OpenBLAS inside NumPy: where it is, what its functions are called, and how many threads it takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coopnet.jit.native import openblas


def test_a_numpy_of_another_make(monkeypatch):
    """Without a way to tell BLAS the number of threads it is not used, and nothing is told."""
    monkeypatch.setattr(openblas, "_controls", lambda: None)
    assert not openblas.available()
    with openblas.one_thread():
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

    monkeypatch.setattr(openblas.glob, "glob", listed)
    monkeypatch.setattr(openblas.ctypes, "CDLL", Library)
    openblas._controls.cache_clear()
    yield found
    openblas._controls.cache_clear()


@pytest.mark.parametrize("folder", ["numpy.libs", ".dylibs"])
@pytest.mark.parametrize("prefix, suffix", [("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")])
def test_names_that_numpy_gives_to_openblas(libraries, folder, prefix, suffix):
    name = f"{prefix}openblas_{{}}_num_threads{suffix}"
    libraries.update({f"{folder}/a": None, f"{folder}/b": ["other"]})
    libraries[f"{folder}/c"] = [name.format("get"), name.format("set")]
    assert openblas._controls() == (f"{folder}/c:{name.format('get')}", f"{folder}/c:{name.format('set')}")
    assert openblas.available()


def test_no_openblas(libraries):
    libraries["numpy.libs/a"] = ["openblas_get_num_threads"]
    assert openblas._controls() is None and not openblas.available()


def test_the_openblas_of_numpy_takes_one_thread():
    if not list((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*")):
        pytest.skip("not a NumPy with a library of its own")
    get, _ = openblas._controls()
    before = get()
    with openblas.one_thread():
        assert get() == 1
    assert get() == before


def test_threads_are_as_before_after_an_error(monkeypatch):
    told = []
    monkeypatch.setattr(openblas, "_controls", lambda: (lambda: 7, told.append))
    with pytest.raises(RuntimeError), openblas.one_thread():
        raise RuntimeError
    assert told == [1, 7]
