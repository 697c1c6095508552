"""Dropout over flat arrays and matrices as other systems draw it, to check against them."""

from __future__ import annotations

import math
import numbers
from typing import Any

import drjit as dr
import numpy as np

from ..backend import require
from ..checks import check_choice, shown, whole
from ..jit import kinds
from ..jit.scopes import inside_call, recording
from .law import check_probability, numpy_dtype, rounded
from .philox import philox4x32

CONVENTIONS = ("triton", "ztensor")
#: Triton's float32 just below 2^-31, which maps 31 random bits to [0, 1).
TRITON_SCALE = 4.6566127342e-10
#: Elements of a NumPy array that are worked on at a time.
CHUNK = 1 << 20

_WHERE = "seeded_dropout"


def seeded_dropout(x: Any, p: float, seed: Any, *, offset: Any = None, convention: str) -> Any:
    r"""Dropout whose mask is a function of ``(seed, offset)`` in another system's convention.

    An element with the offset :math:`o` and the seed :math:`s` has one random word:

    ==============  =========================================  ====================================================
    convention      random word                                kept if
    ==============  =========================================  ====================================================
    ``"triton"``    word 0 of Philox counter ``(o, 0, 0, 0)``  ``tl.rand(s, o) > p``, in single precision, as in
                                                               Triton's tutorial on low-memory dropout
    ``"ztensor"``   word 0 of Philox counter                   ``word >= ceil(p * 2^32)``
                    ``(o_low, o_high, 0, 0)``
    ==============  =========================================  ====================================================

    Both use 10 rounds and the key ``(s_low, s_high)``; kept elements are multiplied by :math:`1/(1-p)`, rounded once
    to the type of ``x``. ``tl.rand`` takes the word as a signed integer, replaces a negative :math:`w` by
    :math:`-w-1`, rounds it to single precision and multiplies by the single-precision number 4.6566127342e-10.

    A matrix may have **one seed for each row**, which then draws over its own columns, as in the tutorial's first
    exercise: the offset of element :math:`(r, c)` is :math:`c`. With one seed for the whole matrix, the offset is the
    position in row-major order, :math:`r \cdot \mathrm{columns} + c`. ``offset`` replaces either: give the offsets in
    the memory of the other system to check against a strided or shifted view of it.

    Args:
        x: floating point numbers: a 1D Dr.Jit array, a 2D tensor ``(rows, columns)``, or a 1D or 2D NumPy array, of
            less than 2^32 elements.
        p: drop probability in [0, 1); ``p == 0`` returns ``x`` itself.
        seed: int in [0, 2^64), or a Dr.Jit integer array, NumPy integer array or list of ints with one entry, or with
            one for each row of ``x``.
        offset: integers of at least 0, one for each column, or one for each element: a NumPy array for any ``x``, and
            a Dr.Jit array or tensor for Dr.Jit ones. ``"triton"`` takes 32 bits (``Int32``, ``UInt32``, NumPy values
            below 2^32), ``"ztensor"`` 64. Needed inside virtual calls, where
            elements have no number. Signed Dr.Jit arrays cost a pass that looks for negative numbers, except inside
            loops and frozen functions, where it is not made.
        convention: ``"triton"`` or ``"ztensor"``.

    Raises:
        ValueError, TypeError: arguments of another kind, shape or range.

    >>> y = cn.seeded_dropout(x, 0.5, seed=123, convention="triton")
    >>> rows = cn.seeded_dropout(TensorXf(m), 0.5, seed=[3, 1, 4], convention="triton")  # m of shape (3, columns)
    """
    check_choice(_WHERE, "convention", convention, CONVENTIONS)
    check_probability(p, _WHERE)
    on_host = isinstance(x, np.ndarray)
    shape, leaf = _shape(x)
    kinds.require_float(leaf, _WHERE)
    seeds = _host_seeds(seed, shape) if on_host else _drjit_seeds(seed, shape, leaf)
    offsets = _host_offsets(offset, shape, convention) if on_host else _drjit_offsets(offset, shape, leaf, convention)
    if p == 0:
        return x
    if offset is None and not on_host and inside_call(leaf):
        raise ValueError(
            f"{_WHERE}: offset is None inside a virtual call (dr.switch, dr.dispatch or a method call), where elements "
            f"have no number; pass the offset of each element in."
        )
    p = float(p)
    factor = rounded(1 / (1 - p), leaf)
    if not math.isfinite(factor):
        raise ValueError(
            f"{_WHERE}: p is {shown(p)}, whose scale 1 / (1 - p) = {1 / (1 - p):g} {numpy_dtype(leaf)} cannot hold; "
            f"use a smaller p or single precision."
        )
    factor = leaf(factor)
    if on_host:
        return _dropout_numpy(x, p, seeds, offsets, convention, factor)
    flat = x.array if dr.is_tensor_v(x) else x
    y = dr.select(_keep_drjit(shape, leaf, p, seeds, offsets, convention), flat * factor, leaf(0))
    return type(x)(y, x.shape) if dr.is_tensor_v(x) else y


