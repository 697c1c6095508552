"""Vectors of all samples in memory, in rows: the operands of products over the sample axis."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.kinds import nested_type
from . import limits

#: Numbers that Dr.Jit writes and reads at a time. Longer vectors are padded to a multiple of it. In half precision, for
#: tensor cores, all vectors are.
PACKET = 8
#: Half-precision vectors whose packets fill a sector of a GPU's memory, see :class:`Rows`.
SECTOR_VECTORS = 2


def columns(width: int, itemsize: int) -> int:
    """Numbers of ``itemsize`` bytes that a vector of ``width`` components takes in memory."""
    return -(-width // PACKET) * PACKET if width > PACKET or itemsize == 2 else width


def spilled(leaf: type) -> type:
    """Type of numbers in rows: single precision on CPUs. Tensor cores multiply half precision and add up in single."""
    half_on_cpu = dr.is_half_v(leaf) and dr.backend_v(leaf) == dr.JitBackend.LLVM
    return dr.float32_array_t(leaf) if half_on_cpu else leaf


class Rows:
    """The vectors of all samples, as a matrix in memory; ``columns`` beyond a vector's components are zero.

    The flat array ``numbers`` holds it, unevaluated at first. It has ``pieces`` of ``length`` rows each. Rows beyond
    the samples are zero, which adds nothing to a product.

    A row holds ``together`` vectors, their packets by turns. If there are two, neighbouring threads of a GPU write
    whole sectors of memory, of 32 bytes. A product over the rows of two such matrices contains that over samples
    (:meth:`place`). It has four times as many entries, but takes a library no longer, because reading the rows bounds
    it.
    """

    def __init__(self, vector: Sequence[Any], samples: int, together: int = 1):
        self.leaf = leaf = spilled(type(vector[0]))
        self.samples, self.columns, self.together = samples, columns(len(vector), dr.itemsize_v(leaf)), together
        self.pieces = max(1, samples // limits.PIECE_SAMPLES)
        self.length = -(-samples // (self.pieces * together))
        places = self.length * self.pieces * together
        allocate = dr.empty if places == samples else dr.zeros
        self.numbers = allocate(leaf, self.columns * places)
        components = [leaf(v) for v in vector] + [leaf(0)] * (self.columns - len(vector))
        packet = nested_type(leaf)
        # Permute: no two lanes write the same entry. Without this promise, every scatter is a kernel of its own.
        for start, index in self._packets():
            values = packet(components[start : start + self._packet])
            dr.scatter(self.numbers, values, index, mode=dr.ReduceMode.Permute)

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.columns * self.together

    @property
    def _packet(self) -> int:
        """Components that are written at a time: all, unless a row holds several vectors."""
        return self.columns if self.together == 1 else PACKET

    def _packets(self) -> Iterator[tuple[int, Any]]:
        """The first component of each packet, and where it is in memory, in packets, for each sample."""
        lane = dr.arange(dr.uint32_array_t(self.leaf), self.samples)
        count, n = self.columns // self._packet, self.together
        for k in range(count):
            yield k * self._packet, lane if n == 1 else (lane // n * count + k) * n + lane % n

    def place(self, component: Any, vector: int) -> Any:
        """Where in a row ``component`` of its vector number ``vector`` is."""
        size = self._packet
        return (component // size * self.together + vector) * size + component % size

    def read(self, leaf: type, count: int) -> list[Any]:
        """The first ``count`` components of all vectors, as arrays of the type ``leaf``."""
        result: list[Any] = []
        for start, index in self._packets():
            if start < count:
                shape = (self._packet, self.samples)
                result.extend(dr.gather(nested_type(self.leaf), self.numbers, index, shape=shape))
        return [leaf(v) for v in result[:count]]

    def of(self, numbers: Any, columns: int | None = None) -> Rows:
        """A matrix like this with other ``numbers`` and, if given, another number of ``columns``."""
        other = copy.copy(self)
        other.numbers, other.columns = numbers, columns or self.columns
        return other

    def take(self) -> Any:
        """The numbers, which are removed from here."""
        numbers, self.numbers = self.numbers, None
        return numbers

    def matrix(self) -> Any:
        """The numbers as a tensor ``(pieces * length, width)``."""
        return dr.tensor_t(self.leaf)(self.numbers, (self.pieces * self.length, self.width))

    def tensor(self) -> Any:
        """The numbers as a tensor ``(pieces, length, width)``."""
        return dr.tensor_t(self.leaf)(self.numbers, (self.pieces, self.length, self.width))


class RowVector:
    """A vector for every sample, in ``rows`` in memory.

    Args:
        rows: the matrix; its numbers may be unevaluated.
        count: components of the vector. Further columns, and rows beyond the samples, are not read.
        leaf: type of the components.
        in_place: may functions be applied to the whole array of numbers, instead of to vectors? That is one pass
            through memory in order; reading rows as vectors takes several times as long. Components must have the type
            of ``rows``.
        product: its product with the next layer's matrix, without the bias, if already computed.
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
        """A vector of one component: the array of all numbers."""
        return drnn.CoopVec([self.rows.numbers])

    def of(self, numbers: drnn.CoopVec) -> RowVector:
        """A vector like this with other ``numbers``, as :meth:`numbers` returns them."""
        return RowVector(self.rows.of(next(iter(numbers))), self.count, self.type, True)

    def slope(self, times: Callable[[drnn.CoopVec], drnn.CoopVec]) -> RowVector:
        """This cotangent ``times`` a derivative, but 0 where the cotangent is 0.

        Masked lanes have cotangents of 0, but their derivatives may be infinite.
        """
        dy = self.numbers()
        (value,), (before,) = times(dy), dy
        return self.of(drnn.CoopVec([dr.select(before == 0, 0, value)]))


def in_place(*vectors: Any) -> bool:
    """Are all ``vectors`` :class:`RowVector` that are ``in_place``?"""
    return not [v for v in vectors if not getattr(v, "in_place", False)]
