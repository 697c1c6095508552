"""Philox4x32, the counter-based generator behind every mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check, ensure, entries, is_int, shown, whole
from ..checks.sizes import MAX_ROUNDS

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
    counter, key = _words("counter", counter), _words("key", key)
    given = f"a counter of {len(counter)} and a key of {len(key)} words"
    ensure((len(counter), len(key)) == (4, 2), f"philox4x32: got {given}; 4 and 2 are needed.")
    fits = is_int(rounds, 1, MAX_ROUNDS)
    check(fits, "philox4x32", "rounds", rounds, f"an int of at least 1, and of at most {MAX_ROUNDS},")
    words = [_check(w, name) for w, name in zip(counter + key, _NAMES, strict=True)]
    arrays = [w for w in words if not isinstance(w, int)]
    if not arrays:
        return _rounds(words, rounds, _mul_int, lambda k, w: (k + w) & MASK32)
    alike = len({isinstance(w, np.ndarray) for w in arrays}) < 2
    ensure(alike, "philox4x32: NumPy and Dr.Jit words cannot be mixed; convert one kind first.", TypeError)
    if isinstance(arrays[0], np.ndarray):
        try:
            words = list(np.broadcast_arrays(*[np.asarray(w, np.uint32) for w in words]))
        except ValueError:
            shapes = shown([np.shape(w) for w in words])
            raise ValueError(f"philox4x32: words of the shapes {shapes} cannot be broadcast together.") from None
        return _rounds(words, rounds, _mul_numpy, lambda k, w: np.add(k, np.uint32(w)))
    _check_sizes(arrays)
    scalar = dr.leaf_t(type(arrays[0]))
    words = [scalar(w) if isinstance(w, int) else w for w in words]
    return _rounds(words, rounds, _mul_drjit, lambda k, w: k + scalar(w))


def halves(value: Any, uint32: type) -> tuple[Any, Any]:
    """``(low, high)`` of integers of up to 64 bits, in the 32-bit type ``uint32`` of NumPy or Dr.Jit."""
    if uint32 is np.uint32:
        value = np.asarray(value, np.uint64)
        return value.astype(np.uint32), (value >> np.uint64(32)).astype(np.uint32)
    return uint32(value), uint32(value >> 32) if dr.type_v(value) == dr.VarType.UInt64 else uint32(0)


_NAMES = ("counter[0]", "counter[1]", "counter[2]", "counter[3]", "key[0]", "key[1]")


def _words(name: str, value: Any) -> tuple:
    ok = isinstance(value, (tuple, list, np.ndarray, dr.ArrayBase))
    check(ok, "philox4x32", name, value, "a tuple of words", TypeError)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return ()
    return tuple(value if isinstance(value, (dr.ArrayBase, np.ndarray)) else entries("philox4x32", name, value))


def _check(word: Any, name: str) -> Any:
    if isinstance(word, dr.ArrayBase):
        if dr.type_v(word) != dr.VarType.UInt32 or dr.is_tensor_v(word):
            raise TypeError(f"philox4x32: {name} is a {type(word).__name__}; a Dr.Jit word must be a UInt32.")
        return word
    if isinstance(word, np.ndarray):
        if word.dtype != np.uint32:
            raise TypeError(f"philox4x32: {name} has dtype {word.dtype}; a NumPy word must be uint32.")
        return word
    value = int(word) if isinstance(word, bool) else whole(word)
    if value is None:
        accepted = "accepted are a Dr.Jit UInt32, a NumPy uint32 array and an int"
        raise TypeError(f"philox4x32: {name} is a {type(word).__name__}; {accepted}.")
    check(not isinstance(word, bool) and 0 <= value <= MASK32, "philox4x32", name, word, "an int in [0, 2^32)")
    return value


def _check_sizes(arrays: list) -> None:
    """Raise unless these Dr.Jit words belong to one backend, and are of one size (or single ones): others abort."""
    if len({type(w) for w in arrays}) > 1 or not dr.is_jit_v(arrays[0]):
        backends = {dr.backend_v(w) for w in arrays}
        fits = len(backends) == 1 and dr.JitBackend.Invalid not in backends
        ensure(fits, "philox4x32: Dr.Jit words must be of one backend, LLVM or CUDA.", TypeError)
    lengths = {len(w) for w in arrays if dr.depth_v(w) > 1}
    for sizes in ({dr.width(w) for w in arrays}, lengths):
        if 0 in sizes or len(sizes - {1}) > 1:
            raise ValueError(f"philox4x32: got words of {shown(sorted(sizes))} entries; one size, or 1, is needed.")


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