def _shape(x: Any) -> tuple[tuple[int, ...], type]:
    """Shape, of one or two dimensions, and type of the scalars of ``x``, or an error."""
    if isinstance(x, np.ndarray):
        if x.ndim not in (1, 2) or x.size == 0:
            raise ValueError(f"{_WHERE}: got a NumPy array of shape {x.shape}; a non-empty 1D or 2D array is needed.")
        return x.shape, x.dtype.type
    kind, leaf = kinds.kind(x, _WHERE)
    if kind == kinds.TENSOR:
        require(leaf)
        return tuple(x.shape), leaf
    if kind != kinds.ARRAYS or isinstance(x, (list, tuple)) or kinds.describe(type(x)).depth != 1:
        raise TypeError(
            f"{_WHERE}: x is a {type(x).__name__}; a 1D Dr.Jit array, a 2D tensor or a NumPy array is needed."
        )
    require(leaf)
    return (dr.width(x),), leaf


# ---- Seeds and offsets -------------------------------------------------------------------------------------


def _host_integers(value: Any, name: str) -> np.ndarray:
    """``value`` as a NumPy array of integers of at least 0, or an error."""
    value = value.numpy() if isinstance(value, dr.ArrayBase) else _numpy(value, name)
    if value.size == 0 or not np.issubdtype(value.dtype, np.integer) or (value < 0).any():
        raise ValueError(
            f"{_WHERE}: {name} has dtype {value.dtype} and shape {value.shape}; integers of at least 0 are needed."
        )
    return value


def _numpy(value: Any, name: str) -> np.ndarray:
    """``value`` as a NumPy array; lists that mix numbers below and from 2^63 on, too, which NumPy makes floats of."""
    if isinstance(value, np.ndarray):
        return value
    try:
        exact = np.asarray(value, object)
        if exact.size and all(isinstance(v, numbers.Integral) and not isinstance(v, bool) for v in exact.flat):
            if not all(0 <= v < 1 << 64 for v in exact.flat):
                raise ValueError("out of range")
            return exact.astype(np.uint64)
        return np.asarray(value)
    except Exception as error:  # whatever NumPy says
        raise ValueError(
            f"{_WHERE}: {name} is a {type(value).__name__} that NumPy makes no array of integers in [0, 2^64) of "
            f"({str(error)[:80]})."
        ) from None


def _one_seed(seed: Any) -> int:
    number = whole(seed)
    if number is None:
        raise TypeError(
            f"{_WHERE}: seed is {shown(seed)} of type {type(seed).__name__}; an int in [0, 2^64), or an array of "
            f"integers, is needed."
        )
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{_WHERE}: seed is {shown(number)}; an int in [0, 2^64) is needed.")
    return number


def _check_seeds(entries: int, shape: tuple[int, ...]) -> None:
    rows = shape[0] if len(shape) == 2 else 1
    if entries not in (1, rows):
        raise ValueError(
            f"{_WHERE}: seed has {entries} entries, but x has the shape {shape}; one is needed, or one for each row of "
            f"a matrix."
        )


