"""The inner workings of ``drjit.opt``, checked against 1.5.0: state and learning rate of a parameter, and steps.

``Optimizer.state`` maps names to (value, promoted to single precision?, own learning rate or ``None``, memory). Here,
*memory* is what an optimizer keeps for a parameter: moments, counters. ``_step`` computes a new value and memory,
``_reset`` makes the first memory, and ``_select`` selects the old or new one in each lane if a step is masked.

If a learning rate is an array, a step multiplies it *in place* by further factors (``_LRCache.product``). If two
parameters share the array, the second one gets it with the factors of the first one's step. ``AdamW`` reads it twice,
so weights grow. :func:`own_rates` avoids both.

A power of doubles that should be about 2^-1024 comes out as minus infinity (:func:`saturated`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import drjit as dr
import drjit.opt as dropt


def values(optimizer: dropt.Optimizer) -> dict[str, Any]:
    """The parameters as the optimizer keeps them. Indexing it would round promoted ones to half precision."""
    return dict(optimizer.items())


def snapshot(optimizer: dropt.Optimizer) -> dict[str, Any]:
    """Copies of the current parameters, without gradients, to which frozen functions cannot assign."""
    return {name: dr.copy(dr.detach(value)) for name, value in values(optimizer).items()}


def set_values(optimizer: dropt.Optimizer, new: Mapping[str, Any]) -> None:
    """Replace parameters. Unlike assigning to an optimizer's entry, this evaluates and changes nothing else."""
    for name, value in new.items():
        dr.enable_grad(value)
        optimizer.state[name] = (value, *optimizer.state[name][1:])


def memories(optimizer: dropt.Optimizer) -> dict[str, Any]:
    """The memory of each parameter: tuples of arrays."""
    return {name: memory for name, (_, _, _, memory) in optimizer.state.items()}


def set_state(optimizer: dropt.Optimizer, state: dict[str, tuple]) -> None:
    """Replace all parameters, rates and memories."""
    for value, *_ in state.values():
        dr.enable_grad(value)
    optimizer.state = state


def decay_rate(optimizer: dropt.Optimizer) -> float:
    """The rate at which an ``AdamW`` decays all of its parameters; 0 for other optimizers."""
    return optimizer.weight_decay if isinstance(optimizer, dropt.AdamW) else 0.0


