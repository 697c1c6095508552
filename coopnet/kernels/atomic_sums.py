r"""Sums at the entries of grids by atomics, with several copies of levels in which many samples share an entry.

A coarse level has few entries, and every sample adds to some of them. On a GPU, threads that add to neighbouring
addresses wait for each other. So a level with many terms per entry gets several copies. Warps use the copies in turn,
and the copies are added up at the end: *privatization*, as for histograms. Lanes of one warp share a copy, since the
hardware adds up the terms of neighbouring samples in one cell at once. With a copy for each lane, such batches took 1.4
times as long (benchmarks/grid_gradient.py). Only the order of additions changes.

Vertices that are neighbours along the first axis often have neighbouring entries. Where two such entries can be
addressed as one packet, GPUs since compute capability 9.0 add to both by one instruction. For random points that took
three quarters of the time (benchmarks/grid_gradient.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import drjit as dr

from ..jit.kinds import nested_type
from ..jit.lanes import WARP
from ..jit.masks import unmasked
from ..jit.native import core

#: Fewest terms of an entry in a copy. A sample adds one term for every vertex of its cell. With fewer terms, clearing
#: and adding up the copies takes longer than waiting would (benchmarks/grid_gradient.py).
TERMS = 32
#: Fewest samples of a batch for which copies are worth the kernel that adds them up: at 2^14 they were not, at 2^16
#: they were (benchmarks/grid_gradient.py).
SAMPLES = 1 << 15
#: Most copies of a level: with more, threads do not wait any less (benchmarks/grid_gradient.py).
MOST = 64
#: Most bytes of all copies. They should stay in the cache of a GPU together with other data of a kernel.
MEMORY = 4 << 20
#: Most bytes to which one instruction adds, and the lowest compute capability with such instructions.
PACKET, CAPABILITY = 16, 90


def adds_packets(dtype: type) -> bool:
    """Does the processor add to several neighbouring numbers of this type by one instruction?"""
    return dr.backend_v(dtype) == dr.JitBackend.CUDA and core.compute_capability() >= CAPABILITY


def in_pairs(grid: Any) -> bool:
    """Are two vertices that are neighbours along the first axis added together?

    Cells must be cubes, every entry must belong to a pair, and two entries must fit into one instruction.
    """
    cubes = not grid.simplices and grid.interpolation != "nearest"
    even = all(level.size % 2 == 0 for level in grid.levels)
    small = 2 * grid.n_features * dr.itemsize_v(grid.dtype) <= PACKET
    return cubes and even and small and adds_packets(grid.dtype)


def copies(
    sizes: Sequence[int], terms: int, entry_bytes: int, each: int = TERMS, most: int = MOST, memory: int = MEMORY
) -> list[int]:
    """The number of copies of each level, a power of two.

    It is the largest, up to ``most``, for which each entry has at least ``each`` terms on average. If the copies do not
    fit into ``memory``, ``each`` is doubled until they do, so that levels with the most terms per entry keep theirs
    longest.

    Args:
        sizes: entries of each level.
        terms: number of terms that are added to each level.
        entry_bytes: bytes of an entry.
        each, most, memory: see :data:`TERMS`, :data:`MOST`, :data:`MEMORY`.
    """
    while True:
        counts = [1 << (min(max(terms // (size * each), 1), most).bit_length() - 1) for size in sizes]
        if sum(n * size * entry_bytes for n, size in zip(counts, sizes, strict=True) if n > 1) <= memory:
            return counts
        each *= 2


class AtomicSums:
    """Adds up numbers at the entries of a ``FeatureGrid``, in ``counts[level]`` copies of each level.

    Levels with one copy are summed in an array like the parameters. Copies of the other levels are in a second array,
    one after the other. If the parameters hold several grids side by side, so does the second array.
    """

    def __init__(self, grid: Any, counts: Sequence[int]):
        self.grid, self.counts, self.starts, self.room = grid, counts, [], 0
        for level, n in zip(grid.levels, counts, strict=True):
            self.starts.append(self.room)
            self.room += n * level.size if n > 1 else 0
        self.grids = grid.grids
        self.sums = dr.zeros(grid.dtype, dr.width(grid.data))
        self.spread = dr.zeros(grid.dtype, self.grids * self.room * grid.n_features)
        self.in_pairs = in_pairs(grid)

    def add(self, terms: Iterable[tuple[int, list, Any]]) -> None:
        """Add ``(level, one term for each feature, entry)`` of all vertices, in the order of
        :meth:`FeatureGrid.walk`.
        """
        together = [iter(terms)] * (2 if self.in_pairs else 1)
        for vertices in zip(*together, strict=True):
            self._add_to_level(vertices[0][0], [(values, index) for _, values, index in vertices])

    def _add_to_level(self, number: int, vertices: list[tuple[list, Any]]) -> None:
        """Add the terms of one vertex, or of two neighbours."""
        grid, level, n = self.grid, self.grid.levels[number], self.counts[number]
        target = self.sums
        if n > 1:
            terms, index = vertices[0]
            warp = dr.arange(type(index), dr.width([index, *terms])) // WARP
            # negative differences are right, too, since indices wrap around
            offset = (self.starts[number] - level.offset) & 0xFFFFFFFF
            offset += grid.which * ((self.room - grid.levels[-1].end) & 0xFFFFFFFF)
            offset += (warp & (n - 1)) * level.size
            vertices = [(terms, index + offset) for terms, index in vertices]
            target = self.spread
        if len(vertices) == 1:
            ((terms, index),) = vertices
            dr.scatter_reduce(dr.ReduceOp.Add, target, nested_type(grid.dtype)(terms), index)
        else:
            self._add_pair(target, *vertices)

    def _add_pair(self, target: Any, first: tuple[list, Any], second: tuple[list, Any]) -> None:
        """Add to ``target`` in packets of entries 2i and 2i + 1: one where both vertices are in one, otherwise two."""
        packet = nested_type(self.grid.dtype)
        one, other = _of_pair(*first), _of_pair(*second)
        pair, next_pair = first[1] >> 1, second[1] >> 1
        shared = pair == next_pair
        both = [a + dr.select(shared, b, 0) for a, b in zip(one, other, strict=True)]
        dr.scatter_reduce(dr.ReduceOp.Add, target, packet(both), pair)
        dr.scatter_reduce(dr.ReduceOp.Add, target, packet(other), next_pair, ~shared)

    def finish(self) -> Any:
        """The sums. If there are copies, this evaluates them and adds them up."""
        if not self.room:
            return self.sums
        dr.eval(self.sums, self.spread)
        grid, lanes = self.grid, self.grids * self.room
        with unmasked(grid.dtype):  # these lanes are not those of an evaluated loop, even if there are as many
            lane = dr.arange(dr.uint32_array_t(grid.dtype), lanes)
            sums = dr.gather(nested_type(grid.dtype), self.spread, lane, shape=(grid.n_features, lanes))
            dr.scatter_reduce(dr.ReduceOp.Add, self.sums, sums, self._entry(lane))
        return self.sums

    def _entry(self, place: Any) -> Any:
        """The entry whose copy is at ``place``."""
        which, rest = (place // self.room, place % self.room) if self.grids > 1 else (0, place)
        entry = type(place)(0)
        for level, start, n in zip(self.grid.levels, self.starts, self.counts, strict=True):
            if n > 1:
                candidate = level.offset + (rest - start) % type(place)(level.size)
                entry = dr.select(rest >= start, candidate, entry)
        return which * self.grid.levels[-1].end + entry


def _of_pair(terms: list, index: Any) -> list:
    """``terms`` of the entry ``index``, and zeros for the other entry of its pair."""
    odd = (index & 1) == 1
    return [dr.select(odd, 0, v) for v in terms] + [dr.select(odd, v, 0) for v in terms]
