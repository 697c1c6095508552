"""Arrays of other memory are noticed, and nothing else is."""

import gc

import drjit as dr
import numpy as np
import pytest

from coopnet.jit.native import imports as module
from coopnet.jit.native.imports import imports

NUMBERS = np.arange(8, dtype=np.float32)
MAKE = [
    lambda m, x: m.Float(NUMBERS), lambda m, x: m.Float(NUMBERS.astype(np.float64)), lambda m, x: x * NUMBERS,
    lambda m, x: m.Array2f(np.ones((2, 8))), lambda m, x: m.TensorXf(np.ones((2, 4), np.float32)),
    lambda m, x: dr.gather(m.Float, m.Float(NUMBERS), m.UInt32(x)),
]  # fmt: skip
DONT = [
    lambda m, x: dr.sin(x) + 1, lambda m, x: m.Float([1, 2, 3]), lambda m, x: x.numpy(),
    lambda m, x: m.Float(np.float32(2)),
    lambda m, x: dr.while_loop((m.UInt32(0), x * 1), lambda i, v: i < 3, lambda i, v: (i + 1, v + i), mode="symbolic"),
    lambda m, x: dr.switch(m.UInt32(x) % 2, [lambda v: v + 1, lambda v: v + 2], x * 1),
    lambda m, x: dr.alloc_local(m.Float, 3), lambda m, x: m.Texture1f(m.TensorXf(x, (8, 1))).eval(m.Array1f(x * 1)),
    lambda m, x: dr.eval(x * 3), lambda m, x: dr.opaque(m.Float, 2, 5), lambda m, x: np.sin(NUMBERS),
]  # fmt: skip


def test_arrays_of_other_memory(llvm):
    x = dr.arange(llvm.Float, 8) / 8
    dr.eval(x)
    for make in MAKE:
        with imports() as found:
            make(llvm, x)
        assert found
    for make in DONT:
        with imports() as found:
            make(llvm, x)
        assert not found


def test_log_and_collector_are_as_before(llvm):
    before, collects = dr.log_level(), gc.isenabled()
    try:
        for level, switch in ((dr.LogLevel.Error, gc.enable), (dr.LogLevel.Warn, gc.disable)):
            dr.set_log_level(level)
            switch()
            expected = gc.isenabled()
            with imports() as found:
                assert not gc.isenabled()
            assert gc.isenabled() == expected
            with pytest.raises(KeyError), imports():
                raise KeyError
            assert not found
            assert dr.log_level() == level and gc.isenabled() == expected
    finally:
        dr.set_log_level(before)
        (gc.enable if collects else gc.disable)()


def test_without_the_function_nothing_is_noticed(llvm, monkeypatch):
    monkeypatch.setattr(module, "function", lambda symbol: None)
    module._of_arrays.cache_clear()
    try:
        with imports() as found:
            llvm.Float(NUMBERS)
        assert not found
    finally:
        monkeypatch.undo()
        module._of_arrays.cache_clear()
