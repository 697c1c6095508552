"""Philox4x32, the counter-based generator behind every mask."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check, is_int
from ..checks.sizes import MAX_ROUNDS
from .counter_words import checked_words

# Multipliers and key increments ("Weyl constants") of Salmon et al. 2011, table 2 and section 4.
M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85


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
        rounds: the authors recommend 10; at least 7 are needed to pass the tests of BigCrush; at most 100.

    Returns:
        4 words of the same kind as the inputs.

    Raises:
        ValueError: wrong number of words, words of different sizes, an int outside [0, 2^32), ``rounds`` out of range.
        TypeError: a word that is not a 32-bit unsigned integer.

    >>> [hex(w) for w in cn.philox4x32((0, 0, 0, 0), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    valid = is_int(rounds, 1, MAX_ROUNDS)
    check(valid, "philox4x32", "rounds", rounds, f"an int of at least 1, and of at most {MAX_ROUNDS},")
    words = checked_words(counter, key)
    array = next((w for w in words if not isinstance(w, int)), None)
    if isinstance(array, dr.ArrayBase):
        uint32 = dr.leaf_t(type(array))
        words = [uint32(w) if isinstance(w, int) else w for w in words]
    else:
        words = list(np.broadcast_arrays(*[np.asarray(w, np.uint32) for w in words]))
    c0, c1, c2, c3 = generate(words[:4], round_keys(words[4:], rounds))
    return (int(c0), int(c1), int(c2), int(c3)) if array is None else (c0, c1, c2, c3)


def round_keys(key: Sequence[Any], rounds: int = 10) -> list[tuple[Any, Any]]:
    """The keys of all rounds, from a key of two 32-bit words of Dr.Jit or NumPy, which are not checked."""
    k0, k1 = key
    keys = [(k0, k1)]
    uint32, add = (dr.leaf_t(type(k0)), operator.add) if isinstance(k0, dr.ArrayBase) else (np.uint32, np.add)
    w0, w1 = uint32(W0), uint32(W1)
    for _ in range(rounds - 1):
        k0, k1 = add(k0, w0), add(k1, w1)
        keys.append((k0, k1))
    return keys


def generate(counter: Sequence[Any], keys: Sequence[tuple[Any, Any]]) -> tuple[Any, Any, Any, Any]:
    """:func:`philox4x32` of 4 words, given the :func:`round_keys`. Arguments are not checked."""
    c0, c1, c2, c3 = counter
    if isinstance(c0, dr.ArrayBase):
        uint32 = dr.leaf_t(type(c0))
        m0, m1, product = uint32(M0), uint32(M1), _product_drjit
    else:
        m0, m1, product = np.uint64(M0), np.uint64(M1), _product_numpy
    for k0, k1 in keys:
        hi0, lo0 = product(c0, m0)
        hi1, lo1 = product(c2, m1)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
    return c0, c1, c2, c3


def _product_numpy(a: np.ndarray, m: Any) -> tuple[np.ndarray, np.ndarray]:
    p = a.astype(np.uint64) * m
    return (p >> np.uint64(32)).astype(np.uint32), p.astype(np.uint32)


def _product_drjit(a: Any, m: Any) -> tuple[Any, Any]:
    if dr.backend_v(a) == dr.JitBackend.CUDA:
        # one instruction for both words; on CPUs, two products are faster
        both = dr.mul_wide(a, m)
        return type(a)(both >> 32), type(a)(both)
    return dr.mul_hi(a, m), a * m
