"""The memory that a run needs beside its field, counted before its first kernel, because Dr.Jit ends the process if
memory is missing later."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import drjit as dr
from drjit.opt import Optimizer

from ..checks.memory import check_room
from ..field import NeuralField
from ..jit.optimizers import memories, set_state
from ..nn.sequential import stated_width
from .trees import leaves

# How many arrays of a parameter's size, in single precision, a step needs at a time beside the field's own.
# Measured by Dr.Jit's watermark on LLVM, whose cache keeps blocks of every size that was requested.
PARAMETERS = 4  #: parameters before and after the step, the last finite ones, and the check whether they are finite
GRADIENTS = 1.5  #: the gradient, and the buffer in which it is summed
CLIPPED = 2  #: squares of the gradient, and the clipped gradient
STATE = 2.5  #: for each array of the optimizer: before and after the step, and the check whether it is finite
AVERAGE = 1.5  #: the average after the step, and the last finite one; the average before the step exists already
ONES = 2  #: a factor of the rate or decay for each entry, and its product
BEST = 1  #: the parameters of the best metric

#: Approximate bytes to compile a step.
KERNELS = 1 << 27
#: Size of the parameter that an optimizer is given as a test, to count the arrays of that size that it keeps.
_PROBE = 37


def check_memory(
    field: NeuralField, optimizer: Optimizer, options: Any, *, best: bool = False, samples: int = 0, together: int = 1
) -> None:  # fmt: skip
    """Raise ``ValueError`` if the host has not enough memory to train ``field``; the message shows the calculation.

    Args:
        optimizer: one without parameters yet. If it has parameters, its memory is allocated already.
        options: the :class:`Options` of a step.
        best: are the best parameters kept?
        samples: number of samples in a batch; 0 leaves the memory of batches out.
        together: number of fields like this one that are trained at a time.
    """
    if len(optimizer) or field.backend != "llvm":
        return  # the optimizer's state is allocated already; on GPUs Dr.Jit raises an error if memory is missing
    sizes = [together * max(4, dr.itemsize_v(v)) * math.prod(dr.shape(v)) for v in field.values()]
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
    hint = "A smaller field, a smaller batch, or an optimizer that keeps less, such as SGD, takes less"
    check_room("fit: a step", parts, hint)


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
    """Memory for a batch: vectors between layers, and the encoding's features with their gradients."""
    if not samples:
        return []
    arrays = field.in_features + 2 * max(stated_width([field.network]), 1)
    return [together * field.explain(samples).memory, *[4.0 * together * samples] * arrays]
