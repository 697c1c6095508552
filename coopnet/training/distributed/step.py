"""A step of several processes: each computes gradients of its share of a batch, and all apply the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drjit as dr
from drjit.opt import Optimizer

from ...checks import ensure
from ...engine import ExternalProducts
from ...field import NeuralField
from ...jit.captures import text_key
from ...jit.optimizers import values
from ...random.key import Key
from ..gradients import set_gradient
from ..recording import reasons
from ..sampling import samples_by_index
from ..step import Options, Step
from .replicas import Replicas
from .shares import bounds, sliced


class SharedStep(Step):
    """A step whose gradients are those of a whole batch, though this process works on its samples alone.

    Samples keep their numbers in the whole batch, and so their dropout masks. Everything that is summed is in one flat
    single-precision buffer: the gradients of all parameters, and the sum of the losses. If the group sums over chunks,
    there is such a buffer for each chunk, one behind the other; chunks of other processes are zeros.
    """

    def __init__(
        self, field: NeuralField, optimizer: Optimizer, batch: Callable, options: Options, replicas: Replicas
    ):  # fmt: skip
        super().__init__(field, optimizer, batch, options)
        self.replicas, self.group = replicas, replicas.group
        self.parts = self.group.chunks or self.group.size  # of a batch, in all processes
        self.joined = dr.freeze(_join)
        self.sizes = {name: dr.width(value.array) for name, value in self.field.items()}
        self.size = sum(self.sizes.values()) + 1
        self.total = self.samples = self.each = 0
        self.chunks: list[tuple[int, int]] = []  # samples of this process, from and to
        self.width, self.first = 0, False  # the samples of the chunk that is traced, and whether it is the first of all

    def divide(self, total: int) -> None:
        """Share batches that have ``total`` losses among the processes."""
        self.samples = samples_by_index(self.batch) or total
        self.total, self.each = total, total // self.samples
        parts, size = self.parts, self.group.size
        valid = self.each * self.samples == total
        ensure(
            valid, f"fit: a batch of {self.samples} samples by_index has {total} losses; as many for each are needed."
        )
        ensure(parts % size == 0, f"fit: {parts} chunks cannot be shared evenly among {size} processes.")
        hint = "the loss of each sample is needed, not their mean"
        ensure(total > 1 or parts == 1, f"fit: a batch with one loss cannot be shared among {parts}; {hint}.")
        ensure(self.samples >= parts, f"fit: a batch of {self.samples} samples cannot be shared among {parts}.")
        count = parts // size
        self.chunks = bounds(self.samples, parts)[self.group.rank * count : (self.group.rank + 1) * count]

    def __call__(self, seed: Any, number: Any) -> None:
        replicas = self.replicas
        buffer: Any = None
        if replicas.error is None:
            with replicas.noting(), reasons():
                buffer = self.share(seed, number)
        if buffer is None:  # after an error, because other processes wait for a summand
            buffer = dr.zeros(self.float32, self.size * (self.group.chunks or 1))
            dr.make_opaque(buffer)
        buffer = self.group.sum(buffer)
        if replicas.error is None:
            with replicas.noting():
                self.rest(self, buffer, number)
                if replicas.leads:
                    self.warn_untouched()

    def share(self, seed: Any, number: Any) -> Any:
        """The buffer of this process, which is added to those of the others."""
        parts = [self.chunk(seed, number, lo, hi) for lo, hi in self.chunks]
        if self.group.chunks is None:
            return parts[0]
        buffer = dr.zeros(self.float32, self.size * self.group.chunks)
        for i, part in enumerate(parts, self.group.rank * len(parts)):
            entry = dr.arange(self.uint32, self.size) + dr.opaque(self.uint32, i * self.size)
            dr.scatter(buffer, part, entry, mode=dr.ReduceMode.Permute)
        dr.eval(buffer)
        return buffer

    def chunk(self, seed: Any, number: Any, lo: int, hi: int) -> Any:
        """The gradients of samples ``lo`` to ``hi``."""
        start = dr.opaque(self.uint32, lo)
        first = lo == 0 or self.penalty is None  # without a penalty, one recording serves all chunks
        self.width, self.first = hi - lo, first
        key = text_key(self.width, self.first)
        result, gradients, operands, external = self.frozen(self, seed, number, start, key)
        return (
            result if external is None else self.joined(self, result, gradients, external.multiply(operands), external)
        )

    # ---- frozen functions ---------------------------------------------------

    def take(self, seed: Any, number: Any, start: Any, key: str) -> tuple:  # type: ignore[override]
        """The first part of a step, of ``self.width`` samples from number ``start`` on; ``key`` tells recordings apart.

        Returns the buffer, or the arguments with which :meth:`join` makes it: the sum of losses, the gradients so far,
        operands of products, and instructions for them.
        """
        self.push()
        # with one part, the number of losses may differ from that of samples, so that no index follows from it
        index = dr.arange(self.uint32, self.width) + start if self.parts > 1 else None
        value, external = self.differentiate(Key(seed, index, number))
        loss = self.float32(dr.sum(value))
        gradients = self.taken_gradients()
        if external is None or not external.entries:
            buffer = self.flat(gradients, loss)
            dr.eval(buffer)
            return buffer, {}, [], None
        operands = external.take()
        dr.eval(loss, gradients, operands)
        return loss, gradients, operands, external

    def join(self, loss: Any, gradients: dict[str, Any], products: list, external: ExternalProducts) -> Any:
        """The buffer, once the products have been computed."""
        buffer = self.flat(external.completed(gradients, products), loss)
        dr.eval(buffer)
        return buffer

    def finish(self, buffer: Any, number: Any) -> None:  # type: ignore[override]
        """The last part: update the parameters by the summed gradients of all processes."""
        offset = 0
        for name, value in values(self.optimizer).items():
            set_gradient(value, self.summed(buffer, offset, self.sizes[name]))
            offset += self.sizes[name]
        self.move(number, self.summed(buffer, offset, 1) * (1 / self.total))
        self.settle()
        dr.eval(self.scaler, self.losses, self.optimizer.state, self.ema)

    def flat(self, gradients: dict[str, Any], loss: Any) -> Any:
        buffer, offset = dr.empty(self.float32, self.size), 0
        for name, gradient in gradients.items():
            entry = dr.arange(self.uint32, self.sizes[name]) + offset
            dr.scatter(buffer, self.float32(gradient), entry, mode=dr.ReduceMode.Permute)
            offset += self.sizes[name]
        dr.scatter(buffer, loss, self.uint32(offset), mode=dr.ReduceMode.Permute)
        return buffer

    def summed(self, buffer: Any, offset: int, size: int) -> Any:
        """``size`` entries of the buffer from ``offset`` on, summed over chunks in their order."""
        entry = dr.arange(self.uint32, size) + offset
        if self.group.chunks is None:
            return dr.gather(self.float32, buffer, entry)
        # The sum starts from an opaque zero. Adding zeros of other processes turns -0 into +0, and this way a single
        # process does the same.
        total = dr.opaque(self.float32, 0)
        for i in range(self.group.chunks):
            total = total + dr.gather(self.float32, buffer, entry + i * self.size)
        return total

    # ---- pieces -------------------------------------------------------------

    def draw(self, key: Key) -> Any:
        """The samples of a batch that the index of ``key`` names, or all."""
        if key.index is None or samples_by_index(self.batch) is not None:
            return super().draw(key)
        return sliced(self.batch(Key(key.seed, None, key.step)), self.samples, key.index)

    def roots(self, losses: Any) -> list:
        """The summands that are differentiated: this share of the mean loss and, in the first share, the penalty."""
        width, needed = dr.width(losses), self.width * self.each
        problem = f"{width} losses for a share of {self.width} of {self.samples} samples"
        hint = "each must belong to a sample of the batch, or of coopnet.training.by_index"
        ensure(width == needed, f"fit: there are {problem}; {needed} are needed: {hint}.")
        roots = [losses * self.weight(losses)]
        if self.penalty is not None and self.first:
            roots.append(self.penalty(self.field))
        return roots

    def weight(self, losses: Any) -> float:
        """The weight in the mean over the batches of all processes."""
        return 1 / self.total


# Frozen functions traverse the global variables that they refer to, at every call. This one refers to none.


def _join(step: Any, *args: Any) -> Any:
    return step.join(*args)
