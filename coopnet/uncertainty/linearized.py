"""Derivatives of a field by the parameters that a key may draw, sample by sample, and the deviation that follows."""

from __future__ import annotations

from typing import Any, NamedTuple

import drjit as dr
import drjit.nn as drnn

from ..derivatives import encoded, jacobian
from ..field import NeuralField
from ..jit.half import widened
from ..jit.kinds import UnpackedVector
from ..kernels.grid import FAR
from ..nn import Sequential
from ..nn.drawn import DrawnGrid, DrawnLinear
from ..nn.sequential import apply, flatten
from ..nn.tree import children


class Derivatives(NamedTuple):
    """At each sample, in single precision: what derivatives by parameters are made of.

    ``hidden`` is the ``CoopVec`` that goes into the last linear layer, ``slopes`` the derivative of each output by what
    comes out there, ``rows`` the derivatives of each output by the features of a grid (none if nothing of it is drawn),
    and ``values`` the outputs.
    """

    hidden: Any
    slopes: list
    rows: list[list]
    values: list


class Linearized:
    """A field whose last linear layer, and maybe its grid, is drawn."""

    def __init__(self, field: NeuralField):
        self.field = field
        layers = list(flatten([field.network]))
        place = next(i for i, layer in enumerate(layers) if isinstance(layer, DrawnLinear))
        self.before, self.last, self.behind = layers[:place], layers[place], layers[place + 1 :]
        self.network = Sequential(*self.before, self.last.linear, *self.behind)
        self.grid = field.encoding if isinstance(field.encoding, DrawnGrid) else None

    def at(self, unit: list) -> Derivatives:
        """The derivatives at coordinates that the encoding is to see."""
        features, _ = encoded(self.field.encoding, unit, [], None)
        work = self.field._work(type(unit[0]))
        single = dr.float32_array_t(work)
        (hidden,) = apply(self.before, [UnpackedVector(work(v) for v in features)], None)
        out = self.last.linear(hidden)
        y, dy = apply(self.behind, [out, drnn.CoopVec([v * 0 + 1 for v in out])], None) if self.behind else (out, None)
        slopes = [single(1)] * len(out) if dy is None else widened(list(dy), single)
        rows: list[list] = []
        if self.grid is not None:
            _, columns = jacobian(None, self.network, [single(v) for v in features], work, None, attached=False)
            shown = [[self.grid.grid._shown(k, v) for v in column] for k, column in enumerate(columns)]
            rows = [list(row) for row in zip(*shown, strict=True)]
        return Derivatives(hidden, slopes, rows, widened(list(y), single))

    def walk(self, unit: list) -> Any:
        """Level, weight and entry of all vertices around the coordinates."""
        assert self.grid is not None
        grid = self.grid.grid.grid.value
        inside = [dr.select(dr.isfinite(v), dr.clip(v, -FAR, FAR), 0) for v in unit]
        return ((level, weights[0], index) for level, weights, index in grid.walk(inside))


def is_drawn(field: Any) -> bool:
    """Does a key draw parameters of ``field``?"""
    return any(isinstance(layer, DrawnLinear) for layer in children(field))


def deviations(field: NeuralField, unit: list) -> list:
    """The deviation of each output at coordinates that the encoding is to see, in single precision."""
    linear = Linearized(field)
    found = linear.at(unit)
    spread = dr.square(linear.last.spread(found.hidden))
    variances = [dr.square(g) * spread for g in found.slopes]
    if linear.grid is not None:
        grid, deviation = linear.grid.grid.grid.value, linear.grid.deviation.value.data
        n = grid.n_features
        squares = [[dr.square(v) for v in row] for row in found.rows]
        for level, weight, index in linear.walk(unit):
            weighted = [dr.square(v * weight) for v in grid.read(deviation, index)]
            for o, row in enumerate(squares):
                for k in range(n):
                    variances[o] = dr.fma(row[level * n + k], weighted[k], variances[o])
    return [dr.sqrt(v) for v in variances]
