"""The training loop."""

from __future__ import annotations

import gc
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

import drjit as dr
import numpy as np
from drjit.opt import Adam, AdamW, Optimizer

from .. import kinds
from ..field import NeuralField
from ..key import Key
from .captures import Captures
from .losses import check_densities, components, loss_function, outputs_for
from .scaler import LossScaler
from .state import restore, store
from .weights import EMA, check_averaged, clip_gradient_norm, decay_masks, layer_multipliers


@dataclass
class FitResult:
    """What :func:`fit` did.

    ``losses`` holds the mean loss of every step since step 0 (resumed runs included); ``metrics`` pairs of (step,
    value); ``skipped`` the half-precision steps dropped because of overflow; ``recordings`` how often the step was
    traced; ``stopped`` is ``"steps"``, ``"patience"`` or ``"interrupt"``; ``seconds`` the wall time of all runs.

    >>> result = cn.fit(field, batch, 1000)
    >>> print(result.losses[-1], result.stopped)
    """

    steps: int = 0
    losses: list[float] = dataclass_field(default_factory=list)
    metrics: list[tuple[int, float]] = dataclass_field(default_factory=list)
    best: tuple[int, float] | None = None
    skipped: int = 0
    recordings: int = 0
    seconds: float = 0.0
    stopped: str = "steps"