def _host_seeds(seed: Any, shape: tuple[int, ...]) -> Any:
    """An int, or a NumPy uint64 array with one seed for each row."""
    if not isinstance(seed, (dr.ArrayBase, np.ndarray, list, tuple)):
        return _one_seed(seed)
    seeds = _host_integers(seed, "seed").astype(np.uint64)
    if seeds.ndim > 1:
        raise ValueError(f"{_WHERE}: seed has the shape {seeds.shape}; one dimension is needed.")
    _check_seeds(seeds.size, shape)
    return int(seeds.ravel()[0]) if seeds.size == 1 else seeds


def _drjit_seeds(seed: Any, shape: tuple[int, ...], leaf: type) -> Any:
    """A Dr.Jit ``UInt64`` with one entry, or one for each row."""
    uint64 = dr.uint64_array_t(leaf)
    if not isinstance(seed, dr.ArrayBase):
        seeds = _host_seeds(seed, shape)
        return dr.opaque(uint64, seeds) if isinstance(seeds, int) else uint64(seeds)
    seed = _unsigned(seed, "seed", leaf)
    _check_seeds(dr.width(seed), shape)
    return uint64(seed)


def _unsigned(value: Any, name: str, leaf: type) -> Any:
    """A flat Dr.Jit integer array of ``leaf``'s backend as ``UInt32`` or ``UInt64``, without negative entries."""
    value = value.array if dr.is_tensor_v(value) else value
    types = (dr.VarType.Int32, dr.VarType.UInt32, dr.VarType.Int64, dr.VarType.UInt64)
    if dr.depth_v(value) != 1 or dr.type_v(value) not in types or dr.backend_v(value) != dr.backend_v(leaf):
        raise TypeError(
            f"{_WHERE}: {name} is a {type(value).__module__}.{type(value).__name__}; Dr.Jit integers of 32 or 64 bits "
            f"on the {dr.backend_v(leaf).name} backend are needed."
        )
    if dr.width(value) == 0:
        raise ValueError(f"{_WHERE}: {name} is empty; integers of at least 0 are needed.")
    wide = dr.type_v(value) in types[2:]
    if dr.is_signed_v(value):
        unknown = recording()
        if not unknown and dr.any(value < 0):
            raise ValueError(f"{_WHERE}: {name} has negative entries; integers of at least 0 are needed.")
    return (dr.uint64_array_t if wide else dr.uint32_array_t)(leaf)(value)


def _check_offsets(given: tuple[int, ...], shape: tuple[int, ...]) -> None:
    flat = (math.prod(shape),)
    if given not in (shape, shape[-1:], flat):
        what = f"{given[0]} entries" if len(given) == 1 else f"the shape {given}"
        raise ValueError(
            f"{_WHERE}: offset has {what}, but x has the shape {shape}; one is needed for each column, or for each "
            f"element."
        )


def _host_offsets(offset: Any, shape: tuple[int, ...], convention: str) -> np.ndarray | None:
    """Flat NumPy integers, one for each column or one for each element."""
    if offset is None:
        return None
    values = _host_integers(offset, "offset")
    _check_offsets(values.shape, shape)
    if convention == "triton" and int(values.max()) >= 1 << 32:
        raise ValueError(f"{_WHERE}: an offset is 2^32 or more; the convention 'triton' takes 32 bits.")
    return values.ravel()


