"""Random numbers that are a function of a key, for drawing training samples, all or some of a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check, check_int, check_positive, check_type, check_unsigned, ensure, is_flat, shown
from ..checks.sizes import MAX_ENTRIES, check_features
from ..context import Context
from ..random import streams
from ..random.key import Key
from ..random.philox import philox4x32

_draws = Context("draws")


@contextmanager
def noting_draws() -> Iterator[list[tuple[int, tuple]]]:
    """A block that records draws: it yields a list of their streams and the other words of their counters and keys."""
    draws: list[tuple[int, tuple]] = []
    with _draws(draws):
        yield draws


#: Bits of a number in [0, 1): all such multiples of 2^-24 are single-precision numbers.
BITS = 24


def uniform(n: int, key: Key, dtype: type, samples: int | None = None, *, stream: int = 0) -> list:
    r""":math:`n` arrays of numbers uniform in [0, 1), reproducible and independent of every dropout.

    Number :math:`i` of a sample is the upper 24 bits of word ``i % 4`` of the Philox block with counter
    ``(i // 4, index, step, 2^31 + stream)`` under the key's seed, times :math:`2^{-24}`.

    Args:
        n: how many numbers per sample.
        key: :class:`Key`; without an index, ``samples`` says how many there are.
        dtype: a single-precision 1D type such as ``drjit.llvm.ad.Float``.
        samples: number of samples, if the key has no index.
        stream: distinguishes several draws under one key; int in [0, 2^31).

    Raises:
        TypeError: ``dtype`` or ``key`` has another type.
        ValueError: ``n``, ``samples`` or ``stream`` out of range.

    >>> x, y = cn.uniform(2, key, Float, 1 << 16)
    """
    stream = _checked("uniform", key, dtype, dr.VarType.Float32, _SINGLE, stream)
    n = check_features("uniform", "n", check_positive("uniform", "n", n))
    if key.index is None:
        samples = _check_samples("uniform", samples)
    _, words = _index_and_words(n, key, dtype, samples, stream)
    return [dtype(word >> 8) * 2**-24 for word in words]


def integers(n: int, key: Key, dtype: type, samples: int | None = None, *, stream: int = 0) -> Any:
    r"""Random integers below ``n``, such as rows of a table, reproducible and independent of every dropout.

    The integer of a sample is :math:`\lfloor w n / 2^{32} \rfloor`, where :math:`w` is the first word that
    :func:`uniform` draws from under the same key and stream. Numbers of :func:`uniform` have 24 bits, and would leave
    out some of more than :math:`2^{24}` rows.

    Args:
        n: how many integers are possible, from 1 to :math:`2^{32} - 1`. Each has the same probability up to
            :math:`2^{-32}`.
        key: :class:`Key`; without an index, ``samples`` says how many there are.
        dtype: a 32-bit 1D type without sign, such as ``drjit.llvm.ad.UInt32``.
        samples: number of samples, if the key has no index.
        stream: distinguishes several draws under one key; int in [0, 2^31). Other draws for the same samples need
            another stream.

    Raises:
        TypeError: ``dtype`` or ``key`` has another type.
        ValueError: ``n``, ``samples`` or ``stream`` out of range.

    >>> row = cn.integers(1000, key, UInt32, 1 << 16)
    """
    where = "integers"
    needed = "an unsigned 32-bit type such as drjit.llvm.ad.UInt32"
    stream = _checked(where, key, dtype, dr.VarType.UInt32, needed, stream)
    n = check_int(where, "n", n, 1, MAX_ENTRIES)
    if key.index is None:
        samples = _check_samples(where, samples)
    _, (word,) = _index_and_words(1, key, dtype, samples, stream)
    return dr.mul_hi(word, dtype(n))


def stratified(n: int, key: Key, dtype: type, samples: int, *, stream: int = 0) -> list:
    r"""Points of the :math:`n`-dimensional unit cube, one in each of ``samples`` parts of equal volume.

    Like :func:`uniform` for the batches of a field with a grid, with two differences. The points of a batch cover the
    cube evenly, so that mean losses and gradients vary less from step to step: *stratified* or *jittered* sampling
    (Cook 1986). And samples with neighbouring numbers are neighbours in space, so that they read and add to the same
    entries of a grid, which is faster (``benchmarks/whole_jobs.py``). Over all samples of a batch the points are
    uniform, for any number of samples; sample :math:`i` alone stays in its part of the cube.

    The cube is cut along the Z-order curve (Morton 1966). Sample :math:`i` of :math:`N` has the place
    :math:`\lfloor (2^{32} i + w_0) / N \rfloor` on it, a number of 32 bits. Its bits belong to the axes in turn, from
    the highest on. Words :math:`w_1 \ldots w_n` fill up the 24 bits of each coordinate. The words are those that
    :func:`uniform` draws from under the same key and stream.

    Args:
        n: dimensions, at most 24: further axes would hardly be cut.
        key: :class:`Key`; its index, if it has one, names samples from 0 to ``samples``.
        dtype: a single-precision 1D type such as ``drjit.llvm.ad.Float``.
        samples: number of samples of the whole batch.
        stream: distinguishes several draws under one key; int in [0, 2^31). Other draws for the same samples need
            another stream.

    Raises:
        TypeError: ``dtype`` or ``key`` has another type.
        ValueError: ``n``, ``samples`` or ``stream`` out of range.

    >>> x, y = cn.stratified(2, key, Float, 1 << 16)
    """
    where = "stratified"
    stream = _checked(where, key, dtype, dr.VarType.Float32, _SINGLE, stream)
    n = check_features(where, "n", check_positive(where, "n", n))
    check(n <= BITS, where, "n", n, f"at most {BITS} dimensions")
    samples = _check_samples(where, samples)
    index, (first, *others) = _index_and_words(n + 1, key, dtype, samples, stream)
    uint32 = dr.uint32_array_t(dtype)
    code = _divided(uint32(index), uint32(first), samples)
    points = []
    for axis, word in enumerate(others):
        bits = range(31 - axis, -1, -n)[:BITS]  # of the code, the highest first
        number = uint32(0)
        for bit in bits:
            number = (number << 1) | ((code >> bit) & 1)
        rest = BITS - len(bits)
        points.append(dtype((number << rest) | (word >> (32 - rest)) if rest else number) * 2**-BITS)
    return points


def _divided(high: Any, low: Any, n: int) -> Any:
    """``(2^32 high + low) // n`` for words of 32 bits with ``high`` below ``n``.

    It has no division: one of 64 bits may be a subroutine on CUDA, which kernels with cooperative vectors must not call
    (see :func:`coopnet.random.law.quotient`).
    """
    if n == 1:
        return low
    uint32, uint64, bits = type(low), dr.uint64_array_t(type(low)), (1 << 32) - 1
    inverse = (1 << 64) // n
    h, w = uint64(high), uint64(low)
    a, b, c = h * (inverse & bits), w * (inverse >> 32), w * (inverse & bits)
    carry = ((a & bits) + (b & bits) + (c >> 32)) >> 32
    below = h * (inverse >> 32) + (a >> 32) + (b >> 32) + carry  # the quotient, or one less
    return uint32(below) + dr.select((h << 32 | w) - below * n >= n, uint32(1), 0)


_SINGLE = "a single-precision type such as drjit.llvm.ad.Float"


def _checked(where: str, key: Any, dtype: Any, of: dr.VarType, needed: str, stream: Any) -> int:
    """``stream`` as an int; raises unless it, ``key`` and ``dtype`` are valid."""
    fits = isinstance(dtype, type) and issubclass(dtype, dr.ArrayBase) and dr.type_v(dtype) == of
    check(fits, where, "dtype", dtype, needed, TypeError)
    flat = is_flat(dtype) and dr.is_jit_v(dtype)
    ensure(flat, f"{where}: dtype is {dtype.__name__}; a 1D array type is needed.", TypeError)
    check_type(where, "key", key, Key, "a coopnet.Key")
    return check_unsigned(where, "stream", stream, 31)


def _check_samples(where: str, samples: Any) -> int:
    """``samples`` as an int, if there can be so many."""
    count = check_positive(where, "samples", samples)
    ensure(count <= MAX_ENTRIES, f"{where}: samples is {shown(samples)}; fewer than 2^32 are possible.")
    return count


def _index_and_words(n: int, key: Key, dtype: type, samples: int | None, stream: int) -> tuple[Any, list]:
    """The numbers of the samples, and the first ``n`` random words of each."""
    width = samples if key.index is None else dr.width(key.index)
    index, step, seed = key.words(dr.uint32_array_t(dtype), width or 1)
    if (draws := _draws.get()) is not None:
        draws.append((stream, (step, *seed, *([] if key.index is None else [index]))))
    blocks = (philox4x32((block, index, step, streams.SAMPLES + stream), seed) for block in range(-(-n // 4)))
    return index, [word for words in blocks for word in words][:n]


def by_index(samples: int) -> Callable[[Callable[[Key], Any]], Callable[[Key], Any]]:
    """Decorates a batch function that draws only the samples named by its key, so that each process draws its own.

    Other batch functions draw the whole batch, of which each process takes its share. A function with this decorator is
    called with a key that has an index: the numbers of the samples to draw, among those from 0 to ``samples``. Entry
    :math:`i` of all arrays that it returns belongs to sample ``key.index[i]``, and must depend only on that number, the
    seed and the step. :func:`coopnet.uniform` and reading tables at ``key.index`` have this property. If the key has no
    index, as when :func:`coopnet.fit` runs in one process, the function draws all samples.

    Args:
        samples: number of samples in a whole batch, a positive int.

    Raises:
        TypeError, ValueError: ``samples`` is not a positive int; the decorated object is not a function.

    >>> @cn.training.by_index(1 << 18)
    ... def batch(key):
    ...     x, y = cn.uniform(2, key, Float)
    ...     return [x, y], [dr.sin(6 * x) * y]
    """
    check_positive("by_index", "samples", samples)

    def decorate(function: Callable[[Key], Any]) -> Callable[[Key], Any]:
        check_type("by_index", "the batch", function, Callable, "a function key -> batch")

        @functools.wraps(function)
        def batch(key: Key) -> Any:
            if key.index is None:
                traced = isinstance(key.seed, dr.ArrayBase)
                index = dr.arange(dr.uint32_array_t(type(key.seed)), samples) if traced else np.arange(samples)
                key = Key(key.seed, index, key.step)
            return function(key)

        batch.by_index = samples  # type: ignore[attr-defined]
        return batch

    return decorate


def samples_by_index(batch: Callable[[Key], Any]) -> int | None:
    """The number of samples in a whole batch of a function decorated by :func:`by_index`; ``None`` for others."""
    return getattr(batch, "by_index", None)
