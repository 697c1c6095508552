"""Sums of rows by index, in an order that depends only on the indices.

Rows are sorted by index (a stable radix sort), so that each sum is one contiguous segment. The sorted rows are cut
into blocks of fixed size. One thread goes through each block, so that many threads share long segments. Segments inside
a block are complete, and are written. The first and the last segment of each block may continue in its neighbours.
Their sums become rows, two per block, of the next pass, which is much smaller. All sizes depend on the number of rows
only, so ``dr.freeze`` can record this.
"""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..jit.half import largest
from ..jit.kinds import nested_type
from ..jit.literals import is_literal
from ..jit.masks import active, masked, unmasked
from ..jit.scopes import frozen
from ..jit.sorting import permutation
from . import fixed_point

#: Rows that one thread adds up, by backend: GPUs need more threads.
_BLOCK = {dr.JitBackend.LLVM: 64, dr.JitBackend.CUDA: 32}
#: Bits per pass of the radix sort. On GPUs, the buckets must fit into shared memory.
_RADIX = {dr.JitBackend.LLVM: 11, dr.JitBackend.CUDA: 8}
#: Most entries of a row that one thread holds.
_GROUP = 8


def sort(index: Any, bound: int) -> tuple[Any, Any]:
    """The ``UInt32`` array ``index``, whose entries are at most ``bound``, sorted; and its order, a permutation.

    The sort is stable. ``dr.argsort`` sorts by all 32 bits, but ids seldom need more than half of them.
    """
    n, order, shift = dr.width(index), dr.arange(type(index), dr.width(index)), 0
    index = _computed(index)
    while n > 1 and shift < bound.bit_length():
        bits = min(_RADIX[dr.backend_v(index)], bound.bit_length() - shift)
        digit = (index >> shift) & ((1 << bits) - 1)
        dr.eval(digit, index, order)
        moved = permutation(digit, 1 << bits)
        index, order = dr.gather(type(index), index, moved), dr.gather(type(index), order, moved)
        shift += bits
    dr.eval(index, order)
    return index, order


def _computed(index: Any) -> Any:
    """``index``; a literal becomes a computed array.

    No kernel computes a literal, so a frozen function could neither sort it again nor follow its width.
    """
    return index + dr.opaque(type(index), 0) if is_literal(index) else index


def sum_rows(rows: Any, index: Any, count: int) -> Any:
    """Row ``r`` of the result is the sum of the ``rows`` whose index is ``r``; exactly zero if there are none.

    Args:
        rows: a list of ``width`` arrays, float32 or float64, one entry per row.
        index: ``UInt32``, as wide as the rows; rows with the index ``count`` are left out.
        count: number of sums.

    Returns:
        A flat array of ``count * width`` entries, bitwise the same for the same rows and indices. In frozen functions
        on CUDA, :func:`sum_rows_fixed` computes the sums, since a recorded sort ends the process when it is replayed
        (Dr.Jit 1.5).
    """
    leaf = type(rows[0])
    if frozen() and dr.backend_v(leaf) == dr.JitBackend.CUDA:
        return sum_rows_fixed(rows, index, count)
    # in an evaluated loop, Dr.Jit would apply the mask of samples to sorted entries
    index = dr.select(active(leaf, dr.width(index)), index, count) if masked(leaf) else index
    with unmasked(leaf):
        return _sum_rows(rows, index, count)


def _sum_rows(rows: Any, index: Any, count: int) -> Any:
    leaf, width = type(rows[0]), len(rows)
    nested = nested_type(leaf)
    n = dr.width(index)
    block = _BLOCK[dr.backend_v(leaf)]
    index, order = sort(index, count)
    place = dr.empty(type(index), n)
    dr.scatter(place, dr.arange(type(index), n), order, mode=dr.ReduceMode.Permute)
    dr.eval(place)
    flat = dr.empty(leaf, n * width)
    # scattering rows to their places when they are computed is twice as fast as gathering them later
    dr.scatter(flat, nested(rows), place, mode=dr.ReduceMode.Permute)
    dr.eval(flat)
    sums = dr.zeros(leaf, count * width)
    while n > block:
        flat, index = _pass(flat, nested, width, index, count, block, sums)
        n = dr.width(index)
    _pass(flat, nested, width, index, count, n, sums)
    dr.eval(sums)
    return sums