def _drjit_offsets(offset: Any, shape: tuple[int, ...], leaf: type, convention: str) -> Any:
    """A flat Dr.Jit ``UInt32`` or ``UInt64``, one entry for each column or one for each element."""
    if offset is None:
        return None
    if not isinstance(offset, dr.ArrayBase):
        values = _host_offsets(offset, shape, convention)
        assert values is not None
        small = int(values.max()) < 1 << 32
        values = values.astype(np.uint32 if small else np.uint64)
        return (dr.uint32_array_t if small else dr.uint64_array_t)(leaf)(values)
    given = tuple(offset.shape)
    flat = _unsigned(offset, "offset", leaf)
    if convention == "triton" and dr.type_v(flat) == dr.VarType.UInt64:
        raise TypeError(
            f"{_WHERE}: offset is a {type(offset).__name__}; a Dr.Jit Int32 or UInt32 array is needed for 'triton', "
            f"whose offsets have 32 bits."
        )
    _check_offsets(given, shape)
    return flat


# ---- The mask ----------------------------------------------------------------------------------------------


def _dropout_numpy(x: np.ndarray, p: float, seeds: Any, offsets: Any, convention: str, factor: Any) -> np.ndarray:
    """In pieces, since the words of a generator take several times the memory of ``x``."""
    columns = x.shape[-1]
    flat, y = x.ravel(), np.empty(x.size, x.dtype)
    for start in range(0, x.size, CHUNK):
        part = slice(start, min(start + CHUNK, x.size))
        place = np.arange(part.start, part.stop, dtype=np.uint64)
        column = place % np.uint64(columns)
        if offsets is None:
            o = place if isinstance(seeds, int) else column
        else:
            o = (offsets[part] if offsets.size == x.size else offsets[column.astype(np.intp)]).astype(np.uint64)
        s = np.uint64(seeds) if isinstance(seeds, int) else seeds[(place // np.uint64(columns)).astype(np.intp)]
        word = philox4x32((*_halves(o), 0, 0), _halves(s))[0]
        y[part] = np.where(_keeps_numpy(word, p, convention), flat[part] * factor, x.dtype.type(0))
    return y.reshape(x.shape)


def _halves(value: Any) -> tuple[np.ndarray, np.ndarray]:
    value = np.asarray(value, np.uint64)
    return (value & np.uint64(0xFFFFFFFF)).astype(np.uint32), (value >> np.uint64(32)).astype(np.uint32)


def _keeps_numpy(word: np.ndarray, p: float, convention: str) -> np.ndarray:
    if convention == "ztensor":
        return word >= math.ceil(p * 2**32)
    signed = word.view(np.int32)
    uniform = np.where(signed < 0, -signed - 1, signed).astype(np.float32) * np.float32(TRITON_SCALE)
    return uniform > np.float32(p)


def _keep_drjit(shape: tuple[int, ...], leaf: type, p: float, seeds: Any, offsets: Any, convention: str) -> Any:
    """The flat keep mask, fused with whatever reads it."""
    uint32, uint64 = dr.uint32_array_t(leaf), dr.uint64_array_t(leaf)
    n, columns = math.prod(shape), shape[-1]
    place = dr.arange(uint32, n)
    column = place % columns if n > columns else place
    by_row = dr.width(seeds) > 1
    if by_row:
        seeds = dr.gather(uint64, seeds, place // columns)
    if offsets is None:
        offsets = column if by_row else place
    elif dr.width(offsets) != n:
        offsets = dr.gather(type(offsets), offsets, column)
    wide = dr.type_v(offsets) == dr.VarType.UInt64
    low, high = uint32(offsets), uint32(offsets >> 32) if wide else uint32(0)
    return _keeps_drjit(philox4x32((low, high, 0, 0), (uint32(seeds), uint32(seeds >> 32)))[0], p, convention)


def _keeps_drjit(word: Any, p: float, convention: str) -> Any:
    uint32 = type(word)
    if convention == "ztensor":
        # the bound may be 2^32 itself, which no word reaches
        bound = math.ceil(p * 2**32)
        return word >= uint32(bound) if bound < 2**32 else dr.mask_t(word)(False)
    int32, single = dr.int32_array_t(uint32), dr.float32_array_t(uint32)
    signed = dr.reinterpret_array(int32, word)
    uniform = single(dr.select(signed < 0, -signed - 1, signed)) * single(TRITON_SCALE)
    return uniform > single(float(np.float32(p)))
