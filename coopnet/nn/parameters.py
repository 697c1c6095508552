"""The parameters of a network one by one, by name, wherever they are stored.

A packed network is one array to an optimizer, on the GPU in an order of the hardware's own with gaps between. Here its
matrices are what they are in formulas, under the names of their places in the tree: ``layers.0.weights``,
``layers.0.bias``, for a field ``network.layers.0.weights`` and ``encoding.data``. Checkpoints use these names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..checks import shown
from ..jit.layout import Layout
from ..jit.unpacked import Constant, Unpacked

#: NumPy twins of the types that parameters may have.
NUMPY_TYPES = {dr.VarType.Float16: np.float16, dr.VarType.Float32: np.float32, dr.VarType.Float64: np.float64}


def check_acyclic(module: Any, above: tuple) -> None:
    """Raise ``ValueError`` if ``module`` is among the ones that contain it, ``above``."""
    if any(m is module for m in above):
        raise ValueError(
            f"{type(above[0]).__name__}: the network contains itself, through a {type(module).__name__}; layers may "
            f"not hold what holds them."
        )


def parameters(module: Any, prefix: str = "", above: tuple = ()) -> Iterator[tuple[str, Any, str]]:
    """``(name, owner, attribute)`` of every parameter: a tensor, a view of packed weights, or a flat array."""
    check_acyclic(module, above)
    above = (*above, module)
    for field in getattr(type(module), "DRJIT_STRUCT", None) or ():
        value = getattr(module, field, None)
        name = f"{prefix}{field}"
        if isinstance(value, Unpacked):
            if value.value is not None and not isinstance(value, Constant):
                yield f"{prefix}data", value.value, "data"
        elif isinstance(value, (dr.ArrayBase, drnn.MatrixView)):
            yield name, module, field
        elif isinstance(value, (tuple, list)):
            for i, item in enumerate(value):
                if isinstance(item, drnn.Module):
                    yield from parameters(item, f"{name}.{i}.", above)
        elif isinstance(value, drnn.Module):
            yield from parameters(value, f"{name}.", above)


def logical_shape(owner: Any, attribute: str) -> tuple[int, ...]:
    """Shape of a parameter as in formulas, without columns that a backend wants besides; ``(n,)`` for a bias."""
    shape = _stored_shape(getattr(owner, attribute))
    if isinstance(owner, drnn.Linear):
        return (shape[0], owner.config[0]) if attribute == "weights" else shape[:1]
    return shape


def _stored_shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape if isinstance(value, drnn.MatrixView) else dr.shape(value))


def is_matrix(owner: Any, attribute: str) -> bool:
    """Is this the matrix of a linear layer?"""
    return isinstance(owner, drnn.Linear) and attribute == "weights"


def storage_of(owner: Any, attribute: str) -> Any:
    """The array that holds a parameter, maybe among others: a packed buffer, a tensor, or a flat array."""
    value = getattr(owner, attribute)
    return value.buffer if isinstance(value, drnn.MatrixView) else value


def places(owner: Any, attribute: str) -> Any:
    """Positions of a parameter's entries, row by row, in the (flattened) array of :func:`storage_of`: a ``UInt32``.

    Traced code, also within ``dr.freeze``. Raises ``RuntimeError`` for a packed layout that is not known.
    """
    value = getattr(owner, attribute)
    shape = logical_shape(owner, attribute)
    flat = value.buffer if isinstance(value, drnn.MatrixView) else value
    uint32 = dr.uint32_array_t(dr.leaf_t(type(flat)))
    i = dr.arange(uint32, int(np.prod(shape)))
    row, column = (i // shape[1], i % shape[1]) if len(shape) == 2 else (i, uint32(0))
    columns = (*_stored_shape(value), 1)[1]  # as stored
    if not isinstance(value, drnn.MatrixView):
        return row * columns + column if is_matrix(owner, attribute) else i
    if value.layout == "row_major" or dr.backend_v(uint32) == dr.JitBackend.LLVM:
        if value.transpose:
            row, column = column, row
        return value.offset + row * value.stride + column
    known = getattr(getattr(owner, "layout", None), "value", None)
    if known is None:
        known = Layout.find(dr.tensor_t(type(flat)), tuple(value.shape), False)
    if known is None:
        raise RuntimeError(
            f"places: the packed layout of a {value.shape[0]} x {value.shape[1]} matrix is not known; use layers of at "
            f"most 2047 features."
        )
    return value.offset + dr.gather(uint32, known.places, row * columns + column)


def to_numpy(name: str, owner: Any, attribute: str, where: str = "matrix") -> np.ndarray:
    """Value of a parameter as a contiguous NumPy array of :func:`logical_shape`; ``where`` opens error messages."""
    value = getattr(owner, attribute)
    if isinstance(value, drnn.MatrixView):
        # vectors are row-major already, and unpack() on CUDA rejects them for their alignment
        plain = value if value.layout == "row_major" else drnn.unpack(value)
        value = dr.tensor_t(type(value.buffer))(plain)
        if isinstance(owner, drnn.Linear) and attribute == "bias":
            value = value.array  # views know columns, but no vectors
    if dr.type_v(value) not in NUMPY_TYPES:
        raise TypeError(f"{where}: {name} holds {dr.type_v(value).name}; parameters must be floating point.")
    array = dr.detach(value).numpy()
    if is_matrix(owner, attribute):
        array = array[:, : owner.config[0]]  # see logical_shape()
    return np.require(array, requirements="C")


def find(module: Any, name: Any, where: str) -> tuple[str, Any, str]:
    """The parameter called ``name``: as in checkpoints, ``weight`` for ``weights``, or without a field's ``network.``.

    Raises ``TypeError`` or ``ValueError`` for anything else.
    """
    if not isinstance(name, str):
        raise TypeError(f"{where}: name is a {type(name).__name__}; a string such as 'layers.0.weights' is needed.")
    name = str.__str__(name)  # a plain one
    known = {found[0]: found for found in parameters(module)}
    plural = f"{name}s" if name.split(".")[-1] == "weight" else name
    for candidate in (name, plural, f"network.{plural}"):
        if candidate in known:
            return known[candidate]
    raise ValueError(f"{where}: there is no parameter {shown(name)}; the network has {listed(known)}.")


def listed(names: Any) -> str:
    """Names for an error message."""
    names = list(names)
    some = ", ".join(map(str, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return some or "none: call alloc() or build() first"


def write(name: str, owner: Any, attribute: str, value: Any, where: str = "set_matrix") -> None:
    """Replace the value of a parameter by NumPy's ``value``, in place; see :meth:`Module.set_matrix`."""
    shape = logical_shape(owner, attribute)
    try:
        array = np.asarray(value)
    except Exception:
        raise TypeError(f"{where}: the new value of {name} is {shown(value)}; real numbers are needed.") from None
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{where}: the new value of {name} holds {array.dtype}; real numbers are needed.")
    if array.shape != shape:
        raise ValueError(f"{where}: {name} has shape {shape}, but the new value has shape {array.shape}.")
    current = storage_of(owner, attribute)
    flat = dr.array_t(type(current)) if dr.is_tensor_v(current) else type(current)
    dtype = NUMPY_TYPES[dr.type_v(current)]
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(array.ravel(), dtype)
    if not np.array_equal(np.isfinite(converted), np.isfinite(array.ravel())):
        raise ValueError(f"{where}: the new value of {name} is too large for {np.dtype(dtype).name}.")
    new = dr.copy(dr.detach(current).array)
    dr.scatter(new, flat(converted), places(owner, attribute), mode=dr.ReduceMode.Permute)
    dr.eval(new)
    assign(owner, attribute, new)


def assign(owner: Any, attribute: str, flat: Any) -> None:
    """Let ``flat`` be the (flattened) array that holds a parameter, which goes on to track gradients if it did."""
    current = storage_of(owner, attribute)
    new = type(current)(flat, dr.shape(current)) if dr.is_tensor_v(current) else type(current)(flat)
    if dr.grad_enabled(current):
        new = dr.detach(new)
        dr.enable_grad(new)
    if isinstance(getattr(owner, attribute), drnn.MatrixView):
        current[:] = new  # the other views of the buffer hold this very array
    else:
        setattr(owner, attribute, new)
