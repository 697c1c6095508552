"""A step of several fields at once: their parameters are concatenated, their samples in neighbouring lanes.

Operations on single entries of parameters treat all fields at once. Sums over a field (its loss, the norm of its
gradient, whether that is finite) become sums over a block of entries.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import drjit as dr
from drjit import opt

from ...checks import ensure
from ...engine import Stack, StackError, stacking
from ...engine.modes import is_deterministic
from ...field import NeuralField
from ...jit.lanes import WARP
from ...jit.masks import unmasked
from ...jit.optimizers import set_state, values
from ...kernels.grid import FeatureGrid
from ...kernels.lookup import Table
from ...nn.parameters import ParameterArray, parameters
from ...nn.sequential import segments
from ...random.key import Key
from .. import limits
from ..gradients import clip_factor, set_gradient
from ..optimizers import SGD, Adam
from ..step import Step
from ..trees import mapped
from .errors import one_kernel
from .job import JobStep

#: Optimizers that treat every entry of a parameter separately.
_BY_ENTRY = (Adam, SGD, opt.Adam, opt.AdamW, opt.SGD, opt.RMSProp)


def hindrance(step: JobStep) -> str:
    """The reason why fields cannot be trained in one kernel by steps like ``step``; an empty string if they can."""
    optimizer = step.optimizer
    if type(optimizer) not in _BY_ENTRY or getattr(optimizer, "uniform", False):
        return f"{type(optimizer).__name__} is not element-wise"
    if getattr(optimizer, "_remembers", False):
        return "accumulation and lookahead depend on the step count"
    owners = {name for p in parameters(step.field) if (name := _unknown(p.owner, p.value))}
    if owners:
        return f"one kernel cannot hold several fields' parameters of {', '.join(sorted(owners))}"
    others = [s.layers for s in segments([step.field.network]) if s.ops is None]
    if others:
        names = sorted({type(layer).__name__ for layers in others for layer in layers})
        return f"the engine does not evaluate {', '.join(names)}"
    if is_deterministic():
        return "gradients would be summed with atomics, in no fixed order"
    return ""


def lanes_of(samples: int, backend: dr.JitBackend) -> int:
    """The number of lanes for the samples of a field: whole warps on a GPU.

    All lanes of a warp add their outer products to the matrix of one of them (OptiX 9, driver 580), so a warp must not
    hold samples of two fields.
    """
    return -(-samples // WARP) * WARP if backend == dr.JitBackend.CUDA else samples


def _unknown(owner: Any, value: Any) -> str:
    if isinstance(value, dr.nn.MatrixView) or isinstance(owner, (FeatureGrid, Table)):
        return ""
    if isinstance(owner, ParameterArray):
        return "a layer with a learned rate, frequency or deviation"
    return type(owner).__name__


class GroupStep(JobStep):
    """A step of all fields of ``steps``, each with ``samples`` samples, trained in lanes ``k * lanes`` and on.

    Lanes beyond the samples of a field repeat its last one, and their losses are 0.

    The architecture is that of the first field, whose own parameters are not used.

    Args:
        steps: the steps of the separate fields; their states are copied by :meth:`stack`.
        samples: number of samples of each.
        like: a group of as many fields, whose frozen function this one shares.
    """

    DRJIT_STRUCT = {
        "field": NeuralField, "optimizer": opt.Optimizer, "scales": object, "multipliers": dict, "decays": dict,
        "losses": object, "jobs": object, "seeds": object,
    }  # fmt: skip

    def __init__(self, steps: Sequence[JobStep], seeds: Sequence[int], samples: int, like: GroupStep | None):
        first, count = steps[0], len(steps)
        self.__dict__.update(first.__dict__)
        self.steps, self.samples, self.count = steps, samples, count
        self.lanes = lanes_of(samples, dr.backend_v(self.float32))
        uint32 = dr.uint32_array_t(self.float32)
        self.jobs = uint32([step.number for step in steps])
        self.seeds = dr.uint64_array_t(self.float32)(list(seeds))
        self.losses = dr.zeros(self.float32, limits.WINDOW_STEPS * count)
        dr.make_opaque(self.jobs, self.seeds, self.losses)
        self.multipliers = {k: dr.tile(v, count) for k, v in first.multipliers.items()}
        self.decays = {k: dr.tile(v, count) if dr.width(v) > 1 else v for k, v in first.decays.items()}
        dr.eval(self.multipliers, self.decays)
        # each field has its own loss scale, which the optimizer's step does not support
        self.scaler, self.scales = None, copy.copy(first.scaler)
        self.optimizer = copy.copy(first.optimizer)
        self.stack()
        # shared only by groups of the same size: a recording would not notice a different number of lanes
        self.frozen = like.frozen if like is not None else self.freeze()

    # ---- there and back -----------------------------------------------------

    def stack(self) -> None:
        """Put the states of the fields side by side."""
        state = _side_by_side([step.optimizer.state for step in self.steps])
        scales = self.scales and _side_by_side([vars(step.scaler) for step in self.steps], counters=True)
        dr.eval(state, scales)
        set_state(self.optimizer, state)
        if self.scales is not None:
            vars(self.scales).update(scales)  # type: ignore[arg-type]

    def unstack(self) -> None:
        """Give each field's step its state, and its field its parameters."""
        uint32 = type(self.jobs)
        for number, step in enumerate(self.steps):
            k = dr.opaque(uint32, number)  # otherwise each field would need a kernel of its own
            set_state(step.optimizer, _part(self.optimizer.state, step.optimizer.state, k))
            if self.scales is not None:
                vars(step.scaler).update(_part(vars(self.scales), vars(step.scaler), k))
            dr.eval(step.optimizer.state, step.scaler)
            step.release(step.optimizer)

    # ---- pieces -------------------------------------------------------------

    def take(self, seed: Any, number: Any) -> tuple[dict[str, Any], list, None]:
        """As :meth:`Step.take`; every field has a seed of its own."""
        with one_kernel():
            losses = self.evaluate_all(number)
            value = dr.detach(losses)
            dr.schedule(value)
            self.pullback(losses)
        self.move(number, dr.block_sum(value, self.lanes) * (1 / self.samples))
        dr.eval(self.scales, self.losses, self.optimizer.state)
        return {}, [], None

    def evaluate_all(self, number: Any) -> Any:
        """The loss of each sample of all fields."""
        lane = dr.arange(type(number), self.count * self.lanes)
        which, index = lane // self.lanes, lane % self.lanes
        key = Key(dr.gather(type(self.seeds), self.seeds, which), dr.minimum(index, self.samples - 1), number)
        arrays = {self.field[name].array.index: self.optimizer[name].array for name in self.field}
        with stacking(Stack(which, self.count, arrays)):
            losses = self.evaluate(self.batch(key, dr.gather(type(self.jobs), self.jobs, which)), key)
        given, needed = dr.width(losses), self.count * self.lanes
        wrong = f"there are {given} losses of {self.count} fields, not one for each of {needed} entries of key.index"
        ensure(given == needed, wrong, StackError)
        return losses if self.lanes == self.samples else dr.select(index < self.samples, losses, 0)

    def pullback(self, losses: Any) -> None:
        root = losses * (1 / self.samples)
        if self.scales is not None:
            root = root * dr.repeat(self.scales.scale_factor, self.lanes)
        dr.backward(root)

    def clip(self) -> None:
        if self.clip_norm is None:
            return
        gradients = {k: self.float32(v.array.grad) for k, v in values(self.optimizer).items()}
        squares = (dr.block_sum(dr.square(v), self._size(v)) for v in gradients.values())
        norm = dr.sqrt(sum(squares, self.float32(0)))
        factor = clip_factor(norm, self.scaled_limit(self.scales))
        dr.eval(factor)
        self._set_gradients({k: v * self._each(factor, v) for k, v in gradients.items()})

    def unscale(self) -> dict[str, Any]:
        return {}  # see update()

    def update(self, unscaling: dict[str, Any]) -> None:
        if self.scales is None:
            super().update(unscaling)
            return
        gradients = {k: v.array.grad for k, v in values(self.optimizer).items()}
        broken = sum((dr.block_sum(_broken(v), self._size(v)) for v in gradients.values()), type(self.jobs)(0))
        factor = self.scales.update(broken == 0)["grad_scale"]
        finite = {k: self._each(broken, v) == 0 for k, v in gradients.items()}
        before = dict(self.optimizer.state)
        self._set_gradients({k: v * type(v)(self._each(factor, v)) for k, v in gradients.items()})
        super().update({})
        set_state(self.optimizer, {k: _chosen(finite[k], new, before[k]) for k, new in self.optimizer.state.items()})

    def _size(self, stacked: Any) -> int:
        return dr.width(stacked) // self.count

    def _each(self, of_fields: Any, stacked: Any) -> Any:
        """An array with an entry for each field, repeated for every entry of ``stacked``."""
        return dr.repeat(of_fields, self._size(stacked))

    def _set_gradients(self, gradients: Mapping[str, Any]) -> None:
        for name, value in values(self.optimizer).items():
            set_gradient(value, gradients[name])


