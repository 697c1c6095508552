"""Arrays of a backend, in the containers that layers take, and their numbers in NumPy."""

from __future__ import annotations

import drjit as dr
import drjit.nn as drnn
import numpy as np

from coopnet.jit import owned as own


def leaf_of(ns, dtype):
    return {np.float16: ns.Float16, np.float32: ns.Float, np.float64: ns.Float64}[np.dtype(dtype).type]


def tensor_of(ns, dtype):
    return dr.tensor_t(leaf_of(ns, dtype))


def precision(backend):
    """(dtype, tolerance) of networks on cooperative vectors: half on CUDA."""
    return (np.float16, 2e-2) if backend == "cuda" else (np.float32, 2e-5)


def precisions(backend):
    """Names of the precisions that a field can have."""
    return ["half"] if backend == "cuda" else ["single", "half"]


def owned(values):
    """The numbers of arrays in memory of Dr.Jit's: kernels that read NumPy's are compiled for its every alignment."""
    # of a single number, Dr.Jit knows the lane, and would keep the memory
    result = [own.owned(v) if dr.width(v) != 1 else dr.opaque(type(v), v.numpy()[0]) for v in values]
    dr.make_opaque(result)
    return result


def arrays(ns, values, dtype=np.float32):
    """Rows of numbers as evaluated arrays."""
    leaf = leaf_of(ns, dtype)
    return owned([leaf(np.asarray(v, dtype)) for v in values])


def coordinates(ns, samples=200, seed=0):
    """Random points of the unit square, in float64 and as an evaluated ``Array2f``."""
    x = np.random.default_rng(seed).random((2, samples)).astype(np.float32)
    return x.astype(np.float64), ns.Array2f(owned([ns.Float(v) for v in x]))


def contain(ns, kind, parts):
    """Arrays in a container; they stay what gradients are asked of."""
    suffix = {2: "16", 4: "", 8: "64"}[dr.itemsize_v(parts[0])]
    nested = getattr(ns, f"ArrayXf{suffix}")
    return {
        "coopvec": drnn.CoopVec,
        "fixed": getattr(ns, f"Array{len(parts)}f{suffix}", None),
        "list": list,
        "nested": nested,
        "single": lambda p: p[0],
        "tensor": lambda p: dr.tensor_t(type(p[0]))(nested(p)),
        "tuple": tuple,
    }[kind](parts)


def opened(kind, y):
    """The arrays in a container."""
    if kind == "tensor":
        return [v.array for v in y]
    return [y] if kind == "single" else list(y)


def values(x, dtype=np.float64):
    """Numbers of an array, or ``(features, samples)`` of several; of their own type if ``dtype`` is ``None``."""
    if isinstance(x, dr.ArrayBase):
        return np.array(x, dtype)
    parts = list(x)
    dr.eval(parts)  # one by one, each would be a kernel
    # one literal may stand for all samples
    return np.array(np.broadcast_arrays(*(np.array(v, dtype) for v in parts)))


def evaluated(*values):
    """``values``, arrays or whatever holds them, after one kernel for all. Read one by one, each would be a kernel."""
    dr.eval(values)
    return values[0] if len(values) == 1 else values


def weighted(ys, dy):
    """Sum over the outputs of dy times y for every sample, in single precision at least.

    What is differentiated need not be a number: the sum over samples would be a kernel that nobody looks at.
    """
    leaf = type(ys[0])
    wide = dr.float32_array_t(leaf) if dr.is_half_v(leaf) else leaf
    dy = owned([wide(d) for d in np.asarray(dy, np.float64)])
    return sum(wide(y) * d for y, d in zip(ys, dy, strict=True))


def differences(f, a, places, h=1e-4):
    """Partial derivatives of the number ``f(a)`` at flat ``places`` of the array ``a``, by central differences."""
    result = []
    for i in places:
        above, below = a.copy(), a.copy()
        above.flat[i] += h
        below.flat[i] -= h
        result.append((f(above) - f(below)) / (2 * h))
    return np.array(result)


def close(actual, expected, tolerance, allowed=0.0):
    """Equal up to a fraction of the largest entry; a share ``allowed`` of the entries may lie beside a kink."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    limit = tolerance * max(1e-4, np.abs(expected).max(initial=0))
    wrong = ~(np.abs(actual - expected) <= limit)  # NaN is wrong, too
    assert wrong.mean() <= allowed if wrong.size else True, (wrong.mean(), np.abs(actual - expected).max(), limit)


def all_close(actual, expected, tolerance):
    """:func:`close` of arrays one by one."""
    for a, e in zip(actual, expected, strict=True):
        close(a, e, tolerance)


def assert_same(backend, found, expected):
    """Equal to the bit on LLVM; on CUDA, where networks of one kernel and of another round differently, nearly so."""
    if backend == "llvm":
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, atol=5e-3 * max(1, abs(np.asarray(expected)).max()))
