"""The inside of ``drjit.opt``, checked against 1.5.0: a parameter's state and learning rate, and what a step calls.

``Optimizer.state`` maps names to (value, promoted to single precision?, learning rate of its own or ``None``, memory),
where the memory is what the kind of optimizer keeps: moments, counters. ``_step`` computes a new value and memory,
``_reset`` begins a memory, and ``_select`` picks from two of them where a step is masked.

A step multiplies a learning rate that is an array *in place* by further factors (``_LRCache.product``). One that two
parameters share reaches the second with the size and sign of the first one's step, and ``AdamW``, which asks for it
twice, makes weights grow. :func:`own_rates` is what to do about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import drjit as dr
import drjit.opt as dropt


def values(optimizer: dropt.Optimizer) -> dict[str, Any]:
    """The parameters as they are kept: indexing an optimizer would round promoted ones to half precision."""
    return dict(optimizer.items())


def snapshot(optimizer: dropt.Optimizer) -> dict[str, Any]:
    """The parameters of now, without gradients: frozen functions assign to the arrays that they are called with."""
    return {name: dr.copy(dr.detach(value)) for name, value in values(optimizer).items()}


def set_values(optimizer: dropt.Optimizer, new: Mapping[str, Any]) -> None:
    """Replace parameters, and neither evaluate nor change anything else, as assigning to an optimizer's entry would."""
    for name, value in new.items():
        dr.enable_grad(value)
        optimizer.state[name] = (value, *optimizer.state[name][1:])


def memories(optimizer: dropt.Optimizer) -> dict[str, Any]:
    """What the optimizer keeps beside each parameter: arrays in tuples."""
    return {name: memory for name, (_, _, _, memory) in optimizer.state.items()}


def set_state(optimizer: dropt.Optimizer, state: dict[str, tuple]) -> None:
    """Replace all parameters, rates and memories."""
    for value, *_ in state.values():
        dr.enable_grad(value)
    optimizer.state = state


def decay_rate(optimizer: dropt.Optimizer) -> float:
    """The rate at which an ``AdamW`` decays all of its parameters; 0 for others."""
    return optimizer.weight_decay if isinstance(optimizer, dropt.AdamW) else 0.0


