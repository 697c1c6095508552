"""The mask law, and dropout by it."""

from __future__ import annotations

import math
import numbers
import sys
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..backend import require
from ..checks import check_unsigned, shown
from ..checks.sizes import check_entries, check_features
from ..jit import kinds
from ..jit.unpacked import Constant
from .digits import Law, modulate, numpy_decisions, samples
from .key import Key

BITS = (8, 16, 32)
#: Widest vector whose mask goes through an identity matrix; wider ones measured slower with it than without.
IDENTITY_WIDTH = 64


def check_probability(p: Any, where: str) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``p`` is a number in [0, 1)."""
    if isinstance(p, bool) or not isinstance(p, numbers.Real):
        raise TypeError(f"{where}: p is {shown(p)} of type {type(p).__name__}; a number in [0, 1) is needed.")
    if not 0 <= p < 1:  # type: ignore[operator]  # also catches NaN
        raise ValueError(f"{where}: p is {shown(p)}; a drop probability in [0, 1) is needed.")


def is_schedule(p: Any) -> bool:
    """Is ``p`` a Dr.Jit value, which kernels read, rather than a number that they contain?"""
    return isinstance(p, dr.ArrayBase)


def check_schedule(p: Any, where: str, samples: int) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``p`` is a floating point Dr.Jit array of width 1 or ``samples``."""
    d = kinds.describe(type(p))
    if not (d.is_jit and d.is_float) or d.is_tensor or d.depth != 1:
        raise TypeError(f"{where}: p is a Dr.Jit {type(p).__name__}; a number in [0, 1) or a Float32 is needed.")
    if dr.width(p) not in (1, samples):
        each = f", or one for each of the {samples}," if samples > 1 else ""
        raise ValueError(f"{where}: p has {dr.width(p)} entries; one drop probability for all samples{each} is needed.")


def schedule_width(x: Any, kind: str) -> int:
    """Entries that a schedule may have for ``x`` beside one: those of arrays may differ from sample to sample."""
    return kinds.samples(x, kind) if kind in (kinds.ARRAYS, kinds.COOPVEC) else 1


