"""One training step, which :func:`coopnet.fit` freezes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import drjit as dr
from drjit.opt import Optimizer

from ..checks import plain
from ..checks.warn import warn
from ..engine import ExternalProducts, innermost, leaving, loss_inside
from ..field import NeuralField
from ..jit.batch_size import batch_size_known
from ..jit.captures import Captures
from ..jit.literals import is_literal
from ..jit.optimizers import decay_rate, own_rates, set_values, values
from ..jit.scopes import scope_number
from ..nn.parameters import like
from ..random.key import Key
from . import limits
from .average import EMA
from .gradients import clip_gradient_norm, set_gradient
from .inner_loss import loss_in_kernel
from .losses import components, loss_function
from .memory import check_memory
from .scaler import LossScaler
from .weights import decay_masks, multipliers_of


@dataclass(frozen=True)
class Options:
    """Options of a step: arguments of :func:`coopnet.fit` under their names, see there."""

    loss: str | Callable = "l2"
    objective: Callable | None = None
    penalty: Callable | None = None
    weight_decay: float = 0.0
    clip_norm: float | None = None
    multipliers: Mapping[str, float] | None = None
    ema: EMA | None = None
    loss_scale: float | None = None

    def __post_init__(self) -> None:
        # an operation of a NumPy number with a Dr.Jit array would be NumPy's
        for name in ("weight_decay", "clip_norm", "loss_scale"):
            object.__setattr__(self, name, plain(getattr(self, name)))


class Step:
    """A step in named pieces, which derived classes replace or run separately; :meth:`advance` shows their order.

    The object holds their data. Its arrays are inputs of the frozen function, and the user's functions are part of it.
    """

    DRJIT_STRUCT = {
        "field": NeuralField, "optimizer": Optimizer, "scaler": LossScaler, "multipliers": dict, "decays": dict,
        "ema": EMA, "losses": object,
    }  # fmt: skip

    def __init__(self, field: NeuralField, optimizer: Optimizer, batch: Callable, options: Options):
        check_memory(field, optimizer, options)
        self.field, self.optimizer, self.ema = field, optimizer, options.ema
        self.batch, self.loss = batch, loss_function(options.loss, "fit")
        self.objective, self.penalty = options.objective, options.penalty
        self.clip_norm, self.weight_decay = options.clip_norm, options.weight_decay
        self.float32 = field.float32
        self.uint32 = dr.uint32_array_t(self.float32)
        self.loss_scale = options.loss_scale
        self.multipliers = (
            {} if options.multipliers is None else multipliers_of("fit: multipliers", field, options.multipliers)
        )
        self.decays: dict[str, Any] = {}  # for each entry, 1 if it decays
        if self.weight_decay > 0:
            trained = getattr(optimizer, "train_matrices", True)
            self.decays = decay_masks(field) if trained else {}
        elif decay_rate(optimizer) > 0:
            self.weight_decay = decay_rate(optimizer)
            self.decays = {name: dr.opaque(self.float32, 1) for name in field}
        self.untouched = False
        #: Did the last step leave matrix products to a library?
        self.left = False
        #: Number of steps to take, 0 if unknown.
        self.runs = 0
        self.begin()
        self.frozen, self.several, self.rest = self.freeze(), self.freeze(_take_several), dr.freeze(_finish)

    def freeze(self, function: Callable | None = None) -> Any:
        """:meth:`take`, or another ``function`` of a step, frozen with the arrays that users' functions refer to."""
        functions = self.batch, self.loss, self.objective, self.penalty
        return dr.freeze(function or _take, state_fn=Captures(*functions))

    def begin(self) -> None:
        """Make the initial state of a run, beside the parameters."""
        self.scaler = None
        if any(dr.is_half_v(v) for v in self.field.values()):
            scale = limits.SCALE_START if self.loss_scale is None else self.loss_scale
            self.scaler = LossScaler(self.float32, scale, self.loss_scale is None)
        #: Mean losses of the last steps; that of a step is at its number modulo :data:`~.limits.WINDOW_STEPS`.
        self.losses = dr.zeros(self.float32, limits.WINDOW_STEPS)
        dr.make_opaque(self.losses)

    def __call__(self, seed: Any, number: Any) -> None:
        """Take step ``number``, frozen. Both are opaque."""
        gradients, operands, external = self.frozen(self, seed, number)
        self.left = external is not None
        if external is not None:
            self.rest(self, gradients, external.multiply(operands), external)
        self.warn_untouched()

    def call_several(self, seed: Any, number: Any, rates: list) -> None:
        """Take steps from ``number`` on, one for each of the learning rates, frozen. All are opaque."""
        self.several(self, seed, number, rates)
        self.untouched = False  # an earlier single step has warned

    def warn_untouched(self) -> None:
        """Warn, once, that no gradient reaches the parameters."""
        if self.untouched:
            self.untouched = False
            where = "fit: no gradient reaches the parameters of the field; nothing is learned."
            hint = "The loss must depend on them: evaluate this field, without dr.detach or dr.suspend_grad; in Mitsuba"
            warn(f"{where} {hint}, call mi.render(scene, params=mi.traverse(scene)), traversed in the objective.")

    def take(self, seed: Any, number: Any) -> tuple[dict[str, Any], list, ExternalProducts | None]:
        """The traced step. It takes no key, because traversing one in Python costs time.

        Unless the step is complete, returns the arguments of :meth:`finish`: the gradients so far, operands of
        products, and instructions for them.
        """
        self.push()
        return self.advance(seed, number, False, self.settle)

    def take_several(self, seed: Any, number: Any, rates: list) -> None:
        """The traced steps from ``number`` on, all of them complete."""
        before = self.optimizer.lr
        numbers = [number + i for i in range(len(rates))]
        self.push()
        dr.eval(numbers, list(self.field.values()))  # so that all steps have the same kernels
        try:
            for one, rate in zip(numbers, rates, strict=True):
                self.optimizer.lr = rate
                # the kernel of an update also rounds the parameters for the next step
                self.advance(seed, one, True, self.settle if one is numbers[-1] else self.push)
        finally:
            self.optimizer.lr = before

    def advance(
        self, seed: Any, number: Any, whole: bool, leave: Callable[[], None]
    ) -> tuple[dict[str, Any], list, ExternalProducts | None]:  # fmt: skip
        """As :meth:`take`, from a field with the optimizer's parameters, including all matrix products if ``whole``;
        ``leave`` is called at the end of a complete step.
        """
        value, external = self.differentiate(Key(seed, None, number), whole)
        # dr.mean() would copy the width to the device at every replay, and wait for all kernels before it
        mean = dr.sum(value) * (1 / dr.width(value))
        if external is None or not external.entries:
            self.move(number, mean)
            leave()
            dr.eval(self.scaler, self.losses, self.optimizer.state, self.ema, list(self.field.values()))
            return {}, [], None
        self.note(number, mean)
        gradients, operands = self.taken_gradients(), external.take()
        dr.eval(self.losses, gradients, operands)
        return gradients, operands, external

    def differentiate(self, key: Key, whole: bool = False) -> tuple[Any, ExternalProducts | None]:
        """Compute the gradients of the losses of ``key``; returns the losses, and products that are left to a library,
        if any.
        """
        external = None if whole else ExternalProducts.if_library(self.field, self.runs)
        # if captured arrays change their width, the step is recorded again; an objective may evaluate batches of any
        # size
        with leaving(external), batch_size_known(self.objective is None):
            before = scope_number(self.float32)
            drawn = self.draw(key)
            straight = scope_number(self.float32) == before
            inner = loss_in_kernel(self.field, self.loss, drawn, straight) if self.objective is None else None
            with loss_inside(inner):
                losses = self.evaluate(drawn, key)
            value = dr.detach(losses)
            if inner is not None and inner.taken:
                inner.cotangent = self.scaled(self.float32(self.weight(losses)))
            else:
                dr.schedule(value)  # so that the kernel of the backward pass writes it, too
                inner = None
            if external is not None:
                external.open = True
            self.pullback(losses)
        return value if inner is None else inner.losses, external

    def taken_gradients(self) -> dict[str, Any]:
        """The flat gradients so far, which are removed from the parameters."""
        gradients = {name: value.array.grad for name, value in values(self.optimizer).items()}
        dr.clear_grad(values(self.optimizer))
        self.release(self.field)
        return gradients

    def finish(self, gradients: dict[str, Any], products: list, external: ExternalProducts) -> None:
        """The second half of a step that left products to a library, whose results are the gradients of networks."""
        complete = external.completed(gradients, products)
        for name, value in values(self.optimizer).items():
            set_gradient(value, complete[name])
        self.move()
        self.settle()
        dr.eval(self.scaler, self.optimizer.state, self.ema)

    def move(self, number: Any = None, mean: Any = None) -> None:
        """The part of a step that uses the gradients. A ``mean`` loss is noted as that of step ``number``."""
        self.clip()
        unscaling = self.unscale()
        if mean is not None:
            self.note(number, mean)  # here, so that it shares a kernel with other single numbers
        self.update(unscaling)

    def note(self, number: Any, mean: Any) -> None:
        """Write the mean loss of step ``number``, of each field if ``mean`` has several entries."""
        count = dr.width(mean)
        slot = number % limits.WINDOW_STEPS * count + dr.arange(self.uint32, count)
        dr.scatter(self.losses, self.float32(mean), slot, mode=dr.ReduceMode.Permute)

    # ---- pieces -------------------------------------------------------------

    def push(self) -> None:
        """Give the field the optimizer's parameters, with gradients enabled."""
        self.field.update(self.optimizer)

    def draw(self, key: Key) -> Any:
        """The batch of ``key``."""
        return self.batch(key.traced(self.uint32))

    def evaluate(self, drawn: Any, key: Key) -> Any:
        """The loss of each sample."""
        if self.objective is not None:
            return self.objective(self.field, drawn, key)
        coordinates, targets, *pdf = drawn
        y = self.field(coordinates, key)
        y, targets = components(y, "fit: the field's output"), components(targets, "fit: targets of batch()")
        try:
            return self.loss(y, targets, **({"pdf": pdf[0]} if pdf else {}))
        except TypeError as error:
            if "'list'" not in str(error):
                raise
            hint = "loss gets two lists, with an array for each output, as in"
            code = "lambda y, t: sum(dr.square(a - b) for a, b in zip(y, t))"
            raise TypeError(f"fit: loss raised TypeError: {error}; {hint} {code}.") from error

    def pullback(self, losses: Any) -> None:
        """Backpropagate the scaled mean loss and penalty to the optimizer's parameters."""
        for root in self.roots(losses):
            scaled = self.scaled(root)
            dr.set_grad(scaled, 1)
            dr.enqueue(dr.ADMode.Backward, scaled)
        dr.traverse(dr.ADMode.Backward)  # both at once: the first traversal frees the graph
        # known while recording: a gradient to which nothing was added is a literal
        gradients = [value.array.grad for value in values(self.optimizer).values()]
        external = innermost()
        untouched = all(map(is_literal, gradients))
        self.untouched = untouched and not (external is not None and external.entries)

    def scaled(self, value: Any) -> Any:
        """``value`` times the loss scale, if there is one."""
        return value if self.scaler is None else self.scaler.scale(value)

    def roots(self, losses: Any) -> list:
        """The summands that are differentiated: the mean loss and the penalty."""
        # Each loss is differentiated with the weight it has in the mean. A reduction would cost a second forward pass.
        return [losses * self.weight(losses), *([] if self.penalty is None else [self.penalty(self.field)])]

    def weight(self, losses: Any) -> float:
        """The weight of each of ``losses`` in the mean over the batch."""
        return 1 / dr.width(losses)

    def clip(self) -> None:
        """Limit the norm of the gradients, which are still scaled."""
        if self.clip_norm is not None:
            clip_gradient_norm(self.optimizer, self.scaled_limit(self.scaler))

    def scaled_limit(self, scaler: LossScaler | None) -> Any:
        """The largest norm of the gradients, times the scale factors of ``scaler``."""
        limit = dr.opaque(self.float32, self.clip_norm)
        return limit if scaler is None else limit * scaler.scale_factor

    def unscale(self) -> dict[str, Any]:
        """The arguments with which the optimizer undoes the scale, or skips the step."""
        if self.scaler is None:
            return {}
        return self.scaler.unscale(value.array.grad for value in values(self.optimizer).values())

    def update(self, unscaling: dict[str, Any]) -> None:
        """Decay weights, move the parameters, and take the average."""
        with own_rates(self.optimizer, self.multipliers) as rates:
            self.decay(rates)
            self.optimizer.step(eval=False, **unscaling)
        if self.ema is not None:
            self.ema.update(self.optimizer)

    def decay(self, rates: Mapping[str, Any]) -> None:
        """Decay weights before the optimizer's step, so that the slow weights of ``lookahead`` average decayed ones."""
        for name, entries in self.decays.items():
            value = values(self.optimizer)[name]
            flat = dr.detach(value).array
            decayed = dr.fma(flat, -type(flat)(rates[name] * self.weight_decay * entries), flat)
            if self.scaler is not None:
                decayed = dr.select(self.scaler.skips(), flat, decayed)
            new = like(value, decayed)
            set_gradient(new, value.array.grad)
            set_values(self.optimizer, {name: new})

    # ---- around a step ------------------------------------------------------

    def release(self, source: Mapping[str, Any]) -> None:
        """Give the field the parameters of the optimizer, or its own, without gradients."""
        self.field.update({name: dr.detach(source[name]) for name in source})

    def settle(self) -> None:
        """Restore the state of the field before the first step, so that the next is not recorded again: without
        gradients, and with the optimizer's arrays, unless these are promoted to single precision.
        """
        before, parameters = values(self.optimizer), self.field.items()
        self.release({name: before[name] if type(before[name]) is type(value) else value for name, value in parameters})

    def recordings(self) -> int:
        """How often the step was traced."""
        return self.frozen.n_recordings + self.several.n_recordings

    def skipped(self) -> int:
        """How many steps the scaler has skipped."""
        return 0 if self.scaler is None else int(self.scaler.skipped.numpy()[0])

    def skips_in_a_row(self) -> int:
        """How many of the last steps the scaler has skipped, one after the other."""
        return 0 if self.scaler is None else int(self.scaler.streak.numpy()[0])


# Frozen functions traverse the global variables that they refer to, at every call. These refer to none.


def _take(step: Any, *args: Any) -> Any:
    return step.take(*args)


def _take_several(step: Any, *args: Any) -> None:
    step.take_several(*args)


def _finish(step: Any, *args: Any) -> Any:
    return step.finish(*args)