@contextmanager
def own_rates(optimizer: dropt.Optimizer, factors: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A ``with`` block in which steps are right though learning rates are arrays.

    Every parameter has a rate of its own, times its entry in ``factors``, if any; they are returned by name. ``AdamW``
    does not decay weights: whoever takes the step does, at the :func:`decay_rate` from outside the block.
    """
    before = {name: optimizer.learning_rate(name) for name in optimizer}
    rates: dict[str, Any] = {name: optimizer.lr if lr is None else lr for name, lr in before.items()}
    rates |= {name: rate * factors[name] for name, rate in rates.items() if name in factors}
    optimizer.set_learning_rate({name: type(rate)(rate) for name, rate in rates.items()})
    decay = decay_rate(optimizer)
    if decay:
        optimizer.weight_decay = 0.0
    try:
        yield rates
    finally:
        optimizer.set_learning_rate(before)
        if decay:
            optimizer.weight_decay = decay


def adam_correction(optimizer: dropt.Adam, dtype: type, memory: tuple) -> Any:
    r"""What Adam's next step is multiplied by, :math:`\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)`, as a ``dtype``."""
    t = memory[0] + 1
    if counts_entries(memory):  # a double power for each would take longer than the step
        return dr.sqrt(_debiased(optimizer.beta_2, dtype(t))) / _debiased(optimizer.beta_1, dtype(t))
    high = dr.float64_array_t(dtype)
    return dtype(dr.sqrt(1 - high(optimizer.beta_2) ** t) / (1 - high(optimizer.beta_1) ** t))


def _debiased(beta: float, t: Any) -> Any:
    r""":math:`1 - \beta^t`, of which nothing is lost near 0: there by the series of :math:`1 - e^u`."""
    if beta == 0:
        return type(t)(1)
    u = t * math.log(beta)
    series = type(t)(1)
    for k in range(8, 1, -1):
        series = dr.fma(series, u * (1 / k), 1)
    return dr.select(u > -0.5, -u * series, 1 - dr.exp(u))


def counts_entries(memory: tuple) -> bool:
    """Has every entry of a parameter with Adam's ``memory`` a number of steps of its own? See :class:`SparseAdam`."""
    return dr.width(memory[0]) == dr.width(memory[1]) != 1


class SparseAdam(dropt.Adam):
    """Adam that can leave entries with a gradient of zero alone, and count the steps of each by itself."""

    def _counts(self, name: str) -> bool:
        """Are the entries of this parameter to be?"""
        return False

    def _step(self, cache: Any, value: Any, grad: Any, lr: Any, memory: tuple, /) -> tuple[Any, tuple]:
        if not counts_entries(memory):
            return super()._step(cache, value, grad, lr, memory)
        t, m, v, _ = memory
        new_m, new_v = dr.lerp(grad, m, self.beta_1), dr.lerp(dr.square(grad), v, self.beta_2)
        # Dr.Jit's way of adding epsilon
        small = self.epsilon <= 1e-6
        step = new_m * dr.rsqrt(new_v + self.epsilon**2) if small else new_m / (dr.sqrt(new_v) + self.epsilon)
        leaf = dr.leaf_t(grad)
        rate = leaf(lr) if isinstance(lr, dr.ArrayBase) else dr.opaque(leaf, lr)
        new = value - rate * adam_correction(self, leaf, memory) * step
        still = grad == 0
        new_memory = SparseAdam._select(self, still, memory, (t + 1, new_m, new_v, None))
        return dr.select(still, value, new), new_memory

    def _select(self, mask: Any, memory: tuple, new: tuple, /) -> tuple:
        selected = super()._select(mask, memory, new)
        return (dr.select(mask, memory[0], new[0]), *selected[1:]) if counts_entries(memory) else selected

    def _reset(self, name: str, value: Any, promoted: bool, /) -> None:
        super()._reset(name, value, promoted)
        if self._counts(name):
            value, promoted, rate, (t, *moments) = self.state[name]
            self.state[name] = value, promoted, rate, (dr.opaque(type(t), 0, dr.width(moments[0])), *moments)


class Extension(dropt.Optimizer):
    """Base of optimizers that add to one of Dr.Jit's, named before it: ``class Adam(Extension, dropt.Adam)``.

    All values are flat arrays. One that :attr:`_remembers` has memories (own, that of Dr.Jit's optimizer).
    """

    #: Is there anything to remember beside what Dr.Jit's optimizer does?
    _remembers = False

    def _begin(self, value: Any) -> Any:
        """A parameter's own memory at the start: a PyTree."""
        raise NotImplementedError

    def _move(self, value: Any, grad: Any, own: Any, memory: Any, step: Callable[[Any], tuple[Any, Any]]) -> tuple:
        """A new value, own memory and memory; ``step(grad)`` returns those of Dr.Jit's optimizer, value and memory."""
        raise NotImplementedError

    def _decay(self, value: Any, grad: Any, lr: Any, memory: Any) -> Any:
        """What the step by ``grad`` that follows on ``memory`` takes from a parameter; ``None`` for nothing."""

    def _step(self, cache: Any, value: Any, grad: Any, lr: Any, extra: Any, /) -> tuple[Any, Any]:
        own, memory = extra if self._remembers else (None, extra)

        def step(grad: Any) -> tuple[Any, Any]:
            lost = self._decay(value, grad, lr, memory)  # first: the step may multiply the rate
            new, new_memory = super(Extension, self)._step(cache, value, grad, lr, memory)
            return new if lost is None else new - lost, new_memory

        if not self._remembers:
            return step(grad)
        new, own, memory = self._move(value, grad, own, memory, step)
        return new, (own, memory)

    def _reset(self, key: str, value: Any, promoted: bool, /) -> None:
        super()._reset(key, value, promoted)
        if self._remembers:
            *rest, memory = self.state[key]
            self.state[key] = (*rest, (self._begin(dr.detach(value).array), memory))  # type: ignore[assignment]

    def _select(self, mask: Any, extra: Any, new_extra: Any, /) -> Any:
        if not self._remembers:
            return super()._select(mask, extra, new_extra)
        return dr.select(mask, extra[0], new_extra[0]), super()._select(mask, extra[1], new_extra[1])
