"""Places of entries in packed matrices, of whatever layout the backend has; made-up ones are in tests/engine."""

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest

from coopnet.jit.layout import GAP, Layout


@pytest.mark.parametrize("shape", [(16, 16), (8, 3), (3, 40), (65, 64), (200, 16)])
def test_places(ns, shape):
    """Other numbers than those that were packed to find the places; also behind another matrix."""
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    found = Layout.find(ns.TensorXf16, shape, True)
    first, view = drnn.pack([ns.TensorXf16(np.ones((16, 16))), ns.TensorXf16(values)], layout="training")
    buffer = view.buffer
    assert view.offset >= first.size
    np.testing.assert_array_equal(buffer.numpy()[view.offset + found.places.numpy()], values.ravel())
    rest = np.delete(buffer.numpy()[view.offset : view.offset + view.size], found.places.numpy())
    assert not rest.any()  # gaps
    assert dr.width(found.bias.origins) == shape[0]
    for accumulator, count in ((found.matrix, shape[0] * shape[1]), (found.bias, shape[0])):
        if accumulator is not None:
            origins = accumulator.origins.numpy()
            assert len(np.unique(origins[origins != GAP])) == count
            rows, columns = (accumulator.view or found.matrix.view).shape
            assert -(-rows // 8) * -(-columns // 8) % 4 == 0


def test_gradients_have_the_layout_of_the_weights(ns):
    shape = (16, 16)
    found = Layout.find(ns.TensorXf16, shape, False)
    view = drnn.pack(ns.TensorXf16(np.zeros(shape)), layout="training")
    dr.enable_grad(view.buffer)
    x, dy = (np.random.default_rng(k).integers(-4, 5, (16, 10)) for k in range(2))
    y = drnn.matvec(view, drnn.CoopVec([ns.Float16(ns.Float(v)) for v in x]))
    dr.backward(sum(a * ns.Float16(ns.Float(b)) for a, b in zip(y, dy, strict=True)))
    got = dr.grad(view.buffer).numpy()[view.offset + found.places.numpy()]
    np.testing.assert_array_equal(got.reshape(shape), dy @ x.T)
