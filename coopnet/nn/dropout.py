"""Dropout: the function, the mask, and the layers."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import drjit as dr
import numpy as np

from ..backend import require
from ..backend.transfer import to
from ..checks import check_int, check_type, plain
from ..checks.sizes import check_entries, check_features
from ..engine import Mask
from ..jit.kinds import nested_type
from ..jit.unpacked import Constant
from ..random.draws import decisions
from ..random.expansion import Expansion, expansion
from ..random.key import Key
from ..random.law import GaussianLaw, Law, MaskLaw, PathLaw
from .module import Module

#: Longest vectors whose masks come from a product. For longer ones, an identity matrix was slower in measurements, and
#: expanding bytes compiled for longer.
EXPANDED_WIDTH = 64


def dropout(x: Any, p: Any, key: Key | None, *, stream: int = 0, bits: int = 16, rounds: int = 10) -> Any:
    r"""Drop elements of ``x`` with probability ``p`` and rescale the others, by the mask law.

    .. math::
        y_i = \begin{cases} x_i \cdot 2^k / (2^k - t) & u_i \ge t \\ 0 & \text{otherwise} \end{cases},
        \qquad t = \mathrm{round}(p\, 2^k)

    where :math:`u_i` is the ``bits`` = :math:`k` bit wide field number ``i % (32/k)`` of word ``i // (32/k)`` of the
    Philox stream with counter ``(block, index, step, stream)`` under the key's seed. Integers are compared, so the mask
    is the same to the bit on every backend and in every precision. The scale uses the quantized probability, so the
    mean is preserved exactly. The gradient is multiplied by the same mask, which is drawn again rather than stored.

    A tensor of at least 2^16 elements in memory gets a separate kernel, about as fast as copying it (fastest if the
    number of samples is a multiple of 8). Its gradient gets another one. In all other cases dropout is part of the
    kernel that uses its result: for tensors that have not been evaluated, for other kinds of inputs, and inside
    symbolic loops, conditionals and calls.

    Samples with equal indices share their mask. With ``Key(seed, index=lane // 8)``, groups of eight lanes share one,
    such as the corners of a cell or the samples of a pixel.

    **Schedules.** ``p`` may be a Dr.Jit value of width 1. Kernels read it, so a new value compiles no kernel, and
    functions of ``dr.freeze`` take it as an argument: ``dr.opaque(Float32, 0.1)``. Threshold and scale are then
    computed in the kernel in double precision: they are those of the law for exactly this single-precision number. A
    kernel cannot raise an error, so ``p`` is clipped to [0, 1] and the threshold to :math:`2^k - 1`. ``p = 0`` keeps
    everything with scale 1; there is no gradient with respect to ``p``. For arrays and cooperative vectors ``p`` may
    also have one entry for each sample, as it has inside evaluated loops and calls.

    Args:
        x: a ``CoopVec``, a 2D tensor or NumPy array of shape ``(features, samples)``, a Dr.Jit array, a nested array,
            or a list or tuple of arrays; float16, float32 or float64. All give the same mask. On CUDA a ``CoopVec``
            is multiplied by 0 where it is dropped, so an infinite or NaN component stays NaN there.
        p: drop probability in [0, 1), a number or a floating point Dr.Jit array of width 1 (or of one for each sample).
        key: :class:`Key`, or ``None`` for no dropout.
        stream: the number of this dropout in its network. Dropouts with different numbers have different masks. From
            2^30 on, numbers belong to other draws (:func:`uniform`, :func:`laplace`), whose words a mask would repeat.
        bits: random bits spent on an element: 8, 16 or 32. ``p`` is rounded to a multiple of ``2^-bits``.
        rounds: of the generator, 10 or 7. Seven are the fewest that pass the tests of BigCrush (Salmon et al. 2011);
            they take less arithmetic and give other masks.

    Returns:
        The same kind and type as ``x``; ``x`` itself if ``p`` is the number 0 or ``key is None``.

    Raises:
        ValueError: a number ``p`` outside [0, 1), NaN, or rounding to 1, or an array ``p`` of another size; other
            ``bits`` or ``rounds``; empty or wrongly shaped ``x``; a key with another number of entries than samples.
        TypeError: ``x`` of another kind or not floating point; ``key`` no :class:`Key`; ``p`` neither a number nor a
            Dr.Jit floating point array, or one of another backend.

    >>> y = cn.dropout(x, 0.1, cn.Key(seed=7, step=3))
    """
    return MaskLaw(p, bits, stream, rounds=rounds).apply(x, key)


def dropout_mask(n: int, p: Any, key: Key, *, stream: int = 0, bits: int = 16, rounds: int = 10) -> Any:
    """The ``n`` keep masks that :func:`dropout` would use for samples ``key.index``.

    Args:
        n: number of elements, at least 1.
        p, stream, bits, rounds: as in :func:`dropout`.
        key: a :class:`Key` with an ``index``, whose backend is that of the masks.

    Returns:
        An ``ArrayXb`` of ``n`` masks if the index is a Dr.Jit ``UInt32``, else a NumPy bool array ``(n, samples)``.

    Raises:
        ValueError, TypeError: as :func:`dropout`; also for ``n < 1`` or a key without an index.

    >>> keep = cn.dropout_mask(64, 0.1, cn.Key(7, index=dr.arange(UInt32, 1000)))
    """
    where = "dropout_mask"
    n = check_int(where, "n", n, 1)
    law = MaskLaw(p, bits, stream, where, rounds)
    law.check_entries()
    check_type(where, "key", key, Key, "a coopnet.Key")
    if key.index is None:
        hint = "give one, such as Key(seed, index=dr.arange(UInt32, samples))"
        raise ValueError(f"{where}: the key has no index, so the number of samples is unknown; {hint}.")
    n = int(n)
    if not isinstance(key.index, dr.ArrayBase):
        width = np.atleast_1d(key.index).size
        check_entries(where, "masks", (n, width), 24)  # with the words that they are made of
        return np.stack(decisions(n, law.traced(np.float64), key, np.uint32, width))
    check_features(where, "n", n)
    uint32 = type(key.index)
    require(uint32)
    keep = decisions(n, law.traced(dr.float64_array_t(uint32)), key, uint32, dr.width(key.index))
    return nested_type(dr.mask_t(uint32))(keep)


class Dropout(Module):
    r"""Dropout layer (Srivastava et al. 2014, inverted form): see :func:`dropout`.

    Without a key it returns its input; with one, it applies the mask of ``(key, stream)``.

    Args:
        p: drop probability in [0, 1), a number or, for schedules, a Dr.Jit ``Float32`` of width 1; see :func:`dropout`.
            It may be assigned at any time, also in a packed network: ``layer.p = dr.opaque(Float32, 0.2)``. A
            checkpoint keeps its value at that moment, as a number.
        bits: random bits per element, 8, 16 or 32.
        stream: the stream number ``s`` of the mask law. ``None`` lets the network number its dropouts 0, 1, 2, ... in
            evaluation order when it is allocated, leaving out numbers that are given by hand. A layer that is called
            before that uses 0.
        rounds: of the generator, 10 or 7.

    Raises:
        TypeError, ValueError: ``p``, ``bits``, ``stream`` or ``rounds`` out of range or of another type, as for
            :func:`dropout`.

    >>> net = cn.Sequential(cn.Linear(-1, 64), cn.ReLU(), cn.Dropout(0.1), cn.Linear(-1, 3))
    """

    # rate: the value of p. An array is wrapped, or drjit.nn.pack would pack it as a weight.
    DRJIT_STRUCT = {"rate": object, "bits": int, "stream": int, "rounds": int, "expansion": Constant}
    LAW: type[Law] = MaskLaw

    def __init__(self, p: float = 0.5, bits: int = 16, stream: int | None = None, rounds: int = 10):
        self.bits, self.stream, self.rounds = plain(bits), plain(stream), plain(rounds)
        self.p = p
        self.expansion = Expansion()

    @property
    def p(self) -> Any:
        """Drop probability, a number or a Dr.Jit ``Float32``."""
        return self.rate.value if isinstance(self.rate, Constant) else self.rate

    @p.setter
    def p(self, value: Any) -> None:
        law = self._law(value)
        law.check_entries()
        # the law's array, which is in memory: a frozen function has to find it in the layer
        self.rate: Any = Constant(law.p) if law.scheduled else law.p

    @property
    def law(self) -> Law:
        """The layer's law. It is cached until a setting is replaced by another object."""
        settings, known = (self.p, self.bits, self.stream, self.rounds), self.__dict__.get("_known")
        if known is None or any(a is not b for a, b in zip(known[0], settings, strict=True)):
            self._known = known = settings, self._law(self.p)
        return known[1]

    def _law(self, p: Any) -> Law:
        return self.LAW(p, self.bits, 0 if self.stream is None else self.stream, type(self).__name__, self.rounds)

    def active(self) -> bool:
        """Does the layer change its input if there is a key?"""
        return self.law.drops

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        return self.law.apply(x, key, self.expansion)

    def op(self) -> Mask:
        return Mask(self)

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:  # type: ignore[override]
        layer, on_cuda = copy.copy(self), dr.backend_v(dtype) == dr.JitBackend.CUDA
        helps = on_cuda and 0 < size <= EXPANDED_WIDTH and layer.active()
        layer.p = to(self.p, dtype)  # an array, if there is a schedule
        layer.expansion = expansion(layer.law, dr.array_t(dtype), size) if helps else Expansion()
        return layer, size

    def _join(self, layers: list) -> None:
        others = [layer for layer in layers if isinstance(layer, Dropout)]
        if self.stream is None:
            used = {layer.stream for layer in others}
            self.stream = next(s for s in itertools.count() if s not in used)
        # masks of one width share a matrix, so that a kernel loads it once
        own, held = self.expansion, [layer.expansion for layer in others]
        self.expansion = next((e for e in held if e.kind == own.kind), own)

    def __repr__(self) -> str:
        return super().__repr__().replace(", stream=None", "").replace(", rounds=10", "")


class DropPath(Dropout):
    r"""Drops whole samples (*stochastic depth*, Huang et al. 2016): all features of a sample, or none.

    .. math::
        y = \begin{cases} x \cdot 2^k / (2^k - t) & u_0 \ge t \\ 0 & \text{otherwise} \end{cases}

    with the draw :math:`u_0` that :func:`dropout` would make for element 0 of the sample, and its threshold :math:`t`.
    At the end of a residual branch, dropped samples use the shortcut alone. Without a key the layer returns its input.

    Args:
        p: probability that a sample is dropped, a number in [0, 1) or a Dr.Jit ``Float32`` of width 1.
        bits: random bits per sample, 8, 16 or 32.
        stream, rounds: as in :class:`Dropout`.

    Raises:
        ValueError, TypeError: arguments that :func:`dropout` refuses, too.

    >>> branch = cn.Sequential(cn.Linear(64, 64), cn.ReLU(), cn.Linear(64, 64), cn.DropPath(0.1))
    """

    LAW = PathLaw


class GaussianDropout(Dropout):
    r"""Multiplies every element by normally distributed noise of mean 1 (Srivastava et al. 2014, section 10).

    .. math::
        y_i = x_i \cdot (1 + \sigma z_i), \qquad \sigma = \sqrt{p / (1 - p)}, \qquad
        z_i = \Phi^{-1}\!\left(\frac{n_i + 1/2}{2^{24}}\right)

    which has the mean and variance of :class:`Dropout` with the same ``p``. :math:`n_i` are the upper 24 bits of the
    word that the mask law with 32 bits gives to element :math:`i`: word ``i % 4`` of the Philox counter ``(i // 4,
    index, step, stream)``; :math:`\Phi` is the normal distribution, so that :math:`|z_i| < 5.42`. The noise is computed
    in single precision from exactly equal arguments, and rounded to the type of ``x``. Backends agree on it up to the
    rounding of their elementary functions. Without a key the layer returns its input.

    Args:
        p: drop probability of the :class:`Dropout` to imitate, a number in [0, 1) or a Dr.Jit ``Float32`` of width 1
            (then clipped to [0, :math:`1 - 2^{-24}`]).
        stream, rounds: as in :class:`Dropout`.

    Raises:
        ValueError, TypeError: ``p``, ``stream`` or ``rounds`` of another kind or out of range; inputs that
            :func:`dropout` refuses.

    >>> net = cn.Sequential(cn.Linear(16, 64), cn.ReLU(), cn.GaussianDropout(0.1), cn.Linear(64, 3))
    """

    LAW = GaussianLaw

    def __init__(self, p: float = 0.5, stream: int | None = None, rounds: int = 10):
        super().__init__(p, 32, stream, rounds)
