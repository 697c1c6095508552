"""The training loop."""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import drjit as dr
from drjit.opt import Adam, Optimizer

from ..field import NeuralField
from ..random.key import Key
from . import arguments
from .captures import Captures
from .divergence import Watch
from .interrupts import caused_by_interrupt, interrupts_held, no_collection
from .losses import loss_function
from .scaler import LossScaler
from .state import restore, store
from .step import Code, step
from .turns import TURNS
from .weights import EMA

WINDOW = 256  #: steps after which losses are brought to the host, if nothing asked for them before


@dataclass(repr=False)
class FitResult:
    """What :func:`fit` did.

    ``losses`` holds the mean loss of every step since step 0 (resumed runs included); ``metrics`` pairs of (step,
    value); ``best`` the best of them, NaN left out; ``skipped`` the half-precision steps dropped because of overflow;
    ``recordings`` how often the step was traced; ``stopped`` is ``"steps"``, ``"patience"``, ``"interrupt"`` or
    ``"diverged"``, and ``message`` says what happened in the latter case; ``seconds`` is the wall time of all runs.

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
    message: str = ""

    def __repr__(self) -> str:
        last = f", last loss {self.losses[-1]:.4g}" if self.losses else ""
        return (
            f"<FitResult: {self.steps} steps in {self.seconds:.1f} s, stopped={self.stopped!r}{last}, "
            f"{len(self.metrics)} metrics, best={self.best}, skipped={self.skipped}, recordings={self.recordings}>"
        )


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _in_turn(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """``function`` in the turn of its thread, to the last array that it frees."""

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with TURNS:
            return function(*args, **kwargs)

    return wrapper


@_in_turn
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
        A :class:`FitResult`. Ctrl-C ends the run early, after writing the checkpoint, with ``stopped="interrupt"``; a
        second one does not wait for the step to end, and if it breaks one off no checkpoint is written.

        A run whose parameters, optimizer or average have become infinite or NaN, or whose last 10 losses have, or
        whose last 64 steps were all skipped, ends with ``stopped="diverged"`` and a ``RuntimeWarning`` that names the
        step, what was not finite and the usual cures. This is looked for whenever losses are brought to the host:
        before a metric, before a checkpoint is written, at the end, and every 256 steps. The field and ``ema`` are
        left with the weights of the last look that found nothing, those at the start if there was none, and no
        checkpoint is written.

    Raises:
        ValueError, TypeError: arguments out of range, a field that is not built, a batch of another shape, densities
            that are not positive in the first batch, a metric that returns no number, a checkpoint of another run.
        OSError: ``checkpoint`` cannot be read or written.
        RuntimeError: called while Dr.Jit records a function or loop, or in a thread that a callback of another run
            waits for.

    Warns:
        RuntimeWarning: the run diverged, or more than half of its steps were skipped.

    Several threads may train at a time, each its own field: they take turns of some steps (see
    :func:`coopnet.training.exclusive`, also for what else threads do with Dr.Jit meanwhile).

    >>> cn.fit(field, batch, 1000, lr=cn.training.cosine(1e-2, 1000), checkpoint="field.safetensors", resume=True)

    An eikonal loss (Gropp et al. 2020), where ``batch`` draws points in 3D:

    >>> def eikonal(field, points, key):
    ...     value, gradient = field.value_and_grad(points, key)
    ...     return dr.square(dr.norm(gradient) - 1)
    >>> cn.fit(sdf, points, 1000, objective=eikonal)
    """
    arguments.check(
        field, batch, steps, seed, metric, metric_every, higher_is_better, patience, checkpoint, checkpoint_every,
        resume, metadata, progress,
    )  # fmt: skip
    if checkpoint is not None:
        from ..io.checkpoint import prepare

        prepare(checkpoint, field, metadata)  # says now what would be said after hours
    leaf = arguments.leaf(field)
    f32, uint32, uint64 = dr.float32_array_t(leaf), dr.uint32_array_t(leaf), dr.uint64_array_t(leaf)
    if optimizer is None:
        optimizer = Adam(lr=1e-3)
    arguments.check_optimizer(optimizer)
    loss_fn = loss_function(loss, "fit")
    arguments.check_objective(objective, loss)
    rate = arguments.rate(optimizer.lr if lr is None else lr)
    extras = arguments.extras(field, optimizer, penalty, weight_decay, clip_norm, multipliers, ema)
    code = Code(batch, loss_fn, objective)  # one object for all steps: another one would be another recording
    arguments.check_losses(code, field, Key(seed))
    optimizer.update(field)
    scaler = LossScaler(f32) if field.precision == "half" else None
    result = FitResult()
    best: dict[str, Any] | None = None
    if resume and checkpoint is not None and Path(checkpoint).exists():
        best = restore(Path(checkpoint), field, optimizer, scaler, result, seed, ema)
        result.skipped = _skipped(scaler)
    # the optimizer keeps literal zeros and counters; made opaque, they don't change the kernels of later steps
    dr.make_opaque(optimizer.state)
    watch = Watch(optimizer, ema, result.steps, result.skipped)
    frozen = dr.freeze(step, state_fn=Captures(batch, loss_fn, objective, penalty))
    seed_word = dr.opaque(uint64, seed)
    pending: list[Any] = []  # losses of the last steps, on the device
    start = last_write = time.monotonic()
    bar = _progress(steps, result.steps) if progress else None

    def collect(at_end: bool = False) -> bool:
        """Bring the losses of the steps since the last call to the host, which waits for the device; is all finite?"""
        first = result.steps - len(pending)
        result.losses[first:] = [float(v.numpy()[0]) for v in pending]
        pending.clear()
        result.skipped = _skipped(scaler)
        if watch.diverged(result.losses[first:], result.steps, result.skipped, at_end or result.steps >= steps):
            result.stopped = "diverged"
        return result.stopped != "diverged"

    def finish_step() -> bool:
        """Metric, early stop and checkpoint after a step; says whether to go on."""
        nonlocal best
        go_on = True
        if metric is not None and (result.steps % metric_every == 0 or result.steps >= steps):
            if not collect():
                return False
            _push(field, optimizer)
            value = arguments.metric_value(metric(field))
            result.metrics.append((result.steps, value))
            if bar is not None:
                bar.set_postfix_str(f"loss {result.losses[-1]:.3g}, metric {value:.4g}")
            if _better(value, result.best, higher_is_better):
                result.best = (result.steps, value)
                best = {k: dr.copy(dr.detach(v)) for k, v in optimizer.items()} if patience is not None else None
            elif patience is not None and _stale(result) >= patience:
                result.stopped, go_on = "patience", False
        if checkpoint is not None and time.monotonic() - last_write >= checkpoint_every:
            go_on = write() and go_on
        return go_on

    def write() -> bool:
        """Write the checkpoint, unless training has diverged; says whether it was written."""
        nonlocal last_write
        if not collect():
            return False
        _push(field, optimizer)
        assert checkpoint is not None
        store(Path(checkpoint), field, optimizer, scaler, result, seed, best, metadata, ema)
        last_write = time.monotonic()
        return True

    stepping = False  # between the beginning of a step and its end?
    try:
        with interrupts_held() as asked, no_collection():
            while result.steps < steps:
                if asked:
                    raise KeyboardInterrupt
                TURNS.hand_on()
                optimizer.lr = dr.opaque(f32, rate(result.steps))
                number = dr.opaque(uint32, result.steps)
                stepping = True
                pending.append(frozen(field, optimizer, scaler, code, extras, seed_word, number))
                result.steps += 1
                stepping = False
                if len(pending) >= WINDOW and not collect():
                    break
                if bar is not None:
                    bar.update(1)
                    if len(result.losses) == result.steps:
                        bar.set_postfix_str(f"loss {result.losses[-1]:.3g}")
                if not finish_step():
                    break
    except (KeyboardInterrupt, RuntimeError) as error:
        if not caused_by_interrupt(error) or not TURNS.held():
            raise
        result.stopped = "interrupt"
    finally:
        if bar is not None:
            bar.close()
        if TURNS.held():  # an error that goes on from here leaves the last parameters, too
            _push(field, field if stepping else optimizer)
    diverged = not collect(at_end=True)
    result.recordings = frozen.n_recordings
    result.seconds += time.monotonic() - start
    if checkpoint is not None and not stepping:  # a step that was broken off may have left parameters of two steps
        write()
    if diverged:
        best = watch.kept
        if ema is not None:
            ema.average = watch.kept_average
    if best is not None and result.stopped in ("patience", "diverged"):
        for name, value in best.items():
            dr.enable_grad(value)
            optimizer.state[name] = (value, *optimizer.state[name][1:])
    _push(field, optimizer)
    if diverged:
        result.message = watch.message(code, field, seed)
        warnings.warn(result.message, RuntimeWarning, stacklevel=3)
    elif said := watch.skipped_message():
        warnings.warn(said, RuntimeWarning, stacklevel=3)
    return result


def _skipped(scaler: LossScaler | None) -> int:
    return 0 if scaler is None else int(scaler.skipped.numpy()[0])


def _push(field: NeuralField, values: Mapping[str, Any]) -> None:
    """The parameters of an optimizer, or its own, to the field, without their gradients."""
    for name in field:
        field[name] = dr.detach(values[name])


def _better(value: float, best: tuple[int, float] | None, higher: bool) -> bool:
    if math.isnan(value):
        return False
    return best is None or math.isnan(best[1]) or (value > best[1] if higher else value < best[1])


def _stale(result: FitResult) -> int:
    """Number of metrics since the best one, or of all if there is none."""
    return sum(1 for step, _ in result.metrics if result.best is None or step > result.best[0])


def _progress(steps: int, done: int) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError(
            "fit: progress=True needs tqdm; run pip install coopnet[train], or pass progress=False."
        ) from None
    return tqdm(total=steps, initial=done, unit="step", dynamic_ncols=True)
