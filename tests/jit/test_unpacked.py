"""Arrays that some of Dr.Jit see and others don't."""

import drjit as dr
import drjit.nn as drnn
import numpy as np

import coopnet as cn
from coopnet.jit.unpacked import Constant, Unpacked, traversable


class Holder(drnn.Module):
    DRJIT_STRUCT = {"weights": dr.ArrayBase, "held": Unpacked}

    def __init__(self, weights=None, held=None):
        self.weights, self.held = weights, held


def test_packing_leaves_them_alone(ns):
    data = ns.UInt32([1, 2, 3])  # an array that could not be packed
    for held in (Unpacked(data), Constant(cn.Key(ns.UInt64(3), data))):
        net = drnn.pack(Holder(ns.TensorXf16(np.ones((4, 4))), held), layout="training")
        assert isinstance(net.weights, drnn.MatrixView)
        assert net.held.value is held.value


def test_evaluation_leaves_them_alone(ns):
    held = Unpacked(dr.arange(ns.Float, 5) * 2)
    dr.eval(Holder(None, held), held)
    assert held.value.state == dr.VarState.Unevaluated


def test_frozen_functions_read_and_write_them(ns):
    """They are inputs, not constants of the recording; and what is put in comes out."""

    @dr.freeze
    def grown(net, x):
        y = net.held.value * x
        net.held.value = net.held.value + 1
        return y

    net = Holder(None, Unpacked(dr.opaque(ns.Float, 3, 4)))
    for turn in range(3):
        found = grown(net, dr.opaque(ns.Float, 2 + turn, 4))
        np.testing.assert_array_equal(found.numpy(), np.full(4, (3 + turn) * (2 + turn)))
    assert grown.n_recordings == 1
    net.held.value = dr.opaque(ns.Float, 50, 4)
    assert grown(net, dr.opaque(ns.Float, 2, 4))[0] == 100


def test_what_can_be_traversed(ns):
    class Plain:
        pass

    for value in (ns.Float(1), Unpacked(), Holder(), cn.Linear(2, 2)):
        assert traversable(value)
    for value in (Plain(), [ns.Float(1)], {}, None, 3, np.ones(2)):
        assert not traversable(value)
