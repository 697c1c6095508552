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
    buffer = getattr(net, views.packed(net))
    assert buffer is layer.weights.buffer and views.packed(layer) is None
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
