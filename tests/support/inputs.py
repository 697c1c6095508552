"""What dropout and its relatives take: every kind of input from an array ``(features, samples)``, and back."""

from __future__ import annotations

import drjit as dr
import numpy as np

from . import arrays
from .arrays import contain, leaf_of

KINDS = ["coopvec", "list", "tuple", "nested", "tensor", "numpy"]
TRACED = [k for k in KINDS if k != "numpy"]


def kinds_for(backend):
    """Cooperative vectors compile for seconds on CUDA: there a few fixed shapes have to do."""
    return KINDS if backend == "llvm" else [k for k in KINDS if k != "coopvec"]


def make(ns, kind, values, dtype=np.float32):
    """Input of a kind from an array ``(features, samples)``."""
    values, leaf = np.asarray(values, dtype), leaf_of(ns, dtype)
    if kind == "numpy":
        return values
    if kind == "tensor":
        return dr.tensor_t(leaf)(*arrays.owned([leaf(values.ravel())]), values.shape)
    return contain(ns, kind, arrays.owned([leaf(v) for v in values]))


def values(x):
    """What :func:`make` was given."""
    return x if isinstance(x, np.ndarray) else arrays.values(x, None)


def weighted(y, dy, dtype):
    """Sum over features of dy times y for every sample, for kinds that trace."""
    leaf = type(y) if isinstance(y, dr.ArrayBase) and dr.depth_v(y) == 1 else None
    if isinstance(y, dr.ArrayBase) and dr.is_tensor_v(y):
        return y.array * type(y)(dy.astype(dtype)).array
    parts = list(y) if leaf is None else [y]
    given = arrays.owned([type(v)(d) for v, d in zip(parts, dy.astype(dtype), strict=True)])
    return sum(v * d for v, d in zip(parts, given, strict=True))
