"""What inputs are, by the traits that Dr.Jit has of their types."""

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest

from coopnet.jit import kinds


def inputs(ns):
    """(input, kind, features, samples)"""
    x = [ns.Float([1, 2, 3]), ns.Float(4)]
    return [
        (drnn.CoopVec(x), kinds.COOPVEC, 2, 3),
        (ns.TensorXf(np.ones((4, 5))), kinds.TENSOR, 4, 5),
        (x[0], kinds.ARRAYS, 1, 3),
        (ns.Array2f(x), kinds.ARRAYS, 2, 3),
        (ns.ArrayXf(x), kinds.ARRAYS, 2, 3),
        (x, kinds.ARRAYS, 2, 3),
        (tuple(x), kinds.ARRAYS, 2, 3),
        (np.ones((4, 5), np.float32), kinds.NUMPY, 4, 5),
    ]


def test_kinds(ns):
    for x, kind, features, samples in inputs(ns):
        found, leaf = kinds.kind(x, "f")
        assert found == kind and leaf is (np.float32 if kind == kinds.NUMPY else ns.Float)
        assert kinds.features(x, kind) == features and kinds.samples(x, kind) == samples
        if kind in (kinds.COOPVEC, kinds.ARRAYS):
            parts = kinds.components(x)
            again = kinds.rebuild(parts, x)
            assert type(again) is type(x) and len(parts) == features
            assert [dr.width(v) for v in kinds.components(again)] == [dr.width(v) for v in parts]


def test_traits(ns):
    assert kinds.describe(ns.Float) == kinds.Traits(1, ns.Float, True, True, False, False)
    assert kinds.describe(ns.Array3u) == kinds.Traits(2, ns.UInt32, False, True, False, False)
    assert kinds.describe(ns.TensorXf16)[1:] == (ns.Float16, True, True, False, True)
    assert kinds.describe(ns.Quaternion4f).is_special and kinds.describe(ns.Matrix2f).depth == 3
    assert not kinds.describe(dr.scalar.Array3f).is_jit
    assert dr.width(drnn.CoopVec(ns.Float([1, 2, 3]))) == 1  # of whatever components


@pytest.mark.parametrize("evened", [True, False])
def test_a_component_of_one_lane(ns, backend, evened):
    """Its gradient is the sum over lanes; if Dr.Jit takes it by itself, there is nothing to even out."""
    if backend == "cuda" and not evened:
        pytest.skip("the same code of Dr.Jit as on LLVM")
    leaf = ns.Float16 if backend == "cuda" else ns.Float
    one, wide = leaf(2), dr.arange(leaf, 4)
    dr.enable_grad(one)
    parts = kinds.tracked_in_all_lanes([one, wide]) if evened else [one, wide]
    assert kinds.tracked_in_all_lanes([one]) == [one] and kinds.tracked_in_all_lanes(parts)[1] is wide
    y = drnn.CoopVec(parts) * 1
    dr.backward(sum(y))
    assert (dr.grad(one).numpy().tolist() == [4]) == evened
