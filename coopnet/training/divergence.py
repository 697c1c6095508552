"""Detects that training has diverged: losses or parameters that are not finite, or steps that are all skipped."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr

from ..jit.optimizers import memories, set_values, snapshot, values
from ..random.key import Key
from . import limits
from .average import averages, set_averages
from .hooks import Hook
from .step import Step
from .trees import leaves


class DivergenceMonitor(Hook):
    """Checks losses, parameters, optimizer and average whenever losses are copied to the host.

    A check costs a few small kernels. After a check without findings, ``steps`` is the number of steps so far, and
    ``kept`` and ``kept_average`` are the parameters and averages. A run that diverges returns to them.
    """

    def begin(self, run: Any) -> None:
        self.run, self.result = run, run.result
        self.first = run.result.steps
        self.skipped_before = run.step.skipped()
        self.checked = -1
        self.bad_losses = 0  # consecutive ones, up to now
        self.found, self.bad_step = "", 0  # the arrays that were not finite, in words, and the first such step
        self._keep()

    def on_losses(self, run: Any, losses: list[float], at_end: bool) -> None:
        if self.diverged(losses, at_end):
            run.result.stopped = "diverged"

    def leave(self, run: Any) -> None:
        if run.replicas.failed:  # processes may be at different steps
            self._restore()

    def end(self, run: Any) -> str:
        if not self.found:
            return self.skipped_message()
        self._restore()
        self.step.release(self.step.optimizer)
        run.result.message = self.message()
        return run.result.message

    @property
    def step(self) -> Step:
        return self.run.step

    def _keep(self) -> None:
        self.steps, self.kept = self.result.steps, snapshot(self.step.optimizer)
        self.kept_average = {name: dr.copy(v) for name, v in averages(self.step.ema).items()}

    def _restore(self) -> None:
        set_values(self.step.optimizer, self.kept)
        if self.step.ema is not None:
            set_averages(self.step.ema, self.kept_average)

    def diverged(self, losses: list[float], at_end: bool, finite: bool = False) -> bool:
        """Has training diverged? ``losses`` are those since the previous check; ``at_end`` means the last check.

        Parameters, optimizer and average are checked unless they are known to be ``finite``.
        """
        steps = self.result.steps
        if self.found or (self.checked == steps and not losses):
            return bool(self.found)
        self.checked = steps
        ok = [math.isfinite(v) for v in losses]
        tail = ok[::-1].index(True) if any(ok) else len(ok)
        self.bad_losses = tail if any(ok) else self.bad_losses + tail
        self.bad_steps = self.step.skips_in_a_row()
        enough = limits.DIVERGED_LOSSES
        if at_end:  # in a short run fewer suffice, if all are bad; a loss scaler may have skipped a single step
            enough = min(enough, max(1 if self.step.scaler is None else 2, steps - self.first))
        first = steps - self.bad_losses
        if names := [] if finite else not_finite(self._state_arrays()):
            self.found = f"{_listed(names)} not finite after {steps} steps"
            if self.bad_losses:
                self.found = f"losses are not finite from step {first} on, and {self.found}"
            elif losses:
                first = steps - len(losses) + (ok.index(False) if False in ok else len(ok) - 1)
        elif self.bad_losses >= enough:
            self.found = f"losses are not finite from step {first} on"
        elif self.bad_steps >= limits.DIVERGED_STEPS:
            first = steps - self.bad_steps
            self.found = f"all steps from step {first} on were skipped, because their gradients are not finite"
        else:
            self._keep()
        self.bad_step = first
        return bool(self.found)

    def _state_arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {}
        memory = memories(self.step.optimizer)
        for name, value in values(self.step.optimizer).items():
            arrays |= {f"the parameters {name!r}": value, f"the optimizer's state of {name!r}": memory[name]}
        return arrays | {f"the average of {name!r}": v for name, v in averages(self.step.ema).items()}

    def message(self) -> str:
        """The warning: what diverged, the cause if known, the weights that the field has now, and advice."""
        when = f"after {self.steps} steps" if self.steps > self.first else "at the start"
        where = f"the parameters it had {when}, the last known to be finite"
        if not_finite(self.kept):
            where, cause, advice = "its initial parameters", "Its initial parameters were not finite", "another field"
        else:
            cause, advice = self._cause()
        return f"fit: training diverged: {self.found}. The field has {where}. {cause}. What usually helps: {advice}."

    def _cause(self) -> tuple[str, str]:
        """The cause, as far as the batch of the first bad step shows it, and advice."""
        step, batch = self.step, f"the batch of step {self.bad_step}"
        key = Key(self.run.seed_number, step=self.bad_step)
        advice = "a smaller lr, one that rises at the start, clip_norm=1"
        if step.scaler is not None:
            advice += ", smaller outputs, single precision (on LLVM)"
        try:
            with dr.suspend_grad():
                drawn, names = step.draw(key), ("the coordinates", "the targets", "the densities")
                plain = step.objective is None
                inputs = dict(zip(names, drawn, strict=False)) if plain else {"what batch() returned": drawn}
                if bad := not_finite(inputs):
                    return f"In {batch}, {_listed(bad)} not finite", "a batch() that draws finite numbers"
                y = {"the field's output": step.field(drawn[0], key)} if plain else {}
                bad = not_finite(y | {"the losses": step.evaluate(drawn, key)})
        except Exception as error:  # must not replace the message
            return f"The batch of step {self.bad_step} cannot be evaluated again ({error})", advice
        advice = f"a loss without poles, {advice}"
        if bad:
            return f"For {batch}, which is finite, {_listed(bad)} not finite with those parameters", advice
        if self.bad_steps >= limits.DIVERGED_STEPS:
            return f"For {batch}, the losses are finite, but not their gradients", advice
        return f"For {batch}, all was finite with those parameters", advice

    def skipped_message(self) -> str:
        """The warning if more than half of the steps were skipped, otherwise nothing."""
        skipped, steps = self.result.skipped - self.skipped_before, self.checked - self.first
        if 2 * skipped <= steps:
            return ""
        advice = "a smaller loss, bounded outputs, single precision (on LLVM)"
        problem = f"{skipped} of {steps} steps were skipped, because their gradients overflowed half precision"
        return f"fit: {problem}. What usually helps: {advice}."


def not_finite(values: dict[str, Any]) -> list[str]:
    """Which of ``values``, arrays or PyTrees of them, hold numbers that are not finite."""
    masks = {name: [~dr.isfinite(v) for v in float_arrays(value)] for name, value in values.items()}
    dr.eval(masks)
    counts = {name: sum(map(dr.count, parts)) for name, parts in masks.items() if parts}
    total: Any = sum(counts.values())
    if not counts or not total.numpy()[0]:  # the usual case, decided by one number from the device
        return []
    return [name for name, count in counts.items() if count.numpy()[0]]


def float_arrays(tree: Any) -> list[Any]:
    """The floating point arrays in a PyTree, flat and without their gradients."""
    flat = (dr.detach(v.array if dr.is_tensor_v(v) else v) for v in leaves(tree) if dr.is_float_v(v))
    return [v for v in flat if dr.width(v)]


def _listed(names: list[str]) -> str:
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{some} {'is' if len(names) == 1 and names[0].startswith('what') else 'are'}"