def fit(
    field: NeuralField,
    batch: Callable[[Key], tuple],
    steps: int,
    *,
    optimizer: Optimizer | None = None,
    lr: float | Callable[[int], float] | None = None,
    loss: str | Callable[[Any, Any], Any] = "l2",
    objective: Callable[[NeuralField, Any, Key], Any] | None = None,
    seed: int = 0,
    penalty: Callable[[NeuralField], Any] | None = None,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    multipliers: Mapping[str, float] | None = None,
    ema: EMA | None = None,
    metric: Callable[[NeuralField], float] | None = None,
    metric_every: int = 100,
    higher_is_better: bool = True,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    metadata: dict[str, Any] | None = None,
    progress: bool = True,
) -> FitResult:
    r"""Train ``field`` in place: ``steps`` steps of stochastic gradient descent on batches that ``batch`` draws.

    Step :math:`i` evaluates ``field(coordinates, Key(seed, step=i))`` on ``coordinates, targets =
    batch(Key(seed, step=i))``, so the masks and samples of a step depend on nothing but the seed and its number. A
    run that was stopped and resumed equals one that was not; on LLVM to the last bit. The whole step is one
    ``dr.freeze``d function, traced once or twice.

    Args:
        field: a built :class:`NeuralField`; its parameters are updated.
        batch: traced code from a key to ``(coordinates, targets)``, arrays or nested arrays of one width. Draw random
            numbers with :func:`coopnet.uniform`. A third entry, if any, is the density that the samples were drawn
            from, and the loss is called with ``pdf=`` it. Arrays that ``batch`` refers to (an image, a table) may be
            variables around it, in lists, dictionaries and attributes of objects, or textures. Make them there: inside
            ``batch``, Dr.Jit 1.5 aborts the process where an array is made of a NumPy array, and what is read into
            NumPy is that of the first steps.
        steps: the number of the step to stop before, counted from 0 also when resuming.
        optimizer: a ``drjit.opt`` optimizer without parameters; ``Adam`` if ``None``.
        lr: learning rate, or a function of the step number (see ``coopnet.training.cosine``); 1e-3, or the given
            optimizer's own, if ``None``.
        loss: the name of a function in ``coopnet.training.losses``, such as ``"l2"``, ``"l1"``, ``"huber"``,
            ``"relative_l2"`` or ``"cross_entropy"``, or traced code ``(y, targets) -> loss of each sample``.
        objective: traced code ``(field, drawn, key) -> loss of each sample``, single precision, instead of ``loss``.
            ``drawn`` is what ``batch`` returned, which may then be any PyTree. It evaluates the field itself, as often
            as it likes: for losses on its derivatives (see the second example).
        seed: int in [0, 2^64).
        penalty: traced code ``field -> array of width 1`` that is added to the loss, such as ``lambda field: 1e-4 *
            coopnet.training.l2_penalty(field)``. The losses of the result leave it out.
        weight_decay: decoupled decay rate :math:`\lambda` (Loshchilov and Hutter 2019): a step also takes
            :math:`\mathrm{lr} \cdot \lambda A` from every matrix. With an ``AdamW``, its own decay of all parameters,
            if 0.
        clip_norm: scale gradients down to this global norm (Pascanu et al. 2013); ``None`` for any.
        multipliers: layer name -> factor of its learning rate, 0 to freeze it (see
            ``coopnet.training.layer_multipliers``), such as ``{"layers.0": 0.1, "encoding": 0}``.
        ema: an average of the weights to update after every step (see ``coopnet.training.EMA``). The field is trained
            without it; checkpoints keep it beside the field.
        metric: called as ``metric(field)`` every ``metric_every`` steps and at the end; returns a float, such as the
            PSNR on held-out data.
        higher_is_better: direction of the metric.
        patience: stop after this many evaluations of the metric without improvement, and go back to the best
            parameters.
        checkpoint: file to write every ``checkpoint_every`` seconds and at the end: a field that ``coopnet.load``
            reads, with the state of the training beside it.
        resume: continue from ``checkpoint`` if it exists.
        metadata: anything JSON can hold, to keep in the checkpoint beside the state (see ``coopnet.save``).
        progress: show a progress bar (needs tqdm).

    Returns:
        A :class:`FitResult`. Ctrl-C ends the run early, after writing the checkpoint, with ``stopped="interrupt"``.

    Raises:
        ValueError, TypeError: arguments out of range, a field that is not built, a batch of another shape, a
            checkpoint of another run.
        OSError: ``checkpoint`` cannot be read or written.

    >>> cn.fit(field, batch, 1000, lr=cn.training.cosine(1e-2, 1000), checkpoint="field.safetensors", resume=True)

    An eikonal loss (Gropp et al. 2020), where ``batch`` draws points in 3D:

    >>> def eikonal(field, points, key):
    ...     value, gradient = field.value_and_grad(points, key)
    ...     return dr.square(dr.norm(gradient) - 1)
    >>> cn.fit(sdf, points, 1000, objective=eikonal)
    """
    _check(field, batch, steps, seed, metric, metric_every, patience, checkpoint, checkpoint_every, resume)
    if checkpoint is not None:
        from ..io.checkpoint import prepare

        prepare(checkpoint, field, metadata)  # says now what would be said after hours
    leaf = _leaf(field)
    f32, uint32 = dr.float32_array_t(leaf), dr.uint32_array_t(leaf)
    uint64 = dr.uint64_array_t(leaf)
    if optimizer is None:
        optimizer = Adam(lr=1e-3)
    elif not isinstance(optimizer, Optimizer) or len(optimizer):
        raise ValueError("fit: optimizer must be a drjit.opt optimizer that holds no parameters yet.")
    loss_fn = loss_function(loss, "fit")
    _check_objective(objective, loss)
    rate = _rate(optimizer.lr if lr is None else lr)
    extras = _extras(field, optimizer, penalty, weight_decay, clip_norm, multipliers, ema)
    code = _Code(batch, loss_fn, objective)  # one object for all steps: another one would be another recording
    _check_losses(code, field, Key(seed))
    optimizer.update(field)
    scaler = LossScaler(f32) if field.precision == "half" else None
    result = FitResult()
    best: dict[str, Any] | None = None
    if resume and checkpoint is not None and Path(checkpoint).exists():
        best = restore(Path(checkpoint), field, optimizer, scaler, result, seed, ema)
    # the optimizer keeps literal zeros and counters; made opaque, they don't change the kernels of later steps
    dr.make_opaque(optimizer.state)
    frozen = dr.freeze(_step, state_fn=Captures(batch, loss_fn, objective, penalty))
    seed_word = dr.opaque(uint64, seed)
    pending: list[Any] = []
    start = last_write = time.monotonic()
    bar = _progress(steps, result.steps) if progress else None

    def collect() -> None:
        """Bring the losses of the steps since the last call to the host: waits for the device."""
        if pending:
            result.losses += [float(v.numpy()[0]) for v in pending]
            pending.clear()
        result.skipped = int(scaler.skipped.numpy()[0]) if scaler is not None else 0

    def finish_step() -> bool:
        """Metric, early stop and checkpoint after a step; says whether to go on."""
        nonlocal best, last_write
        go_on = True
        at_end = result.steps >= steps
        if metric is not None and (result.steps % metric_every == 0 or at_end):
            collect()
            _push(field, optimizer)
            value = float(metric(field))
            result.metrics.append((result.steps, value))
            if bar is not None:
                bar.set_postfix_str(f"loss {result.losses[-1]:.3g}, metric {value:.4g}")
            if result.best is None or (value > result.best[1] if higher_is_better else value < result.best[1]):
                result.best = (result.steps, value)
                best = {k: dr.copy(dr.detach(v)) for k, v in optimizer.items()} if patience is not None else None
            elif patience is not None and not math.isnan(value) and _stale(result) >= patience:
                result.stopped, go_on = "patience", False
        if checkpoint is not None and time.monotonic() - last_write >= checkpoint_every:
            write()
        return go_on

    def write() -> None:
        nonlocal last_write
        collect()
        _push(field, optimizer)
        assert checkpoint is not None
        store(Path(checkpoint), field, optimizer, scaler, result, seed, best, metadata, ema)
        last_write = time.monotonic()

    try:
        with _interrupts() as asked, _no_collection():
            while result.steps < steps:
                if asked:
                    raise KeyboardInterrupt
                optimizer.lr = dr.opaque(f32, rate(result.steps))
                step_word = dr.opaque(uint32, result.steps)
                pending.append(frozen(field, optimizer, scaler, code, extras, Key(seed_word, None, step_word)))
                result.steps += 1
                if len(pending) >= 256:
                    collect()
                if bar is not None:
                    bar.update(1)
                    if len(result.losses) == result.steps:
                        bar.set_postfix_str(f"loss {result.losses[-1]:.3g}")
                if not finish_step():
                    break
    except KeyboardInterrupt:
        result.stopped = "interrupt"
    collect()
    result.recordings = frozen.n_recordings
    result.seconds += time.monotonic() - start
    if checkpoint is not None:
        write()
    if result.stopped == "patience" and best is not None:
        for name, value in best.items():
            dr.enable_grad(value)
            optimizer.state[name] = (value, *optimizer.state[name][1:])
    _push(field, optimizer)
    if bar is not None:
        bar.close()
    return result


