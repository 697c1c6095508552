"""Training many fields of one architecture."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import drjit as dr
from drjit.opt import Adam, Optimizer

from ...checks import check_int, check_type, ensure, entries, shown
from ...checks.warn import warn
from ...field import NeuralField
from ...io import describe
from ...io.architecture import outline
from ...jit.turns import in_turn
from ...random.key import Key
from .. import arguments, limits
from ..memory import check_memory
from ..progress import Bar
from ..result import FitResult
from ..state import check_every
from ..step import Options
from .directory import Directory
from .errors import errors_of
from .group import hindrance
from .jobs import Jobs


@in_turn
def fit_many(
    fields: Sequence[NeuralField],
    batch: Callable[[Key, Any], tuple],
    steps: int,
    *,
    optimizer: Optimizer | None = None,
    lr: float | Callable[[int], float] | None = None,
    loss: str | Callable[[Any, Any], Any] = "l2",
    objective: Callable[[NeuralField, Any, Key], Any] | None = None,
    seed: int = 0,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    multipliers: Mapping[str, float] | None = None,
    loss_scale: float | None = None,
    directory: str | Path | None = None,
    checkpoint_every: float = 60.0,
    together: int | None = None,
    progress: bool = True,
) -> list[FitResult | None]:
    r"""Train every one of ``fields``, which have one architecture, in place: the images of a collection, the materials
    of a scene, the frames of a video.

    Job :math:`j` does the same as ``fit(fields[j], lambda key: batch(key, UInt32(j)), steps, seed=seed + j)``. Results
    are equal to the last bit if fields are trained one after the other, and otherwise within the precision of the
    weights. Each job has its own optimizer state, loss scale and losses, and one that diverges does not affect others.
    All jobs share traced functions and compiled kernels.

    :func:`coopnet.fit` can continue from a checkpoint of a job, and the other way round.

    Args:
        fields: built fields of one architecture, backend and precision.
        batch: traced code ``(key, job) -> (coordinates, targets)`` as for :func:`coopnet.fit`. ``job`` is a ``UInt32``
            with the number of the field. It has one entry, or one for each sample if several fields are trained in
            one kernel. Use it to look data up in arrays that hold the data of all jobs. Draw random numbers with
            :func:`coopnet.uniform`, which then draws for the samples of all fields.
        steps: as for :func:`coopnet.fit`.
        optimizer: one without parameters, of which each job gets a copy; ``Adam`` if ``None``.
        lr, loss, objective, weight_decay, clip_norm, multipliers, loss_scale: as for :func:`coopnet.fit`.
        seed: seed of job 0; job :math:`j` has ``seed + j``.
        directory: where to write ``0000.safetensors`` and so on, checkpoints that ``coopnet.load`` reads, and
            ``results.jsonl`` with a line for each job that has ended. Jobs that have ended there, or diverged, are not
            trained again, and jobs that were stopped continue.
        checkpoint_every: seconds between checkpoints of jobs that are not done.
        together: number of fields that are trained in one kernel. ``None`` is up to 128 on CUDA for batches of at most
            4096 samples where it is possible, and 1 elsewhere: see ``docs/many_fields.md``. Then ``job``, ``key.index``
            and ``key.seed`` have an entry for each sample, the optimizer must be ``Adam``, ``AdamW``, ``SGD`` or
            ``RMSProp``, and an objective must not evaluate fields in symbolic loops.
        progress: show one progress bar for all jobs (of several processes, for the jobs of process 0).

    Returns:
        The :class:`FitResult` of each job. Ctrl-C ends the current job or group with ``stopped="interrupt"``; jobs that
        have not begun have 0 steps and the same ``stopped``.

        If there are several processes, as started by ``torchrun``, process ``RANK`` of ``WORLD_SIZE`` trains every
        ``WORLD_SIZE``-th group. Results of other processes' jobs are ``None``, and their fields are unchanged. When all
        processes have ended, load the files, or call this again in one process, which reads them.

    Raises:
        ValueError, TypeError: as :func:`coopnet.fit`; also for fields that differ, are too many for their seeds or
            given twice, a ``together`` that is not possible, and several processes without a ``directory``.
        OSError: ``directory`` cannot be read or written.
        RuntimeError: as :func:`coopnet.fit`.
        All of these name their job, except an ``OSError`` of the system, which names the file.

    Warns:
        RuntimeWarning: as :func:`coopnet.fit`; the message begins with the number of the job. In a kernel with others,
            a job that diverges gets the weights of its last checkpoint, or those at the start. Only the coordinates of
            job 0 are checked. With ``together=None`` on CUDA, a warning says why small fields are not trained in one
            kernel.

    Four waves, whose frequencies depend on the number of the job:

    >>> wave = cn.NeuralField(cn.Sinusoidal(4, in_features=1), cn.MLP(out_features=1, width=16))
    >>> fields = [wave.build(seed=number) for number in range(4)]
    >>> def batch(key, job):
    ...     (x,) = cn.uniform(1, key, Float, 256)
    ...     return [x], [dr.sin((1 + job) * x)]
    >>> results = cn.fit_many(fields, batch, 100, directory="waves", progress=False)
    """
    optimizer = Adam(lr=1e-3) if optimizer is None else optimizer
    steps, seed = _check(fields, batch, steps, seed, optimizer, together, progress)
    check_every("fit_many", checkpoint_every)
    folder = Directory(directory, len(fields))
    options = Options(
        loss=loss, objective=objective, weight_decay=weight_decay, clip_norm=clip_norm, multipliers=multipliers,
        loss_scale=loss_scale,
    )  # fmt: skip
    with errors_of(0, 0):
        arguments.check_options(fields[0], options)
        rate = arguments.rate(optimizer.lr if lr is None else lr)
        jobs = Jobs(fields, batch, steps, seed, optimizer, options, folder, checkpoint_every)
        samples, _, found = arguments.trace_first_batch(jobs.step(0), Key(seed))
    for message in found:
        warn(f"job 0: {message}")
    size = _together(together, jobs, samples)
    with errors_of(0, size - 1):
        check_memory(fields[0], optimizer, options, samples=samples, together=size)
    rank, world = _processes(folder)
    count = -(-len(fields) // size)
    groups = [range(i * len(fields) // count, (i + 1) * len(fields) // count) for i in range(count)][rank::world]
    bar = Bar(sum(map(len, groups)), steps, progress and rank == 0)
    try:
        jobs.train(groups, samples, rate, bar)
    finally:
        bar.close()
    for message in jobs.messages:
        warn(message)
    return [jobs.results.get(number) for number in range(len(fields))]


def _check(fields: Any, batch: Any, steps: Any, seed: Any, optimizer: Any, together: Any, progress: Any) -> tuple:
    check_type("fit_many", "fields", fields, Sequence, "a sequence of NeuralFields")
    fields = entries("fit_many", "fields", fields)
    ensure(fields, "fit_many: fields is empty; a NeuralField for each job is needed.")
    arguments.check_field(fields[0], "fit_many", "fields[0]")
    steps, seed = arguments.check_run(fields[0], batch, steps, seed, optimizer, progress, "fit_many")
    last = seed + len(fields) - 1
    ensure(last < 2**64, f"fit_many: seed is {seed}, and that of the last job {last}; ints in [0, 2^64) are needed.")
    describe(fields[0])  # only once, because it takes as long as all other checks of a field
    first = _identity(fields[0])
    seen: dict[int, int] = {}
    for number, field in enumerate(fields):
        before = seen.setdefault(id(field), number)
        ensure(before == number, f"fit_many: fields[{number}] is fields[{before}], too; each job needs its own.")
        arguments.check_field(field, "fit_many", f"fields[{number}]")
        same = _identity(field) == first
        ensure(same, f"fit_many: fields[{number}] differs from fields[0] in architecture, precision or backend.")
    if together is not None:
        needed = f"an int from 1 to {len(fields)}, the number of fields"
        check_int("fit_many", "together", together, 1, len(fields), needed)
    return steps, seed


def _identity(field: NeuralField) -> tuple:
    return outline(field), field.precision, field.backend


def _together(asked: int | None, jobs: Jobs, samples: int) -> int:
    """Number of fields to train in one kernel; raises ``ValueError`` if ``asked`` is a number that is not possible."""
    if asked == 1 or len(jobs.fields) == 1:
        return 1
    first = jobs.step(0)
    if asked is None and (dr.backend_v(first.float32) != dr.JitBackend.CUDA or samples > limits.FIELD_SAMPLES):
        return 1
    why = hindrance(first)
    if not why:
        try:
            with dr.suspend_grad():
                jobs.group([first, jobs.step(1)], samples).evaluate_all(dr.opaque(dr.uint32_array_t(first.float32), 0))
        except (ValueError, TypeError, RuntimeError) as error:
            why = str(error).rstrip(".")
    if not why:
        return asked or min(limits.FIELDS_TOGETHER, len(jobs.fields))
    cannot = f"together is {asked}, but fields cannot be trained in one kernel: {why}"
    ensure(asked is None, f"fit_many: {cannot}; pass together=1.")
    warn(f"fit_many: fields are trained one after the other: {why}.")
    return 1


def _processes(place: Directory) -> tuple[int, int]:
    """The number of this process and of all processes, from the environment."""
    given = [os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))]
    digits = all(text.isdecimal() for text in given)
    rank, world = map(int, given) if digits else (1, 0)
    needed = f"RANK and WORLD_SIZE are {shown(given[0])} and {shown(given[1])}; a number below that of processes"
    ensure(rank < world, f"fit_many: {needed} is needed.")
    several = "processes share their results in a directory; pass directory"
    ensure(world == 1 or place.path is not None, f"fit_many: WORLD_SIZE is {world}; {several}.")
    return rank, world
