"""Makes Dr.Jit record a frozen function anew when the number of samples changes.

Sizes of spilled buffers, shapes of products and numbers of banks are constants of a recording. A replay checks operand
sizes of matrix products before it launches anything, but only arrays that kernels return follow the new number of
samples. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr


def batch_sample(vectors: Sequence[Any], samples: int) -> Any:
    """An array for :func:`pin_batch_size`, to be evaluated with ``vectors``, some of which have an entry per sample.

    It is their sum: one alone may be a constant, as gradients often are, which does not follow the number of samples.
    """
    parts = [v for v in vectors if dr.width(v) == samples and v.state != dr.VarState.Literal]
    total = sum(parts[1:], parts[0]) if parts else vectors[0] + dr.zeros(type(vectors[0]), samples)
    # nor does an array that is not computed in the recording
    return total + dr.opaque(type(total), 0) if total.state == dr.VarState.Evaluated else total


def pin_batch_size(sample: Any) -> None:
    """Have the recording fail its check for another size of ``sample``, a :func:`batch_sample` that is evaluated.

    Nothing for ``None``, as where no function is recorded.
    """
    if sample is None:
        return
    tensor = dr.tensor_t(type(sample))
    n = dr.width(sample)
    # of the shapes that fit a GPU's grid at any size, a few dozen rows measured fastest
    rows = next(r for r in range(min(n, 128), 0, -1) if n % r == 0)
    dr.eval(dr.full(tensor, 1, (1, rows)) @ tensor(sample, (rows, n // rows)))
