"""Dropout with the masks of other systems, over flat arrays and matrices, for comparison with these systems."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr
import numpy as np

from ..backend import require
from ..checks import check_choice, ensure, shown
from ..jit import kinds
from ..jit.kernel_parameters import kept, kernel_parameter
from ..jit.scopes import inside_call
from .counter_words import check_uint, halves
from .integers import integers
from .law import check_probability, numpy_dtype, rounded
from .philox import generate, round_keys

CONVENTIONS = ("triton", "ztensor")
#: Triton's float32 just below 2^-31, which maps 31 random bits to [0, 1).
TRITON_SCALE = 4.6566127342e-10
#: Elements of a NumPy array that are processed at a time.
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

    A matrix may have **one seed for each row**, as in the tutorial's first exercise. Then the offset of element
    :math:`(r, c)` is :math:`c`. With one seed for the whole matrix, the offset is the position in row-major order,
    :math:`r \cdot \mathrm{columns} + c`. ``offset`` replaces either. To compare with a strided or shifted view, give
    the offsets in the memory of the other system.

    Args:
        x: floating point numbers: a 1D Dr.Jit array, a 2D tensor ``(rows, columns)``, or a 1D or 2D NumPy array, of
            less than 2^32 elements.
        p: drop probability in [0, 1); ``p == 0`` returns ``x`` itself.
        seed: int in [0, 2^64), or a Dr.Jit integer array, NumPy integer array or list of ints with one entry, or with
            one for each row of ``x``.
        offset: integers of at least 0, one for each column, or one for each element: a NumPy array for any ``x``, or
            a Dr.Jit array or tensor if ``x`` is Dr.Jit's. ``"triton"`` takes 32 bits (``Int32``, ``UInt32``, NumPy
            values below 2^32), ``"ztensor"`` 64. Virtual calls need it, since elements have no number there. Signed
            Dr.Jit arrays are checked for negative numbers, which takes an extra pass, except inside loops and frozen
            functions.
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
    seeds, offsets = _seeds(seed, shape, leaf), _offsets(offset, shape, leaf, convention)
    if p == 0:
        return x
    if offset is None and not on_host and inside_call(leaf):
        where = "inside a virtual call (dr.switch, dr.dispatch or a method call), where elements have no number"
        raise ValueError(f"{_WHERE}: offset is None {where}; pass the offset of each element in.")
    p = float(p)
    factor = rounded(1 / (1 - p), leaf)
    problem = f"p is {shown(p)}, whose scale 1 / (1 - p) = {1 / (1 - p):g} {numpy_dtype(leaf)} cannot hold"
    ensure(math.isfinite(factor), f"{_WHERE}: {problem}; use a smaller p or single precision.")
    factor = leaf(factor)
    if not on_host:
        flat = x.array if dr.is_tensor_v(x) else x
        element = dr.arange(dr.uint32_array_t(leaf), math.prod(shape))
        y = dr.select(_keeps(element, shape, seeds, offsets, p, convention), flat * factor, leaf(0))
        return type(x)(y, x.shape) if dr.is_tensor_v(x) else y
    # in pieces, since the words of a generator take several times the memory of x
    flat, y = x.ravel(), np.empty(x.size, x.dtype)
    for start in range(0, x.size, CHUNK):
        element = np.arange(start, min(start + CHUNK, x.size))
        keep = _keeps(element, shape, seeds, offsets, p, convention)
        y[element] = np.where(keep, flat[element] * factor, leaf(0))
    return y.reshape(x.shape)


def _shape(x: Any) -> tuple[tuple[int, ...], type]:
    """The shape of ``x`` and the type of its scalars; raises unless it has one or two dimensions."""
    if isinstance(x, np.ndarray):
        valid = x.ndim in (1, 2) and x.size > 0
        ensure(valid, f"{_WHERE}: got a NumPy array of shape {x.shape}; a non-empty 1D or 2D array is needed.")
        return x.shape, x.dtype.type
    kind, leaf = kinds.kind(x, _WHERE)
    if kind != kinds.TENSOR and (not isinstance(x, dr.ArrayBase) or kinds.describe(type(x)).depth != 1):
        needed = "a 1D Dr.Jit array, a 2D tensor or a NumPy array is needed"
        raise TypeError(f"{_WHERE}: x is a {type(x).__name__}; {needed}.")
    require(leaf)
    return (tuple(x.shape) if kind == kinds.TENSOR else (dr.width(x),)), leaf


# ---- Seeds and offsets: of 64 bits in NumPy, of 32 or 64 in Dr.Jit, like x -------------------------------------


def _seeds(seed: Any, shape: tuple[int, ...], leaf: type) -> Any:
    """The seeds, 64 bits each: one, or one for each row."""
    rows = shape[0] if len(shape) == 2 else 1
    if not isinstance(seed, (dr.ArrayBase, np.ndarray, list, tuple)):
        seed = [check_uint(_WHERE, "seed", seed, 64, ", or an array of integers,")]
    values, given = integers(_WHERE, "seed", seed, leaf)
    ensure(len(given) < 2, f"{_WHERE}: seed has the shape {given}; one dimension is needed.")
    n, needed = len(values), "one is needed, or one for each row of a matrix"
    ensure(n in (1, rows), f"{_WHERE}: seed has {n} entries, but x has the shape {shape}; {needed}.")
    if issubclass(leaf, np.generic):
        return values
    uint64 = dr.uint64_array_t(leaf)
    one = isinstance(values, np.ndarray) and len(values) == 1  # a parameter of the kernel, not part of it
    return kernel_parameter(uint64, int(values[0])) if one else kept(uint64(values))


def _offsets(offset: Any, shape: tuple[int, ...], leaf: type, convention: str) -> Any:
    """The offsets, one for each column or one for each element; ``None`` for the default ones."""
    if offset is None:
        return None
    values, given = integers(_WHERE, "offset", offset, leaf)
    if isinstance(values, np.ndarray):
        small = int(values.max()) < 1 << 32
        valid = small or convention != "triton"
        ensure(valid, f"{_WHERE}: an offset is 2^32 or more; the convention 'triton' takes 32 bits.")
        if not issubclass(leaf, np.generic):
            values = dr.uint32_array_t(leaf)(values.astype(np.uint32)) if small else dr.uint64_array_t(leaf)(values)
    elif convention == "triton" and dr.type_v(values) == dr.VarType.UInt64:
        needed = "a Dr.Jit Int32 or UInt32 array is needed for 'triton', whose offsets have 32 bits"
        raise TypeError(f"{_WHERE}: offset is a {type(offset).__name__}; {needed}.")
    valid = given in (shape, shape[-1:], (math.prod(shape),))
    has = f"{given[0]} entries" if len(given) == 1 else f"the shape {given}"
    needed = "one is needed for each column, or for each element"
    ensure(valid, f"{_WHERE}: offset has {has}, but x has the shape {shape}; {needed}.")
    return values


# ---- The mask ----------------------------------------------------------------------------------------------


def _keeps(place: Any, shape: tuple[int, ...], seeds: Any, offsets: Any, p: float, convention: str) -> Any:
    """The keep mask of the elements at positions ``place``. In Dr.Jit, it fuses with the code that reads it."""
    n, columns = math.prod(shape), shape[-1]
    uint32 = np.uint32 if isinstance(place, np.ndarray) else type(place)

    def take(values: Any, i: Any) -> Any:
        return values[i] if uint32 is np.uint32 else dr.gather(type(values), values, i)

    column = place % columns if n > columns else place
    by_row = len(seeds) > 1
    if by_row:
        seeds = take(seeds, place // columns)
    if offsets is None:
        offsets = column if by_row else place
    elif len(offsets) != n:
        offsets = take(offsets, column)
    elif uint32 is np.uint32:
        offsets = offsets[place]
    word = generate((*halves(offsets, uint32), uint32(0), uint32(0)), round_keys(halves(seeds, uint32)))[0]
    if convention == "ztensor":
        bound = math.ceil(p * 2**32)  # it may be 2^32 itself, which no word reaches
        if uint32 is np.uint32:
            return word >= bound
        return word >= uint32(bound) if bound < 2**32 else dr.mask_t(word)(False)
    if uint32 is np.uint32:
        signed, single, select = word.view(np.int32), np.float32, np.where
    else:
        signed, single = dr.reinterpret_array(dr.int32_array_t(uint32), word), dr.float32_array_t(uint32)
        select = dr.select
    uniform = single(select(signed < 0, -signed - 1, signed)) * single(TRITON_SCALE)
    return uniform > single(float(np.float32(p)))
