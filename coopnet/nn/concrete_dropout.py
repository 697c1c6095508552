"""Dropout whose rate is learned."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..checks import check, check_above, check_int, check_squarable, check_type, ensure, is_number
from ..context import Context
from ..engine import LearnedMask
from ..jit import kinds
from ..jit.lanes import Gate
from ..jit.unpacked import Constant, Unpacked
from ..random.draws import decisions
from ..random.expansion import in_rows
from ..random.key import Key, check_key
from ..random.law import Law
from .dropout import EXPANDED_WIDTH, Dropout
from .module import Module
from .parameters import ParameterArray, parameters
from .tangents import linear_jvp
from .tree import children, held_layers

#: ``id`` of a layer -> are its masks relaxed? Set by :func:`relaxing`.
_relaxing = Context("relaxing", {})


@contextmanager
def relaxing(decided: Iterable[tuple[ConcreteDropout, bool]]) -> Iterator[None]:
    """A ``with`` block in which the masks of these layers are relaxed, or not, whatever gradients their rates have.

    Evaluations inside custom operations have parameters of their own; ``decided`` says what the user's had.
    """
    with _relaxing(_relaxing.get() | {id(layer): relaxed for layer, relaxed in decided}):
        yield


def relaxed_layers(module: Module) -> list[tuple[ConcreteDropout, bool]]:
    """The layers with learned rates in ``module``, and whether their masks are relaxed: for :func:`relaxing`."""
    return [(layer, layer.relaxed) for layer in children(module) if isinstance(layer, ConcreteDropout)]


class _Words(Law):
    """A law whose decisions are the drawn words of 32 bits."""

    def __init__(self, stream: int, rounds: int):
        super().__init__(0.0, 32, stream, "ConcreteDropout", rounds)

    def decide(self, word: Any) -> Any:
        return word


class ConcreteDropout(Dropout):
    r"""Dropout that learns its rate (Gal, Hron and Kendall 2017).

    Its parameter is the logit of :math:`p`. **Where the rate has a gradient**, as in :func:`fit`, masks are relaxed so
    that it has one. That is, the parameter has gradients enabled, even if suspended now. In a training
    loop of your own, evaluate a loaded or copied field to see the other masks.

    .. math::
        y_i = x_i \frac{1 - \mathrm{sigmoid}\big(\frac1T (\log\tfrac{p}{1-p} + \log\tfrac{u_i}{1 - u_i})\big)}{1 - p},
        \qquad u_i = \frac{n_i + 1/2}{2^{24}}

    with :math:`n_i` the upper 24 bits of the draw that the mask law with 32 bits has for element :math:`i`.
    **Everywhere else** masks follow the law of :func:`dropout`, with 32 bits and the threshold of the learned
    :math:`p`. Without a key the layer returns its input.

    A loss on the data alone would make the rate as small as possible. Add :func:`concrete_penalty` to balance it.

    Place it before the :class:`Linear` layer whose inputs it drops.

    Args:
        p: the first rate, a number in (0, 1). Reading ``layer.p`` gives the learned one, a ``Float32``;
            assigning a number restarts from it.
        temperature: :math:`T`; 0.1 in the paper.
        stream, rounds: as for :class:`Dropout`.

    Raises:
        ValueError, TypeError: arguments of another kind or out of range; inputs that :func:`dropout` refuses.

    >>> layers = cn.Linear(2, 16), cn.ReLU(), cn.ConcreteDropout(), cn.Linear(16, 3)
    >>> field = cn.NeuralField(None, cn.Sequential(*layers)).build()
    >>> pay = lambda field: cn.concrete_penalty(field, samples=10_000, noise=0.1)
    >>> result = cn.fit(field, batch, 1000, penalty=pay)
    >>> rate = field.network.layers[2].p
    """

    DRJIT_STRUCT = {
        "initial": float, "bits": int, "stream": int, "rounds": int, "temperature": float, "expansion": Constant,
        "logit": Unpacked, "ones": Constant,
    }  # fmt: skip

    def __init__(self, p: float = 0.1, temperature: float = 0.1, stream: int | None = None, rounds: int = 10):
        self.logit, self.ones = Unpacked(), Constant()
        super().__init__(p, 32, stream, rounds)
        self.temperature = check_above("ConcreteDropout", "temperature", temperature)

    @property
    def p(self) -> Any:
        """Drop probability: the learned one, or the first one before there are parameters."""
        logit = self.logit.value
        return self.initial if logit is None else 1 / (1 + dr.exp(-dr.detach(logit.data)))

    @p.setter
    def p(self, value: Any) -> None:
        valid = is_number(value) and 0 < value < 1
        check(valid, "ConcreteDropout", "p", value, "a number in (0, 1)")
        self.initial = float(value)
        self._law(self.initial).check_entries()
        if self.logit.value is not None:
            data = self.logit.value.data
            self.logit = Unpacked(ParameterArray(dr.opaque(type(data), _logit(self.initial))))

    @property
    def law(self) -> Law:
        """The layer's law, with the learned rate: a new array at every use, which must not outlive a recording."""
        return self._law(self.p)

    @property
    def relaxed(self) -> bool:
        """Does the rate have a gradient, so that masks are relaxed?"""
        logit = self.logit.value
        # also if gradients are suspended, to be computed later
        return logit is not None and _relaxing.get().get(id(self), logit.data.index_ad != 0)

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        kind, leaf = kinds.kind(x, "ConcreteDropout")
        kinds.require_float(leaf, "ConcreteDropout")
        check_key("ConcreteDropout", key)
        if key is None or not self.relaxed or kind == kinds.NUMPY:
            return self.law.apply(x, key)
        parts, samples, rate, gate = kinds.rows(x, kind), kinds.samples(x, kind), self.logit.value.data, Gate()
        tracked = dr.grad_enabled(rate)
        if tracked:  # the NaN of a sample without gradient, times 0, would be NaN
            rate, *parts = gate.enter([_for_each(rate, samples), *parts])
        factors, _ = self._relaxed(len(parts), samples, rate, key)
        y = [v * leaf(f) for v, f in zip(parts, factors, strict=True)]
        return kinds.rebuild(gate.leave(y) if tracked else y, x)

    def _relaxed_mask(self, x: Any, rate: Any, key: Key) -> tuple[Any, Any]:
        """The factors of the components of the ``CoopVec`` ``x``, and their derivatives by the logit ``rate``."""
        factors, slopes = self._relaxed(len(x), kinds.samples(x, kinds.COOPVEC), rate, key)
        return drnn.CoopVec([x.type(f) for f in factors]), drnn.CoopVec([x.type(s) for s in slopes])

    def _relaxed(self, n: int, samples: int, rate: Any, key: Key) -> tuple[list, list]:
        """The factors of ``n`` elements, which have a gradient if the logit ``rate`` has one, and their derivatives."""
        law = _Words(self.stream or 0, self.rounds)
        words = decisions(n, law, key, dr.uint32_array_t(type(rate)), samples)
        factors, slopes = _factors(words, dr.detach(rate), self.temperature)
        if dr.grad_enabled(rate):
            each = _for_each(rate, samples)
            factors = [dr.replace_grad(f, s * each) for f, s in zip(factors, slopes, strict=True)]
        return factors, slopes

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        return linear_jvp(self, x, tangents, key)

    def op(self) -> LearnedMask:  # type: ignore[override]
        return LearnedMask(self, self._relaxed_mask)

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:
        layer, leaf = copy.copy(self), dr.array_t(dtype)
        if dr.backend_v(leaf) == dr.JitBackend.CUDA and 0 < size <= EXPANDED_WIDTH:
            layer.ones = Constant(in_rows(np.ones((1, size)), leaf))
        single = dr.float32_array_t(leaf)
        layer.logit = Unpacked(ParameterArray(dr.opaque(single, _logit(self.initial))))
        return layer, size

    def __repr__(self) -> str:
        stream = "" if self.stream is None else f", stream={self.stream}"
        rounds = "" if self.rounds == 10 else f", rounds={self.rounds}"
        return f"ConcreteDropout(p={self.initial}, temperature={self.temperature}{stream}{rounds})"


