"""A run: its steps, and the hooks that are called between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import drjit as dr

from ..jit.collection import no_collection
from ..jit.native.frees import postponed_frees
from ..jit.optimizers import set_values
from ..jit.turns import TURNS
from . import limits
from .distributed import Replicas
from .hooks import Hook
from .interrupts import caused_by_interrupt, interrupts_held
from .recording import reasons
from .result import FitResult
from .step import Step
from .unrolled import UnrolledSteps


class Run:
    """Training steps up to number ``steps``. ``result`` counts them, and its ``stopped`` ends the run.

    ``hooks`` do everything else. A hook whose beginning depends on that of others comes after them.
    """

    def __init__(
        self, step: Step, steps: int, seed: int, hooks: Sequence[Hook] = (), replicas: Replicas | None = None,
        unrolled: UnrolledSteps | None = None,
    ):  # fmt: skip
        self.step, self.steps, self.seed_number = step, steps, seed
        self.replicas = Replicas() if replicas is None else replicas
        self.result = FitResult()
        self.best: dict[str, Any] | None = None  # parameters with the best metric, if kept
        self.hooks = tuple(hooks)
        with self.replicas.alike("resuming"):
            for hook in self.hooks:
                hook.begin(self)
        # opaque, because literal zeros and counters of the optimizer would change the kernels of later steps
        dr.make_opaque(step.optimizer.state)
        self.seed = dr.opaque(dr.uint64_array_t(step.float32), seed)
        self.unrolled = unrolled  # None if every step is a call of its own
        if unrolled is not None:
            unrolled.ahead -= self.result.steps
        self.taken = 0  # steps whose losses are on the device
        self.began = 0.0  # when the first of them was taken
        self.stride = 1  # steps in the last call
        self.queued, self.longest = 0, 1  # steps since the last wait for the device, and until the next one
        self.waited = time.monotonic()  # when that was
        self.interrupts: list = []  # Ctrl-C, held back until the end of a step
        self.stepping = False  # Has a step begun that has not ended?
        self.start = time.monotonic()
        self.due = False  # Is a hook due on process 0?

    def go(self, rate: Callable[[int], float]) -> None:
        """Take the remaining steps, with the learning rates ``rate``."""
        with self.going():
            while self.goes_on():
                self.take_steps(rate)
                self.after_step()

    @contextmanager
    def going(self) -> Iterator[None]:
        """A block in which steps are taken, while :meth:`goes_on`, by the thread whose turn it is.

        Ctrl-C ends the block with ``stopped="interrupt"`` and no exception. However the block ends, the field gets its
        parameters.
        """
        try:
            with interrupts_held() as self.interrupts, no_collection(), self._frees():
                yield
        except (KeyboardInterrupt, RuntimeError) as error:
            if not caused_by_interrupt(error) or not TURNS.held():
                raise
            self.result.stopped = "interrupt"
        finally:
            self.leave(TURNS.held())

    def _frees(self) -> AbstractContextManager[None]:
        """A block in which a GPU does not wait for memory to be freed; :meth:`keep_pace` frees it."""
        return nullcontext() if self.step.field.backend == "llvm" else postponed_frees()

    def goes_on(self) -> bool:
        """Is there another step? Between two steps, other threads may have their turn, and Ctrl-C raises."""
        if self.result.steps >= self.steps or self.result.stopped != "steps":
            self.replicas.exchange(f"the end after {self.result.steps} steps")
            return False
        due = any(hook.due() for hook in self.hooks)
        interrupted, self.due = self.replicas.exchange_flags(self.result.steps, bool(self.interrupts), due)
        if interrupted:
            raise KeyboardInterrupt
        if self.replicas.alone:  # processes whose threads take turns in different orders would wait forever
            TURNS.hand_on()
        return True

    def take_steps(self, rate: Callable[[int], float]) -> None:
        """Take the next step, or the next few in one call if nothing needs the state between them."""
        step, first = self.step, self.result.steps
        self.stride = 1 if self.unrolled is None else self.unrolled.next(self._steps_to_next_hook())
        if self.taken == 0:
            self.began = time.monotonic()
        number = dr.opaque(step.uint32, first)
        with self.replicas.noting():
            rates = [dr.opaque(step.float32, rate(first))]
            step.optimizer.lr = rates[0]
        try:
            # one array of all would be copied from the host, and Dr.Jit makes the GPU wait until the copy is freed
            rates += [dr.opaque(step.float32, rate(first + i)) for i in range(1, self.stride)]
        except Exception:  # the step itself will raise it again
            self.stride = 1
        self.stepping = True
        with reasons():
            if self.stride == 1:
                step(self.seed, number)
            else:
                step.call_several(self.seed, number, rates)
                step.optimizer.lr = rates[-1]
        self.result.steps += self.stride
        self.taken += self.stride
        self.stepping = False
        self.keep_pace()

    def _steps_to_next_hook(self) -> int:
        """Number of steps until a hook needs the state."""
        ahead = self.steps - self.result.steps, limits.WINDOW_STEPS - self.taken
        return min(*ahead, *(hook.until(self) for hook in self.hooks))

    def after_step(self) -> None:
        """Call the hooks that are due; none after the run has diverged."""
        if self.taken >= limits.WINDOW_STEPS:
            self.collect()
        for hook in self.hooks:
            if self.result.stopped != "diverged":
                hook.after_step(self)

    def keep_pace(self) -> None:
        """Wait for the device after so many steps as take about :data:`~.limits.QUEUED_SECONDS`."""
        self.queued += self.stride
        if self.queued >= self.longest:
            dr.sync_thread()
            now = time.monotonic()
            enough = int(limits.QUEUED_SECONDS * self.queued / max(now - self.waited, 1e-9))
            self.queued, self.longest, self.waited = 0, max(1, min(enough, limits.WINDOW_STEPS)), now

    def collect(self, at_end: bool = False) -> bool:
        """Copy the losses since the last call to the host, which waits for the device. Returns whether training goes
        on without divergence.
        """
        result = self.result
        if not self.stepping:
            self.replicas.exchange(f"the losses of {result.steps} steps")  # before parameters are kept as finite
        first = result.steps - self.taken
        if self.taken:
            losses = self.step.losses.numpy()
            result.losses[first:] = [float(losses[i % limits.WINDOW_STEPS]) for i in range(first, result.steps)]
            if self.unrolled is not None and not self.stepping:
                self.unrolled.learn(self.step, self.taken, time.monotonic() - self.began)
        self.taken = 0
        result.skipped = self.step.skipped()
        for hook in self.hooks:
            hook.on_losses(self, result.losses[first:], at_end or result.steps >= self.steps)
        return result.stopped != "diverged"

    def leave(self, turn: bool) -> None:
        """Give the field its parameters, if this thread has the ``turn``."""
        for hook in reversed(self.hooks):
            hook.leave(self)
        if turn:
            self.step.release(self.step.field if self.stepping else self.step.optimizer)

    def finish(self) -> str:
        """Check the last losses, and end all hooks; returns warnings."""
        step, result = self.step, self.result
        self.collect(at_end=True)
        result.recordings = step.recordings()
        result.seconds += time.monotonic() - self.start
        messages = [hook.end(self) for hook in reversed(self.hooks)]
        if result.stopped == "patience" and self.best is not None:
            set_values(step.optimizer, self.best)
        step.release(step.optimizer)
        return next(filter(None, messages), "")
