"""Integers of any kind as flat arrays: the seeds and offsets of other systems."""

from __future__ import annotations

from typing import Any

import drjit as dr
import numpy as np

from ..checks import ensure, whole
from ..jit.scopes import recording


def integers(where: str, name: str, value: Any, leaf: type) -> tuple[Any, tuple[int, ...]]:
    """``value`` as a flat array of unsigned integers, and its original shape.

    The result is a Dr.Jit array if ``value`` is one and ``leaf`` is a Dr.Jit type; otherwise a NumPy array of 64 bits.
    """
    if isinstance(value, dr.ArrayBase) and not issubclass(leaf, np.generic):
        return _unsigned(where, name, value, leaf), tuple(value.shape)
    array = value.numpy() if isinstance(value, dr.ArrayBase) else _numpy(where, name, value)
    right = array.size and np.issubdtype(array.dtype, np.integer) and not (array < 0).any()
    kind = f"dtype {array.dtype} and shape {array.shape}"
    ensure(right, f"{where}: {name} has {kind}; integers of at least 0 are needed.")
    return array.ravel().astype(np.uint64), array.shape


def _numpy(where: str, name: str, value: Any) -> np.ndarray:
    """``value`` as a NumPy array. NumPy itself would make floats of lists with numbers below and above 2^63."""
    if isinstance(value, np.ndarray):
        return value
    try:
        exact = np.asarray(value, object)
        if not (exact.size and all(whole(v) is not None for v in exact.flat)):
            return np.asarray(value)
        ensure(all(0 <= v < 1 << 64 for v in exact.flat), "out of range")
        return exact.astype(np.uint64)
    except Exception as error:  # NumPy may raise anything
        problem = "that NumPy makes no array of integers in [0, 2^64) of"
        raise ValueError(f"{where}: {name} is a {type(value).__name__} {problem} ({str(error)[:80]}).") from None


def _unsigned(where: str, name: str, value: Any, leaf: type) -> Any:
    """A Dr.Jit integer array of ``leaf``'s backend as a flat ``UInt32`` or ``UInt64``, without negative entries."""
    value = value.array if dr.is_tensor_v(value) else value
    types = (dr.VarType.Int32, dr.VarType.UInt32, dr.VarType.Int64, dr.VarType.UInt64)
    if dr.depth_v(value) != 1 or dr.type_v(value) not in types or dr.backend_v(value) != dr.backend_v(leaf):
        needed = f"Dr.Jit integers of 32 or 64 bits on the {dr.backend_v(leaf).name} backend are needed"
        raise TypeError(f"{where}: {name} is a {type(value).__module__}.{type(value).__name__}; {needed}.")
    ensure(dr.width(value), f"{where}: {name} is empty; integers of at least 0 are needed.")
    negative = dr.is_signed_v(value) and not recording() and dr.any(value < 0)
    ensure(not negative, f"{where}: {name} has negative entries; integers of at least 0 are needed.")
    wide = dr.type_v(value) in types[2:]
    return (dr.uint64_array_t if wide else dr.uint32_array_t)(leaf)(value)
