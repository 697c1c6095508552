"""Random draws by a key, in the exported language: levels of grids, parameters, displacements, members."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import drjit as dr

from ...nn.displaced import Displaced
from ...nn.drawn import DrawnGrid, DrawnLinear
from ...nn.drop_levels import DropLevels
from ...nn.members import Members
from ...random import streams
from ...random.normal import UNIT
from ...uncertainty import draws
from .encodings import GridLowering
from .language import F32, U32, At, Cast, Expr, Load, Vec, call, select, single, u32
from .layers import RULES, Lowering, changed, draw, scalar


def _drop_levels(to: Lowering, layer: DropLevels, x: Vec) -> Vec:
    if to.key is None or not layer.active():
        return x
    law, each = layer.law, layer.n_features_per_level
    if layer.first >= x.size // each:
        return x  # there are no levels to drop
    if law.scheduled:
        scalar(law.p, "p")
    y, b = to.own(layer, x), to.block
    per_word, words, change = 32 // law.bits, b.array("words", 4, U32), changed(to, law)
    index = At(to.key, u32(2)) if layer.per_sample else u32(0)
    with b.loop("l", y.size // each, layer.first) as level:
        block = level >> (4 * per_word).bit_length() - 1
        draw(to, words, (block, index, At(to.key, u32(3)), u32(law.stream)), law.rounds)
        word = At(words, (level >> per_word.bit_length() - 1) & 3)
        drawn = b.let("draw", word >> ((level & per_word - 1) * law.bits) if per_word > 1 else word)
        with b.loop("i", each) as i:
            b.set(y.at(level * each + i), change(y.at(level * each + i), drawn))
    return y


class _Numbers:
    """Normal numbers for the rows of a table of parameters, as :mod:`coopnet.random.normal` draws them."""

    def __init__(self, to: Lowering, stream: int):
        self.to, self.stream = to, u32(streams.PARAMETERS + stream)
        self.words = to.block.array("words", 4, U32)

    @contextmanager
    def row(self, row: Expr, size: int) -> Iterator[tuple[Expr, Expr]]:
        """A loop over the columns of a row, with their numbers."""
        to, b = self.to, self.to.block
        assert to.key is not None
        with b.loop("block", -(-size // 4)) as block:
            draw(to, self.words, (row, block, At(to.key, u32(3)), self.stream), 10)
            stop = call("min", block * 4 + 4, size) if size > 4 else size
            with b.loop("c", stop, block * 4 if size > 4 else 0) as column:
                yield column, self._normal(At(self.words, column & 3))

    def _normal(self, word: Expr) -> Expr:
        b = self.to.block
        count = b.let("count", word >> 8)
        for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F)):
            b.set(count, (count & mask) + ((count >> shift) & mask))
        whole = ((count * 0x01010101) >> 24) * 512 + (word & 255) * 2
        return b.let("z", (Cast(F32, whole) - 6399) * UNIT)


class _NoisyGrid(GridLowering):
    """A grid to whose features a key adds noise."""

    def __init__(self, to: Lowering, layer: DrawnGrid, x: Vec):
        super().__init__(to, layer.grid, x)
        numbers = dr.detach(layer.deviation.value.data).numpy()
        self.deviation = to.table("deviation", numbers[: self.levels[-1].end * self.n if self.levels else 0], "single")
        self.numbers = None if to.key is None else _Numbers(to, layer.stream)

    @contextmanager
    def _columns(self, row: Expr) -> Iterator[tuple[Expr, Expr, Expr | None]]:
        if self.numbers is None:
            with super()._columns(row) as columns:
                yield columns
            return
        row = self.to.block.let("row", row)
        with self.numbers.row(row, self.n) as (f, z):
            yield f, row * self.n + f, z * Load(self.deviation, row * self.n + f)


def _drawn_grid(to: Lowering, layer: DrawnGrid, x: Vec) -> Vec:
    return _NoisyGrid(to, layer, x).lower() if to.whole else to.lower(layer.grid, x, to.where)


def _drawn_linear(to: Lowering, layer: DrawnLinear, x: Vec) -> Vec:
    x = replace(x, owned=False)
    y = to.lower(layer.linear, x, to.where)
    if not to.whole:
        return y
    u, b = to.lower(layer.factor, x, f"{to.where}.factor"), to.block
    if to.key is None:  # the file contains the weights in any case
        return y
    numbers = _Numbers(to, layer.stream)
    with b.loop("o", y.size) as o:
        total = b.let("total", single(0))
        with numbers.row(o, u.size) as (i, z):
            b.set(total, total + z * u.at(i))
        b.set(y.at(o), y.at(o) + total * layer.scale)
    return y


def _displaced(to: Lowering, layer: Displaced, x: Vec) -> Vec:
    b, n, longest = to.block, len(layer.sides), max(layer.sides)
    numbers = dr.detach(layer.deviation.value.data).numpy()
    deviation = to.table("deviation", numbers, "single") if to.whole else None
    if to.key is not None and deviation is not None:
        drawn = _Numbers(to, layer.stream)
        moved = to.new(x.size, layer, x)
        b.copy(x, moved)
        last = to.constants("last", F32, [side - 1 for side in layer.sides])
        cell, fraction = b.array("cell", n, U32), b.array("fraction", n)
        with b.loop("i", n) as i:
            below = select(x.at(i) < 1, x.at(i), single(1))  # on the upper face, nothing changes along the axis
            place = b.let("place", select(x.at(i) < 0, single(0), below) * last.at(i))
            lowest = b.let("lowest", call("floor", place))
            b.set(At(cell, i), Cast(U32, lowest))
            b.set(At(fraction, i), place - lowest)
        with b.loop("corner", 2**n) as corner:
            weight, row, stride = b.let("weight", single(1)), b.let("row", u32(0)), b.let("stride", u32(1))
            with b.loop("i", n) as i:
                bit = (corner >> i) & 1
                b.set(weight, weight * select(bit.equals(1), At(fraction, i), single(1) - At(fraction, i)))
                b.set(row, row + (At(cell, i) + bit) * stride)
                b.set(stride, stride * longest)
            b.set(row, row % layer.vertices)
            with drawn.row(row, n) as (k, z):
                b.set(moved.at(k), moved.at(k) + weight * (z * Load(deviation, row * n + k)))
        x = moved
    return to.lower(layer.encoding, x, f"{to.where}.encoding")


def _members(to: Lowering, layer: Members, x: Vec) -> Vec:
    count, b = len(layer.networks), to.block
    if to.key is not None and any(draws(part) for part in (*layer.encodings, *layer.networks)):
        raise ValueError("members of an ensemble that draw something themselves cannot be exported with dropout")
    picked = None if to.key is None else b.let("picked", At(to.key, u32(3)) % count)
    y: Vec | None = None
    for k, (encoding, network) in enumerate(zip(layer.encodings, layer.networks, strict=True)):
        part = to.lower(encoding, replace(x, owned=False), f"{to.where}.encodings.{k}")
        part = to.lower(network, part, f"{to.where}.networks.{k}")
        y = to.new(part.size, layer, x) if y is None else y
        with b.loop("i", y.size) as i:
            if picked is not None:
                b.set(y.at(i), select(picked.equals(k), part.at(i), y.at(i) if k else single(0)))
            else:
                b.set(y.at(i), part.at(i) * (1 / count) + y.at(i) if k else part.at(i) * (1 / count))
    assert y is not None
    return y


RULES |= {
    DropLevels: _drop_levels,
    DrawnGrid: _drawn_grid,
    DrawnLinear: _drawn_linear,
    Displaced: _displaced,
    Members: _members,
}
