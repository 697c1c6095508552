"""Kinds of inputs: cooperative vectors, tensors, arrays and NumPy arrays. No other code distinguishes them.

Relies on Dr.Jit's traits of types (``depth_v``, ``leaf_t``, ``is_special_v``). Also relies on a sum with zeros making
arrays of one lane wide; Dr.Jit omits the sum from kernels but not from derivatives. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..checks import ensure, entries, shown

#: A cooperative vector: element = component, sample = lane.
COOPVEC = "CoopVec"
#: A 2D Dr.Jit tensor of shape ``(features, samples)``.
TENSOR = "tensor"
#: A Dr.Jit array, nested array, or list/tuple of arrays: element = position, sample = lane.
ARRAYS = "arrays"
#: A NumPy array of shape ``(features, samples)``.
NUMPY = "NumPy"

ACCEPTED = (
    "a drjit.nn.CoopVec, a 2D Dr.Jit tensor of shape (features, samples), a Dr.Jit array, a nested array, "
    "or a list or tuple of Dr.Jit arrays"
)
OF_NUMPY = (
    "Of an array x of shape (features, samples), [Float(row) for row in x] is such a list; if its shape is (samples, "
    "features), take x.T."
)


class Traits(NamedTuple):
    """Properties of the type of a Dr.Jit array."""

    depth: int
    leaf: type
    is_float: bool
    is_jit: bool
    is_special: bool
    is_tensor: bool


_traits: dict[type, Traits] = {}


def describe(tp: type) -> Traits:
    """The cached :class:`Traits` of the Dr.Jit array type ``tp``."""
    if tp not in _traits:
        tensor = dr.is_tensor_v(tp)
        leaf = dr.array_t(tp) if tensor else dr.leaf_t(tp)
        _traits[tp] = Traits(dr.depth_v(tp), leaf, dr.is_float_v(tp), dr.is_jit_v(tp), dr.is_special_v(tp), tensor)
    return _traits[tp]


def _name(tp: type) -> str:
    return f"{tp.__module__}.{tp.__name__}"


def _leaf(x: Any, where: str) -> type:
    d = describe(type(x))
    if not d.is_jit:
        accepted = "accepted are types of drjit.llvm.ad or drjit.cuda.ad"
        raise TypeError(f"{where}: got an array of type {_name(type(x))}, which has no backend; {accepted}.")
    if d.is_special:
        what = f"a {type(x).__name__} (a matrix, quaternion or complex number)"
        raise TypeError(f"{where}: got {what}; unpack it into a list of arrays first.")
    return d.leaf


def kind(x: Any, where: str) -> tuple[str, type]:
    """Kind of ``x`` and the type of its scalars: a 1D Dr.Jit array type, or the NumPy dtype.

    ``where`` opens the error message. Raises ``TypeError`` for anything that is not an input, and ``ValueError``
    for empty inputs and for tensors that are not 2D.
    """
    if isinstance(x, drnn.CoopVec):
        return COOPVEC, x.type
    if isinstance(x, (list, tuple)):
        return ARRAYS, _kind_of_list(x, where)
    if isinstance(x, np.ndarray) and not isinstance(x, (np.ma.MaskedArray, np.matrix)):  # other rules for products
        needed = "its shape must be (features, samples)"
        ensure(x.ndim == 2, f"{where}: got a NumPy array of shape {x.shape}; {needed}.")
        ensure(x.size, f"{where}: got an empty NumPy array of shape {x.shape}.")
        return NUMPY, x.dtype.type
    if not isinstance(x, dr.ArrayBase):
        hint = " In PyTorch, use coopnet.interop.torch.Module." if type(x).__module__.startswith("torch") else ""
        raise TypeError(f"{where}: got {_name(type(x))}; accepted are {ACCEPTED}.{hint}")
    leaf, d = _leaf(x, where), describe(type(x))
    if d.is_tensor:
        shape, needed = tuple(x.shape), "2 dimensions, (features, samples), are needed"
        ensure(len(shape) == 2, f"{where}: got a tensor of shape {shape}; {needed}.")
        ensure(0 not in shape, f"{where}: got an empty tensor of shape {shape}.")
        return TENSOR, leaf
    if d.depth > 2:
        what = f"a {type(x).__name__} nested {d.depth} deep"
        raise ValueError(f"{where}: got {what}; an array of arrays (2 deep) is the most.")
    if d.depth == 2:
        check_sizes(x, where)
    if dr.width(x) == 0 or len(x) == 0:
        raise ValueError(f"{where}: got an empty array of type {type(x).__name__}.")
    return ARRAYS, leaf


def _kind_of_list(x: list | tuple, where: str) -> type:
    parts, container, leaf = entries(where, "the input", x), type(x).__name__, None
    ensure(parts, f"{where}: got an empty {container}.")
    for i, v in enumerate(parts):
        if not isinstance(v, dr.ArrayBase) or describe(type(v)).is_tensor or describe(type(v)).depth != 1:
            given = f"a {type(v).__name__}; every entry must be a 1D Dr.Jit array, such as Float(...)"
            raise TypeError(f"{where}: entry {i} of the {container} is {given}.")
        tp = _leaf(v, where)
        leaf = leaf or tp
        if tp is not leaf:
            both = f"{_name(tp)} but entry 0 is a {_name(leaf)}"
            raise TypeError(f"{where}: entry {i} of the {container} is a {both}; all entries must have one type.")
        if dr.width(v) == 0:
            raise ValueError(f"{where}: entry {i} of the {container} is empty.")
    assert leaf is not None
    check_sizes(parts, where)
    return leaf


def check_sizes(parts: Any, where: str) -> None:
    """Raise ``ValueError`` for arrays of different sizes. In a kernel, they would abort the process."""
    sizes = {dr.width(v) for v in parts} - {1}
    if len(sizes) > 1:
        given = shown(sorted(sizes))
        raise ValueError(f"{where}: got arrays of different sizes, {given}; all must have one size, or size 1.")


def require_float(tp: type, where: str) -> None:
    """Raise ``TypeError`` unless ``tp``, as returned by :func:`kind`, is a floating point type."""
    ok = np.issubdtype(tp, np.floating) if issubclass(tp, np.generic) else describe(tp).is_float
    ensure(ok, f"{where}: got values of type {_name(tp)}; a floating point type is needed.", TypeError)


def require_single(tp: type, where: str) -> None:
    """Raise ``TypeError`` unless ``tp`` is a floating point type of half or single precision."""
    require_float(tp, where)
    given = f"got values of type {_name(tp)}, but fields compute in single precision"
    valid = dr.type_v(tp) != dr.VarType.Float64
    ensure(valid, f"{where}: {given}; convert them, as in Float32(x), which rounds.", TypeError)


def in_kernels(x: Any, where: str, single: bool = False) -> tuple[str, type]:
    """:func:`kind` of an input that kernels can read: floating point numbers of Dr.Jit. Raises for others.

    With ``single``, also raises for double precision.
    """
    ensure(not isinstance(x, np.ndarray), f"{where}: got a NumPy array; accepted are {ACCEPTED}. {OF_NUMPY}", TypeError)
    found, leaf = kind(x, where)
    (require_single if single else require_float)(leaf, where)
    return found, leaf


def of_width(v: Any, lanes: int) -> Any:
    """``v`` with ``lanes`` entries: one number may stand for all."""
    return v if dr.width(v) == lanes else v + dr.zeros(type(v), lanes)


def tracked_in_all_lanes(parts: list, lanes: int = 1) -> list:
    """``parts``; those with one lane that track gradients are broadcast to the width of the others, or to ``lanes``.

    As components of a cooperative vector, they would get a gradient with an entry for every lane, which Dr.Jit does not
    add up. The adjoint of this broadcast adds it up.
    """
    lanes = max(lanes, *map(dr.width, parts))
    if lanes == 1:
        return parts
    return [of_width(v, lanes) if dr.grad_enabled(v) else v for v in parts]


_SUFFIX = {
    dr.VarType.Float16: "f16", dr.VarType.Float32: "f", dr.VarType.Float64: "f64",
    dr.VarType.Int32: "i", dr.VarType.Int64: "i64", dr.VarType.UInt32: "u", dr.VarType.Bool: "b",
}  # fmt: skip


def nested_type(leaf: type) -> Any:
    """The nested array type, such as ``ArrayXf`` or ``ArrayXu``, of the 1D array type ``leaf``."""
    return getattr(sys.modules[leaf.__module__], "ArrayX" + _SUFFIX[dr.type_v(leaf)])


def vector_type(leaf: type, size: int) -> Any:
    """The nested array type of ``size`` components, such as ``Array3f``, of the 1D array type ``leaf``."""
    return getattr(sys.modules[leaf.__module__], f"Array{size}{_SUFFIX[dr.type_v(leaf)]}")


def nested(parts: Sequence[Any]) -> Any:
    """A nested array of 1D arrays of one type: the inverse of :func:`components` for those."""
    return nested_type(type(parts[0]))(parts)


class UnpackedVector(list):
    """The components of a vector, which becomes a ``CoopVec`` only where one is needed.

    On CUDA, OptiX compiles every kernel with a cooperative vector, even if the vector is only packed and unpacked, as
    in the derivative of packing. OptiX takes longer to compile, and lacks some instructions, such as atomics of several
    numbers before CUDA 13.2.
    """

    @property
    def type(self) -> type:
        """The type of the components."""
        return type(self[0])

    def packed(self) -> drnn.CoopVec:
        return drnn.CoopVec(list(self))


def packed(vector: Any) -> Any:
    """``vector`` as a ``CoopVec`` if it has a method ``packed()``, otherwise ``vector`` itself."""
    return vector.packed() if hasattr(vector, "packed") else vector


def flat(vectors: Sequence[Any]) -> list:
    """The components of vectors one after the other."""
    return [v for vector in vectors for v in vector]


def split(components: Sequence[Any], count: int) -> list[list]:
    """The components of ``count`` vectors of one length: the inverse of :func:`flat`."""
    n = len(components) // count
    return [list(components[i * n : (i + 1) * n]) for i in range(count)]


def components(x: Any) -> list:
    """The 1D arrays inside a cooperative vector, array, nested array or list of arrays."""
    if isinstance(x, (list, tuple, drnn.CoopVec)):
        return list(x)
    return [x] if describe(type(x)).depth == 1 else [x[i] for i in range(len(x))]


def rows(x: Any, kind_: str) -> list:
    """The 1D arrays of an input that kernels can read, one for each element of a sample."""
    return [v.array for v in x] if kind_ == TENSOR else components(x)


def contained(parts: list, like: Any) -> Any:
    """``parts``, arrays of one type, in a container of the kind of ``like``, which may have another number of them."""
    if isinstance(like, (list, tuple)):
        return tuple(parts) if isinstance(like, tuple) else parts
    if isinstance(like, drnn.CoopVec):
        return drnn.CoopVec(parts)
    return dr.tensor_t(type(parts[0]))(nested(parts)) if dr.is_tensor_v(like) else nested(parts)


def rebuild(parts: list, like: Any) -> Any:
    """``parts`` in the container of ``like``: the inverse of :func:`components`, and of :func:`rows` for tensors.

    Their type may be another one than that of the entries of ``like``.
    """
    if isinstance(like, dr.ArrayBase) and not describe(type(like)).is_tensor:
        if describe(type(like)).depth == 1:
            return parts[0]
        if describe(type(like)).leaf is type(parts[0]):
            return type(like)(parts)
    return contained(parts, like)


def features(x: Any, kind_: str) -> int:
    """Number of elements per sample."""
    if kind_ in (TENSOR, NUMPY):
        return int(x.shape[0])
    return len(x) if isinstance(x, (list, tuple, drnn.CoopVec)) or describe(type(x)).depth > 1 else 1


def samples(x: Any, kind_: str) -> int:
    """Number of samples: columns of a tensor, lanes of everything else."""
    if kind_ in (TENSOR, NUMPY):
        return int(x.shape[1])
    return dr.width(components(x))  # dr.width() of a CoopVec is always 1
