"""Dropout over flat arrays as other systems draw it, to check against them."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr
import numpy as np

from . import kinds
from .backend import require
from .dropout import check_probability, numpy_dtype
from .key import check_word
from .philox import philox4x32

CONVENTIONS = ("triton", "ztensor")


def seeded_dropout(x: Any, p: float, seed: Any, *, offset: Any = None, convention: str) -> Any:
    r"""Dropout of a flat array whose mask is a function of ``(seed, offset)`` in another system's convention.

    ==============  =========================================  ====================================================
    convention      random word of element ``o = offset[i]``   kept if
    ==============  =========================================  ====================================================
    ``"triton"``    word 0 of Philox counter ``(o, 0, 0, 0)``  ``tl.rand(seed, o) > p``, in single precision, as in
                                                               Triton's tutorial on low-memory dropout
    ``"ztensor"``   word 0 of Philox counter                   ``word >= ceil(p * 2^32)``
                    ``(o_low, o_high, 0, 0)``
    ==============  =========================================  ====================================================

    Both use 10 rounds and the key ``(seed_low, seed_high)``; kept elements are multiplied by :math:`1/(1-p)`, rounded
    once to the type of ``x``.

    Args:
        x: a 1D Dr.Jit or NumPy array of floating point numbers.
        p: drop probability in [0, 1); ``p == 0`` returns ``x`` itself.
        seed: int in [0, 2^64) or a Dr.Jit ``UInt64``.
        offset: for each element, an unsigned integer array of ``x``'s length (64-bit ones for ``"ztensor"`` only);
            ``arange`` if ``None``.
        convention: ``"triton"`` or ``"ztensor"``.

    Raises:
        ValueError, TypeError: arguments of another kind or out of range.

    >>> y = cn.seeded_dropout(x, 0.5, seed=123, convention="triton")
    """
    where = "seeded_dropout"
    if convention not in CONVENTIONS:
        raise ValueError(f"{where}: convention is {convention!r}; accepted are 'triton' and 'ztensor'.")
    check_probability(p, where)
    if isinstance(x, np.ndarray):
        if x.ndim != 1 or x.size == 0:
            raise ValueError(f"{where}: got a NumPy array of shape {x.shape}; a non-empty 1D array is needed.")
        leaf: type = x.dtype.type
    else:
        kind, leaf = kinds.kind(x, where)
        if kind != kinds.ARRAYS or isinstance(x, (list, tuple)) or kinds.describe(type(x)).depth != 1:
            raise TypeError(f"{where}: x is a {type(x).__name__}; a 1D Dr.Jit or NumPy array is needed.")
        require(leaf)
    kinds.require_float(leaf, where)
    seed = check_word(seed, "seed", 64)
    keep = _keep_numpy if isinstance(x, np.ndarray) else _keep_drjit
    if p == 0:
        return x
    factor = leaf(float(np.asarray(1 / (1 - p)).astype(numpy_dtype(leaf))))
    mask = keep(x, float(p), seed, offset, convention)
    return np.where(mask, x * factor, leaf(0)) if isinstance(x, np.ndarray) else dr.select(mask, x * factor, leaf(0))


def _keep_numpy(x: np.ndarray, p: float, seed: Any, offset: Any, convention: str) -> np.ndarray:
    seed = int(seed.numpy()[0]) if isinstance(seed, dr.ArrayBase) else seed
    place = np.arange(x.size, dtype=np.uint64) if offset is None else np.asarray(offset)
    if place.shape != x.shape or not np.issubdtype(place.dtype, np.integer) or (place < 0).any():
        raise ValueError(
            f"seeded_dropout: offset has dtype {place.dtype} and shape {place.shape}; integers of at least 0 with "
            f"shape {x.shape} are needed."
        )
    place = place.astype(np.uint64)
    low, high = (place & np.uint64(0xFFFFFFFF)).astype(np.uint32), (place >> np.uint64(32)).astype(np.uint32)
    if convention == "triton" and high.any():
        raise ValueError("seeded_dropout: an offset is 2^32 or more; the convention 'triton' takes 32 bits.")
    word = philox4x32((low, high, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))[0]
    if convention == "ztensor":
        return word >= math.ceil(p * 2**32)
    signed = word.view(np.int32)
    uniform = np.where(signed < 0, -signed - 1, signed).astype(np.float32) * np.float32(4.6566127342e-10)
    return uniform > np.float32(p)


def _keep_drjit(x: Any, p: float, seed: Any, offset: Any, convention: str) -> Any:
    uint32, uint64 = dr.uint32_array_t(type(x)), dr.uint64_array_t(type(x))
    seed = uint64(seed) if isinstance(seed, dr.ArrayBase) else dr.opaque(uint64, seed)
    n = dr.width(x)
    if offset is None:
        offset = dr.arange(uint32, n)
    accepted = (dr.VarType.UInt32, dr.VarType.UInt64)[: 1 + (convention == "ztensor")]
    if not isinstance(offset, dr.ArrayBase) or dr.type_v(offset) not in accepted or dr.depth_v(offset) != 1:
        raise TypeError(
            f"seeded_dropout: offset is a {type(offset).__name__}; a Dr.Jit {' or '.join(t.name for t in accepted)} "
            f"array is needed for {convention!r}."
        )
    if dr.width(offset) not in (1, n):
        raise ValueError(f"seeded_dropout: offset has {dr.width(offset)} entries, but x has {n}.")
    wide = dr.type_v(offset) == dr.VarType.UInt64
    low, high = uint32(offset), uint32(uint64(offset) >> 32) if wide else uint32(0)
    word = philox4x32((low, high, 0, 0), (uint32(seed), uint32(seed >> 32)))[0]
    if convention == "ztensor":
        # the bound may be 2^32 itself, which no word reaches
        bound = math.ceil(p * 2**32)
        return word >= uint32(bound) if bound < 2**32 else dr.mask_t(word)(False)
    int32, single = dr.int32_array_t(type(x)), dr.float32_array_t(type(x))
    signed = dr.reinterpret_array(int32, word)
    uniform = single(dr.select(signed < 0, -signed - 1, signed)) * single(4.6566127342e-10)
    return uniform > single(float(np.float32(p)))
