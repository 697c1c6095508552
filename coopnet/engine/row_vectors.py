"""Vectors of all samples in memory, in rows: the operands of products over the sample axis."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.kinds import nested_type
from . import limits

#: Numbers that Dr.Jit writes and reads at a time. Longer rows are a multiple of it; rows for tensor cores always.
PACKET = 8


def columns(width: int, itemsize: int) -> int:
    """Numbers of ``itemsize`` bytes in a row for a vector of ``width`` components."""
    return -(-width // PACKET) * PACKET if width > PACKET or itemsize == 2 else width


def spilled(leaf: type) -> type:
    """Type of the numbers: the CPU multiplies single precision; tensor cores take half and add up in single."""
    half_on_cpu = dr.is_half_v(leaf) and dr.backend_v(leaf) == dr.JitBackend.LLVM
    return dr.float32_array_t(leaf) if half_on_cpu else leaf


class Rows:
    """A matrix ``(samples, columns)`` in memory; columns that the vector does not need are zero.

    ``numbers`` holds it, unevaluated at first. It is cut into ``pieces`` of ``length`` rows; missing rows at the end
    are zero, which adds nothing to a product.
    """

    def __init__(self, vector: Sequence[Any], samples: int):
        self.leaf = leaf = spilled(type(vector[0]))
        self.samples, self.columns = samples, columns(len(vector), dr.itemsize_v(leaf))
        self.pieces = max(1, samples // limits.PIECE_SAMPLES)
        self.length = -(-samples // self.pieces)
        allocate = dr.empty if self.length * self.pieces == samples else dr.zeros
        self.numbers = allocate(leaf, self.columns * self.length * self.pieces)
        row = [leaf(v) for v in vector] + [leaf(0)] * (self.columns - len(vector))
        lane = dr.arange(dr.uint32_array_t(leaf), samples)
        # Permute promises that no two lanes write the same entry; without it every scatter is a kernel of its own.
        dr.scatter(self.numbers, nested_type(leaf)(row), lane, mode=dr.ReduceMode.Permute)

    def read(self, leaf: type, count: int) -> list[Any]:
        """The first ``count`` components of every vector as ``leaf``."""
        lane = dr.arange(dr.uint32_array_t(self.leaf), self.samples)
        row = dr.gather(nested_type(self.leaf), self.numbers, lane, shape=(self.columns, self.samples))
        return [leaf(row[i]) for i in range(count)]

    def of(self, numbers: Any, columns: int | None = None) -> Rows:
        """A matrix like this with other ``numbers``, and maybe another number of ``columns``."""
        other = copy.copy(self)
        other.numbers, other.columns = numbers, columns or self.columns
        return other

    def take(self) -> Any:
        """The numbers, which are removed from here."""
        numbers, self.numbers = self.numbers, None
        return numbers

    def matrix(self) -> Any:
        """As a tensor ``(pieces * length, columns)``."""
        return dr.tensor_t(self.leaf)(self.numbers, (self.pieces * self.length, self.columns))

    def tensor(self) -> Any:
        """As a tensor ``(pieces, length, columns)``."""
        return dr.tensor_t(self.leaf)(self.numbers, (self.pieces, self.length, self.columns))


class RowVector:
    """A vector of every sample, in ``rows`` in memory, which may not be evaluated yet.

    Args:
        rows: the matrix; its numbers may be unevaluated.
        count: components of the vector. Further columns, and rows beyond the samples, are not read.
        leaf: type of the components.
        in_place: may functions act on all numbers of the matrix alike? That is one pass through memory in its order,
            where reading rows as vectors takes several times as long. The types of ``rows`` and of the components are
            then the same.
        product: its product with the next layer's matrix, without the bias, if that is known already.
    """

    def __init__(self, rows: Rows, count: int, leaf: type, in_place: bool = False, product: Rows | None = None):
        self.rows, self.count, self.type, self.product = rows, count, leaf, product
        self.in_place = in_place and leaf is rows.leaf

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows.read(self.type, self.count))

    def packed(self) -> drnn.CoopVec:
        return drnn.CoopVec(list(self))

    def numbers(self) -> drnn.CoopVec:
        """All numbers, as the only component of a vector."""
        return drnn.CoopVec([self.rows.numbers])

    def of(self, numbers: drnn.CoopVec) -> RowVector:
        """A vector like this with other ``numbers``, as :meth:`numbers` returns them."""
        return RowVector(self.rows.of(next(iter(numbers))), self.count, self.type, True)

    def slope(self, times: Callable[[drnn.CoopVec], drnn.CoopVec]) -> RowVector:
        """This cotangent ``times`` a derivative, but 0 where it is 0: in masked lanes, derivatives may be infinite."""
        dy = self.numbers()
        (value,), (before,) = times(dy), dy
        return self.of(drnn.CoopVec([dr.select(before == 0, 0, value)]))


def in_place(*vectors: Any) -> bool:
    """May functions act on the numbers of all ``vectors`` in their places?"""
    return not [v for v in vectors if not getattr(v, "in_place", False)]