def _pass(flat: Any, nested: type, width: int, index: Any, count: int, block: int, sums: Any) -> Any:
    """Write complete segments to ``sums``; returns the incomplete ones as ``(rows, index)``."""
    uint32, n = type(index), dr.width(index)
    blocks = -(-n // block)
    last = blocks == 1  # then every segment is complete
    size = min(_GROUP, width & -width)  # consecutive entries that are read as one packet
    groups = width // size
    thread = dr.arange(uint32, blocks * groups)
    b, g = (thread // groups, thread % groups) if groups > 1 else (thread, uint32(0))
    end = dr.minimum((b + 1) * block, n)
    open_ends = dr.empty(type(flat), 0 if last else 2 * blocks * width)

    def write(target: Any, values: Any, row: Any, active: Any) -> None:
        dr.scatter(target, values, row * groups + g, active, mode=dr.ReduceMode.Permute)

    def step(i: Any, current: Any, inside: Any, head: Any, total: Any) -> tuple:
        following = dr.gather(uint32, index, i)
        new = following != current
        write(sums, total, current, new & inside & (current < count))
        row = dr.gather(nested, flat, i * groups + g, shape=(size, blocks * groups))
        head = dr.select(inside, head, total)
        return i + 1, following, inside | new, head, dr.select(new, row, total + row)

    first = dr.gather(uint32, index, b * block)
    zero = dr.zeros(nested, (size, blocks * groups))
    _, current, inside, head, total = dr.while_loop(
        (b * block, uint32(first), dr.full(dr.mask_t(uint32), last, blocks * groups), nested(zero), nested(zero)),
        lambda i, *_: i < end,
        step,
        labels=("i", "current", "inside", "head", "total"),
    )
    if last:
        write(sums, total, current, current < count)
        return None
    # if one segment fills the block, it is the head, and the second row is zero
    write(open_ends, dr.select(inside, head, total), 2 * b, True)
    write(open_ends, dr.select(inside, total, zero), 2 * b + 1, True)
    ids = dr.empty(uint32, 2 * blocks)
    for k, value in enumerate((first, current)):
        dr.scatter(ids, value, 2 * b + k, g == 0, mode=dr.ReduceMode.Permute)
    dr.eval(open_ends, ids, sums)
    return open_ends, ids


def sum_rows_fixed(rows: list, index: Any, count: int) -> Any:
    """:func:`sum_rows` in fixed point (:mod:`.fixed_point`), which does not depend on the order.

    All rows are rounded to the same unit, even if one is much smaller than the others. This needs atomics and twice the
    memory, but ``dr.freeze`` can replay it everywhere.
    """
    leaf, width, index = type(rows[0]), len(rows), _computed(index)
    int64, uint32 = dr.int64_array_t(leaf), type(index)
    finite = [dr.isfinite(v) for v in rows]
    peak = dr.max(largest([dr.select(f, dr.abs(v), 0) for f, v in zip(finite, rows, strict=True)]))
    scale = fixed_point.scale(peak, leaf(dr.opaque_width(index)))
    dr.eval(scale)
    sums, broken = dr.zeros(int64, count * width), dr.zeros(uint32, count * width)
    inside = index < count
    fixed_point.add(sums, [dr.select(f, v * scale, 0) for f, v in zip(finite, rows, strict=True)], index, inside)
    for k in range(width):
        dr.scatter_reduce(dr.ReduceOp.Max, broken, uint32(1), index * width + k, inside & ~finite[k])
    dr.eval(sums, broken)
    return fixed_point.finish(sums, scale, broken)
