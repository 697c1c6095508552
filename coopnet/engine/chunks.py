"""A batch in chunks of one size, so that the same kernels run for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import drjit as dr

from ..random.key import Key
from . import limits


class Chunk:
    """Some samples of a batch, by their numbers. Beyond the batch, its last sample is repeated.

    Args:
        numbers: an array of indices.
        samples: number of samples of the batch.
    """

    def __init__(self, numbers: Any, samples: int):
        self.inside = numbers < samples
        self._place = dr.minimum(numbers, samples - 1)

    def part(self, v: Any) -> Any:
        """The chunk's entries of an array of the batch, evaluated."""
        return dr.gather(type(v), v, self._place) if dr.width(v) > 1 else v

    def cotangents(self, dys: Sequence[Any]) -> list[Any]:
        """:meth:`part` of each, zero for repeated samples."""
        return [dr.select(self.inside, self.part(v), 0) for v in dys]

    def key(self, arguments: Sequence[Any]) -> Key | None:
        """The chunk's part of a key, whose :func:`arguments_of` are given."""
        return key_from([self.part(v) for v in arguments])

    def put(self, whole: Sequence[Any], parts: Sequence[Any]) -> None:
        """Write ``parts`` of the chunk to their places in the arrays ``whole``."""
        for target, part in zip(whole, parts, strict=True):
            dr.scatter(target, part, self._place, self.inside, mode=dr.ReduceMode.Permute)


def even_size(samples: int, most: int) -> int:
    """Samples of a chunk if ``most`` fit into memory: all, or whole pieces, about as many in each chunk."""
    piece = limits.PIECE_SAMPLES
    count = -(-samples // max(piece, most // piece * piece))
    return samples if count == 1 else -(-samples // (count * piece)) * piece


def chunks(uint32: type, samples: int, size: int, key: Key | None) -> Iterator[tuple[Chunk, Key | None]]:
    """The chunks of a batch, each with its part of the ``key``, whose numbers are evaluated."""
    parts = arguments_of(key, uint32, samples)
    dr.eval(parts)
    for start in range(0, samples, size):
        # an opaque start makes all chunks the same kernel
        chunk = Chunk(dr.arange(uint32, size) + dr.opaque(uint32, start), samples)
        yield chunk, chunk.key(parts)


def arguments_of(key: Key | None, uint32: type, samples: int) -> list[Any]:
    """Seed, index and step of ``key``, to be evaluated for :meth:`Chunk.key`; nothing if there is no key."""
    if key is None:
        return []
    key = key.traced(uint32)  # with Python numbers, every seed would need another kernel
    return [key.seed, key.words(uint32, samples)[0], key.step]


def key_from(arguments: Sequence[Any]) -> Key | None:
    """The inverse of :func:`arguments_of`."""
    return Key(*arguments) if arguments else None
