"""Constants that become cooperative vectors: on LLVM, products of them used to end the process."""

import drjit as dr
import drjit.nn as drnn
import numpy as np

from coopnet.jit import literals


def test_what_is_constant(ns):
    assert literals.is_literal(ns.Float(1)) and literals.is_literal(dr.full(ns.Float, 1, 5))
    assert not literals.is_literal(dr.opaque(ns.Float, 1)) and not literals.is_literal(dr.arange(ns.Float, 5))


def test_the_condition_never_holds(ns):
    numbers = ns.Float([0.0, -1.0, np.nan, np.inf])
    assert not dr.any(literals.never(numbers)) and literals.never(numbers).state != dr.VarState.Literal


def test_computed_constants_keep_values_and_gradients(ns):
    """Values, tangents and cotangents, all of which are constants of all samples."""
    known, x = dr.arange(ns.Float, 4), dr.full(ns.Float, 3, 4)
    dr.enable_grad(x)
    (y,) = literals.computed([x], [known])
    assert not literals.is_literal(y) and y.numpy().tolist() == [3] * 4
    dr.backward(2 * y)
    assert dr.grad(x).numpy().tolist() == [2] * 4


def test_products_of_constant_vectors(ns, backend):
    """What ended the process: a vector of ones for every sample times one constant for all."""
    leaf = ns.Float16 if backend == "cuda" else ns.Float
    ones, known = dr.full(leaf, 1, 5), [dr.opaque(leaf, 0, 5)]
    (product,) = literals.vector([ones], known) * drnn.CoopVec([leaf(0.5)])
    assert product.numpy().tolist() == [0.5] * 5


def test_bundles_of_constants_vary(ns, backend):
    bundle = [drnn.CoopVec([dr.opaque(ns.Float, 2, 3)]), drnn.CoopVec([dr.full(ns.Float, 1, 3)])]
    for vector, expected in zip(literals.varying(bundle), (2, 1), strict=True):
        (component,) = vector
        assert component.numpy().tolist() == [expected] * 3
        assert backend == "cuda" or not literals.is_literal(component)
