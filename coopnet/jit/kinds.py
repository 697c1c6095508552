"""What an input is: the one place that tells cooperative vectors, tensors, arrays and NumPy apart."""

from __future__ import annotations

from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..checks import entries, shown

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


class _Description:
    """What the type of a Dr.Jit array says about it, looked up once per type."""

    __slots__ = ("depth", "is_float", "is_jit", "is_special", "is_tensor", "leaf")

    def __init__(self, tp: type):
        self.is_jit = dr.is_jit_v(tp)
        self.is_tensor = dr.is_tensor_v(tp)
        self.is_special = dr.is_special_v(tp)
        self.is_float = dr.is_float_v(tp)
        self.depth = dr.depth_v(tp)
        self.leaf = dr.array_t(tp) if self.is_tensor else dr.leaf_t(tp)


def describe(tp: type) -> _Description:
    """Cached type traits of the Dr.Jit array type ``tp``."""
    found = _descriptions.get(tp)
    if found is None:
        found = _descriptions[tp] = _Description(tp)
    return found


_descriptions: dict[type, _Description] = {}


def _jit_leaf(where: str, x: Any) -> type:
    d = describe(type(x))
    if not d.is_jit:
        raise TypeError(
            f"{where}: got an array of type {type(x).__module__}.{type(x).__name__}, which has no backend; "
            f"accepted are types of drjit.llvm.ad or drjit.cuda.ad."
        )
    if d.is_special:
        raise TypeError(
            f"{where}: got a {type(x).__name__} (a matrix, quaternion or complex number); unpack it into a "
            f"list of arrays first."
        )
    return d.leaf


def kind(x: Any, where: str) -> tuple[str, type]:
    """Kind of ``x`` and the type of its scalars: a 1D Dr.Jit array type, or the NumPy dtype.

    ``where`` opens the error message. Raises ``TypeError`` for anything that is not an input, and ``ValueError``
    for empty ones and for tensors that are not 2D.
    """
    if isinstance(x, drnn.CoopVec):
        return COOPVEC, x.type
    if isinstance(x, dr.ArrayBase):
        leaf = _jit_leaf(where, x)
        d = describe(type(x))
        if d.is_tensor:
            if x.ndim != 2:
                raise ValueError(
                    f"{where}: got a tensor of shape {tuple(x.shape)}; 2 dimensions, (features, samples), are needed."
                )
            if 0 in x.shape:
                raise ValueError(f"{where}: got an empty tensor of shape {tuple(x.shape)}.")
            return TENSOR, leaf
        if d.depth > 2:
            raise ValueError(
                f"{where}: got a {type(x).__name__} nested {d.depth} deep; an array of arrays (2 deep) is the most."
            )
        if d.depth == 2:
            check_sizes(x, where)
        if dr.width(x) == 0 or len(x) == 0:
            raise ValueError(f"{where}: got an empty array of type {type(x).__name__}.")
        return ARRAYS, leaf
    if isinstance(x, (list, tuple)):
        return ARRAYS, _kind_of_list(x, where)
    if isinstance(x, np.ndarray) and not isinstance(x, (np.ma.MaskedArray, np.matrix)):  # their products are others
        if x.ndim != 2:
            raise ValueError(f"{where}: got a NumPy array of shape {x.shape}; its shape must be (features, samples).")
        if x.size == 0:
            raise ValueError(f"{where}: got an empty NumPy array of shape {x.shape}.")
        return NUMPY, x.dtype.type
    raise TypeError(f"{where}: got {type(x).__module__}.{type(x).__name__}; accepted are {ACCEPTED}.")


