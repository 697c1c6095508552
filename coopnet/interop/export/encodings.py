"""Encodings in the exported language, as loops; see :mod:`.layers`."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ... import nn
from ...kernels.grid import CELLS, FAR, PRIMES, ROLLING, FeatureGrid, Level
from ...kernels.sparse_projection import Signs
from ...nn.frequency import TINY, shift_of
from ...nn.lattice import Lattice
from .language import F32, I32, U32, At, Block, Cast, Expr, Load, Still, Var, Vec, call, clip, select, single, u32
from .layers import RULES, Lowering, scalar

TWO_PI = 2 * math.pi


def _composite(to: Lowering, layer: nn.Composite, x: Vec) -> Vec:
    parts = []
    for k, (encoding, begin, n) in enumerate(layer.parts(x.size)):
        parts.append(to.lower(encoding, x.part(begin, n), f"{to.where}.nested.{k}"))
    return to.merge(parts, to.new(layer.width(x.size), layer, x), layer.reduction)


def _pad(to: Lowering, layer: nn.Pad, x: Vec) -> Vec:
    inner = to.lower(layer.nested, x.part(0, x.size), f"{to.where}.nested")
    y, b = to.new(layer.before + inner.size + layer.after, layer, x), to.block
    for start, size in ((0, layer.before), (layer.before + inner.size, layer.after)):
        if size:
            with b.loop("i", size) as i:
                b.set(y.part(start, size).at(i), layer.value)
    b.copy(inner, y.part(layer.before, inner.size))
    return y


# ---- Waves -------------------------------------------------------------------------------------------------


def _waves(
    count: str, lowest: float, each: int, values: Callable[[Block, Expr, Expr], Iterator[Expr]]
) -> Callable[[Lowering, Any, Vec], Vec]:
    """The rule of an encoding with ``layer.count`` frequencies, each twice the one before, beginning with ``lowest``.

    ``values(block, phase, i)`` are the ``each`` features of a coordinate at frequency ``i``. Phases are in periods,
    minus the nearest integer. Doubling and subtracting the nearest integer are exact in floating point, so phases keep
    all bits for large coordinates, and do not overflow.
    """

    def rule(to: Lowering, layer: Any, x: Vec) -> Vec:
        n, b = getattr(layer, count), to.block
        y, shift = to.new(each * n * x.size, layer, x), getattr(layer, "shift", 0)
        shifts = to.constants("shift", F32, [shift_of(shift, i) for i in range(n)]) if shift else None
        with b.loop("k", x.size) as k:
            phase = b.let("phase", x.at(k) * lowest if lowest != 1 else x.at(k))
            b.set(phase, phase - call("round", phase))
            b.set(phase, phase - select(call("abs", phase) < TINY, Still(phase), 0))
            with b.loop("i", n) as i:
                moved = phase
                if shifts is not None:
                    moved = b.let("moved", phase + shifts.at(i))
                    b.set(moved, moved - call("round", moved))
                for j, value in enumerate(values(b, moved, i)):
                    b.set(y.at((k * n + i) * each + j), value)
                b.set(phase, phase * 2 - call("round", phase * 2))
        return y

    return rule


def _sines(b: Block, phase: Expr, i: Expr) -> Iterator[Expr]:
    angle = b.let("angle", phase * TWO_PI)
    yield call("sin", angle)
    yield call("cos", angle)


def _triangles(b: Block, phase: Expr, i: Expr) -> Iterator[Expr]:
    yield _sine_triangle(b, phase)
    yield _cosine_triangle(b, phase)


def _triangle_wave(b: Block, phase: Expr, i: Expr) -> Iterator[Expr]:
    b.comment("a quarter of a period more for every frequency: cosine, -sine, -cosine, sine")
    sine, cosine = _sine_triangle(b, phase), _cosine_triangle(b, phase)
    wave = b.let("wave", select((i & 1).equals(1), sine, cosine))
    yield select((i + 1 & 2).equals(2), single(-1) * wave, wave)


def _cosine_triangle(b: Block, phase: Expr) -> Expr:
    """1 - 4 |phase|. At its kinks, the derivative is 0."""
    ends = b.let("ends", select(call("abs", phase).equals(0.5), single(0.5), phase))
    return single(1) - call("abs", ends) * 4


def _sine_triangle(b: Block, phase: Expr) -> Expr:
    """:func:`_cosine_triangle` a quarter of a period later. It does not subtract a quarter from the phase, which would
    lose bits of small phases.
    """
    size = b.let("size", Still(call("abs", phase)))
    falling = select(phase > 0, single(2) - phase * 4, single(-2) - phase * 4)
    side = b.let("side", select(size < 0.25, phase * 4, falling))
    return select(size.equals(0.25), select(phase > 0, single(1), single(-1)), side)


def _fourier(to: Lowering, layer: nn.Fourier, x: Vec) -> Vec:
    b = to.block
    # phases need every bit, whatever the precision of the network
    matrix = to.table("frequencies", dr.detach(layer.frequencies.value.data).numpy(), "single")
    y = to.new(2 * layer.n_frequencies, layer, x)
    with b.loop("i", layer.n_frequencies) as i:
        periods = b.let("periods", single(0))
        with b.loop("k", x.size) as k:
            b.set(periods, call("fma", Load(matrix, i * x.size + k), x.at(k), periods))
        angle = b.let("angle", (periods - call("round", periods)) * TWO_PI)
        b.set(y.at(i * 2), call("sin", angle))
        b.set(y.at(i * 2 + 1), call("cos", angle))
    return y


# ---- Other encodings without parameters --------------------------------------------------------------------


def _one_blob(to: Lowering, layer: nn.OneBlob, x: Vec) -> Vec:
    n, b = layer.n_bins, to.block
    y = to.new(n * x.size, layer, x)

    def blobs(t: Expr) -> list[tuple[Expr, Expr]]:
        if n == 1 and not layer.periodic:
            return [(single(0), t - m) for m in (-1, 0, 1)]
        nearest = call("round", t) if layer.periodic else clip(call("round", t), -1, 1)
        whole = b.let("whole", nearest)
        return [(whole, (t - whole) * n)]

    def integral(t: Expr) -> Expr:
        """The integral of the kernel up to ``t``, plus a constant."""
        parts: list[Expr] = []
        for whole, inside in blobs(t):
            u = b.let("u", clip(inside, -1, 1))
            u2 = b.let("square", u * u)
            parts.append(whole + (u * ((u2 * (3 / 16) - 5 / 8) * u2 + 15 / 16) + 0.5))
        return functools.reduce(operator.add, parts)

    with b.loop("k", x.size) as k:
        place = b.let("place", x.at(k) - call("floor", x.at(k)) if layer.periodic else x.at(k))
        first = b.let("first", integral(single(-1) * place))
        below = b.let("below", first)
        with b.loop("i", n - 1) as i:
            above = b.let("above", integral(Cast(F32, i + 1) * (1 / n) - place))
            b.set(y.at(k * n + i), above - below)
            b.set(below, above)
        last = first + 1 if layer.periodic else integral(single(1) - place)
        b.set(y.at(k * n + (n - 1)), last - below)
    return y


def _harmonics(to: Lowering, layer: nn.SphericalHarmonics, x: Vec) -> Vec:
    n, b = layer.degree, to.block
    y = to.new(n * n, layer, x)
    first = [(-1.0) ** m * math.prod(range(1, 2 * m, 2)) for m in range(n)]
    factors = [0.0] * n * n
    for degree in range(n):
        for order in range(degree + 1):
            square = (2 * degree + 1) / (4 * math.pi) * math.factorial(degree - order) / math.factorial(degree + order)
            factors[degree * n + order] = math.sqrt(square * (2 if order else 1))
    starts, factor = to.constants("legendre", F32, first), to.constants("factor", F32, factors)
    vx, vy, vz = (b.let(name, x.at(i) * 2 - 1) for i, name in enumerate(("vx", "vy", "vz")))
    b.comment("(re, im) are of (vx + i vy)^m, p is (-1)^m d^m P_l / dz^m")
    re, im = b.let("re", single(1)), b.let("im", single(0))
    with b.loop("m", n) as m:
        p, before = b.let("p", starts.at(m)), b.let("before", single(0))
        with b.loop("l", n, m) as band:
            scaled = b.let("scaled", factor.at(band * n + m) * p)
            b.set(y.at(band * band + band - m), scaled * im)
            b.set(y.at(band * band + band + m), scaled * re)
            high, low = Cast(F32, band * 2 + 1), Cast(F32, band + m)
            after = b.let("after", (high * vz * p - low * before) / Cast(F32, band + 1 - m))
            b.set(before, p)
            b.set(p, after)
        turned = b.let("turned", re * vx - im * vy)
        b.set(im, re * vy + im * vx)
        b.set(re, turned)
    return y


def _projection(to: Lowering, layer: nn.SparseProjection, x: Vec) -> Vec:
    signs = Signs(x.size, layer.out_features, layer.density, layer.seed)
    rows: list[int] = []
    ends: list[int] = []
    for row in signs.columns(0, x.size):
        for sign in (1, -1):
            rows += [int(j) for j in (row == sign).nonzero()[0]]
            ends.append(len(rows))
    b, y = to.block, to.new(layer.out_features, layer, x)
    columns = to.constants("columns", U32, rows or [0])
    end = to.constants("ends", U32, [0, *ends])
    b.comment("entries of one row, first the positive ones")
    with b.loop("i", y.size) as i:
        total = b.let("total", single(0))
        with b.loop("k", end.at(i * 2 + 1), end.at(i * 2)) as k:
            b.set(total, total + x.at(columns.at(k)))
        with b.loop("k", end.at(i * 2 + 2), end.at(i * 2 + 1)) as k:
            b.set(total, total - x.at(columns.at(k)))
        b.set(y.at(i), total * signs.scale)
    return y


# ---- Grids -------------------------------------------------------------------------------------------------


class GridLowering:
    """The features of a lattice, one loop over its levels."""

    def __init__(self, to: Lowering, layer: Lattice, x: Vec):
        self.to, self.layer, self.x = to, layer, x
        grid: FeatureGrid = layer.grid.value
        self.grid, self.d, self.n = grid, grid.dimension, grid.n_features
        shown = math.inf if layer.max_level is None else scalar(layer.max_level, "max_level")
        self.levels = [level for i, level in enumerate(grid.levels) if i <= shown]
        self._store(dr.detach(grid.data).numpy())

    def _store(self, numbers: Any) -> None:
        levels, to = self.levels, self.to
        precision = "half" if numbers.dtype == np.float16 and to.grids == "single" else to.grids
        numbers = numbers[: levels[-1].end * self.n] if levels else numbers[:0]
        self.least = self.step = None
        if to.grids == "uint8" and levels:
            if not np.isfinite(numbers).all():
                raise ValueError("it has parameters that are not finite, which grids='uint8' cannot hold")
            parts = [numbers[v.offset * self.n : v.end * self.n].astype(np.float64) for v in levels]
            lowest = [float(p.min()) for p in parts]
            step = [(float(p.max()) - m) / 255 for p, m in zip(parts, lowest, strict=True)]
            whole = [np.rint((p - m) / (s or 1)) for p, m, s in zip(parts, lowest, step, strict=True)]
            numbers = np.concatenate(whole)
            self.least, self.step = to.constants("least", F32, lowest), to.constants("step", F32, step)
        self.data = to.table("data", numbers, precision) if levels else None

    def lower(self) -> Vec:
        to, b, x = self.to, self.to.block, self.x
        y = to.new(len(self.grid.levels) * self.n, self.layer, x)
        if len(self.levels) < len(self.grid.levels):
            with b.loop("i", y.size) as i:
                b.set(y.at(i), 0)
        if not self.levels:
            return y
        each = {name: to.constants(name, tp, numbers) for name, tp, numbers in self._constants()}
        b.comment("no further out than can be placed, and 0 with its derivatives, or NaN if a coordinate is not finite")
        self.place, zero, nothing = b.array("place", self.d), b.let("zero", single(0)), b.let("nothing", single(0))
        with b.loop("i", self.d) as i:
            beyond = x.at(i) - Still(x.at(i))
            further = b.let("further", select(x.at(i) < 0, beyond - FAR, beyond + FAR))
            b.set(At(self.place, i), select(call("abs", x.at(i)) > FAR, further, x.at(i)))
            b.set(zero, zero + (x.at(i) - x.at(i)))
        with b.loop("i", self.d) as i:
            b.set(nothing, nothing + At(self.place, i) * zero)
        with b.loop("level", len(self.levels)) as level:
            at = {name: values.at(level) for name, values in each.items()}
            cell, fraction = self._cell(at["scale"])
            sums = b.array("sums", self.n)
            with b.loop("f", self.n) as f:
                b.set(At(sums, f), nothing)
            if fraction is None:
                self._add(functools.partial(At, cell), None, at, sums, level)
            elif self.grid.simplices and self.d > 1:  # in one dimension, a simplex is a cube
                self._simplex(cell, fraction, at, sums, level)
            else:
                self._cube(cell, fraction, at, sums, level)
            with b.loop("f", self.n) as f:
                b.set(y.at(level * self.n + f), At(sums, f))
        return y

    def _constants(self) -> list[tuple[str, str, Any]]:
        hashed = [self._hashes(level) for level in self.levels]
        constants: list[tuple[str, str, Any]] = [
            ("scale", F32, [level.scale for level in self.levels]),
            ("offset", U32, [level.offset for level in self.levels]),
            ("size", U32, [level.size for level in self.levels]),
        ]
        if not all(hashed):
            constants.append(("resolution", U32, [level.resolution & 0xFFFFFFFF for level in self.levels]))
        if any(hashed) and not all(hashed):
            constants.append(("hashed", U32, [int(h) for h in hashed]))
        return constants

    def _hashes(self, level: Level) -> bool:
        return self.grid.hashed and level.resolution**self.d > level.size

    def _cell(self, scale: Expr) -> tuple[Var, Var | None]:
        """The lowest vertex of the cell around the point, and the point's position in the cell, if that matters."""
        b = self.to.block
        cell, between = b.array("cell", self.d, U32), self.grid.interpolation != "nearest"
        fraction = b.array("fraction", self.d) if between else None
        with b.loop("i", self.d) as i:
            position = call("fma", At(self.place, i), scale, single(0.5))
            position = position if fraction is None else b.let("position", position)
            lowest = b.let("lowest", call("floor", position))
            b.set(At(cell, i), Cast(U32, Cast(I32, clip(lowest, *CELLS))))
            if fraction is not None:
                b.set(At(fraction, i), position - lowest)
        return cell, fraction

    def _cube(self, cell: Var, fraction: Var, at: dict[str, Expr], sums: Var, level: Expr) -> None:
        b, d = self.to.block, self.d
        if self.grid.interpolation == "smoothstep":
            with b.loop("i", d) as i:
                t = At(fraction, i)
                b.set(t, t * t * (single(3) - t * 2))
        with b.loop("corner", 2**d) as corner:
            weight = b.let("weight", single(1))
            with b.loop("i", d) as i:
                upper = ((corner >> i) & 1).equals(1)
                b.set(weight, weight * select(upper, At(fraction, i), single(1) - At(fraction, i)))
            self._add(lambda i: At(cell, i) + ((corner >> i) & 1), weight, at, sums, level)

    def _simplex(self, cell: Var, fraction: Var, at: dict[str, Expr], sums: Var, level: Expr) -> None:
        """Visit the vertices of the simplex: from the lowest, along the axes in descending order of the fractions."""
        b, d = self.to.block, self.d
        axis = b.array("axis", d, U32)
        with b.loop("i", d) as i:
            b.set(At(axis, i), i)
        with b.loop("i", d) as i, b.loop("j", u32(d - 1) - i) as j:
            here, there = At(fraction, j), At(fraction, j + 1)
            swap = here < there
            low, high = b.let("low", select(swap, here, there)), b.let("high", select(swap, there, here))
            one = b.let("one", select(swap, At(axis, j + 1), At(axis, j)))
            b.set(At(axis, j + 1), select(swap, At(axis, j), At(axis, j + 1)))
            b.set(At(axis, j), one)
            b.set(here, high)
            b.set(there, low)
        before = b.let("before", single(1))
        with b.loop("r", d + 1) as r:
            b.comment("along the axis before this one; not at first")
            last = call("max", r, 1) - 1
            with b.loop("i", d) as i:
                step = select(At(axis, last).equals(i), u32(1), u32(0))
                b.set(At(cell, i), At(cell, i) + select(u32(0) < r, step, u32(0)))
            after = b.let("after", select(r < d, At(fraction, call("min", r, d - 1)), single(0)))
            weight = b.let("weight", before - after)
            b.set(before, after)
            self._add(functools.partial(At, cell), weight, at, sums, level)

    def _add(self, vertex: Any, weight: Expr | None, at: dict[str, Expr], sums: Var, level: Expr) -> None:
        """Add the features of a vertex."""
        b = self.to.block
        index = self._index(vertex, at)
        with self._columns(at["offset"] + index % at["size"]) as (f, entry, noise):
            assert self.data is not None
            feature: Expr = Load(self.data, entry)
            if self.least is not None and self.step is not None:
                feature = self.least.at(level) + self.step.at(level) * feature
            if noise is not None:
                feature = feature + noise
            b.set(At(sums, f), At(sums, f) + (feature if weight is None else weight * feature))

    @contextmanager
    def _columns(self, row: Expr) -> Iterator[tuple[Expr, Expr, Expr | None]]:
        """A loop over the features of a vertex: number, index in the table, and the noise that a key adds."""
        entry = self.to.block.let("entry", row * self.n)
        with self.to.block.loop("f", self.n) as f:
            yield f, entry + f, None

    def _index(self, vertex: Any, at: dict[str, Expr]) -> Expr:
        b, d = self.to.block, self.d
        index = hashed = None
        if "resolution" in at:
            index, stride = b.let("index", u32(0)), b.let("stride", u32(1))
        if "hashed" in at or "resolution" not in at:
            hashed = b.let("hash", u32(0))
            primes = None if self.grid.simplices else self.to.constants("primes", U32, PRIMES[:d])
        with b.loop("i", d) as i:
            v = b.let("v", vertex(i))
            if index is not None:
                b.set(index, index + v * stride)
                b.set(stride, stride * at["resolution"])
            if hashed is not None:
                prime = None if primes is None else primes.at(i)
                b.set(hashed, (hashed + v) * ROLLING if prime is None else hashed ^ v * prime)
        if index is None or hashed is None:
            return index or hashed  # type: ignore[return-value]
        return select(at["hashed"].equals(1), hashed, index)


def _lattice(to: Lowering, layer: Lattice, x: Vec) -> Vec:
    return GridLowering(to, layer, x).lower()


RULES |= {
    nn.Composite: _composite,
    nn.Pad: _pad,
    nn.Frequency: _waves("n_frequencies", 0.5, 2, _sines),
    nn.Sinusoidal: _waves("octaves", 1, 2, _sines),
    drnn.SinEncode: _waves("octaves", 1, 2, _sines),
    nn.Triangular: _waves("octaves", 1, 2, _triangles),
    drnn.TriEncode: _waves("octaves", 1, 2, _triangles),
    nn.TriangleWave: _waves("n_frequencies", 0.5, 1, _triangle_wave),
    nn.Fourier: _fourier,
    nn.OneBlob: _one_blob,
    nn.SphericalHarmonics: _harmonics,
    nn.SparseProjection: _projection,
    Lattice: _lattice,
}