def restart(step: Step, kept: Mapping[str, Any]) -> None:
    """Continue the training of a diverged field from the parameters ``kept``, with a new state of the optimizer."""
    state = {}
    for name, (_, promoted, rate, memory) in step.optimizer.state.items():
        empty = mapped(lambda v: v if _counts(v) else dr.zeros(type(v), dr.width(v)), memory)
        state[name] = (dr.copy(kept[name]), promoted, rate, empty)
    set_state(step.optimizer, state)


def _broken(gradient: Any) -> Any:
    return dr.select(dr.isfinite(gradient), dr.uint32_array_t(type(gradient))(0), 1)


# ---- states -----------------------------------------------------------------


def _counts(array: Any) -> bool:
    """Is it a number of steps? Fields that are trained together share it."""
    return math.prod(dr.shape(array)) == 1 and dr.is_integral_v(array)


def _side_by_side(trees: list, counters: bool = False) -> Any:
    def joined(*arrays: Any) -> Any:
        flat = [dr.detach(v).array for v in arrays]
        return flat[0] if _counts(arrays[0]) and not counters else dr.concat(flat)

    return mapped(joined, *trees)


def _part(tree: Any, like_tree: Any, k: Any) -> Any:
    """The part of field ``k``, a ``UInt32``, in a stacked ``tree``, with the shapes of a single field."""

    def part(old: Any, whole: Any) -> Any:
        flat, size = dr.detach(whole).array, math.prod(dr.shape(old))
        if dr.width(flat) > 1 or not _counts(old):
            with unmasked(type(flat)):
                flat = dr.gather(type(flat), flat, dr.arange(type(k), size) + k * size)
        return type(old)(flat, dr.shape(old)) if dr.is_tensor_v(old) else flat

    return mapped(part, like_tree, tree)


def _chosen(good: Any, new: Any, old: Any) -> Any:
    """``new`` state where ``good``, ``old`` elsewhere; numbers of steps go on, as Dr.Jit's optimizers count them."""
    return mapped(
        lambda n, o: n if dr.width(n) != dr.width(good) else dr.select(good, dr.detach(n), dr.detach(o)), new, old
    )