def check_rate(p: Any, bits: int, where: str, samples: int = 1) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``p``, a number or a Dr.Jit value, and ``bits`` are acceptable."""
    if is_schedule(p):
        check_schedule(p, where, samples)
        threshold(0, bits, where)
    else:
        threshold(p, bits, where)


def threshold(p: float, bits: int = 16, where: str = "dropout") -> int:
    """``t = round(p * 2^bits)``: an element is dropped when its random field is below ``t``.

    Raises ``ValueError`` unless 0 <= p < 1, ``bits`` is 8, 16 or 32, and ``t < 2^bits``.
    """
    if not isinstance(bits, numbers.Integral) or bits not in BITS:
        raise ValueError(f"{where}: bits is {shown(bits)}; accepted are 8, 16 and 32.")
    check_probability(p, where)
    t = round(float(p) * 2**bits)
    if t >= 2**bits:
        raise ValueError(
            f"{where}: p = {shown(p)} rounds to dropping everything with bits={bits}; use more bits or a smaller p."
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
    return check_unsigned(where, "stream", stream, 32)


def _check_key(key: Any, where: str) -> None:
    if not isinstance(key, Key):
        none = "" if where == "dropout_mask" else " or None"
        raise TypeError(f"{where}: key is a {type(key).__name__}; a coopnet.Key{none} is needed.")


def traced_threshold(p: Any, bits: int, leaf: type) -> Any:
    """:func:`threshold` of a Dr.Jit value, as a double: at most ``2^bits - 1``, and of ``p`` clipped to [0, 1].

    Doubles hold ``p * 2^bits`` and ``2^bits`` exactly, so that the result is that of the law.
    """
    double = dr.float64_array_t(leaf)
    return dr.minimum(dr.round(dr.clip(double(dr.detach(p)), 0, 1) * 2**bits), 2**bits - 1)


def traced_scale(t: Any, bits: int, leaf: type) -> Any:
    """:func:`scale` of :func:`traced_threshold`."""
    value = 2**bits / (2**bits - t)
    if dr.is_half_v(leaf):
        # Compilers go from double to half by way of single, rounding twice: round to half's 10 bits first. There are no
        # ties, as the quotient is a power of two or has infinitely many digits.
        pattern = dr.reinterpret_array(dr.uint64_array_t(leaf), value)
        uint64 = type(pattern)
        value = dr.reinterpret_array(type(value), (pattern + uint64(1 << 41)) & uint64(-1 << 42 & (1 << 64) - 1))
        return leaf(dr.float32_array_t(leaf)(value))
    return leaf(value)


class Drop(Law):
    """The mask law: drop an element whose digit is below the threshold, and scale the others."""

    def __init__(self, p: Any, bits: int, stream: int, leaf: type, shared: bool = False, where: str = "dropout"):
        super().__init__(bits, stream, shared)
        self.leaf = leaf
        if not is_schedule(p):
            t = threshold(p, bits, where)
            self.bound: Any = t << (32 - bits)
            self.scale = leaf(scale(t, bits, numpy_dtype(leaf), where))
        elif issubclass(leaf, np.generic):
            t = min(round(min(max(float(p[0]), 0), 1) * 2**bits), 2**bits - 1)
            self.bound, self.scale = t << (32 - bits), leaf(2**bits / (2**bits - t))
        else:
            if dr.backend_v(p) != dr.backend_v(leaf):
                raise TypeError(
                    f"{where}: p is a {type(p).__module__}.{type(p).__name__}, but the input lives on the "
                    f"{dr.backend_v(leaf).name} backend."
                )
            value = traced_threshold(p, bits, leaf)
            self.bound = dr.uint32_array_t(leaf)(value) << (32 - bits)
            self.scale = traced_scale(value, bits, leaf)

    def decide(self, word: Any) -> Any:
        return word >= self.bound

    def apply(self, x: Any, decision: Any) -> Any:
        select = np.where if isinstance(x, np.ndarray) else dr.select
        return select(decision, x * self.scale, self.leaf(0))

    def factor(self, decision: Any) -> Any:
        return dr.select(decision, self.scale, self.leaf(0))


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


def dropout(x: Any, p: Any, key: Key | None, *, stream: int = 0, bits: int = 16, identity: Any = None) -> Any:
    r"""Drop elements of ``x`` with probability ``p`` and rescale the others, by the mask law.

    .. math::
        y_i = \begin{cases} x_i \cdot 2^k / (2^k - t) & u_i \ge t \\ 0 & \text{otherwise} \end{cases},
        \qquad t = \mathrm{round}(p\, 2^k)

    where :math:`u_i` is the ``bits`` = :math:`k` bit wide field number ``i % (32/k)`` of word ``i // (32/k)`` of the
    Philox stream with counter ``(block, index, step, stream)`` under the key's seed. The comparison is between
    integers, so the mask is the same to the bit on every backend and in every precision; the scale uses the quantized
    probability, so the mean is preserved exactly. The gradient is dropout of the gradient with the same mask, which
    is drawn again rather than stored.

    A tensor of at least 2^16 elements that lies in memory is dropped out by a kernel of its own, close to the speed of
    copying it (fastest where the number of samples is a multiple of 8), and so is its gradient; where it is an
    expression that has not been evaluated, and inside symbolic loops, conditionals and calls, dropout becomes part of
    the kernel that uses its result, as it does for every other kind of input.

    Samples with equal indices share their mask: with ``Key(seed, index=lane // 8)``, groups of eight lanes do, such as
    the corners of a cell or the samples of a pixel.

    **Schedules.** ``p`` may be a Dr.Jit value of width 1. Kernels read it, so that a new value compiles none, and
    functions of ``dr.freeze`` take it as an argument: ``dr.opaque(Float32, 0.1)``. Threshold and scale are then
    computed in double precision within the kernel and are those of the law for this very single-precision number.
    Nothing can be refused there: ``p`` is clipped to [0, 1] and the threshold to :math:`2^k - 1`. ``p = 0`` keeps
    everything with scale 1; there is no gradient with respect to ``p``. For arrays and cooperative vectors ``p`` may
    also have one entry for each sample, which is what Dr.Jit makes of it inside evaluated loops and calls.

    Args:
        x: a ``CoopVec``, a 2D tensor or NumPy array of shape ``(features, samples)``, a Dr.Jit array, a nested array,
            or a list or tuple of arrays; float16, float32 or float64. All give the same mask. On CUDA a ``CoopVec``
            is multiplied by 0 where it is dropped, so an infinite or NaN component stays NaN there.
        p: drop probability in [0, 1), a number or a floating point Dr.Jit array of width 1 (or of one for each sample).
        key: :class:`Key`, or ``None`` for no dropout.
        stream: tells the dropouts of one network apart.
        bits: random bits spent on an element: 8, 16 or 32. ``p`` is rounded to a multiple of ``2^-bits``.
        identity: an :func:`identity_matrix` that layers pass to make masks cheaper on CUDA.

    Returns:
        The same kind and type as ``x``; ``x`` itself if ``p`` is the number 0 or ``key is None``.

    Raises:
        ValueError: a number ``p`` outside [0, 1), NaN, or rounding to 1, or an array ``p`` of another size; other
            ``bits``; empty or wrongly shaped ``x``; a key whose entries are not as many as the samples.
        TypeError: ``x`` of another kind or not floating point; ``key`` no :class:`Key`; ``p`` neither a number nor a
            Dr.Jit floating point array, or one of another backend.

    >>> y = cn.dropout(x, 0.1, cn.Key(seed=7, step=3))
    """
    if identity is not None and not isinstance(identity, drnn.MatrixView):
        raise TypeError(f"dropout: identity is {shown(identity)}; an identity_matrix() or None is needed.")
    return drop(x, p, key, stream=stream, bits=bits, identity=identity)


def drop(x: Any, p: Any, key: Any, *, stream: int, bits: int, identity: Any = None, shared: bool = False) -> Any:
    """:func:`dropout`, or with ``shared`` that of whole samples."""
    kind, leaf = kinds.kind(x, "dropout")
    kinds.require_float(leaf, "dropout")
    check_rate(p, bits, "dropout", schedule_width(x, kind) if is_schedule(p) else 1)
    stream = check_stream(stream, "dropout")
    if key is not None:
        _check_key(key, "dropout")
    if key is None or (not is_schedule(p) and p == 0):
        return x
    return modulate(x, Drop(p, bits, stream, leaf, shared), key, kind, leaf, identity)


def dropout_mask(n: int, p: Any, key: Key, *, stream: int = 0, bits: int = 16) -> Any:
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
        raise ValueError(f"{where}: n is {shown(n)}; an int of at least 1 is needed.")
    n = int(n)
    check_rate(p, bits, where)
    stream = check_stream(stream, where)
    _check_key(key, where)
    if key.index is None:
        raise ValueError(
            f"{where}: the key has no index, so the number of samples is unknown; give one, such as "
            f"Key(seed, index=dr.arange(UInt32, samples))."
        )
    if not isinstance(key.index, dr.ArrayBase):
        law, width = Drop(p, bits, stream, np.float64), np.atleast_1d(key.index).size
        check_entries(where, "masks", (n, width), 24)  # with the words that they are made of
        return numpy_decisions(n, width, law, key)
    check_features(where, "n", n)
    require(type(key.index))
    leaf = dr.float64_array_t(type(key.index))
    keep = samples(n, Drop(p, bits, stream, leaf), key, type(key.index), dr.width(key.index))
    return sys.modules[type(key.index).__module__].ArrayXb(keep)


class Dropout(drnn.Module):
    r"""Dropout layer (Srivastava et al. 2014, inverted form): see :func:`dropout`.

    Without a key it passes its input on; with one, it draws the mask of ``(key, stream)``.

    Args:
        p: drop probability in [0, 1), a number or, for schedules, a Dr.Jit ``Float32`` of width 1; see :func:`dropout`.
            It may be assigned at any time, also in a packed network: ``layer.p = dr.opaque(Float32, 0.2)``. A
            checkpoint keeps its value at that moment, as a number.
        bits: random bits per element, 8, 16 or 32.
        stream: the stream number ``s`` of the mask law. ``None`` lets the network number its dropouts 0, 1, 2, ... in
            evaluation order when it is allocated (numbers given by hand are left out); a layer called on its own
            before that uses 0.

    Raises:
        TypeError, ValueError: ``p``, ``bits`` or ``stream`` out of range or of another type, as for :func:`dropout`.

    >>> net = cn.Sequential(cn.Linear(-1, 64), cn.ReLU(), cn.Dropout(0.1), cn.Linear(-1, 3))
    """

    # rate: what p is, wrapped where drjit.nn.pack would take it for a weight
    DRJIT_STRUCT = {"rate": object, "bits": int, "stream": int, "identity": Constant}

    def __init__(self, p: float = 0.5, bits: int = 16, stream: int | None = None):
        name = type(self).__name__
        threshold(0, bits, name)
        self.bits = bits
        self.p = p
        self.stream = None if stream is None else check_stream(stream, name)
        self.identity = Constant()

    @property
    def p(self) -> Any:
        """Drop probability, a number or a Dr.Jit ``Float32``."""
        return self.rate.value if isinstance(self.rate, Constant) else self.rate

    @p.setter
    def p(self, value: Any) -> None:
        self._check(value)
        self.rate: Any = Constant(value) if is_schedule(value) else value

    def _check(self, p: Any) -> None:
        check_rate(p, self.bits, type(self).__name__)

    def _copy(self) -> Dropout:
        return type(self)(self.p, self.bits, self.stream)

    def active(self) -> bool:
        """Does the layer change its input, given a key?"""
        return is_schedule(self.p) or self.p > 0

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        identity = self.identity.value if isinstance(x, drnn.CoopVec) else None
        return dropout(x, self.p, key, stream=self.stream or 0, bits=self.bits, identity=identity)

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:  # type: ignore[override]
        layer = self._copy()
        if dr.backend_v(dtype) == dr.JitBackend.CUDA and 0 < size <= IDENTITY_WIDTH and self.active():
            layer.identity = Constant(identity_matrix(dr.array_t(dtype), size))
        return layer, size

    def __repr__(self) -> str:
        stream = "" if self.stream is None else f", stream={self.stream}"
        return f"{type(self).__name__}(p={self.p}, bits={self.bits}{stream})"
