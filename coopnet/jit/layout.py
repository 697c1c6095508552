"""The positions of a matrix's entries in the packed layout of a GPU.

Relies on layouts being permutations with gaps that depend on shape and type only, on gaps being packed as zeros, and on
Dr.Jit keeping gradients in the layout of the weights. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

#: Outer products are added fast if the matrix in memory has a multiple of so many entries
#: (benchmarks/outer_products.py): eight half-precision numbers for each of a warp's 32 threads.
PIECE = 256
#: Stands for a place in memory where there is no entry.
GAP = 0xFFFFFFFF


class Accumulator:
    """A packed matrix, its ``view``, in which the gradient of another packed matrix, or of a bias, is accumulated.

    For each place in the latter, ``origins`` holds the place in the accumulator from which its gradient comes, or
    :data:`GAP`. A bias without a ``view`` has a column of the accumulator of its layer's matrix.
    """

    DRJIT_STRUCT = dict.fromkeys(("view", "origins"), object)

    def __init__(self, view: Any = None, origins: Any = None):
        self.view, self.origins = view, origins

    @staticmethod
    def find(tensor: type, shape: tuple[int, int], size: int, places: np.ndarray, entries: Any) -> Accumulator | None:
        """An accumulator of ``shape``. Its ``entries`` belong to the ``places`` of what has ``size`` numbers."""
        found = _places(tensor, shape)
        if found is None:
            return None
        origins = np.full(size, GAP, np.uint32)
        origins[places] = found.reshape(shape)[entries].ravel()
        return Accumulator(_zeros(tensor, shape), dr.uint32_array_t(dr.array_t(tensor))(origins))


class Layout:
    """Positions of entries within packed matrices.

    ``places`` holds the positions of a layer's matrix entries in row-major order.

    ``matrix`` is the :class:`Accumulator` of the matrix; ``None``: its own layout serves, see :func:`in_pieces`.
    ``bias`` is that of the bias, if there is one. Its gradient is the column after the inputs' in the matrix's
    accumulator if that has room, and otherwise column 0 of a matrix of its own. (The hardware sums outer products over
    a warp before it adds them. It does not do so with vectors, so sums of vectors stop growing sooner.)

    ``transposed`` is the view of a packed copy of the transposed matrix. For each place in this copy, ``origins`` holds
    the place in the matrix from which its entry comes, or :data:`GAP`.
    """

    DRJIT_STRUCT = dict.fromkeys(("places", "matrix", "bias", "transposed", "origins"), object)

    def __init__(self, places: Any = None):
        self.places = places
        self.matrix: Accumulator | None = None
        self.bias: Accumulator | None = None
        self.transposed: Any = None
        self.origins: Any = None

    @staticmethod
    def find(tensor: type, shape: tuple[int, int], bias: bool, transposed: bool = False) -> Layout | None:
        """The layout of a matrix of ``shape`` packed for training as half-precision ``tensor``s, if it can be found.

        Args:
            bias: does the layer have a bias?
            transposed: will there be copies of the transposed matrix?
        """
        uint32 = dr.uint32_array_t(dr.array_t(tensor))
        rows, columns = shape
        places = _places(tensor, shape)
        if places is None:
            return None
        layout = Layout(uint32(places))
        around = in_pieces(shape)
        if around != shape:
            entries = np.s_[:rows, :columns]
            layout.matrix = Accumulator.find(tensor, around, _zeros(tensor, shape).size, places, entries)
            if layout.matrix is None:
                return None
        if bias:
            joint = around[1] > columns
            of_bias = around if joint else (rows, piece_columns(rows))
            column = columns if joint else 0
            layout.bias = Accumulator.find(tensor, of_bias, rows, np.arange(rows), np.s_[:rows, column])
            if layout.bias is None:
                return None
            if joint:
                layout.bias.view = None
        if transposed and (turned := _places(tensor, (columns, rows))) is not None:
            view = _zeros(tensor, (columns, rows))
            origins = np.full(view.size, GAP, np.uint32)
            origins[turned] = places.reshape(shape).T.ravel()
            layout.transposed, layout.origins = view, uint32(origins)
        return layout


def in_pieces(shape: tuple[int, int]) -> tuple[int, int]:
    """A shape around ``shape`` whose outer products are added in whole pieces of :data:`PIECE` entries.

    In memory, rows and columns are multiples of 8. Where their product is no multiple of :data:`PIECE`, adding takes
    several times as long (``outer-products-cuda.json``). More columns are better than more rows, as the cotangents are
    multiplied by the matrix, too. An exception are the few cotangents of outputs, which are single numbers before.
    """
    rows, columns = shape
    if rows <= 8 and columns <= 16:
        return 16, 16
    multiple = piece_columns(rows)
    return rows, columns if -(-columns // 8) * 8 % multiple == 0 else -(-columns // multiple) * multiple


def piece_columns(rows: int) -> int:
    """Of which number a matrix of ``rows`` has a multiple of columns, if it consists of whole pieces."""
    return PIECE // math.gcd(-(-rows // 8) * 8, PIECE // 8)


def _zeros(tensor: type, shape: tuple[int, int]) -> Any:
    """The view of a packed matrix of zeros."""
    return drnn.pack(dr.zeros(tensor, shape), layout="training")


@functools.lru_cache(maxsize=256)
def _places(tensor: type, shape: tuple[int, int]) -> np.ndarray | None:
    """Positions in the hardware's layout, found by packing row and column numbers; ``None`` if it is no permutation."""
    rows, columns = shape
    if max(shape) > 2047 or min(shape) < 1:  # half precision holds no larger numbers exactly
        return None
    row, column = np.divmod(np.arange(rows * columns), columns)
    packed = []
    for numbers in (row, column):
        view = drnn.pack(tensor(dr.array_t(tensor)((numbers + 1).astype(np.float32)), shape), layout="training")
        packed.append(view.buffer.numpy().astype(np.int64)[view.offset : view.offset + view.size])
    filled = np.flatnonzero(packed[0] * packed[1])
    result = np.full(rows * columns, -1, np.int64)
    result[(packed[0][filled] - 1) * columns + packed[1][filled] - 1] = filled
    if len(filled) != rows * columns or (result < 0).any():
        return None  # no permutation: an unknown layout
    return result.astype(np.uint32)
