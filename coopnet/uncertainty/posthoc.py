"""Dropout for a field that was trained without any."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check_above, check_type, ensure, is_flat
from ..field import NeuralField
from ..nn import Sequential
from ..nn.dropout import Dropout
from ..nn.tree import children
from .data import Batch, check_trained, draw
from .ensemble import members_of
from .layers import behind_hidden, grids, rebuilt
from .mc_dropout import has_dropout

_WHERE = "posthoc_dropout"
#: Logarithms to base 2 of the smallest and the largest rate.
_LEAST, _MOST = -28, -0.01
#: Halvings of the interval between them, which leave half a per cent.
_HALVINGS = 12


def posthoc_dropout(
    field: NeuralField,
    batch: Callable[[Any], tuple],
    *,
    tolerance: float = 0.05,
    seed: int = 0,
    batches: int = 16,
    loss: Callable[[Any, Any], Any] | None = None,
) -> tuple[NeuralField, float]:
    r"""Dropout for a field that was trained without any, at the largest rate that hardly changes the training loss
    (Sun et al. 2024, *PH-Dropout*).

    It puts a :class:`Dropout` of 32 bits after every hidden activation, and one after the features of grids. All have
    the same rate :math:`p`, the largest with

    .. math:: L(p) \le (1 + \mathrm{tolerance})\, L(0), \qquad
        L(p) = \frac1B \sum_{i<B} \mathrm{loss}(\mathrm{field}_p(x_i, k_i), t_i), \qquad
        k_i = \mathrm{Key}(\mathrm{seed}, \mathrm{step} = i)

    over the batches :math:`(x_i, t_i)` that ``fit`` with this seed begins with. The rate is determined to half a per
    cent, by bisection of its logarithm between :math:`2^{-28}` and 0.99. All rates use the same batches and random
    numbers, so a unit that is dropped at one rate is dropped at every larger rate, too. A field that fits its data well
    gets a small rate: 1e-3 and less.

    The deviation over masks shows where the data do not determine the field. It does not show which entries of a grid
    no sample has visited: they keep their initial values under every mask. :func:`laplace` shows them
    (``docs/uncertainty.md``).

    Args:
        field: a built and trained :class:`NeuralField` without dropout; it stays as it is.
        batch: the training data, as in :func:`fit`: traced code from a key to ``(coordinates, targets)``.
        tolerance: how much the loss may rise, relative to that without dropout; a positive number.
        seed: of batches and masks, int in [0, 2^64).
        batches: number :math:`B` of batches; they are held in memory.
        loss: traced code ``(y, targets) -> loss of each sample``, both lists with an array for each output, such as
            ``cn.training.losses.l1``; the mean square of all outputs' errors if ``None``.

    Returns:
        The pair ``(field, rate)``: a copy of the field with dropouts, and their rate.

    Raises:
        ValueError: arguments out of range; a field that is not built, has dropout, or has no hidden activation and no
            grid; a loss that is 0 or not finite; a loss that even the smallest rate raises too much.
        TypeError: arguments of another kind.
        RuntimeError: called while Dr.Jit records a function or loop.

    >>> plain = cn.NeuralField(cn.Sinusoidal(4, in_features=2), cn.MLP(out_features=3, width=16)).build()
    >>> dropped, rate = cn.posthoc_dropout(plain, batch, tolerance=0.1)
    >>> mean, deviation = cn.mc_dropout(dropped, p, cn.Key(seed=1), samples=32)
    """
    check_trained(field, _WHERE)
    tolerance = check_above(_WHERE, "tolerance", tolerance)
    check_type(_WHERE, "loss", loss, Callable | None, "a function (y, targets) -> loss of each sample")
    has = "field has dropout already, which mc_dropout takes as it is"
    ensure(not has_dropout(field), f"{_WHERE}: {has}; a field without is needed.")
    dropped = _with_dropout(field)
    data = list(draw(field, batch, batches, seed, _WHERE, "batches"))
    masks = [layer for layer in children(dropped) if isinstance(layer, Dropout)]
    single = field.float32

    def measured(p: float) -> float:
        rate = dr.opaque(single, p)  # a parameter of the kernel, which all rates share
        for layer in masks:
            layer.p = rate
        with dr.suspend_grad():
            return _mean_loss(dropped, data, loss or _square)

    limit = measured(0)
    ensure(0 < limit < math.inf, f"{_WHERE}: the loss of the field is {limit:g}; a positive number is needed.")
    limit *= 1 + tolerance
    accepted, rejected = float(_LEAST), float(_MOST)
    hint = "raise tolerance, or train with dropout"
    none = f"even the smallest rate (2^{_LEAST}) raises the loss by more than {100 * tolerance:g} %"
    ensure(measured(_rate(accepted)) <= limit, f"{_WHERE}: {none}; {hint}.")
    for _ in range(_HALVINGS):
        middle = (accepted + rejected) / 2
        accepted, rejected = (middle, rejected) if measured(_rate(middle)) <= limit else (accepted, middle)
    for layer in masks:
        layer.p = _rate(accepted)
    return dropped, _rate(accepted)


def _rate(exponent: float) -> float:
    """A power of 2, rounded to single precision, in which kernels read rates."""
    return float(np.float32(2**exponent))


def _dropout() -> Dropout:
    return Dropout(bits=32)  # fewer bits would round rates of a millionth


def _with_dropout(field: NeuralField) -> NeuralField:
    """A copy of ``field`` with dropouts."""
    hint = "give its members dropout, and join those by ensemble()"
    ensure(members_of(field) is None, f"{_WHERE}: field is an ensemble; {hint}.")
    network = behind_hidden(field.network, _dropout)
    if grids(field.encoding):
        network = Sequential(_dropout(), network)
    some = any(isinstance(layer, Dropout) for layer in children(network))
    ensure(some, f"{_WHERE}: field has neither a hidden activation nor a grid to put dropout after; one is needed.")
    return rebuilt(field, field.encoding, network)


def _mean_loss(field: NeuralField, data: list[Batch], loss: Callable) -> float:
    means = []
    for batch in data:
        losses = loss(list(field(batch.coordinates, batch.key)), batch.targets)
        needed = "an array with the loss of each sample is needed"
        ensure(is_flat(losses), f"{_WHERE}: loss returned a {type(losses).__name__}; {needed}.", TypeError)
        means.append(dr.mean(losses))
    dr.eval(means)
    return sum(float(mean[0]) for mean in means) / len(means)


def _square(y: list, targets: list) -> Any:
    """The mean square of the errors of all outputs."""
    return sum(dr.square(a - b) for a, b in zip(y, targets, strict=True)) * (1 / len(y))