@contextmanager
def own_rates(optimizer: dropt.Optimizer, factors: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A ``with`` block in which steps are correct although learning rates are arrays.

    In it, every parameter has its own rate, times its entry in ``factors``, if any; the block yields the rates by name.
    ``AdamW`` does not decay weights in it. The caller does, at the :func:`decay_rate` from outside the block.
    """
    before = {name: optimizer.learning_rate(name) for name in optimizer}
    rates: dict[str, Any] = {name: optimizer.lr if lr is None else lr for name, lr in before.items()}
    rates |= {name: rate * factors[name] for name, rate in rates.items() if name in factors}
    optimizer.set_learning_rate({name: type(rate)(rate) for name, rate in rates.items()})
    decay = decay_rate(optimizer)
    if decay:
        optimizer.weight_decay = 0.0
    counted = []
    if isinstance(optimizer, dropt.Adam) and not isinstance(optimizer, EntryAdam):
        for name, (*rest, (t, *moments)) in optimizer.state.items():
            t = saturated(optimizer, t)
            optimizer.state[name] = (*rest, (t, *moments))
            counted.append(t + 1)
    # the step will use these: evaluated with its rates, they need no kernel of their own
    dr.schedule(counted)
    try:
        yield rates
    finally:
        optimizer.set_learning_rate(before)
        if decay:
            optimizer.weight_decay = decay


def saturated(optimizer: dropt.Adam, t: Any) -> Any:
    r"""The number of steps ``t``, at most the one from which :math:`\beta^t` has no effect on :math:`1 - \beta^t`.

    Dr.Jit's power of doubles is minus infinity where it should be between :math:`2^{-1023.5}` and :math:`2^{-1024.5}`.
    Adam with :math:`\beta_2` = 0.99 would take an infinite step after 70,588 others, and with 0.999 after 709,000.
    Parameters still do not move in the few steps in which :math:`\beta_1^t` is in this range while :math:`\beta_2^t`
    has an effect: with 0.9 and 0.999, seven steps from 6,734 on.
    """
    slowest = max(optimizer.beta_1, optimizer.beta_2)
    return dr.minimum(t, 1 if slowest == 0 else min(math.ceil(-64 / math.log2(slowest)), 2**32 - 2))


def adam_correction(optimizer: dropt.Adam, dtype: type, memory: tuple) -> Any:
    r"""The factor of Adam's next step, :math:`\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)`, as a ``dtype``."""
    t = memory[0] + 1
    if counts_entries(memory):  # a power in double precision for each entry would take longer than the step
        return dr.sqrt(_debiased(optimizer.beta_2, dtype(t))) / _debiased(optimizer.beta_1, dtype(t))
    high, t = dr.float64_array_t(dtype), saturated(optimizer, t)
    return dtype(dr.sqrt(1 - high(optimizer.beta_2) ** t) / (1 - high(optimizer.beta_1) ** t))


def _debiased(beta: float, t: Any) -> Any:
    r""":math:`1 - \beta^t`; near 0 by the series of :math:`1 - e^u`, to avoid cancellation."""
    if beta == 0:
        return type(t)(1)
    u = t * math.log(beta)
    series = type(t)(1)
    for k in range(8, 1, -1):
        series = dr.fma(series, u * (1 / k), 1)
    return dr.select(u > -0.5, -u * series, 1 - dr.exp(u))


def counts_entries(memory: tuple) -> bool:
    """Does every entry of a parameter with Adam's ``memory`` have its own number of steps? See :class:`EntryAdam`."""
    return dr.width(memory[0]) == dr.width(memory[1]) != 1


class EntryAdam(dropt.Adam):
    """Adam in which entries of a parameter may have their own numbers of steps, and rates may have bounds.

    The bounds are AdaBound's (Luo et al. 2019) as in tiny-cuda-nn. They depend on the number of steps, which is then
    the last entry of the memory, and converge to 0.1.
    """

    adabound = False

    def _counts(self, name: str) -> bool:
        """Do the entries of this parameter have their own numbers of steps?"""
        return False

    def _corrects(self) -> bool:
        """Is :func:`adam_correction` used for all parameters? The number of steps is then opaque, so a new one needs no
        new kernel.
        """
        return self.adabound

    def _step(self, cache: Any, value: Any, grad: Any, lr: Any, memory: tuple, /) -> tuple[Any, tuple]:
        if not (self.adabound or counts_entries(memory)):
            return super()._step(cache, value, grad, lr, (saturated(self, memory[0]), *memory[1:]))
        t, m, v, taken = memory
        new_m, new_v = dr.lerp(grad, m, self.beta_1), dr.lerp(dr.square(grad), v, self.beta_2)
        # epsilon is added as in Dr.Jit's Adam
        small = self.epsilon <= 1e-6
        inverse = dr.rsqrt(new_v + self.epsilon**2) if small else dr.rcp(dr.sqrt(new_v) + self.epsilon)
        leaf = dr.leaf_t(grad)
        rate = opaque_rate(leaf, lr)
        scale = rate * adam_correction(self, leaf, memory) * inverse
        if self.adabound:
            taken = taken + 1
            s = leaf(taken) * (1 - self.beta_2)
            bounded = dr.minimum(dr.maximum(scale, 0.1 * s / (s + 1)), 0.1 + 0.1 / s)
            scale = dr.select(rate == 0, 0, bounded)  # rate 0: the parameter is frozen
        return value - scale * new_m, (t + 1, new_m, new_v, taken)

    def _select(self, mask: Any, memory: tuple, new: tuple, /) -> tuple:
        selected = super()._select(mask, memory, new)
        return (dr.select(mask, memory[0], new[0]), *selected[1:]) if counts_entries(memory) else selected

    def _reset(self, name: str, value: Any, promoted: bool, /) -> None:
        super()._reset(name, value, promoted)
        value, promoted, rate, (t, m, v, last) = self.state[name]
        if self._counts(name) or self._corrects():
            t = dr.opaque(type(t), 0, dr.width(m) if self._counts(name) else 1)
        if self.adabound:
            last = dr.opaque(type(t), 0)
        self.state[name] = value, promoted, rate, (t, m, v, last)


def opaque_rate(leaf: type, lr: Any) -> Any:
    """A learning rate, number or array, as a ``leaf`` that kernels read from memory."""
    return leaf(lr) if isinstance(lr, dr.ArrayBase) else dr.opaque(leaf, lr)


class NewOptimizer(dropt.Optimizer):
    """Base of optimizers that Dr.Jit does not have."""

    def _first_memory(self, name: str, value: Any) -> Any:
        """The first memory of the parameter ``name``, whose flat value is ``value``: a PyTree."""
        raise NotImplementedError

    def _reset(self, name: str, value: Any, promoted: bool, /) -> None:
        self.state[name] = value, promoted, None, self._first_memory(name, dr.detach(value).array)


class Extension(dropt.Optimizer):
    """Base of optimizers that extend one of Dr.Jit's, as the first base: ``class Adam(Extension, dropt.Adam)``.

    All values are flat arrays. If :attr:`_remembers`, memories are pairs: the extension's own, and Dr.Jit's.
    """

    #: Names of the parameters that the current step has not visited yet.
    _visited: Iterator[str]

    #: Does it have a memory of its own, besides that of Dr.Jit's optimizer?
    _remembers = False

    def _begin(self, value: Any) -> Any:
        """A parameter's own memory at the start: a PyTree."""
        raise NotImplementedError

    def _move(self, value: Any, grad: Any, own: Any, memory: Any, step: Callable[[Any], tuple[Any, Any]]) -> tuple:
        """The new value, own memory and memory; ``step(grad)`` returns the value and memory after a step."""
        raise NotImplementedError

    def _adjust(
        self, name: str, value: Any, grad: Any, lr: Any, memory: Any, step: Callable[[Any, Any], tuple[Any, Any]]
    ) -> tuple[Any, Any]:
        """The value and memory of the parameter ``name`` after a step.

        ``step(grad, lr)`` returns those of Dr.Jit's optimizer. It may multiply ``lr`` in place if that is an array.
        """
        return step(grad, lr)

    def step(self, *, eval: bool = True, grad_scale: Any = None, active: Any = None) -> None:
        self._visited = iter(tuple(self.state))
        super().step(eval=eval, grad_scale=grad_scale, active=active)

    def _step(self, cache: Any, value: Any, grad: Any, lr: Any, extra: Any, /) -> tuple[Any, Any]:
        name = next(self._visited)  # steps visit parameters in the order of the state
        own, memory = extra if self._remembers else (None, extra)
        lr = type(lr)(lr) if isinstance(lr, dr.ArrayBase) else lr  # an array of its own, since steps change it

        def plain(grad: Any, lr: Any) -> tuple[Any, Any]:
            return super(Extension, self)._step(cache, value, grad, lr, memory)

        def step(grad: Any) -> tuple[Any, Any]:
            return self._adjust(name, value, grad, lr, memory, plain)

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
