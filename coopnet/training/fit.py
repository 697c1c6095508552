"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import drjit as dr
from drjit.opt import Adam, Optimizer

from ..checks.warn import warn
from ..field import NeuralField
from ..jit.turns import in_turn
from ..random.key import Key
from . import arguments
from .average import EMA
from .distributed import Group, Replicas, SharedStep, compare_batches, facts, find_group
from .divergence import DivergenceMonitor
from .memory import check_memory
from .metric import Metric
from .progress import Progress
from .recording import RecordingMonitor
from .result import FitResult
from .run import Run
from .state import File, check_file
from .step import Options, Step
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
    batch(Key(seed, step=i))``, so the masks and samples of a step depend only on the seed and the number of the step. A
    run that was stopped and resumed equals one that was not, on LLVM to the last bit. The whole step is one
    function frozen by ``dr.freeze``, traced once or twice, and again if arrays change their sizes. Four steps are
    traced as one function, with the same results, if a step takes less than a millisecond, at least 2,048 steps are
    left, and ``lr`` is a number or one of coopnet's schedules.

    Args:
        field: a built :class:`NeuralField`; its parameters are updated.
        batch: traced code from a key to ``(coordinates, targets)``, arrays or nested arrays of one width. Draw
            random numbers with :func:`coopnet.uniform`. A third entry, if any, is the density that the samples were
            drawn from; the loss gets it as ``pdf``. Arrays that ``batch`` refers to (an image, a table) may be
            variables around it, in lists, dictionaries and attributes of objects, or textures. Make them outside of
            ``batch``: inside, Dr.Jit 1.5 aborts the process if an array is made from a NumPy array. Python numbers in
            variables and attributes keep the value that they have while ``batch`` is traced. Those in lists and
            dictionaries are constants of the recording: each change records the step again, which takes longer than a
            step; use a ``Float``. If there are several processes, each draws the
            whole batch, unless ``coopnet.training.by_index`` decorates ``batch``.
        steps: number of steps in all, including those before a run was resumed.
        optimizer: a ``drjit.opt`` optimizer without parameters; ``Adam`` if ``None``.
        lr: learning rate, or a function of the step number that is called just before each step (see
            ``coopnet.training.cosine``); 1e-3, or the given optimizer's own, if ``None``.
        loss: the name of a function in ``coopnet.training.losses``, such as ``"l2"`` (or ``"mse"``), ``"l1"``
            (``"mae"``), ``"huber"``, ``"relative_l2"`` or ``"cross_entropy"``, or traced code
            ``(y, targets) -> loss of each sample``, both lists with an array for each output. On CUDA, the library's
            losses are computed in the kernel of the backward pass, so that the network runs only once per step. For
            your own function this is possible if it has the attribute ``samplewise = True``, which promises that the
            loss of a sample depends only on that sample's arguments, and on no other arrays.
        objective: traced code ``(field, drawn, key) -> loss of each sample``, single precision, instead of ``loss``.
            ``drawn`` is the result of ``batch``, which may then be any PyTree. An objective evaluates the field itself,
            any number of times, as for losses on derivatives (see the second example). Python numbers used in losses
            and penalties are recorded as constants, too; for a weight that changes, use a function of ``key.step``, or
            a ``Float`` in a dictionary or attribute, which ``lr`` or ``metric`` replaces.
        seed: int in [0, 2^64).
        penalty: traced code ``field -> array of width 1`` that is added to the loss, such as ``lambda field: 1e-4 *
            coopnet.training.l2_penalty(field)``. ``losses`` of the result do not include it.
        weight_decay: decoupled decay rate :math:`\lambda` (Loshchilov and Hutter 2019): a step also takes
            :math:`\mathrm{lr} \cdot \lambda A` from every matrix. With 0 and an ``AdamW`` as optimizer, the optimizer's
            own decay applies, to all parameters.
        clip_norm: scale gradients down to this global norm (Pascanu et al. 2013); ``None`` for no limit.
        multipliers: layer name -> factor of its learning rate, 0 to freeze it (see
            ``coopnet.training.layer_multipliers``), such as ``{"layers.0": 0.1, "encoding": 0}``.
        ema: an average of the weights to update after every step (see ``coopnet.training.EMA``). The field is trained
            without it; checkpoints keep it beside the field.
        loss_scale: factor of the loss if gradients are in half precision, whose range is 6e-8 to 65504
            (Micikevicius et al. 2018). Steps that overflow are skipped, and halve the factor. ``None`` begins at 65536.
            After 2000 steps without overflow the factor doubles at every step, until the next overflow or up to 2^40. A
            factor that you give is halved by overflows, too, but never doubled.
        metric: called as ``metric(field)`` every ``metric_every`` steps and at the end, by process 0 only; returns a
            float, such as the PSNR on held-out data. Changes of the parameters that it makes are lost.
        higher_is_better: direction of the metric.
        patience: stop after this many evaluations of the metric without improvement, and go back to the best
            parameters. The checkpoint holds the last parameters, so that training can resume; call ``coopnet.save`` for
            the best ones.
        checkpoint: file to write every ``checkpoint_every`` seconds and at the end: a field that ``coopnet.load``
            reads, with the state of the training beside it. Without ``resume``, an existing file is replaced.
        resume: continue from ``checkpoint`` if it exists. Architecture, backend, precision, ``seed`` and the class and
            state of the optimizer must be those of its run; ``steps``, the learning rate and all else, such as the
            optimizer's coefficients, may have changed. If it has taken ``steps``
            or more already, nothing is trained, and its result is returned.
        metadata: anything JSON can hold, to keep in the checkpoint beside the state (see ``coopnet.save``).
        progress: show a progress bar, or lines of text if tqdm is not installed.
        distributed: train with other processes, each on its share of every batch; all call ``fit`` with the same
            arguments. Give their :class:`coopnet.training.Group`, or ``"auto"``: that is the group of
            ``torch.distributed`` if it is initialized or ``torchrun`` has started this process, and otherwise none.
            Losses, gradients and masks are those of one process, up to rounding. Process 0 writes files, shows progress
            and warns. See the page on several GPUs in the documentation.

    Returns:
        A :class:`FitResult`. Ctrl-C ends the run early, after writing the checkpoint, with ``stopped="interrupt"``. A
        second Ctrl-C aborts the current step. No checkpoint is written if a step is aborted, or before the first step.

        A run ends with ``stopped="diverged"`` if its parameters, optimizer or average are not finite, if its last 10
        losses are not, or if its last 64 steps were all skipped. A ``RuntimeWarning`` names the step, what was not
        finite and what usually helps. This is checked whenever losses are copied to the host: before a metric, before a
        checkpoint is written, at the end, and every 256 steps. The field and ``ema`` get the weights of the last check
        without divergence, or the initial ones, and no checkpoint is written.

    Raises:
        ValueError, TypeError: arguments out of range, a field that is not built, a batch of another shape, densities
            that are not positive in the first batch, a metric that does not return a number, a checkpoint of another
            run, processes with different arguments or on the same GPU; on LLVM, a step for which there is not enough
            memory, counted before it runs.
        OSError: ``checkpoint`` cannot be read or written.
        RuntimeError: called while Dr.Jit records a function or loop, or in a thread that a callback of another run
            waits for; another process has failed, has ended, or does not answer in time.

    Warns:
        RuntimeWarning: the run diverged, or more than half of its steps were skipped; no gradient reaches the field;
            more than a tenth of the first batch lies outside [0, 1], or the field's ``bounds``, in coordinates that
            a grid or ``OneBlob`` encodes; two draws in a batch are the same random numbers; ``batch`` returns other
            values when it is called again with the same key.

    Several threads may train at a time, each its own field: they alternate every few steps. While a thread trains, put
    everything else that other threads do with Dr.Jit into a block of :func:`coopnet.training.exclusive`.

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
        steps, seed = arguments.check_run(field, batch, steps, seed, optimizer, progress)
        rate = arguments.rate(optimizer.lr if lr is None else lr)
        measure = Metric(metric, metric_every, higher_is_better, patience)
        check_file(checkpoint, checkpoint_every, resume, metadata)
        file = File(checkpoint, checkpoint_every, resume, metadata, field, seed, writes=replicas.leads)
        arguments.check_options(field, options)
        what = field, optimizer, batch, options
        step = Step(*what) if group is None else SharedStep(*what, replicas)
        losses, drawn, found = arguments.trace_first_batch(step, Key(seed))
        check_memory(field, optimizer, options, samples=losses, best=patience is not None)
        if isinstance(step, SharedStep):
            step.divide(losses)
        optimizer.update(field)
    replicas.check_gpus(dr.backend_v(step.float32))
    unrolled = UnrolledSteps(steps, rate) if group is None else None
    bars = [Progress()] if progress and replicas.leads else []
    hooks = [measure, file, *bars, DivergenceMonitor(), RecordingMonitor()]
    run = Run(step, steps, seed, hooks, replicas, unrolled)
    without_best = measure.resumed(run)
    replicas.agree("the start", lambda: facts(run, measure, rate))
    compare_batches(replicas, step, drawn)
    del drawn
    for message in (*found, without_best):
        if message and replicas.leads:
            warn(message)
    step.runs = steps - run.result.steps
    run.go(rate)
    if (message := run.finish()) and replicas.leads:
        warn(message)
    return run.result
