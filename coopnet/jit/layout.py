"""The positions of a matrix's entries in the packed layout of a GPU.

Relies on layouts being permutations with gaps that depend on shape and type only, on gaps being packed as zeros, and on
Dr.Jit keeping gradients in the layout of the weights. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import functools
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

#: Columns of the matrix that replaces a bias, see :class:`Layout`.
BIAS_COLUMNS = 8
#: Stands for a place in memory where there is no entry.
GAP = 0xFFFFFFFF


class Layout:
    """Positions of entries within packed matrices.

    ``places`` holds the positions of a layer's matrix entries in row-major order. The gradient of a bias is accumulated
    as column 0 of a separate matrix: ``bias`` is a view of such a matrix, and ``bias_places`` are the positions of its
    column 0. (The hardware sums outer products over a warp before it adds them. It does not do so with vectors, so sums
    of vectors stop growing sooner.)

    ``transposed`` is the view of a packed copy of the transposed matrix. For each place in this copy, ``origins`` holds
    the place in the matrix from which its entry comes, or :data:`GAP`.
    """

    DRJIT_STRUCT = dict.fromkeys(("places", "bias", "bias_places", "transposed", "origins"), object)

    def __init__(self, places: Any = None):
        self.places = places
        self.bias: Any = None
        self.bias_places: Any = None
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
        places = _places(tensor, shape)
        if places is None:
            return None
        layout = Layout(uint32(places))
        if bias:
            side = (shape[0], BIAS_COLUMNS)
            bias_places = _places(tensor, side)
            if bias_places is None:
                return None
            layout.bias = drnn.pack(dr.zeros(tensor, side), layout="training")
            layout.bias_places = uint32(np.ascontiguousarray(bias_places.reshape(side)[:, 0]))
        if transposed and (turned := _places(tensor, shape[::-1])) is not None:
            view = drnn.pack(dr.zeros(tensor, shape[::-1]), layout="training")
            origins = np.full(view.size, GAP, np.uint32)
            origins[turned] = places.reshape(shape).T.ravel()
            layout.transposed, layout.origins = view, uint32(origins)
        return layout


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
