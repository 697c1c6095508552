"""Limits the memory of a field from a file, computed from its arguments: a small file must not need much memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import drjit.nn as drnn

from ..checks import ensure
from ..field import NeuralField
from ..nn import Composite, Embedding, Encoding, Fourier
from ..nn.lattice import Lattice
from ..nn.tree import walk

#: A field may have SHARE times as many numbers as its file, and FREE more. Random frequencies, for example, are not
#: stored, but each belongs to a column of a stored matrix.
SHARE, FREE = 16, 2**20


def check_amounts(field: NeuralField, stored: int) -> None:
    """Raise ``ValueError`` if allocating ``field`` would take many more numbers than its file holds.

    Args:
        field: a field that is not built; nothing is allocated or computed here.
        stored: how many numbers the file has for the field's parameters.
    """
    n = field.in_features
    ensure(n > 0, f"in_features is {n}, but every file states the number of coordinates.")
    total = 0
    for where, layer in _layers(field):
        factors = _factors(layer, where)
        total += math.prod(factors.values()) if factors else 0
        if total > SHARE * stored + FREE:
            product, values = " * ".join(factors), " * ".join(map(str, factors.values()))
            raise ValueError(f"{where} takes {product} = {values} numbers, but the file holds {stored}.")


def _factors(layer: Any, where: str) -> dict[str, int]:
    """Factors, by name, whose product is the least number of values that ``layer`` stores, draws or returns."""
    if isinstance(layer, drnn.Linear):
        n_in, n_out, _ = layer.config
        return {"in_features": max(n_in, 1), "out_features": max(n_out, 1)}
    if isinstance(layer, Embedding):
        return {"count": layer.count, "width": layer.width(1)}
    if isinstance(layer, (Fourier, Lattice)):
        n = layer.in_features
        ensure(n > 0, f"{where}.in_features is {n}, but every file states it.")
        names = ["n_frequencies"] if isinstance(layer, Fourier) else ["n_levels", "n_features_per_level"]
        return {name: getattr(layer, name) for name in (*names, "in_features")}
    known = isinstance(layer, Encoding) and layer.in_features > 0
    return {"features": layer.width(layer.in_features)} if known else {}


def _layers(module: Any) -> Iterator[tuple[str, Any]]:
    """All layers that are allocated with ``module``, with their paths."""
    skipped: tuple[str, ...] = ()
    for where, layer, attribute in walk(module):
        if isinstance(layer, Composite):
            skipped += tuple(f"{where}.nested.{i}." for i, n in enumerate(layer.n_dims_to_encode) if n == 0)
        if attribute is None and not f"{where}.".startswith(skipped):
            yield where, layer
