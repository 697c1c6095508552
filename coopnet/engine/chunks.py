"""A batch in chunks of one size, so that the same kernels run for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import drjit as dr

from ..random.key import Key
from . import limits


class Chunk:
    """``size`` samples from ``start`` on. In the last chunk, the batch's last sample is repeated to fill it.

    Args:
        uint32: the type of indices.
        start, size: the chunk's first sample, and its number of samples.
        samples: number of samples of the batch.
    """

    def __init__(self, uint32: type, start: int, size: int, samples: int):
        # an opaque start makes all chunks the same kernel
        lane = dr.arange(uint32, size) + dr.opaque(uint32, start)
        self.inside = lane < samples
        self._place = dr.minimum(lane, samples - 1)

    def part(self, v: Any) -> Any:
        """The chunk's entries of an array of the batch, evaluated."""
        return dr.gather(type(v), v, self._place) if dr.width(v) > 1 else v

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
    words: list[Any] = []
    if key is not None:
        key = key.traced(uint32)  # with Python numbers, every seed would need another kernel
        words = [key.seed, key.words(uint32, samples)[0], key.step]
        dr.eval(words)
    for start in range(0, samples, size):
        chunk = Chunk(uint32, start, size, samples)
        yield chunk, None if key is None else Key(*map(chunk.part, words))
