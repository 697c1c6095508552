"""The 32-bit words of counters and keys, and the seeds, indices, steps and offsets from which they are made."""

from __future__ import annotations

from typing import Any

import drjit as dr
import numpy as np

from ..checks import check, ensure, entries, is_flat, shown, shown_typed, whole
from ..jit.kernel_parameters import kept
from ..jit.scopes import recording

#: Bits of the unsigned types. Where a wider type is needed, a narrower one is accepted.
_UNSIGNED = {dr.VarType.UInt8: 8, dr.VarType.UInt16: 16, dr.VarType.UInt32: 32, dr.VarType.UInt64: 64}
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


# ---- parts of a key: ints, Dr.Jit arrays, and NumPy arrays for indices ----------------------------------------


def key_part(value: Any, name: str, bits: int) -> Any:
    """``value``, a part of a key, as an int in [0, 2^bits) or an unsigned array of ``bits`` bits; raises for others."""
    if isinstance(value, dr.ArrayBase):
        flat = is_flat(value) and dr.is_jit_v(value)
        given = _UNSIGNED.get(dr.type_v(value), bits + 1) if flat else bits + 1
        if given > bits:
            needed = f"a UInt{bits} is needed: UInt{bits}({name})"
            raise TypeError(f"Key: {name} is a Dr.Jit {type(value).__name__}; {needed}.")
        return kept((dr.uint64_array_t if bits == 64 else dr.uint32_array_t)(value)(value))
    if isinstance(value, np.ndarray) and name == "index":
        kind = f"Key: index is a NumPy array of {value.dtype} with shape {value.shape}"
        ensure(value.ndim == 1 and value.dtype.kind in "iu", f"{kind}; 1D integers are needed.", TypeError)
        valid = value.size and int(value.min()) >= 0 and int(value.max()) < 1 << 32
        ensure(valid, "Key: a NumPy index must be non-empty with entries in [0, 2^32).")
        return value.astype(np.uint32)
    return check_uint("Key", name, value, bits, f" or a Dr.Jit UInt{bits}")


# ---- words of the generator: ints and 32-bit arrays of one kind -----------------------------------------------


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


# ---- seeds and offsets of other systems: integers of any kind -------------------------------------------------


def integers(where: str, name: str, value: Any, leaf: type) -> tuple[Any, tuple[int, ...]]:
    """``value`` as a flat array of unsigned integers, and its original shape.

    The result is a Dr.Jit array if ``value`` is one and ``leaf`` is a Dr.Jit type; otherwise a NumPy array of 64 bits.
    """
    if isinstance(value, dr.ArrayBase) and not issubclass(leaf, np.generic):
        return _unsigned(where, name, value, leaf), tuple(value.shape)
    array = value.numpy() if isinstance(value, dr.ArrayBase) else _numpy(where, name, value)
    right = array.size and np.issubdtype(array.dtype, np.integer) and not (array < 0).any()
    kind = f"dtype {array.dtype} and shape {array.shape}"
    ensure(right, f"{where}: {name} has {kind}; integers of at least 0 are needed.")
    return array.ravel().astype(np.uint64), array.shape


def _numpy(where: str, name: str, value: Any) -> np.ndarray:
    """``value`` as a NumPy array. NumPy itself would make floats of lists with numbers below and above 2^63."""
    if isinstance(value, np.ndarray):
        return value
    try:
        exact = np.asarray(value, object)
        if not (exact.size and all(whole(v) is not None for v in exact.flat)):
            return np.asarray(value)
        ensure(all(0 <= v < 1 << 64 for v in exact.flat), "out of range")
        return exact.astype(np.uint64)
    except Exception as error:  # NumPy may raise anything
        problem = "that NumPy makes no array of integers in [0, 2^64) of"
        raise ValueError(f"{where}: {name} is a {type(value).__name__} {problem} ({str(error)[:80]}).") from None


def _unsigned(where: str, name: str, value: Any, leaf: type) -> Any:
    """A Dr.Jit integer array of ``leaf``'s backend as a flat ``UInt32`` or ``UInt64``, without negative entries."""
    value = value.array if dr.is_tensor_v(value) else value
    types = (dr.VarType.Int32, dr.VarType.UInt32, dr.VarType.Int64, dr.VarType.UInt64)
    if dr.depth_v(value) != 1 or dr.type_v(value) not in types or dr.backend_v(value) != dr.backend_v(leaf):
        needed = f"Dr.Jit integers of 32 or 64 bits on the {dr.backend_v(leaf).name} backend are needed"
        raise TypeError(f"{where}: {name} is a {type(value).__module__}.{type(value).__name__}; {needed}.")
    ensure(dr.width(value), f"{where}: {name} is empty; integers of at least 0 are needed.")
    negative = dr.is_signed_v(value) and not recording() and dr.any(value < 0)
    ensure(not negative, f"{where}: {name} has negative entries; integers of at least 0 are needed.")
    wide = dr.type_v(value) in types[2:]
    return (dr.uint64_array_t if wide else dr.uint32_array_t)(leaf)(value)
