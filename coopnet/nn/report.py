"""The size of a network, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import drjit as dr

from .parameters import parameters
from .tree import walk


@dataclass(frozen=True)
class LayerSize:
    """One layer: its name and type, the shapes of its parameter arrays, the number of parameters, and their bytes."""

    name: str
    layer: str
    shapes: tuple[tuple[int, ...], ...]
    parameters: int
    bytes: int


@dataclass(frozen=True)
class Report:
    """Sizes of a network's layers. ``bytes`` counts what is allocated, including the gaps of packed layouts."""

    layers: tuple[LayerSize, ...]
    parameters: int
    bytes: int

    def __str__(self) -> str:
        rows = [("layer", "type", "shapes", "parameters", "bytes")]
        rows += [
            (x.name, x.layer, ", ".join("x".join(map(str, s)) for s in x.shapes), f"{x.parameters:,}", f"{x.bytes:,}")
            for x in self.layers
        ]
        gaps = self.bytes - sum(x.bytes for x in self.layers)
        if gaps:
            rows.append(("(padding)", "", "", "", f"{gaps:,}"))
        rows.append(("total", "", "", f"{self.parameters:,}", f"{self.bytes:,}"))
        return aligned(rows, 3)


def aligned(rows: Sequence[tuple[str, ...]], left: int) -> str:
    """A table of ``rows`` as text; the first ``left`` columns are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def report(module: Any) -> Report:
    """The :class:`Report` of ``module``; see :meth:`Module.report`."""
    types = {name: type(layer).__name__ for name, layer, attribute in walk(module) if attribute is None}
    layers: dict[str, LayerSize] = {}
    arrays: dict[int, Any] = {}
    for p in parameters(module):
        arrays[id(p.storage)] = p.storage
        path = p.name.rpartition(".")[0]
        count, size = math.prod(p.shape), math.prod(p.shape) * dr.itemsize_v(p.storage)
        old = layers.get(path, LayerSize(path or types[path], types[path], (), 0, 0))
        layers[path] = LayerSize(old.name, old.layer, (*old.shapes, p.shape), old.parameters + count, old.bytes + size)
    if not layers:
        raise ValueError(f"{type(module).__name__}.report: there are no parameters yet; call alloc() or build() first.")
    total = sum(math.prod(dr.shape(a)) * dr.itemsize_v(a) for a in arrays.values())
    return Report(tuple(layers.values()), sum(x.parameters for x in layers.values()), total)
