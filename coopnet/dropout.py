"""The mask law, and dropout by it."""

from __future__ import annotations

import math
import numbers
import operator
import sys
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from . import kinds
from .backend import require
from .key import Key
from .opaque import Constant
from .philox import philox4x32

BITS = (8, 16, 32)
#: Widest vector whose mask goes through an identity matrix; wider ones measured slower with it than without.
IDENTITY_WIDTH = 64


def check_probability(p: Any, where: str) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``p`` is a number in [0, 1)."""
    if isinstance(p, bool) or not isinstance(p, numbers.Real):
        raise TypeError(f"{where}: p is {p!r} of type {type(p).__name__}; a number in [0, 1) is needed.")
    if not 0 <= float(p) < 1:  # also catches NaN
        raise ValueError(f"{where}: p is {p!r}; a drop probability in [0, 1) is needed.")


def threshold(p: float, bits: int = 16, where: str = "dropout") -> int:
    """``t = round(p * 2^bits)``: an element is dropped when its random field is below ``t``.

    Raises ``ValueError`` unless 0 <= p < 1, ``bits`` is 8, 16 or 32, and ``t < 2^bits``.
    """
    if not isinstance(bits, numbers.Integral) or bits not in BITS:
        raise ValueError(f"{where}: bits is {bits!r}; accepted are 8, 16 and 32.")
    check_probability(p, where)
    t = round(float(p) * 2**bits)
    if t >= 2**bits:
        raise ValueError(
            f"{where}: p = {p!r} rounds to dropping everything with bits={bits}; use more bits or a smaller p."
        )
    return t


def scale(t: int, bits: int, dtype: type | np.dtype, where: str = "dropout") -> float:
    """``2^bits / (2^bits - t)`` rounded once to ``dtype``: what a kept element is multiplied by."""
    with np.errstate(over="ignore"):  # checked below
        value = float(np.asarray(2**bits / (2**bits - t)).astype(dtype))
    if not math.isfinite(value):
        raise ValueError(
            f"{where}: keeping {2**bits - t} of {2**bits} elements needs a scale of {2**bits / (2**bits - t):g}, which "
            f"{np.dtype(dtype).name} cannot hold; use a smaller p or single precision."
        )
    return value


def numpy_dtype(tp: type) -> type:
    """NumPy twin of a Dr.Jit floating point type (or the NumPy type itself)."""
    if issubclass(tp, np.generic):
        return tp
    return {dr.VarType.Float16: np.float16, dr.VarType.Float32: np.float32, dr.VarType.Float64: np.float64}[
        dr.type_v(tp)
    ]


def check_stream(stream: Any, where: str) -> int:
    """``stream`` as an int in [0, 2^32), or an error."""
    try:
        number = operator.index(stream)
    except TypeError:
        number = -1
    if isinstance(stream, bool) or not 0 <= number < 2**32:
        raise ValueError(f"{where}: stream is {stream!r}; an int in [0, 2^32) is needed.")
    return number


def _check_key(key: Any, where: str) -> None:
    if not isinstance(key, Key):
        none = "" if where == "dropout_mask" else " or None"
        raise TypeError(f"{where}: key is a {type(key).__name__}; a coopnet.Key{none} is needed.")


def keep_masks(n: int, t: int, key: Key, stream: int, bits: int, leaf: type, width: int) -> list:
    """The ``n`` keep masks of one dropout as Dr.Jit ``Bool`` arrays over ``width`` samples.

    All Philox blocks run as one nested array, so tracing costs the same few operations for 8 elements as for 128.
    """
    uint32 = dr.uint32_array_t(leaf)
    index, step, seed = key.words(uint32, width)
    fields = 32 // bits
    blocks = -(-n // (4 * fields))
    block = dr.leaf_t(uint32)
    counter = _nested(uint32)([block(b) for b in range(blocks)])
    words = philox4x32((counter, index, step, stream), seed)
    masks: list[Any] = [None] * (blocks * 4 * fields)
    for j, word in enumerate(words):
        for f in range(fields):
            u = word >> (bits * f) if f else word
            if f + 1 < fields:  # the topmost field has nothing above it to mask off
                u = u & ((1 << bits) - 1)  # not &=: u may be the word itself
            keep = u >= block(t)
            for b in range(blocks):
                masks[b * 4 * fields + j * fields + f] = keep[b]
    return masks[:n]


def keep_tensor(rows: int, columns: int, t: int, key: Key, stream: int, bits: int, leaf: type) -> Any:
    """The keep mask of a ``(rows, columns)`` tensor, flattened.

    Every element evaluates the block it lies in: more arithmetic than :func:`keep_masks`, but it fuses with
    whatever reads or writes the tensor, and nothing is stored.
    """
    uint32 = dr.uint32_array_t(leaf)
    index, step, seed = key.words(uint32, columns)
    if dr.width(index) not in (1, columns):
        raise ValueError(f"Key: index has {dr.width(index)} entries, but the input has {columns} samples.")
    i = dr.arange(uint32, rows * columns)
    row, column = (i // columns, i % columns) if rows > 1 else (uint32(0), i)
    sample = column if key.index is None else dr.gather(uint32, index, column) if dr.width(index) > 1 else index
    step = dr.gather(uint32, step, column) if dr.width(step) > 1 else step
    fields = 32 // bits
    word_number = row // fields
    words = philox4x32((word_number // 4, sample, step, stream), seed)
    lane = word_number & 3
    word = dr.select(lane < 2, dr.select(lane == 0, words[0], words[1]), dr.select(lane == 2, words[2], words[3]))
    u = word >> ((row % fields) * bits)
    return (u & uint32((1 << bits) - 1)) >= uint32(t)


def keep_numpy(rows: int, columns: int, t: int, key: Key, stream: int, bits: int) -> np.ndarray:
    """The keep mask of a ``(rows, columns)`` NumPy array."""
    index, step, seed = key.words_numpy(columns)
    fields = 32 // bits
    blocks = -(-rows // (4 * fields))
    counter = np.arange(blocks, dtype=np.uint32)[:, None]
    words = np.stack(philox4x32((counter, index[None, :], step, stream), seed), axis=1)  # block, lane, sample
    shifts = np.arange(fields, dtype=np.uint32) * np.uint32(bits)
    u = (words[:, :, None, :] >> shifts[None, None, :, None]) & np.uint32((1 << bits) - 1)
    keep = u.reshape(-1, words.shape[-1])[:rows] >= np.uint32(t)
    return np.broadcast_to(keep, (rows, columns))


def _nested(leaf: type) -> type:
    return sys.modules[leaf.__module__].ArrayXu


def identity_matrix(leaf: type, n: int) -> Any:
    """The identity as a matrix view of type ``leaf``.

    Its product with a mask moves the mask into the layout that the tensor cores keep vectors in. Without it, every
    operation between a network's vector and the freshly packed mask converts the vector. Row-major, because that
    measured faster than the layouts that ``drjit.nn.pack`` makes.
    """
    stride = -(-n // 8) * 8  # OptiX wants rows aligned to 16 bytes
    i = dr.arange(dr.uint32_array_t(leaf), n * stride)
    entries = dr.select(i // stride == i % stride, leaf(1), leaf(0))
    dr.eval(entries)
    return drnn.view(dr.tensor_t(leaf)(entries, (n, stride)))[:, :n]


def dropout(x: Any, p: float, key: Key | None, *, stream: int = 0, bits: int = 16, identity: Any = None) -> Any:
    r"""Drop elements of ``x`` with probability ``p`` and rescale the others, by the mask law.

    .. math::
        y_i = \begin{cases} x_i \cdot 2^k / (2^k - t) & u_i \ge t \\ 0 & \text{otherwise} \end{cases},
        \qquad t = \mathrm{round}(p\, 2^k)

    where :math:`u_i` is the ``bits`` = :math:`k` bit wide field number ``i % (32/k)`` of word ``i // (32/k)`` of the
    Philox stream with counter ``(block, index, step, stream)`` under the key's seed. The comparison is between
    integers, so the mask is the same to the bit on every backend and in every precision; the scale uses the quantized
    probability, so the mean is preserved exactly. The gradient is dropout of the gradient with the same mask, which
    is drawn again rather than stored.

    Args:
        x: a ``CoopVec``, a 2D tensor or NumPy array of shape ``(features, samples)``, a Dr.Jit array, a nested array,
            or a list or tuple of arrays; float16, float32 or float64. All give the same mask. On CUDA a ``CoopVec``
            is multiplied by 0 where it is dropped, so an infinite or NaN component stays NaN there.
        p: drop probability in [0, 1).
        key: :class:`Key`, or ``None`` for no dropout.
        stream: tells the dropouts of one network apart.
        bits: random bits spent on an element: 8, 16 or 32. ``p`` is rounded to a multiple of ``2^-bits``.
        identity: an :func:`identity_matrix` that layers pass to make masks cheaper on CUDA.

    Returns:
        The same kind and type as ``x``; ``x`` itself if ``p == 0`` or ``key is None``.

    Raises:
        ValueError: ``p`` outside [0, 1), NaN, or rounding to 1; other ``bits``; empty or wrongly shaped ``x``.
        TypeError: ``x`` of another kind or not floating point; ``key`` no :class:`Key`.

    >>> y = cn.dropout(x, 0.1, cn.Key(seed=7, step=3))
    """
    t = threshold(p, bits)
    stream = check_stream(stream, "dropout")
    kind, leaf = kinds.kind(x, "dropout")
    kinds.require_float(leaf, "dropout")
    if key is not None:
        _check_key(key, "dropout")
    if key is None or p == 0:
        return x
    factor = scale(t, bits, numpy_dtype(leaf))
    if kind == kinds.NUMPY:
        keep = keep_numpy(x.shape[0], x.shape[1], t, key, stream, bits)
        return np.where(keep, x * leaf(factor), leaf(0))
    require(leaf)
    if kind == kinds.TENSOR:
        keep = keep_tensor(x.shape[0], x.shape[1], t, key, stream, bits, leaf)
        return type(x)(dr.select(keep, x.array * leaf(factor), leaf(0)), x.shape)
    n, width = kinds.features(x, kind), kinds.samples(x, kind)
    masks = keep_masks(n, t, key, stream, bits, leaf, width)
    if kind == kinds.COOPVEC and dr.backend_v(leaf) == dr.JitBackend.CUDA:
        # A product keeps x in the tensor cores' layout; taking it apart to select would cost more.
        mask = drnn.CoopVec([dr.select(k, leaf(factor), leaf(0)) for k in masks])
        return x * (mask if identity is None else drnn.matvec(identity, mask))
    parts = [dr.select(k, v * leaf(factor), leaf(0)) for k, v in zip(masks, kinds.components(x), strict=True)]
    return kinds.rebuild(parts, x)


def dropout_mask(n: int, p: float, key: Key, *, stream: int = 0, bits: int = 16) -> Any:
    """The ``n`` keep masks that :func:`dropout` would use for samples ``key.index``.

    Args:
        n: number of elements, at least 1.
        p, stream, bits: as in :func:`dropout`.
        key: a :class:`Key` with an ``index``, which also says where the masks live.

    Returns:
        An ``ArrayXb`` of ``n`` masks if the index is a Dr.Jit ``UInt32``, else a NumPy bool array ``(n, samples)``.

    Raises:
        ValueError, TypeError: as :func:`dropout`; also for ``n < 1`` or a key without an index.

    >>> keep = cn.dropout_mask(64, 0.1, cn.Key(7, index=dr.arange(UInt32, 1000)))
    """
    where = "dropout_mask"
    if isinstance(n, bool) or not isinstance(n, numbers.Integral) or n < 1:
        raise ValueError(f"{where}: n is {n!r}; an int of at least 1 is needed.")
    n = int(n)
    t = threshold(p, bits, where)
    stream = check_stream(stream, where)
    _check_key(key, where)
    if key.index is None:
        raise ValueError(
            f"{where}: the key has no index, so the number of samples is unknown; give one, such as "
            f"Key(seed, index=dr.arange(UInt32, samples))."
        )
    if not isinstance(key.index, dr.ArrayBase):
        return keep_numpy(n, np.atleast_1d(key.index).size, t, key, stream, bits)
    require(type(key.index))
    keep = keep_masks(n, t, key, stream, bits, type(key.index), dr.width(key.index))
    return sys.modules[type(key.index).__module__].ArrayXb(keep)


class Dropout(drnn.Module):
    r"""Dropout layer (Srivastava et al. 2014, inverted form): see :func:`dropout`.

    Without a key it passes its input on; with one, it draws the mask of ``(key, stream)``.

    Args:
        p: drop probability in [0, 1).
        bits: random bits per element, 8, 16 or 32.
        stream: the stream number ``s`` of the mask law. ``None`` lets the network number its dropouts 0, 1, 2, ... in
            evaluation order when it is allocated (numbers given by hand are left out); a layer called on its own
            before that uses 0.

    >>> net = cn.Sequential(cn.Linear(-1, 64), cn.ReLU(), cn.Dropout(0.1), cn.Linear(-1, 3))
    """

    DRJIT_STRUCT = {"p": float, "bits": int, "stream": int, "identity": Constant}

    def __init__(self, p: float = 0.5, bits: int = 16, stream: int | None = None):
        threshold(p, bits, "Dropout")
        self.p, self.bits = p, bits
        self.stream = None if stream is None else check_stream(stream, "Dropout")
        self.identity = Constant()

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        identity = self.identity.value if isinstance(x, drnn.CoopVec) else None
        return dropout(x, self.p, key, stream=self.stream or 0, bits=self.bits, identity=identity)

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Dropout, int]:  # type: ignore[override]
        layer = Dropout(self.p, self.bits, self.stream)
        if dr.backend_v(dtype) == dr.JitBackend.CUDA and 0 < size <= IDENTITY_WIDTH and self.p > 0:
            layer.identity = Constant(identity_matrix(dr.array_t(dtype), size))
        return layer, size

    def __repr__(self) -> str:
        stream = "" if self.stream is None else f", stream={self.stream}"
        return f"Dropout(p={self.p}, bits={self.bits}{stream})"
