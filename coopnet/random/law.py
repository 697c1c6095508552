"""The laws of dropout: what a random draw does to its element."""

from __future__ import annotations

import copy
import functools
import math
import numbers
import statistics
from collections.abc import Callable
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check, check_backend, check_unsigned, ensure, is_flat, plain, shown, shown_typed
from ..jit import kinds
from ..jit.kernel_parameters import kept
from . import draws
from .expansion import Expansion, multiply
from .key import Key, check_key

BITS = (8, 16, 32)
#: Rounds of the generator: its authors' recommendation, and the fewest that pass BigCrush (Salmon et al. 2011).
ROUNDS = (10, 7)


class Law:
    """Multiplies every element by a factor that depends on a random draw. This operation is its own adjoint.

    The draws have ``bits`` bits and come from stream number ``stream`` of the generator with ``rounds`` rounds. ``p``
    is a number, which becomes part of kernels, or a Dr.Jit array that they read: a *schedule*. :meth:`traced` computes
    the numbers that depend on ``p`` alone, such as a threshold. Then :meth:`decide` maps draws to decisions, and
    :meth:`element` applies a decision to an element.

    Raises ``TypeError`` and ``ValueError``, whose messages begin with ``where``, for arguments that are out of range or
    of another type.
    """

    #: Do all elements of a sample have the draw of element 0?
    shared = False
    #: Are elements either kept, with one factor, or dropped?
    binary = False
    #: The type of the elements, once it is known.
    leaf: Any = None
    p: Any
    bits: int
    stream: int
    rounds: int
    where: str
    scheduled: bool

    def __init__(self, p: Any = 0.5, bits: int = 16, stream: int = 0, where: str = "dropout", rounds: int = 10):
        if not isinstance(bits, numbers.Integral) or bits not in BITS:
            raise ValueError(f"{where}: bits is {shown(bits)}; accepted are 8, 16 and 32.")
        if not isinstance(rounds, numbers.Integral) or rounds not in ROUNDS:
            raise ValueError(f"{where}: rounds is {shown(rounds)}; accepted are 10 and 7.")
        self.scheduled = isinstance(p, dr.ArrayBase)
        (check_schedule if self.scheduled else check_probability)(p, where)
        self.p, self.bits = kept(p) if self.scheduled else plain(p), int(bits)
        self.stream = check_unsigned(where, "stream", stream, 32)
        self.rounds, self.where = int(rounds), where

    def check_entries(self, samples: int = 1) -> None:
        """Raise ``ValueError`` if ``p`` has neither one entry nor one for each of ``samples``."""
        if self.scheduled and dr.width(self.p) not in (1, samples):
            each = f", or one for each of the {samples}," if samples > 1 else ""
            needed = f"one drop probability for all samples{each} is needed"
            raise ValueError(f"{self.where}: p has {dr.width(self.p)} entries; {needed}.")

    @property
    def drops(self) -> bool:
        """Does this law change its input if there is a key?"""
        return self.scheduled or self.p > 0

    def active(self, key: Key | None) -> bool:
        """Does this law change its input, with this key?"""
        return key is not None and self.drops

    def apply(self, x: Any, key: Key | None, expansion: Expansion | None = None) -> Any:
        """``x``, of any kind that :func:`kinds.kind` knows, after this law; ``x`` itself if the law is not active.

        ``expansion`` makes factors cheaper for cooperative vectors on CUDA.
        """
        kind, leaf = kinds.kind(x, self.where)
        kinds.require_float(leaf, self.where)
        if self.scheduled:  # for arrays and vectors, it may differ from sample to sample
            self.check_entries(kinds.samples(x, kind) if kind in (kinds.ARRAYS, kinds.COOPVEC) else 1)
        check_key(self.where, key)
        if key is None or not self.drops:
            return x
        law = self.traced(leaf)
        if kind == kinds.COOPVEC and dr.backend_v(leaf) == dr.JitBackend.CUDA:
            return multiply(x, law, key, expansion)
        return draws.apply(law, x, key, kind)

    def traced(self, leaf: type) -> Any:
        """This law for elements of type ``leaf``, a Dr.Jit or NumPy type."""
        law = copy.copy(self)
        law.leaf = leaf
        return law

    def decide(self, word: Any) -> Any:
        """The decision for a draw, the upper ``bits`` of the ``uint32`` ``word``; its other bits are arbitrary."""
        raise NotImplementedError

    def element(self, x: Any, decision: Any) -> Any:
        """The new value of the element ``x``, by the ``decision`` of its draw."""
        raise NotImplementedError

    def factor(self, decision: Any) -> Any:
        """The factor by which :meth:`element` multiplies."""
        raise NotImplementedError

    def _rate(self, leaf: type, precision: Callable, most: float) -> Any:
        """``p`` as a float. A schedule is detached, converted by ``precision`` and clipped to [0, ``most``]."""
        if not self.scheduled:
            return float(self.p)
        if issubclass(leaf, np.generic):
            return min(max(float(self.p[0]), 0.0), most)
        check_backend(f"{self.where}: p is", self.p, leaf)
        return dr.clip(precision(leaf)(dr.detach(self.p)), 0, most)


