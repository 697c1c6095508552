"""Products of a packed matrix and a vector on a CPU: in blocks of rows, and on the way back with the matrix turned.

Dr.Jit's code for LLVM goes through a matrix column by column and adds to all outputs in memory. The entries of a column
lie as far apart as a row is long. Where that is a multiple of a large power of two, they share few sets of the first
cache (of 128 columns in single precision, eight of 64) and push one another out. A block of rows fits; other matrices
are faster whole, as blocks take time for their loops. With vectors of 16 lanes (AVX-512), whose outputs need twice the
room, blocks pay from rows of a multiple of 256 bytes on, with those of 8 lanes from 1,024.

Columns have no such blocks. Where they need some, a matrix that is used transposed is turned first, by a kernel of its
own. Every sum has the same terms in the same order as before, so that results are equal to the bit; only gradients of
the vector that Dr.Jit takes by itself add up those of blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit import views
from ..jit.core import llvm_lanes

#: The first cache of processors with AVX2: bytes of a line, and sets.
LINE, SETS = 64, 64
#: Lanes of a vector -> sets that a column shares from which on blocks are faster, and rows of one at most.
BLOCKS = {16: (16, 40), 8: (4, 32)}
#: More rows than there are.
ALL = 1 << 30


def product(weights: Any, x: Any, bias: Any = None) -> Any:
    """``A x + b``, with views of the packed ``A`` and ``b``."""
    rows = weights.shape[0]
    most = most_rows(weights.shape[1] * dr.itemsize_v(weights.buffer)) if _by_rows(weights) else rows
    if rows <= most:
        return drnn.matvec(weights, x) if bias is None else drnn.matvec(weights, x, bias)
    components: list[Any] = []
    for start, stop in _bounds(rows, most):
        part = views.rows(weights, start, stop)
        more = () if bias is None else (views.rows(bias, start, stop),)
        components.extend(drnn.matvec(part, x, *more))
    return drnn.CoopVec(components)


def most_rows(size: int) -> int:
    """Rows of a block at most, each of ``size`` bytes, for this processor."""
    if size < LINE:
        return ALL
    step, left = divmod(size, LINE)
    sets = SETS if left else SETS // math.gcd(SETS, step)
    shared, rows = BLOCKS[16 if llvm_lanes() >= 16 else 8]
    return rows if sets <= shared else ALL


def turned(weights: Sequence[Any]) -> list[Any]:
    """For each view of a packed matrix one of its transpose, in memory of its own; ``None`` where that is no faster.

    Not in symbolic code.
    """
    found = [_turned(v) if _by_rows(v) and _worth_turning(v) else None for v in weights]
    dr.eval([view.buffer for view in found if view is not None])
    return found


def _worth_turning(view: Any) -> bool:
    rows, columns = view.shape
    return llvm_lanes() >= 16 and columns > most_rows(rows * dr.itemsize_v(view.buffer))


def _turned(view: Any) -> Any:
    (rows, columns), buffer = view.shape, view.buffer
    i = dr.arange(dr.uint32_array_t(type(buffer)), rows * columns)
    entries = dr.gather(type(buffer), buffer, view.offset + i % rows * columns + i // rows)
    return views.changed(view, buffer=entries, shape=(columns, rows), stride=rows, offset=0)


def _by_rows(view: Any) -> bool:
    """Do rows stand one after the other in a CPU's memory, and will nobody ask Dr.Jit for the gradient?"""
    cpu = dr.backend_v(view.buffer) == dr.JitBackend.LLVM
    return cpu and not view.transpose and view.stride == view.shape[1] and not dr.grad_enabled(view.buffer)


def _bounds(rows: int, most: int) -> list[tuple[int, int]]:
    count = -(-rows // most)
    starts = [k * rows // count for k in range(count + 1)]
    return list(itertools.pairwise(starts))
