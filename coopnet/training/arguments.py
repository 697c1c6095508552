"""Checks of the arguments of :func:`coopnet.fit`, before anything is traced."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import drjit as dr
import numpy as np
from drjit.opt import Muon, Optimizer

from ..call import noting
from ..checks import (
    check,
    check_above,
    check_flag,
    check_int,
    check_number,
    check_type,
    check_unsigned,
    ensure,
    is_flat,
    is_number,
    shown,
)  # fmt: skip
from ..field import NeuralField, check_built
from ..jit import kinds
from ..jit.literals import is_literal
from ..jit.native.imports import imports
from ..jit.reads import reads
from ..jit.scopes import check_outside, only_traced, suspended
from ..nn.parameters import parameters
from ..random.key import Key
from . import batch_check, box_check
from .average import EMA, check_averaged
from .losses import check_densities, components, loss_function, outputs_for
from .recording import CURE
from .sampling import noting_draws
from .schedules import is_of_steps_alone, of_steps_alone
from .step import Options, Step

T = TypeVar("T")

_FLOATS = (dr.VarType.Float32, dr.VarType.Float64)
_NUMBERS = (*_FLOATS, dr.VarType.Float16, *(getattr(dr.VarType, f"{s}Int{n}") for s in ("", "U") for n in (32, 64)))


def check_run(
    field: Any, batch: Any, steps: Any, seed: Any, optimizer: Any, progress: Any, where: str = "fit"
) -> tuple[int, int]:  # fmt: skip
    """``steps`` and ``seed`` as plain ints; raises unless the arguments of a run are valid."""
    check_field(field, where, "field")
    ensure(len(field), f"{where}: the field has no parameters to train.")
    check_outside(where)
    nothing = "gradients are suspended here, so nothing could be learned; call it outside of dr.suspend_grad()"
    ensure(not suspended(field.float32), f"{where}: {nothing}.", RuntimeError)
    given = "key" if where == "fit" else "(key, job)"
    check_type(where, "batch", batch, Callable, f"a function {given} -> (coordinates, targets)")
    steps = check_int(where, "steps", steps, 0, 2**32 - 1, "an int of at least 0 and fewer than 2^32")
    seed = check_unsigned(where, "seed", seed)
    made = " or optimizer()" if callable(optimizer) else ""
    needed = f"a drjit.opt optimizer, such as coopnet.training.Adam(1e-3){made},"
    check_type(where, "optimizer", optimizer, Optimizer, needed)
    flat = not isinstance(optimizer, Muon)
    matrices = "the optimizer is a Muon, which needs matrices; a field's parameters are flat arrays"
    ensure(flat, f"{where}: {matrices}.", TypeError)
    empty = not len(optimizer)
    ensure(empty, f"{where}: the optimizer holds parameters already; pass one without, and {where} adds the field's.")
    check_flag(where, "progress", progress)
    return steps, seed


def check_field(field: Any, where: str, name: str) -> None:
    check_built(where, field, name)
    which = "the field" if name == "field" else name
    held = {value.array.index for value in field.values()}
    lost = f"{where}: {which} has lost its packed weights, as copies by dr.copy() and dr.detach() have"
    ensure(all(p.storage.array.index in held for p in parameters(field)), f"{lost}; use copy.deepcopy(field).")


def check_options(field: NeuralField, options: Options) -> None:
    """Raise unless the ``options`` of a step are valid; :class:`Step` checks multipliers."""
    loss = options.loss
    loss_function(loss, "fit")
    needed = "a function (field, drawn, key) -> losses"
    check_type("fit", "objective", options.objective, Callable | None, needed)
    if options.objective is not None and not (isinstance(loss, str) and loss == "l2"):
        raise ValueError(f"fit: both objective and loss ({shown(loss)}) are given; an objective has its own.")
    check_number("fit", "weight_decay", options.weight_decay, 0)
    for name in ("clip_norm", "loss_scale"):
        if getattr(options, name) is not None:
            check_above("fit", name, getattr(options, name))
    check_type("fit", "penalty", options.penalty, Callable | None, "a function field -> scalar")
    if options.penalty is not None:
        _check_penalty(options.penalty, field)
    check_type("fit", "ema", options.ema, EMA | None, "a coopnet.training.EMA")
    if options.ema is not None:
        check_averaged("fit: ema", field, options.ema)


def _check_penalty(penalty: Callable, field: NeuralField) -> None:
    with dr.suspend_grad():
        value = _recordable("penalty", lambda: penalty(field))
    shape = f" of shape {tuple(dr.shape(value))}" if isinstance(value, dr.ArrayBase) else ""
    kind, valid = f"{type(value).__name__}{shape}", shape and math.prod(dr.shape(value)) == 1
    ensure(valid, f"fit: penalty returned a {kind}; a Dr.Jit array of width 1 is needed.", TypeError)


def trace_first_batch(step: Step, key: Key) -> tuple[int, Any, list[str]]:
    """Trace a batch without evaluating it, so that errors in it are raised before anything runs.

    Returns the number of losses, the batch, and warnings. Evaluated are only the coordinates of fields that need them
    in a box, and a batch that is traced differently a second time.
    """
    name = "loss" if step.objective is None else "objective"
    key = key.traced(step.uint32)
    with dr.suspend_grad(), only_traced(True):
        drawn, draws = _recordable("batch", lambda: _noted(lambda: step.draw(key)))
        again = step.draw(key)
        if step.objective is None:
            _check_batch(step.field, drawn, step.loss)
        with noting() as notes:
            losses, more = _recordable(name, lambda: _noted(lambda: step.evaluate(drawn, key)))
    valid = is_flat(losses) and dr.type_v(losses) in _FLOATS
    needed = "an array in single or double precision with the loss of each sample is needed"
    ensure(valid, f"fit: {name} returned a {type(losses).__name__}; {needed}.", TypeError)
    ensure(dr.width(losses), f"fit: {name} returned no losses; the loss of each sample is needed.")
    ensure(not is_literal(losses), f"fit: {name} returned a constant; a loss that depends on the field is needed.")
    with dr.suspend_grad():
        found = (
            box_check.message(step.field, notes),
            batch_check.repeated(draws + more),
            batch_check.changed(drawn, again),
        )
    return dr.width(losses), drawn, [message for message in found if message]


def _noted(code: Callable[[], T]) -> tuple[T, list]:
    """The result of ``code``, and the random numbers that it draws."""
    with noting_draws() as draws:
        return code(), draws


def _recordable(name: str, code: Callable[[], T]) -> T:
    """The result of ``code``; raises if it reads values, or makes Dr.Jit arrays of other memory: neither can be
    recorded.
    """
    for _ in range(2):  # what is done once, and kept, is harmless
        with imports() as imported, reads() as read:
            result = code()
        if not (imported or read):
            return result
    how = f"by {', '.join(sorted({f'{method}()' for method in read}))}, as NumPy and other libraries do"
    ensure(not read, f"fit: {name} reads values of an array {how}. {CURE}", RuntimeError)
    problem = f"{name} makes a Dr.Jit array from an array of NumPy or another library, which cannot be recorded"
    cure = f"do so before, as in data = Float(array), and let {name} read the Dr.Jit array, as in dr.gather()"
    raise RuntimeError(f"fit: {problem}; {cure}.")


def _check_batch(field: NeuralField, drawn: Any, loss: Callable) -> None:
    """Raise unless the field and the loss can take ``drawn``."""
    valid = isinstance(drawn, tuple) and len(drawn) in (2, 3)
    needed = "a pair (coordinates, targets), or a triple with the density of the samples, is needed"
    ensure(valid, f"fit: batch() returned a {type(drawn).__name__}; {needed}.", TypeError)
    coordinates, targets, *pdf = drawn
    outputs = len(components(field(coordinates), "fit: the field's output"))
    kind, tp = kinds.kind(targets, "fit: targets of batch()")
    kinds.require_float(tp, "fit: targets of batch()")
    needed = "arrays, a nested array or a list are needed"
    ensure(kind == kinds.ARRAYS, f"fit: batch() returned targets as a {kind}; {needed}.", TypeError)
    given = kinds.features(targets, kind)
    if outputs_for(loss, given) != outputs:
        needs = "" if outputs_for(loss, given) == given else f", and this loss needs {outputs_for(loss, given)}"
        has = f"the field has {outputs} outputs{needs}"
        raise ValueError(f"fit: batch() returned targets with {given} components; {has}.")
    sizes = kinds.samples(coordinates, kinds.kind(coordinates, "fit")[0]), kinds.samples(targets, kind)
    given_sizes = f"targets of {sizes[1]} samples, but coordinates of {sizes[0]}"
    valid = 1 in sizes or sizes[0] == sizes[1]
    ensure(valid, f"fit: batch() returned {given_sizes}; both must have one number of samples, or 1.")
    if pdf:
        check_densities(pdf[0], given, max(sizes), "fit: batch()")


# ---- results of the user's functions ------------------------------------


def rate(lr: Any) -> Callable[[int], float]:
    """The learning rate as a function of the step number, whose values are checked."""
    if isinstance(lr, dr.ArrayBase):
        lr = scalar(lr, "fit: lr", "or a function of the step number, is needed")
    if callable(lr):

        def checking(step: int) -> float:
            return _checked_rate(f"lr({step})", lr(step), "a number of at least 0")

        return of_steps_alone(checking) if is_of_steps_alone(lr) else checking
    checked = _checked_rate("lr", lr, "a number of at least 0, or a function of the step number,")
    return of_steps_alone(lambda step: checked)


def _checked_rate(name: str, value: Any, needed: str) -> float:
    check(is_number(value, 0), "fit", name, value, needed)
    return float(value)


def scalar(value: Any, where: str, needed: str) -> float:
    """The only number of a Dr.Jit array."""
    if math.prod(dr.shape(value)) != 1 or dr.is_special_v(value) or dr.type_v(value) not in _NUMBERS:
        kind = f"{type(value).__name__} of shape {tuple(dr.shape(value))}"
        raise TypeError(f"{where} a {kind}; a number, or an array of one, {needed}.")
    return float(np.asarray(dr.detach(value).numpy()).ravel()[0])
