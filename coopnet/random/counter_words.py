"""The 32-bit words of the generator's counters and keys, and the halves of 64-bit numbers."""

from __future__ import annotations

from typing import Any

import drjit as dr
import numpy as np

from ..checks import check, ensure, entries, shown, shown_typed, whole

_PHILOX = "philox4x32"
_NAMES = ("counter[0]", "counter[1]", "counter[2]", "counter[3]", "key[0]", "key[1]")


def halves(value: Any, uint32: type) -> tuple[Any, Any]:
    """``(low, high)`` of integers of up to 64 bits, in the 32-bit type ``uint32`` of NumPy or Dr.Jit."""
    if uint32 is np.uint32:
        value = np.asarray(value, np.uint64)
        return value.astype(np.uint32), (value >> np.uint64(32)).astype(np.uint32)
    return uint32(value), uint32(value >> 32) if dr.type_v(value) == dr.VarType.UInt64 else uint32(0)


def check_uint(where: str, name: str, value: Any, bits: int, also: str = "") -> int:
    """``value`` as an int in [0, 2^bits); raises ``TypeError`` if it is not an int, ``ValueError`` if it is out of
    range.
    """
    number = whole(value)
    if number is None:
        needed = f"an int in [0, 2^{bits}){also} is needed"
        raise TypeError(f"{where}: {name} is {shown_typed(value)}; {needed}.")
    check(0 <= number < 1 << bits, where, name, number, f"an int in [0, 2^{bits})")
    return number


def checked_words(counter: Any, key: Any) -> list:
    """The 6 words of ``counter`` and ``key``; raises unless their kinds and sizes fit each other."""
    counter, key = _sequence("counter", counter), _sequence("key", key)
    given = f"a counter of {len(counter)} and a key of {len(key)} words"
    ensure((len(counter), len(key)) == (4, 2), f"{_PHILOX}: got {given}; 4 and 2 are needed.")
    words = [_word(w, name) for w, name in zip(counter + key, _NAMES, strict=True)]
    arrays = [w for w in words if not isinstance(w, int)]
    alike = len({isinstance(w, np.ndarray) for w in arrays}) < 2
    ensure(alike, f"{_PHILOX}: NumPy and Dr.Jit words cannot be mixed; convert one kind first.", TypeError)
    if arrays and isinstance(arrays[0], dr.ArrayBase):
        check_sizes(arrays)
        return words
    try:
        np.broadcast_shapes(*map(np.shape, words))
    except ValueError:
        shapes = shown([np.shape(w) for w in words])
        raise ValueError(f"{_PHILOX}: words of the shapes {shapes} cannot be broadcast together.") from None
    return words


def _sequence(name: str, value: Any) -> tuple:
    ok = isinstance(value, (tuple, list, np.ndarray, dr.ArrayBase))
    check(ok, _PHILOX, name, value, "a tuple of words", TypeError)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return ()
    return tuple(value if isinstance(value, (dr.ArrayBase, np.ndarray)) else entries(_PHILOX, name, value))


def _word(word: Any, name: str) -> Any:
    if isinstance(word, dr.ArrayBase):
        if dr.type_v(word) != dr.VarType.UInt32 or dr.is_tensor_v(word):
            raise TypeError(f"{_PHILOX}: {name} is a {type(word).__name__}; a Dr.Jit word must be a UInt32.")
        return word
    if isinstance(word, np.ndarray):
        if word.dtype != np.uint32:
            raise TypeError(f"{_PHILOX}: {name} has dtype {word.dtype}; a NumPy word must be uint32.")
        return word
    number = whole(word)
    if number is None and not isinstance(word, bool):
        accepted = "accepted are a Dr.Jit UInt32, a NumPy uint32 array and an int"
        raise TypeError(f"{_PHILOX}: {name} is a {type(word).__name__}; {accepted}.")
    check(number is not None and 0 <= number < 1 << 32, _PHILOX, name, word, "an int in [0, 2^32)")
    return number


def check_sizes(arrays: list) -> None:
    """Raise unless these Dr.Jit words are on one backend and of one size (or single numbers). Dr.Jit would abort."""
    if len({type(w) for w in arrays}) > 1 or not dr.is_jit_v(arrays[0]):
        backends = {dr.backend_v(w) for w in arrays}
        valid = len(backends) == 1 and dr.JitBackend.Invalid not in backends
        ensure(valid, f"{_PHILOX}: Dr.Jit words must be of one backend, LLVM or CUDA.", TypeError)
    for sizes in ({dr.width(w) for w in arrays}, {len(w) for w in arrays if dr.depth_v(w) > 1}):
        if 0 in sizes or len(sizes - {1}) > 1:
            raise ValueError(f"{_PHILOX}: got words of {shown(sorted(sizes))} entries; one size, or 1, is needed.")
