"""The moving average of a network's weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any

import drjit as dr

from ..backend.transfer import NUMPY
from ..checks import check, check_flag, check_type, ensure, is_number
from ..nn import Module
from ..nn.parameters import like, parameters
from .extended import Extended
from .gradients import parameter_arrays

#: Name of the total weight among the averages, which no parameter can have.
TOTAL = "total weight"


class EMA:
    r"""Exponential moving average of all parameters of a network, :math:`a \leftarrow a + (1 - d)(w - a)`.

    Averaged weights often do better than the last ones (Polyak and Juditsky 1992). The average starts at the initial
    weights. It is single precision, also for half-precision weights, since steps of :math:`(1 - d)(w - a)` would be
    rounded away. An EMA is a PyTree, so that ``update`` may run in a frozen function (``dr.freeze``).

    Args:
        net: an allocated :class:`Module`.
        decay: :math:`d`, in [0, 1); it averages over about :math:`1 / (1 - d)` updates.
        debias: leave the initial weights out of the average, as in Adam and tiny-cuda-nn: update :math:`t` moves the
            average by :math:`(1 - d) / (1 - d^t)` instead of :math:`1 - d`. Without it, the initial weights fade like
            all others.

    Raises:
        TypeError, ValueError: ``net`` is not a :class:`Module` or has no parameters; ``decay`` out of range; ``debias``
            not a bool.

    >>> ema = cn.training.EMA(field, decay=0.999)
    >>> cn.fit(field, batch, 1000, ema=ema)
    >>> with ema.applied(field):
    ...     cn.save("averaged.safetensors", field)
    """

    DRJIT_STRUCT = {"average": dict, "decay": float, "total": object, "shapes": object}

    def __init__(self, net: Module | None = None, decay: float = 0.999, debias: bool = False):
        check(is_number(decay) and 0 <= decay < 1, "EMA", "decay", decay, "a number in [0, 1)")
        check_flag("EMA", "debias", debias)
        self.decay = float(decay)
        self.average: dict[str, Any] = {}
        #: Total weight of all values in the average, 1 - d^t; ``None`` if the average began at the initial weights.
        self.total: Any = None
        #: Shapes of all parameters. Arrays do not tell them: a GPU's packed layouts of other networks may be as long.
        self.shapes: Any = None
        if net is None:  # only while Dr.Jit rebuilds the PyTree
            return
        check_type("EMA", "net", net, Module, "a coopnet Module")
        for name, value in parameter_arrays("EMA", net).items():
            flat = dr.detach(value).array
            single = dr.float32_array_t(type(flat))
            # a copy: if the average and the parameter were one array at first, the step would be recorded again later
            self.average[name] = single(flat) * dr.opaque(single, 1)
        self.shapes = _shapes(net)
        if debias:
            self.total = dr.opaque(dr.float32_array_t(dr.leaf_t(type(next(iter(self.average.values()))))), 0)
        dr.eval(self.average)

    def _to(self, mover: Any) -> EMA:
        """This average on another backend, laid out as its network is there; see :func:`coopnet.to`."""
        ensure(mover.backend != NUMPY, "to: an EMA works on Dr.Jit's arrays; it cannot be moved to NumPy.", TypeError)
        average = {name: mover.follow(name, value, single=True) for name, value in self.average.items()}
        if all(average[name] is value for name, value in self.average.items()):
            return self
        new = copy(self)
        new.average, new.total = average, mover.moved(self.total)
        return new

    def update(self, params: Any) -> None:
        """Add the present values of ``params`` to the average: a network, or the optimizer that trains it. The
        optimizer is more exact if it keeps half-precision weights in single precision. If it looks ahead, its slow
        weights are averaged.

        Raises ``ValueError`` if names or sizes differ from those at the start. An optimizer may have more parameters.

        >>> ema.update(opt)
        """
        values = parameter_arrays("EMA.update", params)
        if isinstance(params, Module):
            check_averaged("EMA.update", params, self)
        for name, average in self.average.items():
            if name not in values or math.prod(dr.shape(values[name])) != dr.width(average):
                raise ValueError(f"EMA.update: the parameters have no {name!r} of {dr.width(average)} entries.")
        share: Any = 1 - self.decay
        if self.total is not None:
            self.total = self.total * self.decay + share
            share = share / self.total
        if isinstance(params, Extended):
            values |= params.slow_weights()
        for name, average in self.average.items():
            value = type(average)(dr.detach(values[name]).array)
            self.average[name] = average + (value - average) * share
        dr.schedule(self.average, self.total)

    def apply(self, net: Module) -> None:
        """Write the average into ``net``, rounded to the type of its parameters.

        Raises ``TypeError`` or ``ValueError`` for a network that is not the one that was averaged.

        >>> ema.apply(net)
        """
        check_averaged("EMA.apply", net, self)
        for name, average in self.average.items():
            net[name] = like(net[name], average)

    @contextmanager
    def applied(self, net: Module) -> Iterator[Module]:
        """A ``with`` block in which ``net`` has the averaged weights; at the end it gets its own back.

        Raises as :meth:`apply`.

        >>> with ema.applied(net):
        ...     averaged = net.matrix("layers.0.weights")
        """
        check_averaged("EMA.applied", net, self)
        before = {name: dr.copy(dr.detach(value).array) for name, value in net.items()}
        self.apply(net)
        try:
            yield net
        finally:
            for name, value in before.items():
                net[name] = like(net[name], value)


def averages(ema: EMA | None) -> dict[str, Any]:
    """The state of ``ema``, if there is one: averages by name, and the total weight if there is a correction."""
    if ema is None:
        return {}
    return ema.average | ({} if ema.total is None else {TOTAL: ema.total})


def set_averages(ema: EMA, new: Mapping[str, Any]) -> None:
    """The inverse of :func:`averages`."""
    ema.average = {name: value for name, value in new.items() if name != TOTAL}
    ema.total = new.get(TOTAL)


def check_averaged(where: str, net: Any, ema: EMA) -> None:
    """Raise unless ``ema`` is an average of the parameters of ``net``, or of a network like it."""
    check_type(where, "net", net, Module, "a coopnet Module")
    given, averaged = dict(_shapes(net)), dict(ema.shapes)
    for name in averaged | given:
        if given.get(name) != averaged.get(name):
            shapes = f"{name!r} has the shape {given.get(name)}, there {averaged.get(name)}"
            raise ValueError(f"{where}: the network has other parameters than the one that was averaged: {shapes}.")


def _shapes(net: Module) -> tuple:
    return tuple((p.name, p.shape) for p in parameters(net))