def _for_each(rate: Any, samples: int) -> Any:
    """``rate``, one for each sample: otherwise the gradient of each element would be summed up by itself."""
    # `* 1`: an ordinary operation, by which Dr.Jit records that a symbolic loop depends on the rate
    return kinds.of_width(rate * 1, samples)


def _factors(words: list, logit: Any, temperature: float) -> tuple[list, list]:
    """The factors of the elements, and their derivatives with respect to ``logit``."""
    single, factors, slopes = type(logit), [], []
    odds = dr.exp(logit)  # p / (1 - p)
    for word in words:
        u = (single(word >> 8) + 0.5) * 2**-24
        kept = dr.rcp(1 + dr.exp2((dr.log2(u * dr.rcp(1 - u)) + logit * math.log2(math.e)) * (1 / temperature)))
        factors.append(kept * (1 + odds))
        slopes.append(kept * (odds - (1 - kept) * (1 + odds) * (1 / temperature)))
    return factors, slopes


def concrete_penalty(net: Module, samples: int, *, length: float = 1e-4, noise: float = 1.0) -> Any:
    r"""The penalty for the rates of :class:`ConcreteDropout`, for ``penalty`` of :func:`fit` (Gal, Hron and Kendall
    2017).

    .. math::
        s^2 \sum_l \frac{\ell^2}{N} \frac{\lVert A_l \rVert^2}{1 - p_l}
        + \frac{2 K_l}{N} \big(p_l \log p_l + (1 - p_l) \log(1 - p_l)\big)

    over the dropouts :math:`l`. :math:`A_l` is the matrix of the linear layer after dropout :math:`l`, and :math:`K_l`
    its number of inputs. If several layers read the dropped units, :math:`A_l` are all of their matrices, and
    :math:`K_l` is the smallest number of inputs. The constants are the paper's, for the loss
    :math:`\sum_o (y_o - t_o)^2 / s^2` of each sample.
    With :math:`O` outputs, the loss ``"l2"`` is :math:`s^2 / O` times that, so give :math:`s / \sqrt{O}` as ``noise``.
    For ``"gaussian_nll"`` with one target, give :math:`1 / \sqrt 2`.

    Args:
        net: a built field or network with :class:`ConcreteDropout` layers, each followed by a linear layer, or by
            several in branches, such as heads.
        samples: :math:`N`, the number of independent measurements.
        length: the prior length scale :math:`\ell`, a positive number.
        noise: :math:`s`, the standard deviation of the noise of measurements, a positive number.

    Returns:
        A single-precision Dr.Jit array of width 1, with gradients.

    Raises:
        ValueError: no such layers, one without a linear layer after it, numbers out of range.
        TypeError: ``net`` is not a :class:`Module`.

    >>> layers = cn.ConcreteDropout(), cn.Linear(2, 1)
    >>> field = cn.NeuralField(None, cn.Sequential(*layers)).build()
    >>> cost = cn.concrete_penalty(field, samples=1000)
    """
    where = "concrete_penalty"
    check_type(where, "net", net, Module, "a coopnet Module")
    n = check_int(where, "samples", samples, 1, 2**53)
    length, noise = check_squarable(where, "length", length), check_squarable(where, "noise", noise)
    dropouts: list[tuple[ConcreteDropout, list]] = []
    _readers(net, [], dropouts)
    ensure(dropouts, f"{where}: the network has no ConcreteDropout.")
    matrices = {id(p.owner): p for p in parameters(net) if p.is_matrix}
    total: Any = 0
    for layer, behind in reversed(dropouts):
        known = behind and all(id(linear) in matrices for linear in behind)
        ensure(known, f"{where}: no linear layer with weights follows a ConcreteDropout.")
        logit = layer.logit.value.data
        single, squares = type(logit), type(logit)(0)
        for matrix in (matrices[id(linear)] for linear in behind):
            squares += dr.sum(dr.square(single(matrix.entries())))
        weights = squares * (1 + dr.exp(logit)) * (length**2 / n)
        p = 1 / (1 + dr.exp(-logit))
        entropy = p * dr.log(dr.maximum(p, 1e-30)) + (1 - p) * dr.log(dr.maximum(1 - p, 1e-30))
        units = min(matrices[id(linear)].shape[1] for linear in behind)  # others read more than the dropped units
        total = total + weights + entropy * (2 * units / n)
    return total * noise**2


def _readers(layer: Any, behind: list, found: list[tuple[ConcreteDropout, list]]) -> list:
    """The linear layers that read the input of ``layer``, whose output the linear layers ``behind`` read; all of them
    if there are branches. Every :class:`ConcreteDropout` in it is added to ``found``, with those that read its output.
    """
    if isinstance(layer, ConcreteDropout):
        found.append((layer, behind))
    if isinstance(layer, drnn.Linear):
        return [layer]
    result: dict[int, Any] = {}
    for body in layer.bodies() if hasattr(layer, "bodies") else [held_layers(layer)]:
        readers = behind
        for inner in reversed(body):
            readers = _readers(inner, readers, found)
        result |= {id(linear): linear for linear in readers}
    return list(result.values())


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