class MaskLaw(Law):
    r"""The mask law: drop an element whose draw :math:`u` is below a threshold, and scale the others.

    .. math::
        y = \begin{cases} x \cdot 2^k / (2^k - t) & u \ge t \\ 0 & \text{otherwise} \end{cases},
        \qquad t = \mathrm{round}(p\, 2^k)

    for draws of :math:`k` bits. A number ``p`` that rounds to dropping everything is refused.
    """

    binary = True
    bound: Any  #: smallest draw that keeps an element, at the top of a word
    kept: Any  #: factors of elements that are kept and dropped
    zero: Any

    def __init__(self, p: Any = 0.5, bits: int = 16, stream: int = 0, where: str = "dropout", rounds: int = 10):
        super().__init__(p, bits, stream, where, rounds)
        if not self.scheduled and round(float(p) * 2**bits) >= 2**bits:
            problem = f"p = {shown(p)} rounds to dropping everything with bits={bits}"
            raise ValueError(f"{where}: {problem}; use more bits or a smaller p.")

    def threshold(self, leaf: type) -> Any:
        """:math:`t`, an int; for schedules in double precision, with ``p`` clipped to [0, 1] and :math:`t < 2^k`.

        Double precision holds :math:`p\\, 2^k` and :math:`2^k` exactly, so the result is exactly that of the law.
        """
        p, most = self._rate(leaf, dr.float64_array_t, 1), 2**self.bits - 1
        return min(round(p * 2**self.bits), most) if _is_number(p) else dr.minimum(dr.round(p * 2**self.bits), most)

    def scale(self, leaf: type) -> Any:
        """:math:`2^k / (2^k - t)`, rounded once to ``leaf``; raises ``ValueError`` for a number that it cannot hold."""
        t, all_ = self.threshold(leaf), 2**self.bits
        value = rounded(all_ / (all_ - t) if _is_number(t) else quotient(all_, all_ - t), leaf)
        if not self.scheduled and not math.isfinite(value):
            problem = f"keeping {all_ - t} of {all_} elements needs a scale of {all_ / (all_ - t):g}"
            hint = "use a smaller p or single precision"
            raise ValueError(f"{self.where}: {problem}, which {numpy_dtype(leaf)} cannot hold; {hint}.")
        return value

    def traced(self, leaf: type) -> MaskLaw:
        law = super().traced(leaf)
        uint32 = np.uint32 if issubclass(leaf, np.generic) else dr.uint32_array_t(leaf)
        law.bound = uint32(self.threshold(leaf)) << uint32(32 - self.bits)
        law.kept, law.zero = leaf(self.scale(leaf)), leaf(0)
        return law

    def decide(self, word: Any) -> Any:
        return word >= self.bound

    def decide_fields(self, word: Any) -> Any:
        """The decisions for all draws in ``word`` at once: the uppermost bit of each draw's field; other bits are 0."""
        uint32 = type(word)
        ones = sum(1 << place for place in range(0, 32, self.bits))
        top = uint32(ones << self.bits - 1)
        bounds = (self.bound >> 32 - self.bits) * uint32(ones)
        # with the uppermost bit of each field set, differences borrow nothing from the next field
        rest = (word | top) - (bounds & ~top)
        return (word & ~bounds | ~(word ^ bounds) & rest) & top

    def element(self, x: Any, decision: Any) -> Any:
        select = np.where if isinstance(x, np.ndarray) else dr.select
        return select(decision, x * self.kept, self.zero)

    def factor(self, decision: Any) -> Any:
        return dr.select(decision, self.kept, self.zero)


class PathLaw(MaskLaw):
    """The mask law for whole samples: the draw of element 0 decides for all elements."""

    shared = True


