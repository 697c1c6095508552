r"""Products :math:`B x` of a small trained matrix and coordinates, in single precision on every backend.

An entry of the gradient, :math:`dB_{jk} = \sum_n dy_{jn} x_{kn}`, is a sum over all samples. With automatic
differentiation, each sum would be a kernel of its own. Here one reduction of a tensor computes all entries of a column,
in the same order in every run.
"""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..jit.kinds import nested
from ..jit.lanes import live, only
from ..jit.masks import present, unmasked
from ..jit.scopes import symbolic


def project(matrix: Any, coordinates: list) -> list:
    """The components of ``B x``, where the flat array ``matrix`` holds ``B`` row by row.

    Inside symbolic loops and calls, the gradient of ``matrix`` is accumulated by atomics.
    """
    if not dr.grad_enabled(matrix) or symbolic():
        return _product(matrix, coordinates)
    return dr.custom(_ProductOp, matrix, coordinates)


def _entries(matrix: Any, columns: int) -> list[list]:
    index = dr.uint32_array_t(type(matrix))
    rows = dr.width(matrix) // columns
    with unmasked(type(matrix)):
        return [[dr.gather(type(matrix), matrix, index(j * columns + k)) for k in range(columns)] for j in range(rows)]


def _product(matrix: Any, coordinates: list) -> list:
    result = []
    for row in _entries(matrix, len(coordinates)):
        y = row[0] * coordinates[0]
        for b, x in zip(row[1:], coordinates[1:], strict=True):
            y = dr.fma(b, x, y)
        result.append(y)
    return result


class _ProductOp(dr.CustomOp):
    def eval(self, matrix: Any, coordinates: list) -> list:  # type: ignore[override]
        self.matrix, self.coordinates = matrix, coordinates
        return _product(matrix, coordinates)

    def forward(self) -> None:
        dx = _product(self.matrix, self.grad_in("coordinates"))
        db = _product(self.grad_in("matrix"), self.coordinates)
        self.set_grad_out([a + b for a, b in zip(dx, db, strict=True)])

    def backward(self) -> None:
        dy, columns = self.grad_out(), len(self.coordinates)
        dy = present(dy, dr.width([*dy, *self.coordinates]))
        leaf = type(dy[0])
        with unmasked(leaf):
            rows = _entries(self.matrix, columns)
            dx = [sum(row[k] * d for row, d in zip(rows, dy, strict=True)) for k in range(columns)]
            self.set_grad_in("coordinates", dx)
            lane = dr.arange(dr.uint32_array_t(leaf), len(dy))
            gradient = dr.zeros(leaf, len(dy) * columns)
            # 0 times the NaN of a sample without gradient would be NaN
            for k, x in enumerate(only(live(dy), self.coordinates)):
                column = dr.sum(dr.tensor_t(leaf)(nested([d * x for d in dy])), axis=1)
                dr.scatter(gradient, column.array, lane * columns + k, mode=dr.ReduceMode.Permute)
            dr.eval(gradient)  # Dr.Jit would lose some of it if another use of the matrix has a gradient, too
            self.set_grad_in("matrix", gradient)

    def name(self) -> str:
        return "coopnet: small matrix"
