"""Makes Dr.Jit record a frozen function again if the number of samples changes.

Sizes of spilled buffers, shapes of products and numbers of banks are constants of a recording. A replay checks operand
sizes of matrix products before it launches anything, but only arrays that kernels return follow the new number of
samples. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any

import drjit as dr

from .scopes import frozen

_known: contextvars.ContextVar[bool] = contextvars.ContextVar("batch size known", default=False)


@contextlib.contextmanager
def batch_size_known(known: bool = True) -> Iterator[None]:
    """A context in a frozen function; with ``known``, the caller has it recorded again for another batch size."""
    token = _known.set(known)
    try:
        yield
    finally:
        _known.reset(token)


def batch_sample(vectors: Sequence[Any], samples: int) -> Any:
    """An array for :func:`pin_batch_size`, to be evaluated with ``vectors``, some of which have an entry per sample.

    ``None`` if nothing is recorded, or the caller handles it.
    """
    return summed(vectors, samples) if frozen() and not _known.get() else None


def summed(vectors: Sequence[Any], samples: int) -> Any:
    """The sum of ``vectors``: each of them may be a constant, as gradients often are, without a number of samples."""
    parts = [v for v in vectors if dr.width(v) == samples and v.state != dr.VarState.Literal]
    total = sum(parts[1:], parts[0]) if parts else vectors[0] + dr.zeros(type(vectors[0]), samples)
    # nor does an array that is not computed in the recording
    return total + dr.opaque(type(total), 0) if total.state == dr.VarState.Evaluated else total


def pin_batch_size(sample: Any) -> None:
    """Have the recording fail its check for another size of ``sample``, a :func:`batch_sample` that is evaluated."""
    if sample is None:
        return
    tensor = dr.tensor_t(type(sample))
    n = dr.width(sample)
    # of the shapes that fit a GPU's grid at any size, a few dozen rows were fastest
    rows = next(r for r in range(min(n, 128), 0, -1) if n % r == 0)
    dr.eval(dr.full(tensor, 1, (1, rows)) @ tensor(sample, (rows, n // rows)))
