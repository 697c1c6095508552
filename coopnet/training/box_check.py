"""Warns if a field is trained at coordinates outside of the box that its encoding needs.

Outside the unit cube, levels of grids wrap around, bins repeat, and spherical harmonics grow as polynomials do. A field
learns badly there, without an error.
The first batch is checked, before anything is recorded.
"""

from __future__ import annotations

from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..bounds import to_unit
from ..field import NeuralField
from ..nn import Composite, Pad, Sequential
from ..nn.encoding import in_unit
from ..nn.tree import children

#: Share of the samples of a batch that may lie outside, such as in a margin or by noise.
SHARE = 0.1
#: Distance outside of the box that still counts as its edge.
MARGIN = 1e-3


def message(field: NeuralField, notes: list[tuple[Any, list, Any]]) -> str:
    """The warning, if many coordinates at which ``field`` was evaluated lie outside: see
    :func:`coopnet.call.noting`.
    """
    first = field.network if field.encoding is None else field.encoding
    numbers = in_unit(first, field.in_features)
    seen = [(parts, active) for whose, parts, active in notes if whose is field] if numbers else []
    if not seen:
        return ""
    lanes = [_lanes(field, parts, active, numbers) for parts, active in seen]
    dr.eval(lanes)  # in one kernel, and not in one for each count
    out, of = (sum(int(dr.count(v[i]).numpy()[0]) for v in lanes) for i in (0, 1))
    if out <= SHARE * of:
        return ""
    ends = [(dr.min(parts[i]), dr.max(parts[i])) for parts, _ in seen for i in numbers]
    dr.eval(ends)
    low, high = min(float(a[0]) for a, _ in ends), max(float(b[0]) for _, b in ends)
    around = Composite | Pad | Sequential | drnn.Sequential
    found = [layer for layer in children(first) if not isinstance(layer, around) and in_unit(layer, 1)]
    names = sorted({type(layer).__name__ for layer in found})
    box = "[0, 1]" if field.bounds is None else "the field's bounds"
    where = f"{100 * out / of:.0f} % of the first batch lies outside {box} (coordinates from {low:.4g} to {high:.4g})"
    expects = f"{' and '.join(names)} {'expects' if len(names) == 1 else 'expect'} coordinates in {box}"
    return f"fit: {where}. {expects}; pass NeuralField(..., bounds=(low, high))."


def _lanes(field: NeuralField, parts: list, active: Any, numbers: list[int]) -> tuple[Any, Any]:
    """Two masks: the active samples that lie outside, and all active samples."""
    lanes = dr.width([*parts, *([] if active is None else [active])])
    there = dr.full(dr.mask_t(parts[0]), True, lanes)
    mapped = to_unit(parts, field.bounds)
    outside = ~there
    for i in numbers:
        outside |= (mapped[i] < -MARGIN) | (mapped[i] > 1 + MARGIN)
    if active is not None:
        there &= active
    return outside & there, there