@contextmanager
def _interrupts() -> Iterator[list]:
    """Holds Ctrl-C back until a step is done: the list is no longer empty then. A second Ctrl-C is not held back.

    An exception inside Dr.Jit's traversal of arguments becomes a ``RuntimeError``, and one between updates leaves the
    parameters of two different steps.
    """
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    main = threading.current_thread() is threading.main_thread()  # no other may set handlers
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield asked
        return
    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps Python's cyclic garbage collector away.

    An array taken over from NumPy that it frees while Dr.Jit records a frozen function aborts the process.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Code:
    """The user's functions, held where Dr.Jit's argument traversal compares them by identity."""

    def __init__(self, batch: Callable, loss: Callable, objective: Callable | None):
        self.batch, self.loss, self.objective = batch, loss, objective

    def losses(self, field: NeuralField, key: Key, check: bool = False) -> Any:
        """The loss of each sample of the batch of ``key``; ``check`` what ``batch`` returned?"""
        drawn = self.batch(key)
        if self.objective is not None:
            return self.objective(field, drawn, key)
        if check:
            _check_batch(field, drawn, self.loss)
        coordinates, targets, *pdf = drawn
        y = field(coordinates, key)
        y, targets = components(y, "fit: the field's output"), components(targets, "fit: targets of batch()")
        return self.loss(y, targets, **({"pdf": pdf[0]} if pdf else {}))


class _Extras:
    """What a step does besides: penalty, clipping, decay, factors of learning rates, average."""

    DRJIT_STRUCT = {"multipliers": dict, "decay": dict, "ema": EMA}

    def __init__(self, penalty: Any = None, weight_decay: float = 0.0, clip_norm: float | None = None):
        self.penalty, self.weight_decay, self.clip_norm = penalty, weight_decay, clip_norm
        self.multipliers: dict[str, Any] = {}
        self.decay: dict[str, Any] = {}  # of each entry: 1 if it decays
        self.ema: EMA | None = None


def _extras(
    field: NeuralField,
    optimizer: Optimizer,
    penalty: Any,
    weight_decay: Any,
    clip_norm: Any,
    multipliers: Any,
    ema: Any,
) -> _Extras:
    for name, value, low in (("weight_decay", weight_decay, "of at least 0"), ("clip_norm", clip_norm, "above 0")):
        if name == "clip_norm" and value is None:
            continue
        number = not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and name == "clip_norm"):
            raise ValueError(f"fit: {name} is {value!r}; a number {low} is needed.")
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
    extras = _Extras(penalty, float(weight_decay), clip_norm)
    if multipliers is not None:
        extras.multipliers = layer_multipliers(field, multipliers)
    if extras.weight_decay > 0:
        extras.decay = decay_masks(field)
    elif isinstance(optimizer, AdamW) and optimizer.weight_decay > 0:
        extras.weight_decay = optimizer.weight_decay
        f32 = dr.float32_array_t(_leaf(field))
        extras.decay = {name: dr.opaque(f32, 1) for name in field}
    extras.ema = ema
    return extras


def _step(
    field: NeuralField, optimizer: Optimizer, scaler: LossScaler | None, code: _Code, extras: _Extras, key: Key
) -> Any:
    field.update(optimizer)
    each = code.losses(field, key)
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


