"""Products of a packed matrix and a vector on a CPU: in blocks of rows, and from copies in another order.

Dr.Jit's code for LLVM goes through a matrix column by column and adds to all outputs in memory. The entries of a column
lie as far apart as a row is long. Where that is a multiple of a large power of two, they share few sets of the first
cache (of 128 columns in single precision, eight of 64) and push one another out. A block of rows fits; other matrices
are faster whole, as blocks take time for their loops. With vectors of 16 lanes (AVX-512), whose outputs need twice the
room, blocks pay from rows of a multiple of 256 bytes on, with those of 8 lanes from 1,024.

Columns have no such blocks. Where they need some, a matrix that is used transposed is copied first, by a kernel of its
own. With vectors of 8 lanes (AVX2), matrices that do not fit into the first cache are copied for either direction: in
panels, blocks of rows whose entries stand column by column, as they are read. Every sum has the same terms in the same
order as before, so that results are equal to the bit; only gradients of the vector that Dr.Jit takes by itself add up
those of blocks.
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
#: Bytes beyond which a matrix is worth a copy, measured on a processor with 48 KiB in the first cache.
LARGE = 48 << 10
#: Lanes of a vector -> sets that a column shares from which on blocks are faster, and rows of one at most.
BLOCKS = {16: (16, 40), 8: (4, 32)}
#: Rows of a panel at most.
PANEL = 64
#: Rows of a matrix below which its columns are too short to gain by standing together.
LEAST = 16
#: More rows than there are.
ALL = 1 << 30


class Blocks:
    """A matrix in blocks of rows, each a view; with ``turned``, of its columns as rows."""

    def __init__(self, parts: Sequence[Any], turned: bool):
        self.parts, self.turned = parts, turned

    def product(self, x: Any, bias: Any = None) -> Any:
        """``M x + b``, with a view of the packed ``b``."""
        components: list[Any] = []
        for part in self.parts:
            start, rows = len(components), part.shape[self.turned]
            more = () if bias is None else (views.rows(bias, start, start + rows),)
            components.extend(drnn.matvec(part, x, *more, transpose=self.turned))
        return drnn.CoopVec(components)


def product(weights: Any, x: Any, bias: Any = None) -> Any:
    """``A x + b``, with views of the packed ``A`` and ``b``."""
    rows = weights.shape[0]
    most = most_rows(weights.shape[1] * dr.itemsize_v(weights.buffer)) if _by_rows(weights) else rows
    if rows <= most:
        return drnn.matvec(weights, x) if bias is None else drnn.matvec(weights, x, bias)
    return Blocks(_in_rows(weights, most), turned=False).product(x, bias)


def most_rows(size: int) -> int:
    """Rows of a block at most, each of ``size`` bytes, for this processor."""
    if size < LINE:
        return ALL
    step, left = divmod(size, LINE)
    sets = SETS if left else SETS // math.gcd(SETS, step)
    shared, rows = BLOCKS[16 if llvm_lanes() >= 16 else 8]
    return rows if sets <= shared else ALL


def pays(view: Any, transposed: bool) -> bool:
    """Is a packed matrix, or its transpose, multiplied faster from a copy?"""
    itemsize = dr.itemsize_v(view.buffer)
    rows, columns = reversed(view.shape) if transposed else view.shape
    if llvm_lanes() == 8:
        faster = rows * columns * itemsize > LARGE and rows >= LEAST
    else:
        faster = llvm_lanes() >= 16 and transposed and rows > most_rows(columns * itemsize)
    return faster and _by_rows(view)


def copy(view: Any, transposed: bool) -> Blocks | None:
    """A copy of a packed matrix to multiply with, or by its transpose, if that is faster.

    Its parts are not evaluated yet, as they have to be. Not in symbolic code.
    """
    if not pays(view, transposed):
        return None
    rows, columns = reversed(view.shape) if transposed else view.shape
    if llvm_lanes() == 8:
        parts = [_entries(view, transposed, start, stop, turned=True) for start, stop in _bounds(rows, PANEL)]
        return Blocks(parts, turned=True)
    most = most_rows(columns * dr.itemsize_v(view.buffer))
    return Blocks(_in_rows(_entries(view, transposed, 0, rows, turned=False), most), turned=False)


def _entries(view: Any, transposed: bool, start: int, stop: int, turned: bool) -> Any:
    """Rows ``start`` to ``stop`` of ``M``, row by row or, ``turned``, column by column, in memory of their own."""
    buffer, stride = view.buffer, view.stride
    columns, rows = view.shape[not transposed], stop - start
    i = dr.arange(dr.uint32_array_t(type(buffer)), rows * columns)
    row, column = (i % rows, i // rows) if turned else (i // columns, i % columns)
    row, column = (column, row + start) if transposed else (row + start, column)
    entries = dr.gather(type(buffer), buffer, view.offset + row * stride + column)
    shape = (columns, rows) if turned else (rows, columns)
    return views.changed(view, buffer=entries, shape=shape, stride=shape[1], offset=0, size=rows * columns)


def _by_rows(view: Any) -> bool:
    """Do rows stand one after the other in a CPU's memory, and will nobody ask Dr.Jit for the gradient?"""
    cpu = dr.backend_v(view.buffer) == dr.JitBackend.LLVM
    return cpu and not view.transpose and view.stride == view.shape[1] and not dr.grad_enabled(view.buffer)


def _in_rows(view: Any, most: int) -> list[Any]:
    return [views.rows(view, start, stop) for start, stop in _bounds(view.shape[0], most)]


def _bounds(rows: int, most: int) -> list[tuple[int, int]]:
    count = -(-rows // most)
    starts = [k * rows // count for k in range(count + 1)]
    return list(itertools.pairwise(starts))
