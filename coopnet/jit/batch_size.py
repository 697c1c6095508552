"""Makes Dr.Jit record a frozen function again if the number of samples changes.

Sizes of spilled buffers, shapes of products and numbers of banks are constants of a recording. Before a replay launches
anything, it checks the operand sizes of matrix products. Of these operands, only arrays that kernels return follow the
new number of samples. So code here adds a product of such an array. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..context import Context
from .literals import is_literal
from .scopes import frozen

#: ``with batch_size_known(known)``, in a frozen function: does its caller record it again for another batch size?
batch_size_known = Context("batch size known", False)


def batch_sample(vectors: Sequence[Any], samples: int) -> Any:
    """An array for :func:`pin_batch_size`; ``None`` if nothing is recorded, or within ``batch_size_known(True)``.

    Evaluate it together with ``vectors``, some of which have an entry per sample.
    """
    return summed(vectors, samples) if frozen() and not batch_size_known.get() else None


def summed(vectors: Sequence[Any], samples: int) -> Any:
    """The sum of those ``vectors`` that have an entry per sample and are no constants, as gradients often are."""
    parts = [v for v in vectors if dr.width(v) == samples and not is_literal(v)]
    total = sum(parts[1:], parts[0]) if parts else vectors[0] + dr.zeros(type(vectors[0]), samples)
    # an array from outside the recording does not follow the number of samples: compute a new one
    return total + dr.opaque(type(total), 0) if total.state == dr.VarState.Evaluated else total


def pin_batch_size(sample: Any) -> None:
    """Add a product to the recording whose check fails for another size of ``sample``, an evaluated array."""
    if sample is None:
        return
    tensor = dr.tensor_t(type(sample))
    n = dr.width(sample)
    # A few dozen rows were fastest among the shapes that fit a GPU's grid.
    rows = next(r for r in range(min(n, 128), 0, -1) if n % r == 0)
    dr.eval(dr.full(tensor, 1, (1, rows)) @ tensor(sample, (rows, n // rows)))
