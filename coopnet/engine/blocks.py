"""Products of a packed matrix and a vector on a CPU: in blocks of rows, and on the way back with the matrix turned.

Dr.Jit's code for LLVM goes through a matrix column by column and adds to all outputs in memory. Of a matrix with many
rows, neither the outputs nor the lines of memory that hold a column's entries stay in the first cache. A block of some
32 rows does. Columns have no such blocks, so that a matrix which is used transposed is turned first, by a kernel of its
own. Every sum has the same terms in the same order as before, so that results are equal to the bit; only gradients of
the vector that Dr.Jit takes by itself add up those of blocks.

All of this is for vectors of 16 lanes or more, by AVX-512. With 8 lanes, twice as many outputs stay in the cache, and
whole matrices are at least as fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit import views
from ..jit.core import llvm_lanes

#: Rows up to which a matrix is one block.
MOST = 40
#: Lanes of a vector from which on blocks are faster.
LANES = 16
#: Rows from which on turning a matrix is worth a kernel.
LEAST = 16


def product(weights: Any, x: Any, bias: Any = None) -> Any:
    """``A x + b``, with views of the packed ``A`` and ``b``."""
    rows = weights.shape[0]
    if rows <= MOST or not _by_rows(weights):
        return drnn.matvec(weights, x) if bias is None else drnn.matvec(weights, x, bias)
    components: list[Any] = []
    for start, stop in _bounds(rows):
        part = views.rows(weights, start, stop)
        more = () if bias is None else (views.rows(bias, start, stop),)
        components.extend(drnn.matvec(part, x, *more))
    return drnn.CoopVec(components)


def turned(weights: Sequence[Any]) -> list[Any]:
    """For each view of a packed matrix one of its transpose, in memory of its own; ``None`` where that is no faster.

    Not in symbolic code.
    """
    found = [_turned(v) if v.shape[0] >= LEAST and v.shape[1] > MOST and _by_rows(v) else None for v in weights]
    dr.eval([view.buffer for view in found if view is not None])
    return found


def _turned(view: Any) -> Any:
    (rows, columns), buffer = view.shape, view.buffer
    i = dr.arange(dr.uint32_array_t(type(buffer)), rows * columns)
    entries = dr.gather(type(buffer), buffer, view.offset + i % rows * columns + i // rows)
    return views.changed(view, buffer=entries, shape=(columns, rows), stride=rows, offset=0)


def _by_rows(view: Any) -> bool:
    """Do rows stand one after the other in a CPU's memory, and will nobody ask Dr.Jit for the gradient?"""
    cpu = dr.backend_v(view.buffer) == dr.JitBackend.LLVM and llvm_lanes() >= LANES
    return cpu and not view.transpose and view.stride == view.shape[1] and not dr.grad_enabled(view.buffer)


def _bounds(rows: int) -> list[tuple[int, int]]:
    count = -(-rows // MOST)
    starts = [k * rows // count for k in range(count + 1)]
    return list(itertools.pairwise(starts))
