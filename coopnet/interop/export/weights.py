"""The file of weights: 32-bit words, little endian, which programs in any language can read as they are.

===== ====== ===============================================================================================
byte  length content
===== ====== ===============================================================================================
0     8      ``coopnet`` and a zero byte
8     4      version of the format, 1
12    4      length of the file in words
16    32     SHA-256 of all that follows from byte 64 on
48    4      length of the table of arrays in bytes
52    4      word at which the first array begins
56    8      zero
64           the table: JSON, UTF-8, filled up with spaces
...          the arrays, each from a multiple of 64 bytes on
===== ====== ===============================================================================================

The table has ``field``, the SHA-256 of the field (:func:`fingerprint`), and ``arrays``, a list with ``name``, ``type``
(``"float32"``, ``"float16"`` or ``"uint8"``), ``shape``, ``offset`` (bytes from the first array) and ``stride`` (for
matrices: entries from one row to the next, as rows begin at multiples of 16 bytes). Sources contain these offsets.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...io.architecture import describe
from ...nn.parameters import converted, parameters

MAGIC = b"coopnet\0"
VERSION = 1
ALIGNMENT = 64
#: NumPy's type for each precision.
TYPES = {"single": np.float32, "half": np.float16, "uint8": np.uint8}


class Array:
    """An array of the file: a matrix, or numbers one after the other."""

    def __init__(self, name: str, array: np.ndarray, stride: int, offset: int):
        self.name, self.array, self.stride, self.offset = name, array, stride, offset

    @property
    def per_word(self) -> int:
        """Entries of a word."""
        return 4 // self.array.itemsize

    def described(self) -> dict[str, Any]:
        shape, stride = list(self.array.shape), self.stride
        return {"name": self.name, "type": self.array.dtype.name, "shape": shape, "offset": self.offset} | (
            {"stride": stride} if self.array.ndim == 2 else {}
        )

    def bytes(self) -> bytes:
        a = self.array
        if a.ndim == 2:
            a = np.pad(a, [(0, 0), (0, self.stride - a.shape[1])])
        raw = np.ascontiguousarray(a, a.dtype.newbyteorder("<")).tobytes()
        return raw + bytes(-len(raw) % ALIGNMENT)


class WeightFile:
    """The arrays of a field: they are added one by one, and then the file is closed."""

    def __init__(self) -> None:
        self.tables: list[Array] = []
        self.end = 0  #: of the last array, in bytes from the first one

    def add(self, name: str, array: np.ndarray, precision: str) -> Array:
        """A new array in the given precision. Raises ``ValueError`` for finite numbers too large for it."""
        numbers = converted(np.asarray(array), TYPES[precision])
        if numbers is None:
            raise ValueError(f"{name} has numbers too large for half precision; give precision='single'")
        stride = numbers.shape[-1]
        if numbers.ndim == 2:
            per_row = 16 // numbers.itemsize
            stride = -(-stride // per_row) * per_row
        table = Array(name, numbers, stride, self.end)
        self.tables.append(table)
        self.end += len(table.bytes())
        if self.end >= 2**33:
            raise ValueError(f"the weights take {self.end} bytes; fewer than 2^33 can be exported")
        return table

    def words(self) -> np.ndarray:
        """The arrays alone."""
        return np.frombuffer(b"".join(t.bytes() for t in self.tables), np.dtype("<u4"))

    def close(self, field: str) -> None:
        """Finish the file after its last array; ``field`` is the field's fingerprint.

        Sets ``start`` (the word at which the first array begins), the ``length`` in bytes, the ``digest``, and
        ``identity``, the first 48 bytes, which no other file shares.
        """
        table = json.dumps({"field": field, "arrays": [t.described() for t in self.tables]}).encode()
        table += b" " * (-len(table) % ALIGNMENT)
        digest = hashlib.sha256(table)
        for t in self.tables:
            digest.update(t.bytes())
        first = ALIGNMENT + len(table)
        self.field, self.start, self.length, self.digest = field, first // 4, first + self.end, digest.digest()
        self.identity = MAGIC + _words(VERSION, self.length // 4) + self.digest
        #: What comes before the table: the same in every file of these weights.
        self.header = self.identity + _words(len(table), self.start, 0, 0)
        self._head = self.header + table

    def file(self) -> Iterator[bytes]:
        """The closed file in pieces."""
        yield self._head
        yield from (t.bytes() for t in self.tables)


def _words(*numbers: int) -> bytes:
    return b"".join(n.to_bytes(4, "little") for n in numbers)


def fingerprint(field: Any) -> str:
    """SHA-256 of a field: its architecture as in checkpoints, and names, shapes and values of its parameters.

    Values are hashed in single precision: a checkpoint has the same fingerprint on every backend, unless loading it
    rounds single precision to half.
    """
    digest = hashlib.sha256(json.dumps(describe(field), sort_keys=True).encode())
    for p in parameters(field):
        numbers = p.numpy("export").astype("<f4")
        digest.update(f"{p.name} {math.prod(numbers.shape)} {numbers.shape}\n".encode())
        digest.update(numbers.tobytes())
    return digest.hexdigest()
