"""A run: its steps, and what happens between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import drjit as dr

from ..jit.optimizers import set_values, snapshot
from . import limits
from .average import set_averages
from .distributed import Replicas, digest
from .divergence import DivergenceMonitor
from .interrupts import caused_by_interrupt, interrupts_held, no_collection
from .metric import Metric
from .progress import Progress, progress_bar
from .recording import reasons
from .result import FitResult
from .state import File, arrays
from .step import Step
from .turns import TURNS
from .unrolled import UnrolledSteps


class Run:
    """Steps up to number ``steps``; ``result`` says how far it is, and ``stopped`` in it whether to go on."""

    def __init__(
        self, step: Step, steps: int, seed: int, metric: Metric, file: File, progress: bool,
        replicas: Replicas | None = None, unrolled: UnrolledSteps | None = None,
    ):  # fmt: skip
        self.step, self.steps, self.metric, self.file = step, steps, metric, file
        self.seed_number = seed
        self.replicas = Replicas() if replicas is None else replicas
        self.result = FitResult()
        content = self.replicas.once("the checkpoint to resume from", file.content)
        with self.replicas.alike("resuming"):
            self.best = file.restore(content, step, self.result)  # parameters of the best metric
            shown = progress and self.replicas.leads
            self.progress = Progress(progress_bar("fit", total=steps, initial=self.result.steps) if shown else None)
        self.result.skipped = step.skipped()
        # the optimizer keeps literal zeros and counters; made opaque, they don't change the kernels of later steps
        dr.make_opaque(step.optimizer.state)
        self.monitor = DivergenceMonitor(step, seed, self.result)
        self.seed = dr.opaque(dr.uint64_array_t(step.float32), seed)
        self.unrolled = unrolled  # None where every step is a call
        if unrolled is not None:
            unrolled.ahead -= self.result.steps
        self.taken = 0  # steps whose losses are on the device
        self.began = 0.0  # when the first of them was taken
        self.stride = 1  # steps that the last call has taken
        self.interrupts: list = []  # what came of Ctrl-C and waits for the end of a step
        self.stepping = False  # between the beginning of a step and its end?
        self.start = time.monotonic()
        self.due = False  # Is a checkpoint to be written?

    @contextmanager
    def going(self) -> Iterator[None]:
        """Steps are taken in here, while :meth:`goes_on`, by a thread that has the turn.

        Ctrl-C ends the block with ``stopped="interrupt"`` and no exception. The field is handed its parameters,
        whatever ends it.
        """
        try:
            with interrupts_held() as self.interrupts, no_collection():
                yield
        except (KeyboardInterrupt, RuntimeError) as error:
            if not caused_by_interrupt(error) or not TURNS.held():
                raise
            self.result.stopped = "interrupt"
        finally:
            self.leave(TURNS.held())

    def goes_on(self) -> bool:
        """Is there another step to take? Between two, other threads may have theirs, and Ctrl-C raises."""
        if self.result.steps >= self.steps or self.result.stopped != "steps":
            self.replicas.exchange(f"the end after {self.result.steps} steps")
            return False
        interrupted, self.due = self.replicas.look(self.result.steps, bool(self.interrupts), self.file.due())
        if interrupted:
            raise KeyboardInterrupt
        if self.replicas.alone:  # or processes whose threads take turns in another order would wait for each other
            TURNS.hand_on()
        return True

    def take_steps(self, rate: Callable[[int], float]) -> None:
        """Take the next step, or the next few in one call if nobody looks at what is between them."""
        step, first = self.step, self.result.steps
        self.stride = 1 if self.unrolled is None else self.unrolled.next(self._undisturbed())
        if self.taken == 0:
            self.began = time.monotonic()
        number = dr.opaque(step.uint32, first)
        rates: list[float] = []
        with self.replicas.noting():
            rates.append(rate(first))
            step.optimizer.lr = dr.opaque(step.float32, rates[0])
        try:
            rates += [rate(first + i) for i in range(1, self.stride)]
        except Exception:  # when that step comes it raises again
            self.stride = 1
        self.stepping = True
        with reasons():
            if self.stride == 1:
                step(self.seed, number)
            else:
                step.call_several(self.seed, number, step.float32(rates))
                step.optimizer.lr = dr.opaque(step.float32, rates[-1])
        self.result.steps += self.stride
        self.taken += self.stride
        self.stepping = False

    def _undisturbed(self) -> int:
        """Steps up to the next look at what they have done."""
        steps = self.result.steps
        return min(self.steps - steps, limits.WINDOW_STEPS - self.taken, self.metric.until(steps))

    def collect(self, at_end: bool = False) -> bool:
        """Bring the losses of the steps since the last call to the host, which waits for the device; is all finite?"""
        result = self.result
        if not self.stepping:
            self.replicas.exchange(f"the losses of {result.steps} steps")  # before parameters are kept for good ones
        first = result.steps - self.taken
        if self.taken:
            found = self.step.losses.numpy()
            result.losses[first:] = [float(found[i % limits.WINDOW_STEPS]) for i in range(first, result.steps)]
            if self.unrolled is not None and not self.stepping:
                self.unrolled.learn(self.step, self.taken, time.monotonic() - self.began)
        self.taken = 0
        result.skipped = self.step.skipped()
        if self.monitor.diverged(result.losses[first:], at_end or result.steps >= self.steps):
            result.stopped = "diverged"
        return result.stopped != "diverged"

    def after_step(self) -> None:
        """Losses, metric and checkpoint, whichever are due."""
        result = self.result
        if self.taken >= limits.WINDOW_STEPS and not self.collect():
            return
        self.progress.count(self.stride)
        measured = self.metric.due(result.steps, self.steps)
        if measured:
            if not self.collect():
                return
            self.step.release(self.step.optimizer)
            value = self.replicas.once(f"the metric of step {result.steps}", self.measure)
            if self.metric.add(value, result):
                self.best = snapshot(self.step.optimizer) if self.metric.patience is not None else None
        self.progress.say(self, measured or result.steps >= self.steps)
        if self.file.due() if self.replicas.alone else self.due:
            self.write()

    def measure(self) -> float:
        return self.metric.measure(self.step.field)

    def write(self) -> None:
        """Write the checkpoint, unless training has diverged."""
        if self.collect():
            self.step.release(self.step.optimizer)
            self.save()

    def save(self) -> None:
        """Write the checkpoint, of parameters that all processes have."""
        steps = self.result.steps
        self.replicas.agree(f"the parameters after {steps} steps", self.hashed)
        self.replicas.once(f"the checkpoint after {steps} steps", self.write_file)

    def hashed(self) -> dict[str, Any]:
        return {f"a hash of the parameters after {self.result.steps} steps": digest(arrays(self.step))}

    def write_file(self) -> None:
        self.file.write(self.step, self.result, self.best)

    def leave(self, turn: bool) -> None:
        """Hand the field its final parameters, whatever ends the run, if this thread has the ``turn``."""
        self.progress.close()
        if self.replicas.failed:  # others may have gone on without this process, or it without others
            set_values(self.step.optimizer, self.monitor.kept)
            if self.step.ema is not None:
                set_averages(self.step.ema, self.monitor.kept_average)
        if turn:
            self.step.release(self.step.field if self.stepping else self.step.optimizer)

    def finish(self) -> str:
        """Look at the last losses, write the checkpoint, and go back to parameters that are better; what to warn of."""
        step, result, monitor = self.step, self.result, self.monitor
        diverged = not self.collect(at_end=True)
        result.recordings = step.recordings()
        result.seconds += time.monotonic() - self.start
        if not (self.stepping or diverged):  # a step that was broken off may have left parameters of two steps
            self.save()
        if diverged:
            self.best = monitor.kept
            if step.ema is not None:
                set_averages(step.ema, monitor.kept_average)
        has = not self.stepping  # the field, what the optimizer has
        if self.best is not None and result.stopped in ("patience", "diverged"):
            set_values(step.optimizer, self.best)
            has = False
        if not has:
            step.release(step.optimizer)
        result.message = monitor.message() if diverged else ""
        return result.message or monitor.skipped_message()
