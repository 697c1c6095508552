"""Philox4x32, the counter-based generator behind every mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check, is_int, shown
from ..checks.sizes import MAX_ROUNDS
from .counter_words import philox_words

# Multipliers and key increments ("Weyl constants") of Salmon et al. 2011, table 2 and section 4.
M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
MASK32 = 0xFFFFFFFF


def philox4x32(counter: Sequence[Any], key: Sequence[Any], rounds: int = 10) -> tuple[Any, Any, Any, Any]:
    r"""Random123's Philox4x32 block function: 128 bits of counter and 64 bits of key to 128 random bits.

    One round maps the counter :math:`(c_0, c_1, c_2, c_3)` to

    .. math::
        (\mathrm{hi}(M_1 c_2) \oplus c_1 \oplus k_0,\ \mathrm{lo}(M_1 c_2),\
         \mathrm{hi}(M_0 c_0) \oplus c_3 \oplus k_1,\ \mathrm{lo}(M_0 c_0))

    and adds :math:`(W_0, W_1)` to the key (Salmon, Moraes, Dror, Shaw: *Parallel random numbers: as easy as
    1, 2, 3*, SC 2011). Different counters under one key never collide: the function is a bijection.

    Args:
        counter: 4 words, each a Dr.Jit ``UInt32`` (or ``ArrayXu``), a NumPy ``uint32`` array, or an int in
            [0, 2^32). The kinds may be mixed with ints, which are broadcast.
        key: 2 words, (low, high).
        rounds: 10 is the authors' recommendation, 7 the fewest that pass BigCrush; at most 100.

    Returns:
        4 words of the same kind as the inputs.

    Raises:
        ValueError: wrong number of words, words of different sizes, an int outside [0, 2^32), ``rounds`` out of range.
        TypeError: a word that is no 32-bit unsigned integer.

    >>> [hex(w) for w in cn.philox4x32((0, 0, 0, 0), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    fits = is_int(rounds, 1, MAX_ROUNDS)
    check(fits, "philox4x32", "rounds", rounds, f"an int of at least 1, and of at most {MAX_ROUNDS},")
    words = philox_words(counter, key)
    arrays = [w for w in words if not isinstance(w, int)]
    if not arrays:
        return _rounds(words, rounds, _mul_int, lambda k, w: (k + w) & MASK32)
    if isinstance(arrays[0], np.ndarray):
        try:
            words = list(np.broadcast_arrays(*[np.asarray(w, np.uint32) for w in words]))
        except ValueError:
            shapes = shown([np.shape(w) for w in words])
            raise ValueError(f"philox4x32: words of the shapes {shapes} cannot be broadcast together.") from None
        return _rounds(words, rounds, _mul_numpy, lambda k, w: np.add(k, np.uint32(w)))
    scalar = dr.leaf_t(type(arrays[0]))
    words = [scalar(w) if isinstance(w, int) else w for w in words]
    return _rounds(words, rounds, _mul_drjit, lambda k, w: k + scalar(w))


def _rounds(words: list, rounds: int, mul: Any, bump: Any) -> tuple[Any, Any, Any, Any]:
    c0, c1, c2, c3, k0, k1 = words
    for r in range(rounds):
        if r:
            k0, k1 = bump(k0, W0), bump(k1, W1)
        hi0, lo0 = mul(c0, M0)
        hi1, lo1 = mul(c2, M1)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
    return c0, c1, c2, c3


def _mul_int(a: int, m: int) -> tuple[int, int]:
    p = a * m
    return p >> 32, p & MASK32


def _mul_numpy(a: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    p = a.astype(np.uint64) * np.uint64(m)
    return (p >> np.uint64(32)).astype(np.uint32), p.astype(np.uint32)


def _mul_drjit(a: Any, m: int) -> tuple[Any, Any]:
    return dr.mul_hi(a, m), a * m
