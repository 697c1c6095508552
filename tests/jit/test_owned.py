"""Memory of Dr.Jit's own, and what frozen functions do with other memory."""

import drjit as dr
import numpy as np

from coopnet.jit.owned import from_numpy, owned


def foreign(tp, values):
    """A NumPy array that an array of Dr.Jit's on LLVM shares memory with, and that array."""
    memory = np.empty(4 * len(values) + 64, np.uint8)
    start = -memory.ctypes.data % 64  # as Dr.Jit's own, or it would compile other kernels
    numbers = memory[start : start + 4 * len(values)].view(np.float32)
    numbers[:] = values
    return numbers, tp(numbers)


def test_copies(ns):
    numbers, shared = foreign(ns.Float, np.arange(5000))
    copies = [owned(shared), from_numpy(numbers, ns.Float)]
    dr.sync_thread()
    numbers[:] = 7
    for copy in copies:
        np.testing.assert_array_equal(copy.numpy(), np.arange(5000))
    assert dr.width(owned(ns.Float())) == dr.width(from_numpy(np.empty(0, np.float32), ns.Float)) == 0


def looked_up(ns, table, lane):
    def read(i):
        return dr.gather(ns.Float, table, i)

    return dr.switch(lane % 2, [read, lambda i: ns.Float(i)], lane)


def test_frozen_calls_know_no_memory_but_dr_jit_s(ns, backend):
    """Should the first half fail, Dr.Jit has learned it, and copies are not needed any more."""
    lane = dr.arange(ns.UInt32, 64) + dr.opaque(ns.UInt32, 0)
    tables = [np.arange(64) + 100.0 * i for i in range(3)]
    kept = [foreign(ns.Float, table) for table in tables]
    for make, stale in ((lambda v: v, backend == "llvm"), (owned, False)):
        frozen = dr.freeze(lambda table, lane: looked_up(ns, table, lane))
        for i, (_, table) in enumerate(kept):
            expected = np.where(np.arange(64) % 2 == 0, tables[0 if stale else i], np.arange(64))
            np.testing.assert_array_equal(frozen(make(table), lane).numpy(), expected)
        assert frozen.n_recordings == 1
