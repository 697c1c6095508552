"""Half precision on CPUs that cannot compute in it."""

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.machines import run

import coopnet as cn
from coopnet.jit import half


def test_largest_and_widened_values(ns, backend):
    """The largest entry wherever it is; and nothing of values in half precision that LLVM could narrow again."""
    values = np.array([[1, 5, -2, 0.5], [4, 3, -1, 0.25], [2, 7, -3, 8]], np.float32)
    for leaf in (ns.Float16, ns.Float):
        for count in (1, 2, 3):
            for order in (slice(None), slice(None, None, -1)):
                parts = [leaf(ns.Float(v)) for v in values[:count][order]]
                np.testing.assert_array_equal(half.largest(parts).numpy(), values[:count].max(axis=0))
                casts, wide = [ns.Float(v) for v in parts], half.widened(parts, ns.Float)
                assert all(type(v) is ns.Float for v in wide)
                narrow = backend == "llvm" and leaf is ns.Float16
                assert [a.index != b.index for a, b in zip(casts, wide, strict=True)] == [narrow] * count
                np.testing.assert_array_equal(np.stack([v.numpy() for v in wide]), values[:count][order])


def test_maximum_of_a_half_field(ns, backend):
    """LLVM must not narrow what users do with the outputs: CPUs without half arithmetic cannot take its maximum."""
    field = cn.NeuralField(None, cn.MLP(2, 3, width=16, depth=1)).build(backend, "half")
    p = ns.Array2f([[0.1, 0.7, 0.9], [0.2, 0.3, 0.6]])
    y = field(p).numpy()
    got = [
        dr.max(field(p)).numpy(),
        dr.min(field(p), axis=0).numpy(),
        dr.max(list(field(drnn.CoopVec(list(p))))).numpy(),
    ]
    np.testing.assert_array_equal(got, [y.max(axis=0), y.min(axis=0), y.max(axis=0)])
    _value, gradient = cn.NeuralField(None, cn.MLP(2, 1, width=16, depth=1)).build(backend, "half").value_and_grad(p)
    np.testing.assert_array_equal(dr.max(gradient).numpy(), gradient.numpy().max(axis=0))


NARROW = """
from coopnet.jit import half
from coopnet.jit.native import core
core.set_llvm_target("haswell", 8)
import drjit as dr
from drjit.llvm.ad import ArrayXf, Float, Float16
values = [Float16(Float(v)) for v in ([1, 2, 3], [3, 2, 1])]
dr.eval(values)
wide = half.widened(values, Float) if {widened} else [Float(v) for v in values]
largest = dr.max(ArrayXf(wide), axis=0)
dr.eval(largest)
print(largest)
"""


@pytest.mark.parametrize("widened", [True, False])
def test_llvm_narrows(backend, widened):
    """On a processor without half precision the maximum of casts ends the process; if not, widening is of no use."""
    if backend != "llvm":
        pytest.skip("about LLVM")
    done = run(NARROW.format(widened=widened))
    if widened:
        assert done.stdout.strip() == "[3, 2, 3]", done.stderr
    else:
        assert done.returncode < 0, done
