"""Which code reads values."""

import threading

import drjit as dr
import numpy as np
import pytest

from coopnet.jit.reads import reads

WAYS = {
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "array": lambda x: np.array(x, copy=True),
    "dlpack": lambda x: x.__dlpack__(),
}
METHODS = ("numpy", "torch", "jax", "__array__", "__dlpack__")


@pytest.mark.parametrize("way", WAYS)
def test_every_way(ns, way):
    before = [getattr(dr.ArrayBase, name) for name in METHODS]
    arrays = dr.opaque(ns.Float, 2, 3), dr.opaque(ns.UInt32, 2, 3), ns.TensorXf(dr.opaque(ns.Float, 2, 6), (2, 3))
    for x in arrays:
        with reads() as found:
            y = x + 1
            assert not found and dr.width(y) >= 3
            WAYS[way](x)
        assert found
        seen = len(found)
        WAYS[way](x)
        assert len(found) == seen
    assert [getattr(dr.ArrayBase, name) for name in METHODS] == before


def test_values_are_those(ns):
    x = dr.arange(ns.Float, 3)
    with reads():
        np.testing.assert_array_equal(x.numpy(), [0, 1, 2])


def test_other_threads(ns):
    """What they read is not noted."""
    x, seen = dr.opaque(ns.Float, 2, 3), []
    thread = threading.Thread(target=lambda: seen.append(x.numpy()))
    with reads() as found:
        thread.start()
        thread.join()
    assert found == [] and len(seen) == 1
