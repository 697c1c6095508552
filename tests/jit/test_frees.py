"""Memory of launches that is freed when the host waits for the GPU."""

from __future__ import annotations

import ctypes
import struct

import drjit as dr
import pytest
from support.training import tiny_batch, tiny_field

import coopnet as cn
from coopnet.jit.native import frees

ENTRY = frees.find()


def value():
    return ctypes.c_uint64.from_address(ENTRY.address).value


@pytest.fixture
def fresh():
    """Looked up anew, and again after the test."""
    frees.find.cache_clear()
    yield
    frees.find.cache_clear()


def test_this_library_is_known():
    """If not, it is another version of Dr.Jit: what the methods do must be read again."""
    assert ENTRY is not None and ENTRY.method != ENTRY.nothing and value() == ENTRY.method


def test_the_entry_is_replaced_in_the_outermost_block():
    with pytest.raises(KeyError), frees.postponed_frees():
        with frees.postponed_frees():
            assert value() == ENTRY.nothing
        assert value() == ENTRY.nothing
        raise KeyError
    assert value() == ENTRY.method
    assert frees._only_read(ENTRY.address) and not frees._only_read(ENTRY.method)


@pytest.mark.parametrize("change", ["version", "system", "symbols", "library", "entry", "page"])
def test_nothing_is_done_elsewhere(monkeypatch, fresh, change):
    match change:
        case "version":
            monkeypatch.setattr(frees, "CHECKED", "1.4.0")
        case "system":
            monkeypatch.setattr(frees.sys, "platform", "darwin")
        case "symbols":
            monkeypatch.setattr(frees, "NOTHING", "_ZN11ThreadState5otherEv")
        case "library":
            monkeypatch.setattr(frees.Path, "read_bytes", lambda path: b"MZ" + bytes(100))
        case "entry":
            monkeypatch.setattr(frees, "METHOD", "_ZN11ThreadState7barrierEv")
        case "page":
            monkeypatch.setattr(frees, "_protect", lambda *_: exec("raise OSError(13, 'mprotect')"))
    assert frees.find() is None
    with frees.postponed_frees():
        assert value() == ENTRY.method


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01" + bytes(80), b"\x7fELF\x02\x01" + bytes(80)]
)
def test_damaged_libraries(monkeypatch, fresh, data):
    monkeypatch.setattr(frees.Path, "read_bytes", lambda path: data)
    assert frees.find() is None
    if len(data) > 60:
        assert frees.symbols(data, [frees.TABLE]) == {}
    elif data:
        with pytest.raises(struct.error):
            frees.symbols(data, [frees.TABLE])


def test_while_a_gpu_trains(ns, backend):
    """Only then, also in callbacks, and not after an error."""
    draw, seen = tiny_batch(ns), []

    def metric(field):
        seen.append(value())
        return 1.0 if len(seen) < 3 else 1 / 0

    with pytest.raises(ZeroDivisionError):
        cn.fit(tiny_field(backend), draw, 9, metric=metric, metric_every=3, progress=False)
    assert seen == [ENTRY.nothing if backend == "cuda" else ENTRY.method] * 3 and value() == ENTRY.method


def test_memory_comes_back(ns, backend):
    """What evaluations have not freed, waiting for the device does: launches of a second round allocate nothing."""
    field = tiny_field(backend)
    peaks = []
    with frees.postponed_frees():
        for _ in range(3):
            for i in range(50):
                dr.eval(field([dr.opaque(ns.Float, i, 64)] * field.in_features))
            dr.sync_thread()
            peaks.append(dr.detail.malloc_watermark(dr.backend_v(ns.Float)))
    assert peaks[1] == peaks[2]
