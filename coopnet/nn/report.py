"""How large a network is, layer by layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import drjit as dr

from .parameters import logical_shape, parameters, storage_of


@dataclass(frozen=True)
class LayerSize:
    """One layer: its name, what it is, the shapes of its parameters, their number, and the bytes they take."""

    name: str
    layer: str
    shapes: tuple[tuple[int, ...], ...]
    parameters: int
    bytes: int


@dataclass(frozen=True)
class Report:
    """Sizes of a network's layers. ``bytes`` counts what is allocated, the gaps of packed layouts included."""

    layers: tuple[LayerSize, ...]
    parameters: int
    bytes: int

    def __str__(self) -> str:
        head = ("layer", "type", "shapes", "parameters", "bytes")
        rows = [
            (x.name, x.layer, ", ".join("x".join(map(str, s)) for s in x.shapes), f"{x.parameters:,}", f"{x.bytes:,}")
            for x in self.layers
        ]
        gaps = self.bytes - sum(x.bytes for x in self.layers)
        if gaps:
            rows.append(("(padding)", "", "", "", f"{gaps:,}"))
        rows.append(("total", "", "", f"{self.parameters:,}", f"{self.bytes:,}"))
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(5)]
        lines = []
        for row in (head, *rows):
            cells = [c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


def report(module: Any) -> Report:
    """The :class:`Report` of ``module``; see :meth:`Module.report`."""
    layers: dict[str, LayerSize] = {}
    arrays: dict[int, Any] = {}
    for name, owner, attribute in parameters(module):
        storage = storage_of(owner, attribute)
        arrays[id(storage)] = storage
        shape = logical_shape(owner, attribute)
        count = math.prod(shape)
        layer = name.rpartition(".")[0] or type(module).__name__
        before = layers.get(layer, LayerSize(layer, _type(module, name), (), 0, 0))
        layers[layer] = LayerSize(
            layer,
            before.layer,
            (*before.shapes, shape),
            before.parameters + count,
            before.bytes + count * _itemsize(storage),
        )
    if not layers:
        raise ValueError(f"{type(module).__name__}.report: there are no parameters yet; call alloc() or build() first.")
    total = sum(math.prod(dr.shape(a)) * _itemsize(a) for a in arrays.values())
    return Report(tuple(layers.values()), sum(x.parameters for x in layers.values()), total)


def _type(module: Any, name: str) -> str:
    for part in name.split(".")[:-1]:
        module = module[int(part)] if part.isdigit() else getattr(module, part)
    return type(module).__name__


def _itemsize(array: Any) -> int:
    return {dr.VarType.Float16: 2, dr.VarType.Float32: 4, dr.VarType.Float64: 8}[dr.type_v(array)]
