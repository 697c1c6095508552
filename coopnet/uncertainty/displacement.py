"""A posterior of displacements of the coordinates: how far places may move without changing the fit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import drjit as dr
import numpy as np

from ..bounds import corners, to_unit
from ..checks import check_int, ensure, entries, shown
from ..checks.warn import warn
from ..field import NeuralField
from ..jit import kinds
from ..jit.batch_size import pin_batch_size, summed
from ..jit.captures import Captures
from ..jit.scopes import frozen, symbolic
from ..jit.unpacked import Unpacked
from ..kernels import fixed_point
from ..nn import Identity
from ..nn.displaced import Displaced
from ..nn.parameters import ParameterArray
from .layers import rebuilt

_WHERE = "laplace"
#: Factor of cotangents in half precision, whose smallest positive number is 6e-8.
_HALF_SCALE = 256.0
#: Most displacements: enough for 256 vertices along three axes, but not for 16 along six.
_MOST = 1 << 26
#: Share of the samples that must lie in the box.
_INSIDE = 0.1
#: Share of the data below which a warning is given. Of samples along rays, many may lie outside.
_NEARLY_ALL = 0.9


def displaced(field: NeuralField, spatial: Any) -> NeuralField:
    """A copy of ``field`` with a grid of displacements, whose deviations are zero."""
    n = field.in_features
    if isinstance(spatial, (list, tuple)):
        numbers = entries(_WHERE, "spatial", spatial)
        needed = f"one for each of the first of {n} coordinates is needed"
        ensure(0 < len(numbers) <= n, f"{_WHERE}: spatial has {len(numbers)} entries; {needed}.")
        sides = tuple(check_int(_WHERE, f"spatial[{i}]", v, 2, 2**20) for i, v in enumerate(numbers))
    else:
        needed = "an int from 2 to 1048576, or one for each of the first coordinates,"
        sides = (check_int(_WHERE, "spatial", spatial, 2, 2**20, needed),) * n
    count = max(sides) ** len(sides) * len(sides)
    advice = "take fewer, or name the first coordinates alone, as in spatial=(16, 16, 16)"
    ensure(count <= _MOST, f"{_WHERE}: spatial is {shown(spatial)}, which makes {count:.2g} displacements; {advice}.")
    encoding = Identity() if field.encoding is None else field.encoding
    return rebuilt(field, Displaced(encoding, sides), field.network, _new_parameters)


def _new_parameters(layer: Any) -> list:
    """Owners of parameters in ``layer`` that the field did not have."""
    return [layer.deviation.value] if isinstance(layer, Displaced) else []


def is_displaced(field: Any) -> bool:
    """Does a key displace the coordinates of ``field``?"""
    return isinstance(getattr(field, "encoding", None), Displaced)


def displacement_std(field: NeuralField, unit: list) -> Any:
    """How far a point may move, in units of the coordinates; ``unit`` are the coordinates mapped to the unit cube."""
    layer = field.encoding
    deviations = layer.interpolated(layer.deviation.value.data, unit[: len(layer.sides)])
    return dr.sqrt(sum(dr.square(v * extent) for v, extent in zip(deviations, _extents(field), strict=True)))


def _extents(field: NeuralField) -> list[float]:
    """The length of the box along each axis that is displaced."""
    low, high = corners(field.bounds, field.in_features)
    return [float(v) for v in (high - low)[: len(field.encoding.sides)]]


class _Watched(NeuralField):
    """A copy of ``field`` that adds variables of value zero to its coordinates, and keeps coordinates and variables."""

    def __init__(self, field: NeuralField):
        self.__dict__.update(field.__dict__)
        # a parameter with a gradient, which tells ray_march() that there is something to differentiate
        self.encoding = copy.copy(field.encoding)
        data = field.encoding.deviation.value.data
        data = type(data)(dr.detach(data))
        dr.enable_grad(data)
        self.encoding.deviation = Unpacked(ParameterArray(data))
        self.seen: list[tuple[list, list]] = []

    def __call__(self, p: Any, key: Any = None, active: Any = True) -> Any:
        where = f"{_WHERE}: predict"
        advice = "pass mode='wide' to ray_march, or evaluate all samples at once"
        ensure(not symbolic(), f"{where} evaluates the field in a symbolic loop or call; {advice}.", RuntimeError)
        kind, leaf = kinds.in_kernels(p, where, single=True)
        single, parts = dr.float32_array_t(leaf), kinds.rows(p, kind)
        width = dr.width(parts)
        moves = [dr.zeros(single, width) for _ in self.encoding.sides]
        dr.enable_grad(moves)
        attached = f"{where} evaluates the field where derivatives are suspended; {advice}."
        ensure(dr.grad_enabled(moves), attached, RuntimeError)
        places = [dr.detach(single(v)) + dr.zeros(single, width) for v in parts]
        self.seen.append((to_unit(places, self.bounds)[: len(moves)], moves))
        moved = [single(v) + m for v, m in zip(parts, moves, strict=False)] + [single(v) for v in parts[len(moves) :]]
        return super().__call__(kinds.rebuild(moved, p), key, active)


class DisplacementSums:
    """Sums, over predictions, of squared derivatives with respect to the displacements of vertices.

    ``predict`` is traced code ``(field, inputs) -> predictions``, an array for each target.
    """

    def __init__(self, field: NeuralField, predict: Callable | None):
        self.field = field
        self.predict = chosen = predict or _evaluated

        def products(field: NeuralField, inputs: Any, targets: list, which: list) -> tuple[Any, list]:
            return _products(field, inputs, targets, which, chosen)

        self.frozen = dr.freeze(products, state_fn=Captures(chosen))
        self.entries, self.squares, self.terms, self.samples = None, 0.0, 0, 0  # type: Any, float, int, int

    def add(self, inputs: Any, targets: list) -> None:
        with dr.resume_grad():
            if self.entries is None:  # while recording, an error would become a RuntimeError without its message
                _followed(self.field, inputs, targets, self.predict)
            # numbers of the targets in memory: one kernel for the derivatives of all
            which = [dr.opaque(dr.uint32_array_t(type(targets[0])), i) for i in range(len(targets))]
            sums, numbers = self.frozen(self.field, inputs, targets, which)
        squares, share, count = (float(v.numpy()[0]) for v in numbers)
        box = "the field's bounds" if self.field.bounds else "the unit cube; build the field with bounds"
        needed = f"{_INSIDE:.0%} are needed"
        lie = f"{_WHERE}: {share:.1%} of the samples lie within {box}"
        ensure(share >= _INSIDE, f"{lie}; {needed} for spatial.")
        if self.entries is None and share < _NEARLY_ALL and self.predict is _evaluated:
            warn(f"{lie}. The deviations outside are those of its border.")
        self.entries = sums if self.entries is None else self.entries + sums
        dr.eval(self.entries)
        self.squares += squares
        self.samples += round(count)
        self.terms += round(count) * len(targets)

    def finish(self, weight: float, prior: float | None) -> None:
        """Give the field the deviations of displacements, in units of the box."""
        squares = self.entries.numpy().astype(np.float64)
        ensure(np.isfinite(squares).all(), f"{_WHERE}: derivatives by displacements are not finite.")
        layer: Displaced = self.field.encoding
        extents = _extents(self.field)
        tau = [1 / (n - 1) if prior is None else prior / e for n, e in zip(layer.sides, extents, strict=True)]
        precision = squares.reshape(-1, len(tau)) * weight + np.array(tau) ** -2
        self.field.set_matrix("encoding.data", (1 / np.sqrt(precision)).ravel())


def _evaluated(field: NeuralField, p: Any) -> Any:
    return field(p)


def _products(field: NeuralField, inputs: Any, targets: list, which: list, predict: Callable) -> tuple[Any, list]:
    """The terms of one batch in the sums of the displacements; the sum of its squared errors, the share of its samples
    in the box, and its number of predictions. ``which`` are the numbers of the targets, in memory."""
    values, unit, moves = _followed(field, inputs, targets, predict)
    n, width = dr.width([*values, *targets]), dr.width(moves[0])
    half = field.precision == "half"
    scale, rows = _HALF_SCALE if half else 1.0, []
    for number in which:
        one = [dr.select(number == i, value * scale, 0) for i, value in enumerate(values)]
        dr.backward(sum(one[1:], one[0]), flags=dr.ADFlag.ClearInterior)
        rows.append([dr.grad(v) * (extent / scale) for v, extent in zip(moves, _extents(field), strict=True)])
        dr.eval(rows[-1])
        dr.clear_grad(moves)
    values = [dr.detach(v) for v in values]
    errors = sum(dr.square(v - t) for v, t in zip(values, targets, strict=True))
    if frozen():
        sample = summed([*unit, *targets], width)
        dr.eval(sample)
        pin_batch_size(sample)
    within = type(unit[0])(1)
    for v in unit:
        within = dr.select((v >= 0) & (v <= 1), within, 0)
    numbers = [dr.sum(errors), dr.mean(within), type(within)(dr.opaque_width(errors))]
    return _entry_sums(field.encoding, unit, rows, n), numbers


def _followed(field: NeuralField, inputs: Any, targets: list, predict: Callable) -> tuple[list, list, list]:
    """Predictions, the samples from which they were made, and the variables that moved these samples; all checked."""
    watched = _Watched(field)
    values = _predictions(predict(watched, inputs), targets)
    calls = len(watched.seen)
    ensure(calls == 1, f"{_WHERE}: predict evaluates the field {calls} times; once, at all samples, is needed.")
    ((unit, moves),) = watched.seen
    n, width = dr.width([*values, *targets]), dr.width(moves[0])
    many = f"{_WHERE}: predict evaluated the field at {width} samples for {n} predictions"
    # with an occupancy grid, ray_march() leaves samples out, but not in a frozen function
    ensure(width % n == 0 or not frozen(), f"{many}; the number must be a multiple of {n}.")
    ensure(all(dr.grad_enabled(v) for v in values), f"{_WHERE}: what predict returned does not depend on the field.")
    return values, unit, moves


def _predictions(values: Any, targets: list) -> list:
    """``values`` as a list of single-precision arrays, one for each target."""
    kind, leaf = kinds.in_kernels(values, f"{_WHERE}: what predict returned", single=True)
    single, components = dr.float32_array_t(leaf), kinds.rows(values, kind)
    count, needed = len(components), len(targets)
    ensure(count == needed, f"{_WHERE}: predict returned {count} components for targets of {needed}.")
    kinds.check_sizes([*components, *targets], f"{_WHERE}: predictions and targets")
    return [single(v) for v in components]


def _entry_sums(layer: Displaced, unit: list, rows: list[list], n: int) -> Any:
    r"""The sums, over predictions, of the squared derivatives with respect to the displacement of every vertex.

    ``rows`` are the derivatives of each prediction with respect to the displacement of each sample. Sample ``s``
    belongs to prediction ``s % n``. The derivative with respect to a vertex is a weighted sum over the samples around
    it, which is then squared. Along a straight ray these samples are consecutive, so the lane of the first adds up all
    of them.
    """
    single, axes = type(unit[0]), len(unit)
    uint32 = dr.uint32_array_t(single)
    width, corners = dr.width(unit[0]), 1 << axes
    steps = width // n
    squares = [sum((dr.square(row[k]) for row in rows[1:]), dr.square(rows[0][k])) for k in range(axes)]
    squares = [v + dr.zeros(single, width) for v in squares]
    # at most n terms of at most `steps` derivatives each, all of which may be as large as the largest
    most = dr.max(fixed_point.bound(squares))
    scale, broken = fixed_point.scale(most * steps**2, dr.opaque(single, n)), fixed_point.broken(most)
    rows = [[v + dr.zeros(single, width) for v in row] for row in rows]
    dr.eval(scale, broken, unit, rows)
    sums = dr.zeros(dr.int64_array_t(single), layer.vertices * axes)

    lane = dr.arange(uint32, width * corners)
    sample = lane // corners
    bits = [(lane >> k) & 1 for k in range(axes)]

    def cell(s: Any) -> tuple[list, list]:
        return layer.cell([dr.gather(single, v, s) for v in unit])

    def around(lowest: list) -> Any:
        """Is ``vertex`` a corner of the cell whose lowest corner is ``lowest``?"""
        inside = dr.mask_t(single)(True)
        for a, b in zip(vertex, lowest, strict=True):
            inside &= (a - b) < 2  # unsigned
        return inside

    vertex = [a + b for a, b in zip(cell(sample)[0], bits, strict=True)]
    first = (sample < n) | ~around(cell(dr.select(sample < n, sample, sample - n))[0])

    def more(s: Any, active: Any, totals: list) -> Any:
        return active

    def add(s: Any, active: Any, totals: list) -> tuple:
        lowest, fraction = cell(s)
        weight = single(1)
        for a, b, f in zip(vertex, lowest, fraction, strict=True):
            weight = weight * dr.select(a == b, 1 - f, f)
        totals = [
            [dr.fma(weight, dr.gather(single, v, s), t) for v, t in zip(*pair, strict=True)]
            for pair in zip(rows, totals, strict=True)
        ]
        following = s + n
        active = following < width
        return following, active & around(cell(dr.select(active, following, s))[0]), totals

    zero = dr.zeros(single, width * corners)
    start = sample, first, [[zero for _ in row] for row in rows]
    _, _, totals = dr.while_loop(start, more, add, mode="symbolic", label="coopnet.displacement")
    added = [sum((dr.square(t[k]) for t in totals[1:]), dr.square(totals[0][k])) * scale for k in range(axes)]
    fixed_point.add(sums, added, layer.vertex(vertex), first)
    dr.eval(sums)
    return fixed_point.finish(sums, scale, broken)