def _kind_of_list(x: list | tuple, where: str) -> type:
    parts = entries(where, "the input", x)
    if not parts:
        raise ValueError(f"{where}: got an empty {type(x).__name__}.")
    leaf = None
    for i, v in enumerate(parts):
        if not isinstance(v, dr.ArrayBase) or describe(type(v)).is_tensor or describe(type(v)).depth != 1:
            raise TypeError(
                f"{where}: entry {i} of the {type(x).__name__} is a {type(v).__name__}; every entry must be a 1D "
                f"Dr.Jit array."
            )
        tp = _jit_leaf(where, v)
        if leaf is None:
            leaf = tp
        elif tp is not leaf:
            raise TypeError(
                f"{where}: entry {i} of the {type(x).__name__} is a {_name(tp)} but entry 0 is a {_name(leaf)}; "
                f"all entries must have one type."
            )
        if dr.width(v) == 0:
            raise ValueError(f"{where}: entry {i} of the {type(x).__name__} is empty.")
    assert leaf is not None
    check_sizes(parts, where)
    return leaf


def check_sizes(parts: Any, where: str) -> None:
    """Raise ``ValueError`` for arrays of different sizes: a kernel of those would abort the process."""
    sizes = {dr.width(v) for v in parts} - {1}
    if len(sizes) > 1:
        sizes_shown = shown(sorted(sizes))
        raise ValueError(f"{where}: got arrays of different sizes, {sizes_shown}; all must have one size, or size 1.")


def _name(tp: type) -> str:
    return f"{tp.__module__}.{tp.__name__}"


def require_float(tp: type, where: str) -> None:
    """Raise ``TypeError`` unless ``tp``, as returned by :func:`kind`, is a floating point type."""
    ok = np.issubdtype(tp, np.floating) if issubclass(tp, np.generic) else describe(tp).is_float
    if not ok:
        raise TypeError(f"{where}: got values of type {_name(tp)}; a floating point type is needed.")


def require_single(tp: type, where: str) -> None:
    """Raise ``TypeError`` unless ``tp`` is a floating point type that single precision holds all values of."""
    require_float(tp, where)
    if dr.type_v(tp) == dr.VarType.Float64:
        raise TypeError(
            f"{where}: got values of type {_name(tp)}, but fields compute in single precision; convert them, as in "
            f"Float32(x), which rounds."
        )


def even(parts: list) -> list:
    """``parts``, where those of one lane beside wider ones that track gradients become as wide.

    As components of a cooperative vector they would get a gradient with an entry for every lane, which Dr.Jit does not
    add up; the adjoint of this broadcast does.
    """
    lanes = max(dr.width(v) for v in parts)
    if lanes == 1:
        return parts
    return [v + dr.zeros(type(v), lanes) if dr.width(v) == 1 and dr.grad_enabled(v) else v for v in parts]


def components(x: Any) -> list:
    """The 1D arrays inside a cooperative vector, array, nested array or list of arrays."""
    if isinstance(x, (list, tuple)):
        return list(x)
    if isinstance(x, drnn.CoopVec):
        return list(x)
    return [x] if describe(type(x)).depth == 1 else [x[i] for i in range(len(x))]


def rebuild(parts: list, like: Any) -> Any:
    """``parts`` in the container of ``like``: the inverse of :func:`components`."""
    if isinstance(like, drnn.CoopVec):
        return drnn.CoopVec(parts)
    if isinstance(like, list):
        return parts
    if isinstance(like, tuple):
        return tuple(parts)
    if describe(type(like)).depth == 1:
        return parts[0]
    return type(like)(parts)


def features(x: Any, kind_: str) -> int:
    """Number of elements per sample."""
    if kind_ in (TENSOR, NUMPY):
        return int(x.shape[0])
    if kind_ == COOPVEC or isinstance(x, (list, tuple)):
        return len(x)
    return 1 if describe(type(x)).depth == 1 else len(x)


def samples(x: Any, kind_: str) -> int:
    """Number of samples: columns of a tensor, lanes of everything else."""
    if kind_ in (TENSOR, NUMPY):
        return int(x.shape[1])
    # dr.width() of a CoopVec is always 1, so ask its components
    return max(dr.width(v) for v in components(x))
