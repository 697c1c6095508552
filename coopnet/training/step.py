"""One step of training: what :func:`coopnet.fit` freezes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import drjit as dr
from drjit.opt import AdamW, Optimizer

from ..field import NeuralField
from ..random.key import Key
from .losses import components
from .scaler import LossScaler
from .weights import EMA, clip_gradient_norm


class Code:
    """The user's functions, held where Dr.Jit's argument traversal compares them by identity."""

    def __init__(self, batch: Callable, loss: Callable, objective: Callable | None):
        self.batch, self.loss, self.objective = batch, loss, objective

    def losses(self, field: NeuralField, key: Key, check: Callable | None = None) -> Any:
        """The loss of each sample of the batch of ``key``; ``check(field, drawn, loss)`` sees the batch before."""
        drawn = self.batch(key)
        if self.objective is not None:
            return self.objective(field, drawn, key)
        if check is not None:
            check(field, drawn, self.loss)
        coordinates, targets, *pdf = drawn
        y = field(coordinates, key)
        y, targets = components(y, "fit: the field's output"), components(targets, "fit: targets of batch()")
        return self.loss(y, targets, **({"pdf": pdf[0]} if pdf else {}))

    def inputs(self, key: Key) -> dict[str, Any]:
        """What ``batch`` draws, by the names that a user knows it by."""
        drawn = self.batch(key)
        if self.objective is not None:
            return {"what batch() returned": drawn}
        return dict(zip(("the coordinates", "the targets", "the densities"), drawn, strict=False))

    def outputs(self, field: NeuralField, key: Key) -> dict[str, Any]:
        """What is made of a batch: the field's output, and the losses."""
        y = {} if self.objective is not None else {"the field's output": field(self.batch(key)[0], key)}
        return y | {"the losses": self.losses(field, key)}


class Extras:
    """What a step does besides: penalty, clipping, decay, factors of learning rates, average."""

    DRJIT_STRUCT = {"multipliers": dict, "decay": dict, "ema": EMA}

    def __init__(self, penalty: Any = None, weight_decay: float = 0.0, clip_norm: float | None = None):
        self.penalty, self.weight_decay, self.clip_norm = penalty, weight_decay, clip_norm
        self.multipliers: dict[str, Any] = {}
        self.decay: dict[str, Any] = {}  # of each entry: 1 if it decays
        self.ema: EMA | None = None


def step(
    field: NeuralField,
    optimizer: Optimizer,
    scaler: LossScaler | None,
    code: Code,
    extras: Extras,
    seed: Any,
    number: Any,
) -> Any:
    """Step ``number`` of a run; returns its mean loss. ``seed`` and ``number`` are Dr.Jit values: a key of them among
    the arguments would be traversed in Python."""
    field.update(optimizer)
    each = code.losses(field, Key(seed, None, number))
    n = dr.width(each)
    value = dr.detach(each)
    dr.schedule(value)  # so that the kernel of the backward pass writes it along
    # the gradient of the mean, taken before reducing: a reduction here would cost a forward pass of its own
    roots = [each * (1 / n)]
    if extras.penalty is not None:
        roots.append(extras.penalty(field))
    for root in roots:
        scaled = root if scaler is None else scaler.scale(root)
        dr.set_grad(scaled, 1)
        dr.enqueue(dr.ADMode.Backward, scaled)
    dr.traverse(dr.ADMode.Backward)  # of all at once: a second one would find the way to the parameters taken down
    if extras.clip_norm is not None:
        limit = dr.opaque(dr.float32_array_t(type(value)), extras.clip_norm)
        clip_gradient_norm(optimizer, limit if scaler is None else limit * scaler.scale_factor)
    own_rates = _separate_rates(optimizer, extras.multipliers)
    before = {name: dr.detach(optimizer.state[name][0]) for name in extras.decay}
    rates = {name: type(lr)(lr) for name, (_, _, lr, _) in optimizer.state.items()}
    with _no_decay(optimizer):
        if scaler is None:
            optimizer.step(eval=False)
        else:
            scaler.step(optimizer, eval=False)
    for name, old in before.items():
        _decay(optimizer, name, old, rates[name] * extras.weight_decay * extras.decay[name], scaler)
    for name, lr in own_rates.items():
        value_, promoted, _, extra = optimizer.state[name]
        optimizer.state[name] = value_, promoted, lr, extra
    if extras.ema is not None:
        extras.ema.update(optimizer)
    mean = dr.mean(value)
    dr.eval(mean, optimizer.state, None if extras.ema is None else extras.ema.average)
    return mean


@contextmanager
def _no_decay(optimizer: Optimizer) -> Iterator[None]:
    """Keeps AdamW from decaying weights: in Dr.Jit 1.5.0, one with an array for a learning rate makes them grow.

    (``_LRCache.product`` has by then multiplied the rate, in place, by the negative factor of the step.)
    """
    if not isinstance(optimizer, AdamW):
        yield
        return
    rate, optimizer.weight_decay = optimizer.weight_decay, 0.0
    try:
        yield
    finally:
        optimizer.weight_decay = rate


def _decay(optimizer: Optimizer, name: str, old: Any, amount: Any, scaler: LossScaler | None) -> None:
    """Take ``amount * old`` from a parameter, unless the scaler skipped the step."""
    value, promoted, lr, extra = optimizer.state[name]
    flat = dr.detach(value).array
    decayed = dr.fma(old.array, -type(flat)(amount), flat)
    if scaler is not None:
        decayed = dr.select(scaler.it == 0, flat, decayed)
    new = type(value)(decayed, dr.shape(value)) if dr.is_tensor_v(value) else decayed
    dr.enable_grad(new)
    optimizer.state[name] = new, promoted, lr, extra


def _separate_rates(optimizer: Optimizer, multipliers: dict[str, Any]) -> dict[str, Any]:
    """Give every parameter a learning rate of its own, times its multipliers; returns those that they had before.

    Dr.Jit 1.5.0 multiplies a learning rate that is an array in place by a parameter's step size (``_LRCache.product``),
    so that a rate shared by two parameters reaches the second one with the wrong size and sign.
    """
    before = {}
    for name, (value, promoted, lr, extra) in optimizer.state.items():
        before[name] = lr
        lr = optimizer.lr if lr is None else lr
        own = type(lr)(lr)
        if name in multipliers:
            own = own * multipliers[name]
        optimizer.state[name] = value, promoted, own, extra
    return before