class GaussianLaw(Law):
    r"""Multiplies by :math:`1 + z \sqrt{p / (1 - p)}`, where :math:`z` is a normal random number from a 24-bit draw.

    The draw is the upper 24 of 32 bits of a word: see :class:`coopnet.GaussianDropout`.
    """

    sigma: Any

    def __init__(
        self, p: Any = 0.5, bits: int = 32, stream: int = 0, where: str = "gaussian_dropout", rounds: int = 10
    ):
        super().__init__(p, bits, stream, where, rounds)

    def traced(self, leaf: type) -> GaussianLaw:
        law = super().traced(leaf)
        p = self._rate(leaf, dr.float32_array_t, 1 - 2**-24)
        law.sigma = math.sqrt(p / (1 - p)) if _is_number(p) else dr.sqrt(p / (1 - p))
        return law

    def decide(self, word: Any) -> Any:
        n = word >> 8
        if isinstance(word, np.ndarray):
            return (1 + self.sigma * _normal((n + 0.5) * 2**-24)).astype(np.float32)
        int32, single = dr.int32_array_t(type(word)), dr.float32_array_t(type(word))
        # an odd integer of 24 bits and a sign, times 2^-24: exact on the whole interval (-1, 1)
        argument = single(int32(n) * 2 - (2**24 - 1)) * 2**-24
        return dr.erfinv(argument) * (self.sigma * math.sqrt(2)) + 1

    def element(self, x: Any, decision: Any) -> Any:
        if isinstance(x, np.ndarray):
            return x * decision.astype(x.dtype)
        return x * (type(x)(decision) if dr.depth_v(x) > 1 else self.leaf(decision))

    def factor(self, decision: Any) -> Any:
        return self.leaf(decision)


def check_probability(p: Any, where: str, name: str = "p") -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``p`` is a number in [0, 1)."""
    if isinstance(p, bool) or not isinstance(p, numbers.Real):
        raise TypeError(f"{where}: {name} is {shown_typed(p)}; a number in [0, 1) is needed.")
    check(0 <= p < 1, where, name, p, "a drop probability in [0, 1)")  # type: ignore[operator]  # NaN is in no interval


def check_schedule(p: Any, where: str) -> None:
    """Raise ``TypeError`` unless ``p`` is a floating point Dr.Jit array."""
    valid = is_flat(p) and dr.is_float_v(p) and dr.is_jit_v(p)
    ensure(valid, f"{where}: p is a Dr.Jit {type(p).__name__}; a number in [0, 1) or a Float32 is needed.", TypeError)


def quotient(a: float, b: Any) -> Any:
    """``a / b`` in double precision, for ``b`` from 1 to 2^32, rounded as a division (Markstein 1990), but without one.

    On CUDA, a division in double precision is a subroutine with a stack. Kernels of cooperative vectors that had one
    ended in an illegal memory access (H200, driver 580, OptiX 9), depending on the number of samples and on what the
    process had run before.
    """
    double, single = type(b), dr.float32_array_t(b)
    inverse = double(dr.rcp(single(b)))
    for _ in range(2):  # 22 bits are right, then 44, then all
        inverse = dr.fma(inverse, dr.fma(-b, inverse, 1), inverse)
    result = a * inverse
    return dr.fma(dr.fma(-b, result, a), inverse, result)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


@functools.cache
def numpy_dtype(leaf: type) -> np.dtype:
    """The NumPy dtype of a Dr.Jit or NumPy floating point type."""
    return np.dtype(leaf if issubclass(leaf, np.generic) else dr.type_v(leaf).name.lower())


def rounded(value: Any, leaf: type) -> Any:
    """``value``, a power of two divided by an integer, rounded once to ``leaf``; may be infinite.

    ``value`` is a number or an array in double precision.
    """
    if _is_number(value):
        with np.errstate(over="ignore"):
            return float(np.asarray(value).astype(numpy_dtype(leaf)))
    if dr.is_half_v(leaf):
        # Compilers convert double to half through single precision, which rounds twice. So round to the 10 bits of half
        # first. There are no ties, as the quotient is a power of two or has infinitely many digits.
        pattern = dr.reinterpret_array(dr.uint64_array_t(leaf), value)
        uint64 = type(pattern)
        value = dr.reinterpret_array(type(value), (pattern + uint64(1 << 41)) & uint64(-1 << 42 & (1 << 64) - 1))
        value = dr.float32_array_t(leaf)(value)
    return leaf(value)


_normal = np.vectorize(statistics.NormalDist().inv_cdf, otypes=[np.float64])
