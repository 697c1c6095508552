"""Derivatives with respect to drawn parameters (:func:`laplace`), for each sample, and deviations from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import drjit as dr
import drjit.nn as drnn

from ..derivatives import encoded, jacobian
from ..field import NeuralField
from ..jit.half import widened
from ..jit.kinds import UnpackedVector
from ..kernels.grid import FAR
from ..nn import Composite, Pad, Sequential
from ..nn.drawn import DrawnGrid, DrawnLinear
from ..nn.sequential import apply, flatten
from ..nn.tree import children


class Derivatives(NamedTuple):
    """The factors of derivatives with respect to parameters, for each sample, in single precision.

    ``hidden`` is the input of the last linear layer, a ``CoopVec``. ``slopes`` are the derivatives of the field's
    outputs with respect to those of this layer. ``rows`` has, for each drawn grid, the derivatives of each output with
    respect to the grid's features. ``values`` are the field's outputs.
    """

    hidden: Any
    slopes: list
    rows: list[list[list]]
    values: list


class GridPart(NamedTuple):
    """A drawn grid: its first feature and its first coordinate among those of the encoding, and its number of
    coordinates."""

    layer: DrawnGrid
    feature: int
    begin: int
    size: int

    def walk(self, unit: list) -> Iterator[tuple[int, Any, Any]]:
        """Level, weight and entry of all vertices around the coordinates ``unit`` of the encoding."""
        coordinates = unit[self.begin : self.begin + self.size]
        inside = [dr.select(dr.isfinite(v), dr.clip(v, -FAR, FAR), 0) for v in coordinates]
        return ((level, weights[0], index) for level, weights, index in self.layer.grid.grid.value.walk(inside))


def drawn_grids(encoding: Any, size: int, feature: int = 0, begin: int = 0) -> Iterator[GridPart]:
    """The drawn grids in an encoding of ``size`` coordinates."""
    if isinstance(encoding, DrawnGrid):
        yield GridPart(encoding, feature, begin, size)
    elif isinstance(encoding, Pad):
        yield from drawn_grids(encoding.nested, size, feature + encoding.before, begin)
    elif isinstance(encoding, Composite):
        for part, first, n in encoding.parts(size):
            yield from drawn_grids(part, n, feature, begin + first)
            feature += part.width(n) if encoding.reduction == "concatenation" else 0


class Linearized:
    """A field whose last linear layer is drawn, and maybe grids in its encoding."""

    def __init__(self, field: NeuralField):
        self.field = field
        layers = list(flatten([field.network]))
        index = next(i for i, layer in enumerate(layers) if isinstance(layer, DrawnLinear))
        self.before, self.last, self.behind = layers[:index], layers[index], layers[index + 1 :]
        self.network = Sequential(*self.before, self.last.linear, *self.behind)
        self.grids = list(drawn_grids(field.encoding, field.in_features))

    def at(self, unit: list) -> Derivatives:
        """The derivatives at coordinates in the encoding's units."""
        features, _ = encoded(self.field.encoding, unit, [], None)
        work = self.field._work(type(unit[0]))
        single = dr.float32_array_t(work)
        (hidden,) = apply(self.before, [UnpackedVector(work(v) for v in features)], None)
        out = self.last.linear(hidden)
        y, dy = apply(self.behind, [out, drnn.CoopVec([v * 0 + 1 for v in out])], None) if self.behind else (out, None)
        slopes = [single(1)] * len(out) if dy is None else widened(list(dy), single)
        rows = []
        if self.grids:
            _, columns = jacobian(None, self.network, [single(v) for v in features], work, None, attached=False)
            for layer, first, *_ in self.grids:
                of_grid = columns[first : first + layer.grid.width(layer.in_features)]
                shown = [[layer.grid._up_to_max_level(k, v) for v in column] for k, column in enumerate(of_grid)]
                rows.append([list(row) for row in zip(*shown, strict=True)])
        return Derivatives(hidden, slopes, rows, widened(list(y), single))


def is_drawn(field: Any) -> bool:
    """Does a key draw parameters of ``field``?"""
    return any(isinstance(layer, DrawnLinear) for layer in children(field))


def deviations(field: NeuralField, unit: list) -> list:
    """The standard deviation of each output at coordinates in the encoding's units, in single precision."""
    linear = Linearized(field)
    derivatives = linear.at(unit)
    spread = dr.square(linear.last.spread(derivatives.hidden))
    variances = [dr.square(g) * spread for g in derivatives.slopes]
    for part, rows in zip(linear.grids, derivatives.rows, strict=True):
        grid, deviation = part.layer.grid.grid.value, part.layer.deviation.value.data
        n = grid.n_features
        squares = [[dr.square(v) for v in row] for row in rows]
        for level, weight, index in part.walk(unit):
            weighted = [dr.square(v * weight) for v in grid.read(deviation, index)]
            for o, row in enumerate(squares):
                for k in range(n):
                    variances[o] = dr.fma(row[level * n + k], weighted[k], variances[o])
    return [dr.sqrt(v) for v in variances]
