"""Numbers as parameters of kernels, in calls that are frozen."""

import drjit as dr
import numpy as np
import pytest

from coopnet.jit.kernel_parameters import kernel_parameter
from coopnet.jit.native.core import llvm_lanes


@pytest.mark.parametrize("make", [kernel_parameter, dr.opaque])
def test_calls_that_are_replayed(ns, backend, make):
    """What Dr.Jit's own function makes in a call is gone at replays: if not, there is nothing to work around."""

    @dr.freeze
    def scale(x, which):
        return dr.switch(which, [lambda v: v * make(ns.Float, 2), lambda v: v * make(ns.Float, 3)], x)

    right = []
    for turn in range(5):
        x, which = dr.arange(ns.Float, 64) + 1 + dr.opaque(ns.Float, turn), dr.arange(ns.UInt32, 64) % 2
        dr.eval(x, which)
        y = scale(x, which).numpy()
        other = [dr.opaque(ns.Float, 7 + i) for i in range(50)]  # takes memory that was given back
        right.append(bool(np.array_equal(y, x.numpy() * (2 + which.numpy()))))
        del other
    seen = backend == "llvm" and llvm_lanes() >= 16  # elsewhere, this does not show it
    assert right[0] and (all(right) if make is kernel_parameter else not seen or not all(right))


def test_elsewhere_it_is_opaque(ns):
    assert kernel_parameter(ns.Float, 2).state == dr.VarState.Evaluated