def _check_batch(field: NeuralField, drawn: Any, loss: Callable) -> None:
    """Raise unless ``drawn`` is what the field and the loss take."""
    if not isinstance(drawn, tuple) or len(drawn) not in (2, 3):
        raise TypeError(
            f"fit: batch() returned a {type(drawn).__name__}; a pair (coordinates, targets), or a triple with the "
            f"density of the samples, is needed."
        )
    coordinates, targets, *pdf = drawn
    outputs = len(components(field(coordinates), "fit: the field's output"))
    kind, leaf = kinds.kind(targets, "fit: targets of batch()")
    kinds.require_float(leaf, "fit: targets of batch()")
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


def _check_objective(objective: Any, loss: Any) -> None:
    if objective is None:
        return
    if not callable(objective):
        raise TypeError(
            f"fit: objective is a {type(objective).__name__}; a function (field, drawn, key) -> loss of each sample is "
            f"needed."
        )
    if loss != "l2":
        raise ValueError(f"fit: both objective and loss ({loss!r}) are given; an objective has its own.")


def _check_losses(code: _Code, field: NeuralField, key: Key) -> None:
    """Trace a batch without evaluating it, so that what is wrong with it is said before anything runs."""
    with dr.suspend_grad():
        each = code.losses(field, key, check=True)
    name = "loss" if code.objective is None else "objective"
    flat = isinstance(each, dr.ArrayBase) and not dr.is_tensor_v(each) and dr.depth_v(each) == 1
    if not flat or dr.type_v(each) not in (dr.VarType.Float32, dr.VarType.Float64):
        raise TypeError(
            f"fit: {name} returned a {type(each).__name__}; an array in single or double precision with the loss of "
            f"each sample is needed."
        )
    if dr.width(each) == 0:
        raise ValueError(f"fit: {name} returned no losses; the loss of each sample is needed.")


def _push(field: NeuralField, optimizer: Optimizer) -> None:
    """The optimizer's parameters to the field, without their gradients."""
    for key in field:
        field[key] = dr.detach(optimizer[key])


def _stale(result: FitResult) -> int:
    assert result.best is not None
    return sum(1 for step, _ in result.metrics if step > result.best[0])


def _rate(lr: Any) -> Callable[[int], float]:
    if isinstance(lr, dr.ArrayBase):
        lr = float(lr.numpy()[0])
    if callable(lr):
        return lambda step: _checked_rate(f"lr({step})", lr(step))
    _checked_rate("lr", lr, ", or a function of the step number,")
    return lambda step: lr


def _checked_rate(name: str, value: Any, alternative: str = "") -> float:
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise ValueError(f"fit: {name} is {value!r}; a number of at least 0{alternative} is needed.")
    return float(value)


def _leaf(field: NeuralField) -> type:
    for key in field:
        return dr.leaf_t(type(field[key])) if not dr.is_tensor_v(field[key]) else dr.array_t(type(field[key]))
    raise ValueError("fit: the field has no parameters to train.")


def _progress(steps: int, done: int) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError(
            "fit: progress=True needs tqdm; run pip install coopnet[train], or pass progress=False."
        ) from None
    return tqdm(total=steps, initial=done, unit="step", dynamic_ncols=True)


def _check(
    field: Any,
    batch: Any,
    steps: Any,
    seed: Any,
    metric: Any,
    metric_every: Any,
    patience: Any,
    checkpoint: Any,
    checkpoint_every: Any,
    resume: bool,
) -> None:
    if not isinstance(field, NeuralField):
        raise TypeError(f"fit: field is a {type(field).__name__}; a NeuralField is needed.")
    if field.precision is None:
        raise ValueError("fit: the field is not built yet; call field = field.build().")
    if not callable(batch):
        raise TypeError(f"fit: batch is a {type(batch).__name__}; a function key -> (coordinates, targets) is needed.")
    for name, value, least in (("steps", steps, 0), ("metric_every", metric_every, 1), ("patience", patience, 1)):
        if name == "patience" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"fit: {name} is {value!r}; an int of at least {least} is needed.")
    if steps >= 2**32:
        raise ValueError(f"fit: steps is {steps}; fewer than 2^32 are needed.")
    Key(seed)
    if metric is not None and not callable(metric):
        raise TypeError(f"fit: metric is a {type(metric).__name__}; a function field -> float is needed.")
    if patience is not None and metric is None:
        raise ValueError("fit: patience needs a metric.")
    if resume and checkpoint is None:
        raise ValueError("fit: resume=True needs a checkpoint to resume from.")
    if not isinstance(checkpoint_every, (int, float)) or checkpoint_every < 0 or checkpoint_every != checkpoint_every:
        raise ValueError(f"fit: checkpoint_every is {checkpoint_every!r}; a number of seconds is needed.")
