"""The training loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import drjit as dr
from drjit.opt import Adam, Optimizer

from ..field import NeuralField
from ..random.key import Key
from . import arguments
from .average import EMA
from .distributed import Group, Replicas, SharedStep, compare_batches, facts, find_group
from .divergence import DivergenceMonitor
from .memory import check_memory
from .metric import Metric
from .progress import Progress
from .result import FitResult
from .run import Run
from .state import File, check_file
from .step import Options, Step
from .turns import in_turn
from .unrolled import UnrolledSteps


@in_turn
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
    loss_scale: float | None = None,
    metric: Callable[[NeuralField], float] | None = None,
    metric_every: int = 100,
    higher_is_better: bool = True,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    metadata: dict[str, Any] | None = None,
    progress: bool = True,
    distributed: Literal["auto"] | Group | None = None,
) -> FitResult:
    r"""Train ``field`` in place: ``steps`` steps of stochastic gradient descent on batches that ``batch`` draws.

    Step :math:`i` evaluates ``field(coordinates, Key(seed, step=i))`` on ``coordinates, targets =
    batch(Key(seed, step=i))``, so the masks and samples of a step depend on nothing but the seed and its number. A
    run that was stopped and resumed equals one that was not; on LLVM to the last bit. The whole step is one
    function frozen by ``dr.freeze``, traced once or twice. Four steps are traced as one function, with the same
    results, if a step takes less than a millisecond, at least 2,048 are left, and ``lr`` is a number or a schedule of
    coopnet's.

    Args:
        field: a built :class:`NeuralField`; its parameters are updated.
        batch: traced code from a key to ``(coordinates, targets)``, arrays or nested arrays of one width. Draw random
            numbers with :func:`coopnet.uniform`. A third entry, if any, is the density that the samples were drawn
            from, and the loss is called with ``pdf=`` it. Arrays that ``batch`` refers to (an image, a table) may be
            variables around it, in lists, dictionaries and attributes of objects, or textures. Make them there: inside
            ``batch``, Dr.Jit 1.5 aborts the process where an array is made of a NumPy array, and plain numbers and what
            is read into NumPy are those of the time of tracing.
            Of several processes, each draws the whole batch, unless ``coopnet.training.by_index`` decorates ``batch``.
        steps: the number of the step to stop before, counted from 0 also when resuming.
        optimizer: a ``drjit.opt`` optimizer without parameters; ``Adam`` if ``None``.
        lr: learning rate, or a function of the step number that is called just before each step (see
            ``coopnet.training.cosine``); 1e-3, or the given optimizer's own, if ``None``.
        loss: the name of a function in ``coopnet.training.losses``, such as ``"l2"`` (or ``"mse"``), ``"l1"``
            (``"mae"``), ``"huber"``, ``"relative_l2"`` or ``"cross_entropy"``, or traced code
            ``(y, targets) -> loss of each sample``, both lists with an array for each output. On CUDA the library's
            own losses are computed in the kernel that goes back through the network, which then runs once for each
            step and not twice. So is a function with the attribute ``samplewise = True``, which says that it treats
            every sample by itself and refers to no other arrays.
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
        loss_scale: what the loss is multiplied by where gradients are in half precision, which ends at 6e-8 and 65504
            (Micikevicius et al. 2018). Steps that overflow are skipped, and halve it. ``None`` begins at 65536 and
            doubles it after 2000 steps without; a number is not raised.
        metric: called as ``metric(field)`` every ``metric_every`` steps and at the end, by process 0 alone; returns a
            float, such as the PSNR on held-out data.
        higher_is_better: direction of the metric.
        patience: stop after this many evaluations of the metric without improvement, and go back to the best
            parameters.
        checkpoint: file to write every ``checkpoint_every`` seconds and at the end: a field that ``coopnet.load``
            reads, with the state of the training beside it.
        resume: continue from ``checkpoint`` if it exists.
        metadata: anything JSON can hold, to keep in the checkpoint beside the state (see ``coopnet.save``).
        progress: show a progress bar (needs tqdm).
        distributed: train with other processes, which all call ``fit`` alike, each on its share of every batch: the
            :class:`coopnet.training.Group` of them, or ``"auto"`` for that of ``torch.distributed``, if it is
            initialized or ``torchrun`` has started this process, and otherwise none. Samples keep their numbers in the
            whole batch, and losses, gradients and masks are those of one process, to precision. Process 0 writes,
            shows and warns. See the page on several GPUs in the documentation.

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
            that are not positive in the first batch, a metric that returns no number, a checkpoint of another run,
            processes that are not about to do the same or have the same GPU; on LLVM, a step that there is no memory
            for, counted before it runs.
        OSError: ``checkpoint`` cannot be read or written.
        RuntimeError: called while Dr.Jit records a function or loop, or in a thread that a callback of another run
            waits for; another process has failed, is gone, or does not come in time.

    Warns:
        RuntimeWarning: the run diverged, or more than half of its steps were skipped; no gradient reaches the field;
            more than a tenth of the first batch lies outside [0, 1], or the field's ``bounds``, in coordinates that
            a grid or ``OneBlob`` encodes.

    Several threads may train at a time, each its own field: they take turns of some steps (see
    :func:`coopnet.training.exclusive`, also for what else threads do with Dr.Jit meanwhile).

    >>> cn.fit(field, batch, 1000, lr=cn.training.cosine(1e-2, 1000), checkpoint="field.safetensors", resume=True)

    An eikonal loss (Gropp et al. 2020), where ``batch`` draws points in 3D:

    >>> def eikonal(field, points, key):
    ...     value, gradient = field.value_and_grad(points, key)
    ...     return dr.square(dr.norm(gradient) - 1)
    >>> cn.fit(sdf, points, 1000, objective=eikonal)
    """
    options = Options(loss, objective, penalty, weight_decay, clip_norm, multipliers, ema, loss_scale)
    group = find_group("fit", distributed, field)
    replicas = Replicas(group)
    with replicas.alike("the arguments"):
        optimizer = Adam(lr=1e-3) if optimizer is None else optimizer
        arguments.check_run(field, batch, steps, seed, optimizer, progress)
        rate = arguments.rate(optimizer.lr if lr is None else lr)
        measure = Metric(metric, metric_every, higher_is_better, patience)
        check_file(checkpoint, checkpoint_every, resume, metadata)
        file = File(checkpoint, checkpoint_every, resume, metadata, field, seed, writes=replicas.leads)
        arguments.check_options(field, options)
        what = field, optimizer, batch, options
        step = Step(*what) if group is None else SharedStep(*what, replicas)
        losses, drawn, outside = arguments.check_losses(step, Key(seed))
        check_memory(field, optimizer, options, samples=losses, best=patience is not None)
        if isinstance(step, SharedStep):
            step.divide(losses)
        optimizer.update(field)
    replicas.check_gpus(dr.backend_v(step.float32))
    unrolled = UnrolledSteps(steps, rate) if group is None else None
    shown = [Progress()] if progress and replicas.leads else []
    hooks = [measure, file, *shown, DivergenceMonitor()]
    run = Run(step, steps, seed, hooks, replicas, unrolled)
    replicas.agree("the start", lambda: facts(run, measure, rate))
    compare_batches(replicas, step, drawn)
    del drawn
    if outside and replicas.leads:
        warnings.warn(outside, RuntimeWarning, stacklevel=3)
    step.runs = steps - run.result.steps
    run.go(rate)
    if (message := run.finish()) and replicas.leads:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    return run.result
