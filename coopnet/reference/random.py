"""Philox, the laws of dropout and its variants, and other systems' masks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
LOW32 = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: Sequence[Any], key: Sequence[Any], rounds: int = 10) -> tuple[Any, ...]:
    r"""Philox4x32-``rounds``: four random words for four counter words and two key words (low, high).

    One round maps :math:`(c_0, c_1, c_2, c_3)` to :math:`(hi_1 \oplus c_1 \oplus k_0,\ lo_1,\ hi_0 \oplus c_3
    \oplus k_1,\ lo_0)` with :math:`(hi_0, lo_0) = M_0 c_0` and :math:`(hi_1, lo_1) = M_1 c_2`; the key then
    grows by the Weyl constants :math:`(W_0, W_1)`. Words are ``uint32`` arrays, which broadcast, or Python
    ints in [0, 2^32); the result is four arrays, or four ints if all words were ints.

    >>> [hex(w) for w in ref.philox4x32((0, 0, 0, 0), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    if len(counter) != 4 or len(key) != 2:
        raise ValueError(f"philox4x32: counter and key need 4 and 2 words, got {len(counter)} and {len(key)}")
    c0, c1, c2, c3 = (np.asarray(c, np.uint64) for c in counter)
    k0, k1 = (np.asarray(k, np.uint64) for k in key)
    m0, m1, w0, w1 = (np.uint64(v) for v in _MULTIPLIER + _WEYL)
    for _ in range(rounds):
        product0, product1 = m0 * c0, m1 * c2  # 32 x 32 bits: exact in 64
        c0, c1 = (product1 >> _HALF) ^ c1 ^ k0, product1 & LOW32
        c2, c3 = (product0 >> _HALF) ^ c3 ^ k1, product0 & LOW32
        k0, k1 = (k0 + w0) & LOW32, (k1 + w1) & LOW32
    words = np.broadcast_arrays(c0, c1, c2, c3)
    if all(isinstance(v, int) for v in (*counter, *key)):
        return tuple(int(w) for w in words)
    return tuple(w.astype(np.uint32) for w in words)


def threshold(p: float, bits: int = 16) -> int:
    """Number of the 2^bits values of a random draw that drop an element: round(p 2^bits).

    >>> ref.threshold(0.1)
    6554
    """
    if bits not in (8, 16, 32):
        raise ValueError(f"threshold: bits must be 8, 16 or 32, got {bits!r}")
    if not 0 <= p < 1:
        raise ValueError(f"threshold: p must be in [0, 1), got {p!r}")
    t: int = round(float(p) * 2**bits)
    if t >= 2**bits:
        raise ValueError(f"threshold: p={p!r} rounds to dropping everything with bits={bits}")
    return t


def scale(p: float, bits: int = 16) -> float:
    """Factor 2^bits / (2^bits - t) of kept elements, which keeps the mean exactly; not rounded to a type.

    >>> ref.scale(0.5)
    2.0
    """
    return float(2**bits / (2**bits - threshold(p, bits)))


def keep_mask(
    features: int, p: float, seed: int, index: Any, step: Any = 0, stream: int = 0, bits: int = 16, rounds: int = 10
) -> Array:
    r"""Keep mask of shape (features, samples): True where element i of a sample survives.

    Element i uses word :math:`w = \lfloor i k / 32 \rfloor` of its sample's random bits, i.e. lane :math:`w
    \bmod 4` of :math:`\mathrm{philox}(\lfloor w / 4 \rfloor, index, step, stream)` under the key ``seed``,
    and of that word the draw of :math:`k` bits number :math:`i \bmod 32/k` from the low end. It is kept
    iff draw >= threshold. ``index`` holds one identity per sample; ``step`` is a number or one per sample.
    Every element makes its own call of the generator here.

    >>> ref.keep_mask(features=4, p=0.5, seed=7, index=np.arange(2)).tolist()
    [[False, True], [True, False], [True, True], [True, False]]
    """
    t = threshold(p, bits)
    if not 0 <= seed < 2**64:
        raise ValueError(f"keep_mask: seed must be in [0, 2^64), got {seed!r}")
    return np.asarray(_draws(features, seed, index, step, stream, bits, rounds) >= np.uint64(t))


def _draws(features: int, seed: int, index: Any, step: Any, stream: int, bits: int, rounds: int) -> Array:
    """The draws of :func:`keep_mask`, shape (features, samples)."""
    sample = np.atleast_1d(np.asarray(index)).astype(np.uint32)[None, :]
    time = np.asarray(step).astype(np.uint32)
    first_bit = np.arange(features)[:, None] * bits  # where the draw starts in the sample's bit string
    block, lane, shift = first_bit // 128, first_bit // 32 % 4, first_bit % 32
    words = philox4x32((block, sample, time, np.uint32(stream)), (seed % 2**32, seed // 2**32), rounds)
    word = np.choose(np.broadcast_to(lane, words[0].shape), words)
    return np.asarray((word >> shift.astype(np.uint32)) % np.uint64(2**bits))


def dropout(
    x: Array, p: float, seed: int, index: Any = None, step: Any = 0, stream: int = 0, bits: int = 16, rounds: int = 10
) -> Array:
    """keep ? x * scale : 0 for x of shape (features, samples); scale and product have the type of x.

    ``index`` defaults to the column number. The gradient is the same function applied to the gradient.

    >>> ref.dropout(np.ones((4, 2)), 0.5, seed=7).tolist()
    [[0.0, 2.0], [2.0, 0.0], [2.0, 2.0], [2.0, 0.0]]
    """
    return _dropped(x, x.shape[0], p, seed, index, step, stream, bits, rounds)


def drop_path(
    x: Array, p: float, seed: int, index: Any = None, step: Any = 0, stream: int = 0, bits: int = 16, rounds: int = 10
) -> Array:
    """:func:`dropout` of whole samples: the decision about element 0 holds for all features of a sample.

    >>> ref.drop_path(np.ones((2, 4)), 0.5, seed=7).tolist()
    [[0.0, 2.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]]
    """
    return _dropped(x, 1, p, seed, index, step, stream, bits, rounds)


def _dropped(
    x: Array, decisions: int, p: float, seed: int, index: Any, step: Any, stream: int, bits: int, rounds: int
) -> Array:
    """Dropout of x with ``decisions`` draws for a sample: one for each of its elements, or one for all."""
    if p == 0:
        return x
    index = np.arange(x.shape[1]) if index is None else index
    mask = keep_mask(decisions, p, seed, index, step, stream, bits, rounds)
    return np.asarray(np.where(mask, x * x.dtype.type(scale(p, bits)), x.dtype.type(0)))


def gaussian_dropout(
    x: Array, p: float, seed: int, index: Any = None, step: Any = 0, stream: int = 0, rounds: int = 10
) -> Array:
    r"""x times noise of mean 1 and variance :math:`p / (1 - p)`, in double precision.

    Element i uses lane :math:`i \bmod 4` of :math:`\mathrm{philox}(\lfloor i / 4 \rfloor, index, step, stream)`, of
    which the upper 24 bits n make the normally distributed number :math:`\Phi^{-1}((n + 1/2) / 2^{24})`.

    >>> ref.gaussian_dropout(np.ones((1, 3)), 0.5, seed=7).round(3).tolist()
    [[2.691, 0.095, 0.542]]
    """
    index = np.arange(x.shape[1]) if index is None else index
    n = _draws(len(x), seed, index, step, stream, 32, rounds) // 2**8
    z = np.vectorize(statistics.NormalDist().inv_cdf, otypes=[np.float64])((n + 0.5) / 2**24)
    return np.asarray(x * (1 + math.sqrt(p / (1 - p)) * z))


def concrete_dropout(
    x: Array, p: float, seed: int, index: Any = None, step: Any = 0, stream: int = 0, rounds: int = 10,
    temperature: float = 0.1, relaxed: bool = True,
) -> Array:  # fmt: skip
    r"""Dropout whose rate can be learned (Gal et al. 2017): ``relaxed``, elements are multiplied by :math:`(1 - z) / (1
    - p)` with :math:`z = \mathrm{sigmoid}((\mathrm{logit}\, p + \mathrm{logit}\, u) / T)`; otherwise it is
    :func:`dropout` of 32 bits. :math:`u = (n + 1/2) / 2^{24}` with the n of :func:`gaussian_dropout`.

    >>> ref.concrete_dropout(np.ones((1, 3)), 0.5, seed=7).round(3).tolist()
    [[0.0, 2.0, 1.999]]
    """
    if not relaxed:
        return dropout(x, p, seed, index, step, stream, 32, rounds)
    index = np.arange(x.shape[1]) if index is None else index
    u = (_draws(len(x), seed, index, step, stream, 32, rounds) // 2**8 + 0.5) / 2**24
    odds = np.log(p / (1 - p)) + np.log(u / (1 - u))
    return np.asarray(x * (1 / (1 + np.exp(odds / temperature))) / (1 - p))


def concrete_penalty(
    rates: Sequence[float], matrices: Sequence[Array], samples: int, length: float = 1e-4, noise: float = 1.0
) -> float:
    """Penalty for rates of dropout before these matrices (Gal et al. 2017, eqs. 3 and 4, with their code's constants).

    >>> round(ref.concrete_penalty([0.5], [np.zeros((1, 3))], samples=6), 4)
    -0.6931
    """
    total = 0.0
    for p, matrix in zip(rates, matrices, strict=True):
        total += length**2 / samples * float(np.sum(np.square(matrix))) / (1 - p)
        total += 2 * matrix.shape[1] / samples * (p * math.log(p) + (1 - p) * math.log(1 - p))
    return total * noise**2


def drop_levels(
    x: Array, p: float, seed: int, index: Any = None, step: Any = 0, stream: int = 0, bits: int = 16, rounds: int = 10,
    n_features_per_level: int = 2, first: int = 0, per_sample: bool = False,
) -> Array:  # fmt: skip
    """:func:`dropout` of whole levels: the decision about element l holds for all features of level l.

    Levels below ``first`` stay as they are. Unless ``per_sample``, all samples have the index 0.

    >>> ref.drop_levels(np.ones((6, 1)), 0.5, seed=7).ravel().tolist()
    [0.0, 0.0, 2.0, 2.0, 2.0, 2.0]
    """
    samples = np.arange(x.shape[1]) if index is None else np.asarray(index)
    mask = keep_mask(
        len(x) // n_features_per_level, p, seed, samples if per_sample else 0 * samples, step, stream, bits, rounds
    )
    mask = np.repeat(np.broadcast_to(mask, (len(mask), x.shape[1])), n_features_per_level, axis=0)
    y = np.where(mask, x * x.dtype.type(scale(p, bits)), x.dtype.type(0))
    kept = n_features_per_level * first
    return np.concatenate([x[:kept], y[kept:]])


def integers(n: int, samples: int, seed: int, step: int = 0, stream: int = 0) -> Array:
    """``samples`` random integers below ``n``: the upper half of the product of a word and ``n``.

    >>> ref.integers(10, 4, seed=7).tolist()
    [9, 7, 9, 2]
    """
    index = np.arange(samples, dtype=np.uint32)
    word, *_ = philox4x32((0, index, step, 2**31 + stream), (seed & 0xFFFFFFFF, seed >> 32))
    return np.asarray(word, np.uint64) * np.uint64(n) >> np.uint64(32)


def stratified(n: int, seed: int, samples: int, step: int = 0, stream: int = 0) -> Array:
    """Points ``(n, samples)`` of the unit cube, one in each of ``samples`` parts of equal volume along the Z-order
    curve: the bits of a place on the curve belong to the axes in turn, and random words fill up their 24 bits.

    >>> (ref.stratified(2, 0, 4) * 2).astype(int).tolist()
    [[0, 0, 1, 1], [0, 1, 0, 1]]
    """
    index = np.arange(samples, dtype=np.uint64)
    key = seed & 0xFFFFFFFF, seed >> 32
    blocks = [philox4x32((block, index, step, 2**31 + stream), key) for block in range(n // 4 + 1)]
    first, *others = [np.broadcast_to(word, index.shape) for words in blocks for word in words][: n + 1]
    codes = [format((int(i) << 32 | int(w)) // samples, "032b") for i, w in zip(index, first, strict=True)]
    points = np.empty((n, samples))
    for axis, words in enumerate(others):
        for i, (bits, word) in enumerate(zip(codes, words, strict=True)):
            points[axis, i] = int((bits[axis::n] + format(int(word), "032b"))[:24], 2) * 2.0**-24
    return points


def uint_to_uniform_float(word: Any) -> Array:
    """Triton's map of a word to float32 in [0, 1): the word as int32, negatives folded up, times ~2^-31.

    >>> float(ref.uint_to_uniform_float(np.uint32(1 << 30)))
    0.4999999701976776
    """
    signed = np.asarray(word, np.uint32).view(np.int32)
    folded = np.where(signed < 0, -(signed + 1), signed)  # -x - 1, without overflow
    return np.asarray(folded.astype(np.float32) * np.float32(4.6566127342e-10))


def seeded_dropout(x: Array, p: float, seed: Any, offset: Any = None, convention: str = "triton") -> Array:
    """Dropout of an array in another system's convention; ``offset`` defaults to the position in ``x``.

    ``"triton"``: ``tl.rand(seed, offset) > p`` keeps, in float32 as in Triton's tutorial
    04-low-memory-dropout, where the Python float p enters the kernel as float32. tl.rand converts word 0 of
    the counter ``(offset, 0, 0, 0)``; offsets are 32-bit.

    ``"ztensor"``: kept iff word 0 of the counter ``(offset_lo, offset_hi, 0, 0)`` is at least ceil(p 2^32).

    The key is ``(seed_lo, seed_hi)``; survivors are multiplied by 1 / (1 - p), rounded once to x's type. A
    vector of seeds belongs to the rows of a matrix; ``offset`` then defaults to the column. ``offset``
    broadcasts to the shape of ``x``.

    >>> ref.seeded_dropout(np.ones(4, np.float32), 0.5, 7).tolist()
    [0.0, 2.0, 0.0, 2.0]
    """
    if not 0 <= p < 1:
        raise ValueError(f"seeded_dropout: p must be in [0, 1), got {p!r}")
    by_row = np.ndim(seed) == 1
    if offset is None:
        offset = np.arange(x.shape[-1]) if by_row else np.arange(x.size).reshape(x.shape)
    where = np.broadcast_to(np.asarray(offset).astype(np.uint64), x.shape)
    seeds = np.asarray(seed, np.uint64)[:, None] if by_row else np.uint64(seed)
    low, high = where & LOW32, where >> _HALF
    key = (seeds & LOW32, seeds >> _HALF)
    if convention == "triton":
        if np.any(high):
            raise ValueError("seeded_dropout: the triton convention has 32-bit offsets")
        keep = uint_to_uniform_float(philox4x32((low, 0, 0, 0), key)[0]) > np.float32(p)
    elif convention == "ztensor":
        keep = philox4x32((low, high, 0, 0), key)[0] >= np.uint64(math.ceil(p * 2**32))
    else:
        raise ValueError(f'seeded_dropout: convention must be "triton" or "ztensor", got {convention!r}')
    return np.asarray(np.where(keep, x * x.dtype.type(1 / (1 - p)), x.dtype.type(0)))


def nearly_normal(word: Any) -> Array:
    r"""Words as nearly normal numbers of mean 0 and variance 1, in float32: the count of ones among the upper 24 bits,
    and the lower 8 bits as its fraction, :math:`(512 \, \mathrm{count} + 2 \, \mathrm{rest} - 6399) / \sqrt{1594709}`.

    >>> ref.nearly_normal(np.array([0, 0x00FFF07F, 0xFFFFFFFF], np.uint32)).astype(float).round(4).tolist()
    [-5.0672, -0.0008, 5.0672]
    """
    word = np.asarray(word, np.uint32)
    count = sum((word >> np.uint32(i)) & np.uint32(1) for i in range(8, 32)).astype(np.int64)
    whole = 512 * count + 2 * (word & np.uint32(255)).astype(np.int64) - 6399
    return np.asarray(whole.astype(np.float32) * np.float32(1 / math.sqrt(1594709)))


def parameter_noise(rows: int, columns: int, seed: int, step: Any = 0, stream: int = 0) -> Array:
    r"""Noise of a table of parameters, shape ``(rows, columns)``: entry :math:`(r, c)` is lane :math:`c \bmod 4` of
    :math:`\mathrm{philox}(r, \lfloor c / 4 \rfloor, step, 2^{30} + stream)` under the key ``seed``, as a number that is
    nearly normal.

    >>> ref.parameter_noise(1, 2, seed=7).astype(float).round(4).tolist()
    [[0.1006, 0.6786]]
    """
    row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]
    key = (seed % 2**32, seed // 2**32)
    words = philox4x32((row, column // 4, np.uint32(step), np.uint32(2**30 + stream)), key)
    return nearly_normal(np.choose(np.broadcast_to(column % 4, words[0].shape), words))
