"""What a run takes in memory beside its field, counted before its first kernel: memory that is missing later ends the
process."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import drjit as dr
from drjit.opt import Optimizer

from ..checks.sizes import check_room
from ..field import NeuralField
from ..jit.optimizers import memories, set_state
from ..nn.sequential import stated_width
from .trees import leaves

# Arrays of a parameter's size, in single precision, that a step has in memory at a time beside the field's own: as
# measured by Dr.Jit's watermark on LLVM, whose cache keeps blocks of every size that was asked for.
PARAMETERS = 4  #: those before and after the step, the last that were finite, and what looks at that
GRADIENTS = 1.5  #: the gradient, and what it is summed in
CLIPPED = 2  #: its squares, and what it becomes
STATE = 2.5  #: for each array that the optimizer keeps: before and after the step, and what looks at it
AVERAGE = 1.5  #: the average after the step, and the last that was finite; the first is there before
ONES = 2  #: a factor for each entry, of the rate or the decay, and what it is multiplied with
BEST = 1  #: the parameters of the best metric

#: What compiling a step takes, about: bytes.
KERNELS = 1 << 27
#: Entries of what an optimizer is tried with, to see how many arrays of a parameter's size it keeps.
_PROBE = 37


def check_memory(
    field: NeuralField, optimizer: Optimizer, options: Any, *, best: bool = False, samples: int = 0, together: int = 1
) -> None:  # fmt: skip
    """Raise ``ValueError`` if there is no room on the host for training ``field``, which says what takes how much.

    Args:
        optimizer: one without parameters yet; of another one, the room was counted when it got them.
        options: the :class:`Options` of a step.
        best: are the best parameters kept?
        samples: of a batch; 0 counts none.
        together: fields like this one that are trained at a time.
    """
    if len(optimizer) or dr.backend_v(next(iter(field._held().values()))) != dr.JitBackend.LLVM:
        return  # the optimizer's state is there already; and on GPUs Dr.Jit raises where memory is missing
    sizes = [together * max(4, dr.itemsize_v(v)) * math.prod(dr.shape(v)) for v in field._held().values()]
    kept, factors = _kept(optimizer), (options.multipliers is not None) + (options.weight_decay > 0)
    parts: dict[str, Sequence[float]] = {
        "the parameters": _arrays(sizes, PARAMETERS),
        "their gradients": _arrays(sizes, GRADIENTS + CLIPPED * (options.clip_norm is not None)),
        "the optimizer's state": _arrays(sizes, STATE * kept),
        "the weight average": _arrays(sizes, AVERAGE * (options.ema is not None)),
        "factors of learning rate and decay": _arrays(sizes, ONES * factors),
        "the best parameters": _arrays(sizes, BEST * best),
        "rows of the batch": _rows(field, samples, together),
        "compiling": [KERNELS],
    }
    cure = "A smaller field, a smaller batch, or an optimizer that keeps less, such as SGD, takes less"
    check_room("fit: a step", parts, cure)


def _kept(optimizer: Optimizer) -> float:
    """How many arrays of a parameter's size ``optimizer`` keeps for it."""
    tried = copy.copy(optimizer)
    set_state(tried, {})
    tensor = dr.llvm.ad.TensorXf
    tried["probe"] = tensor(dr.zeros(dr.llvm.ad.Float, _PROBE), (_PROBE,))
    return sum(dr.itemsize_v(v) / 4 for v in leaves(memories(tried)["probe"]) if dr.width(v.array) == _PROBE)


def _arrays(sizes: Sequence[int], count: float) -> list[float]:
    """The sizes of ``count`` arrays for each of ``sizes``."""
    return [size * part for size in sizes for part in [1.0] * int(count) + [count % 1] if part]


def _rows(field: NeuralField, samples: int, together: int) -> list[float]:
    """What a batch is written to: vectors between layers, and the encoding's features with their gradients."""
    if not samples:
        return []
    arrays = field.in_features + 2 * max(stated_width([field.network]), 1)
    return [together * field.explain(samples).memory, *[4.0 * together * samples] * arrays]
