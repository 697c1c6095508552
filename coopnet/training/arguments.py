"""What :func:`coopnet.fit` takes, checked before anything is traced."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import drjit as dr
import numpy as np
from drjit.opt import AdamW, Optimizer

from ..checks import check_flag, is_number, shown
from ..field import NeuralField
from ..jit import kinds
from ..jit.scopes import recording
from ..random.key import Key
from .losses import check_densities, components, outputs_for
from .step import Code, Extras
from .weights import EMA, check_averaged, decay_masks, layer_multipliers

_FLOATS = (dr.VarType.Float32, dr.VarType.Float64)
_NUMBERS = (*_FLOATS, dr.VarType.Float16, *(getattr(dr.VarType, f"{s}Int{n}") for s in ("", "U") for n in (32, 64)))


def check(
    field: Any,
    batch: Any,
    steps: Any,
    seed: Any,
    metric: Any,
    metric_every: Any,
    higher_is_better: Any,
    patience: Any,
    checkpoint: Any,
    checkpoint_every: Any,
    resume: Any,
    metadata: Any,
    progress: Any,
) -> None:
    """Raise unless the plain arguments of fit are what they must be."""
    if not isinstance(field, NeuralField):
        raise TypeError(f"fit: field is a {type(field).__name__}; a NeuralField is needed.")
    if field.precision is None:
        raise ValueError("fit: the field is not built yet; call field = field.build().")
    if recording():
        raise RuntimeError("fit: called while Dr.Jit records a function or loop; train outside of it.")
    if not callable(batch):
        raise TypeError(f"fit: batch is a {type(batch).__name__}; a function key -> (coordinates, targets) is needed.")
    for name, value, least in (("steps", steps, 0), ("metric_every", metric_every, 1), ("patience", patience, 1)):
        if name == "patience" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"fit: {name} is {shown(value)}; an int of at least {least} is needed.")
    if steps >= 2**32:
        raise ValueError(f"fit: steps is {shown(steps)}; fewer than 2^32 are needed.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ValueError(f"fit: seed is {shown(seed)}; an int in [0, 2^64) is needed.")
    if metric is not None and not callable(metric):
        raise TypeError(f"fit: metric is a {type(metric).__name__}; a function field -> float is needed.")
    if patience is not None and metric is None:
        raise ValueError("fit: patience needs a metric.")
    for name, flag in (("higher_is_better", higher_is_better), ("resume", resume), ("progress", progress)):
        check_flag("fit", name, flag)
    if resume and checkpoint is None:
        raise ValueError("fit: resume=True needs a checkpoint to resume from.")
    if checkpoint is not None and not isinstance(checkpoint, (str, os.PathLike)):
        raise TypeError(f"fit: checkpoint is a {type(checkpoint).__name__}; a string or path is needed.")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"fit: metadata is a {type(metadata).__name__}; a mapping from names to values is needed.")
    forever = isinstance(checkpoint_every, float) and checkpoint_every == math.inf
    if not forever and (not is_number(checkpoint_every) or checkpoint_every < 0):
        raise ValueError(f"fit: checkpoint_every is {shown(checkpoint_every)}; a number of seconds is needed.")


def check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"fit: optimizer is a {type(optimizer).__name__}; a drjit.opt optimizer is needed.")
    if len(optimizer):
        raise ValueError("fit: the optimizer holds parameters already; fit gives it those of the field.")


def check_objective(objective: Any, loss: Any) -> None:
    if objective is None:
        return
    if not callable(objective):
        raise TypeError(
            f"fit: objective is a {type(objective).__name__}; a function (field, drawn, key) -> loss of each sample is "
            f"needed."
        )
    if not isinstance(loss, str) or loss != "l2":
        raise ValueError(f"fit: both objective and loss ({shown(loss)}) are given; an objective has its own.")


def extras(
    field: NeuralField,
    optimizer: Optimizer,
    penalty: Any,
    weight_decay: Any,
    clip_norm: Any,
    multipliers: Any,
    ema: Any,
) -> Extras:
    """What a step does besides, from the arguments of fit; raises for what is none of it."""
    if not is_number(weight_decay) or weight_decay < 0:
        raise ValueError(f"fit: weight_decay is {shown(weight_decay)}; a number of at least 0 is needed.")
    if clip_norm is not None and (not is_number(clip_norm) or clip_norm <= 0):
        raise ValueError(f"fit: clip_norm is {shown(clip_norm)}; a number above 0 is needed.")
    if penalty is not None and not callable(penalty):
        raise TypeError(f"fit: penalty is a {type(penalty).__name__}; a function field -> scalar is needed.")
    if penalty is not None:
        with dr.suspend_grad():
            value = penalty(field)
        if not isinstance(value, dr.ArrayBase) or math.prod(dr.shape(value)) != 1:
            shape = f" of shape {tuple(dr.shape(value))}" if isinstance(value, dr.ArrayBase) else ""
            raise TypeError(
                f"fit: penalty returned a {type(value).__name__}{shape}; a Dr.Jit array of width 1 is needed."
            )
    if ema is not None and not isinstance(ema, EMA):
        raise TypeError(f"fit: ema is a {type(ema).__name__}; a coopnet.training.EMA is needed.")
    if ema is not None:
        check_averaged("fit: ema", field, ema.average)
    found = Extras(penalty, float(weight_decay), clip_norm)
    if multipliers is not None:
        found.multipliers = layer_multipliers(field, multipliers)
    if found.weight_decay > 0:
        found.decay = decay_masks(field)
    elif isinstance(optimizer, AdamW) and optimizer.weight_decay > 0:
        found.weight_decay = optimizer.weight_decay
        f32 = dr.float32_array_t(leaf(field))
        found.decay = {name: dr.opaque(f32, 1) for name in field}
    found.ema = ema
    return found


def check_losses(code: Code, field: NeuralField, key: Key) -> None:
    """Trace a batch without evaluating it, so that what is wrong with it is said before anything runs."""
    with dr.suspend_grad():
        each = code.losses(field, key, check=_check_batch)
    name = "loss" if code.objective is None else "objective"
    flat = isinstance(each, dr.ArrayBase) and not dr.is_tensor_v(each) and dr.depth_v(each) == 1
    if not flat or dr.type_v(each) not in _FLOATS:
        raise TypeError(
            f"fit: {name} returned a {type(each).__name__}; an array in single or double precision with the loss of "
            f"each sample is needed."
        )
    if dr.width(each) == 0:
        raise ValueError(f"fit: {name} returned no losses; the loss of each sample is needed.")
    if each.state == dr.VarState.Literal:
        raise ValueError(f"fit: {name} returned a constant; a loss that depends on the field is needed.")


def _check_batch(field: NeuralField, drawn: Any, loss: Callable) -> None:
    """Raise unless ``drawn`` is what the field and the loss take."""
    if not isinstance(drawn, tuple) or len(drawn) not in (2, 3):
        raise TypeError(
            f"fit: batch() returned a {type(drawn).__name__}; a pair (coordinates, targets), or a triple with the "
            f"density of the samples, is needed."
        )
    coordinates, targets, *pdf = drawn
    outputs = len(components(field(coordinates), "fit: the field's output"))
    kind, tp = kinds.kind(targets, "fit: targets of batch()")
    kinds.require_float(tp, "fit: targets of batch()")
    if kind != kinds.ARRAYS:
        raise TypeError(f"fit: batch() returned targets as a {kind}; arrays, a nested array or a list are needed.")
    given = kinds.features(targets, kind)
    if outputs_for(loss, given) != outputs:
        raise ValueError(
            f"fit: batch() returned targets with {given} components; the field has {outputs} outputs"
            + (f", and this loss needs {outputs_for(loss, given)}." if outputs_for(loss, given) != given else ".")
        )
    sizes = kinds.samples(coordinates, kinds.kind(coordinates, "fit")[0]), kinds.samples(targets, kind)
    if 1 not in sizes and sizes[0] != sizes[1]:
        raise ValueError(
            f"fit: batch() returned targets of {sizes[1]} samples, but coordinates of {sizes[0]}; both must have one "
            f"number of samples, or 1."
        )
    if pdf:
        check_densities(pdf[0], given, max(sizes), "fit: batch()")


# ---- what functions return ----------------------------------------------


def rate(lr: Any) -> Callable[[int], float]:
    """The learning rate as a function of the step number, whose values are checked."""
    if isinstance(lr, dr.ArrayBase):
        lr = _scalar(lr, "fit: lr", "or a function of the step number, is needed")
    if callable(lr):
        return lambda step: _checked_rate(f"lr({step})", lr(step))
    _checked_rate("lr", lr, ", or a function of the step number,")
    return lambda step: lr


def _checked_rate(name: str, value: Any, alternative: str = "") -> float:
    if isinstance(value, (np.integer, np.floating)):
        value = value.item()
    if not is_number(value) or value < 0:
        raise ValueError(f"fit: {name} is {shown(value)}; a number of at least 0{alternative} is needed.")
    return float(value)


def metric_value(value: Any) -> float:
    """What a metric returned, as a float; NaN and infinities are numbers, too."""
    if isinstance(value, dr.ArrayBase):
        return _scalar(value, "fit: metric returned", "is needed")
    if isinstance(value, (np.ndarray, np.generic)) and value.size == 1 and value.dtype.kind in "biuf":
        value = value.item()
    if not isinstance(value, (int, float)):
        raise TypeError(f"fit: metric returned {shown(value)}; a number is needed.")
    try:
        return float(value)
    except OverflowError:
        raise TypeError(f"fit: metric returned {shown(value)}; a number that a float can hold is needed.") from None


def _scalar(value: Any, where: str, needed: str) -> float:
    """The only number of a Dr.Jit array."""
    if math.prod(dr.shape(value)) != 1 or dr.is_special_v(value) or dr.type_v(value) not in _NUMBERS:
        raise TypeError(
            f"{where} a {type(value).__name__} of shape {tuple(dr.shape(value))}; a number, or an array of one, "
            f"{needed}."
        )
    return float(np.asarray(dr.detach(value).numpy()).ravel()[0])


def leaf(field: NeuralField) -> type:
    """The type of a field's parameters as flat arrays."""
    for key in field:
        return dr.leaf_t(type(field[key])) if not dr.is_tensor_v(field[key]) else dr.array_t(type(field[key]))
    raise ValueError("fit: the field has no parameters to train.")
