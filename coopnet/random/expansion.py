r"""Factors for all components of a cooperative vector on CUDA, in the layout that vectors have in the tensor cores.

A vector made of components that were computed one by one has another layout. Every operation of a network's vector with
it converts, and the compiler takes long for it. A product of a matrix and a vector has the layout of the tensor cores.

* :func:`digits` brings masks there as few numbers. The generator's words are compared with the threshold, all fields of
  a word at once, and the resulting bits are collected in words. Each byte :math:`d` of those is a component of a short
  vector. The product with :func:`digit_matrix` gives :math:`e = (2 d + 1)\, 2^{-b - 2}` for bit :math:`b` of it. This
  is exact in half precision, and the bit is 1 if and only if :math:`e` is less than its nearest integer.
* A few other factors are multiplied by the identity matrix. More of them would compile for minutes.
"""

from __future__ import annotations

from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..backend import require
from ..jit import kinds
from ..jit.registers import request_registers
from ..jit.unpacked import Constant
from . import draws
from .key import Key
from .philox import generate, round_keys

#: Most factors of a vector that are multiplied by the identity matrix.
FACTORS = 32


class Expansion(Constant):
    """The matrix of which a product gives the factors of vectors of one length; ``None`` if there is none.

    ``bits`` are those of the draws whose bytes it expands, or 0 for the identity matrix.
    """

    def __init__(self, value: Any = None, bits: int = 0):
        super().__init__(value)
        self.bits = bits

    @property
    def kind(self) -> tuple | None:
        """What equal matrices have in common."""
        return None if self.value is None else (self.value.shape, self.value.dtype, self.bits)

    def __deepcopy__(self, memo: dict) -> Expansion:
        return type(self)(self.value, self.bits)

    def __reduce__(self) -> tuple:
        return type(self), ()


def expansion(law: Any, leaf: type, n: int) -> Expansion:
    """That of ``law``, for vectors of ``n`` components of type ``leaf``."""
    if law.shared or not (law.binary or n <= FACTORS):
        return Expansion()
    matrix, bits = (digit_matrix(n, law.bits), law.bits) if law.binary else (np.eye(n), 0)
    return Expansion(in_rows(matrix, leaf), bits)


def in_rows(matrix: np.ndarray, leaf: type) -> Any:
    """A view of ``matrix`` in memory, of type ``leaf``."""
    rows = np.zeros((len(matrix), -(-matrix.shape[1] // 8) * 8), np.float32)  # OptiX wants rows aligned to 16 bytes
    rows[:, : matrix.shape[1]] = matrix
    # row-major, because that was faster in measurements than the layouts of drjit.nn.pack
    view = drnn.view(dr.tensor_t(leaf)(leaf(rows.ravel()), rows.shape))
    dr.eval(view.buffer)
    return view[:, : matrix.shape[1]]


def multiply(x: Any, law: Any, key: Key, given: Expansion | None) -> Any:
    """The cooperative vector ``x`` after ``law``, which is traced for its type.

    It is multiplied by factors. Selecting elements would unpack it from the layout of the tensor cores.
    """
    require(law.leaf)
    uint32, n, width = dr.uint32_array_t(law.leaf), len(x), kinds.samples(x, kinds.COOPVEC)
    if law.shared:
        return x * law.factor(draws.decisions(1, law, key, uint32, width)[0])
    # bits of the layer may have been assigned since the matrix was made
    given = given if given is not None and given.value is not None and given.bits in (0, law.bits) else None
    if given is None or given.bits == 0:
        numbers = [law.factor(d) for d in draws.decisions(n, law, key, uint32, width)]
    else:
        numbers = digits(n, law, key, uint32, width)
    if given is None:
        return x * drnn.CoopVec(numbers)
    # 3 n components: the vector, the factors, and their draws
    e = drnn.matvec(given.value, drnn.CoopVec(request_registers(numbers, [given.value], 3 * n)))
    if given.bits == 0:
        return x * e
    # the sum with so large a number is rounded to an integer
    large = law.leaf(1.5 * 2 ** (10 if dr.is_half_v(law.leaf) else 23))
    # The integer differs from e by 2^-9 at least. For dr.step, OptiX takes much longer than for these operations.
    kept = dr.maximum(dr.minimum((e + large - large - e) * 2.0**9, 1), 0)
    return x * (kept * law.kept)


def digits(n: int, law: Any, key: Key, uint32: type, width: int) -> list:
    """:math:`2 d + 1` for the bytes :math:`d` of :func:`kept_bits`, of the type of the law."""
    index, step, seed = key.words(uint32, width)
    words = kept_bits(n, law, (index, step, uint32(law.stream)), round_keys(seed, law.rounds))
    shifted = [word << 1 if byte == 0 else word >> 8 * byte - 1 for word in words for byte in range(4)]
    return [law.leaf(d & 510 | 1) for d in shifted]


def kept_bits(n: int, law: Any, sample: tuple, keys: list) -> list:
    """The decisions for ``n`` elements as bits of words: see :func:`places`."""
    uint32, kept = type(sample[-1]), []
    count = -(-n * law.bits // 32)
    drawn = (w for b in range(-(-count // 4)) for w in generate((uint32(b), *sample), keys))
    for number, word in zip(range(count), drawn, strict=False):
        decided = law.decide_fields(word)
        if number % law.bits == 0:
            kept.append(decided)
        else:
            kept[-1] = kept[-1] >> 1 | decided
    return kept


def places(n: int, bits: int) -> list[tuple[int, int]]:
    """For each of ``n`` elements, the byte of :func:`kept_bits` in which its decision is, and the bit of that byte.

    The decisions for a word are the uppermost bits of its fields. Before those for the next word are added, they move
    down by one, until the fields are full.
    """
    fields, found = 32 // bits, []
    count = -(-n // fields)
    for i in range(n):
        word, field = divmod(i, fields)
        group, within = divmod(word, bits)
        size = min(bits, count - bits * group)
        place = bits * field + bits - size + within
        found.append((4 * group + place // 8, place % 8))
    return found


def digit_matrix(n: int, bits: int) -> np.ndarray:
    """The matrix by which :func:`digits` are multiplied."""
    where = places(n, bits)
    matrix = np.zeros((n, 4 * (where[-1][0] // 4 + 1)))
    for i, (byte, bit) in enumerate(where):
        matrix[i, byte] = 2.0 ** -(bit + 2)
    return matrix
