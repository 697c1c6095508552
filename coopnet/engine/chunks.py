"""A batch in chunks of one size, each a run of the same kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import drjit as dr

from ..random.key import Key


class Chunk:
    """Samples from ``start`` on; where the batch ends earlier, its last sample is repeated.

    Args:
        uint32: the type of indices.
        start, size: the chunk's first sample, and how many it has.
        samples: those of the batch.
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


def chunks(uint32: type, samples: int, size: int, key: Key | None) -> Iterator[tuple[Chunk, Key | None]]:
    """A batch of ``samples`` in chunks of ``size``, each with its part of the ``key``, whose numbers are evaluated."""
    words: list[Any] = []
    if key is not None:
        key = key.traced(uint32)  # of numbers, every seed would be a kernel of its own
        words = [key.seed, key.words(uint32, samples)[0], key.step]
        dr.eval(words)
    for start in range(0, samples, size):
        chunk = Chunk(uint32, start, size, samples)
        yield chunk, None if key is None else Key(*map(chunk.part, words))
