"""Views of packed matrices: where entries stand, and copies with other fields."""

from __future__ import annotations

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest

import coopnet as cn
from coopnet.jit import views


def packed(ns, backend, rows, columns):
    tensor = ns.TensorXf16 if backend == "cuda" else ns.TensorXf
    net = cn.Sequential(cn.Linear(2, 7), cn.Linear(-1, columns), cn.Linear(-1, rows)).alloc(tensor)
    value = np.arange(1, rows * columns + 1).reshape(rows, columns)
    net.layers[2].weights = tensor(value.astype(np.float32))
    net.layers[2].bias = tensor(-np.arange(1, rows + 1).astype(np.float32))
    return drnn.pack(net, layout="training"), value


@pytest.mark.parametrize("rows, columns", [(5, 3), (1, 4), (17, 40)])
def test_places(ns, backend, rows, columns):
    net, value = packed(ns, backend, rows, columns)
    layer = net.layers[2]
    buffer = getattr(net, views.packed_attribute(net))
    assert buffer is layer.weights.buffer and views.packed_attribute(layer) is None
    row, column = (ns.UInt32(v.ravel()) for v in np.indices(value.shape))

    def read(view, *where):
        return dr.gather(type(buffer), buffer, views.places(view, *where)).numpy()

    for known in (None, layer.layout.value):
        np.testing.assert_array_equal(read(layer.weights, row, column, known), value.ravel())
    np.testing.assert_array_equal(read(layer.weights.T, column, row), value.ravel())
    np.testing.assert_array_equal(read(layer.bias, dr.arange(ns.UInt32, rows)), -np.arange(1, rows + 1))


def test_changed(ns, backend):
    net, _ = packed(ns, backend, 5, 3)
    view = net.layers[2].weights
    copy = views.changed(view, offset=64)
    assert (copy.offset, copy.shape, copy.size) == (64, view.shape, view.size)
    assert copy.buffer is view.buffer and view.offset != 64
    with pytest.raises(TypeError, match="a view has no colour; it has layout, "):
        views.changed(view, colour=1)


def test_the_fields_of_a_view(ns):
    """One more, and a copy might be of another matrix; one that products do not go by, and it would be of the first."""
    view = drnn.view(dr.zeros(ns.TensorXf16, (8, 8)))
    fields = {"layout", "buffer", "dtype", "shape", "offset", "size", "stride", "transpose"}
    assert set(drnn.MatrixView.DRJIT_STRUCT) == fields
    values = np.arange(3 * 64).reshape(3, 8, 8) % 16
    memory, x = ns.Float16(ns.Float(values.ravel())), np.arange(8)
    for k in range(3):
        moved = views.changed(view, buffer=memory, offset=64 * k)
        got = drnn.matvec(moved, drnn.CoopVec([ns.Float16(int(v), 1) for v in x]))
        np.testing.assert_array_equal([v[0] for v in got], values[k] @ x)
