"""Traversal of the layers and parameters of a network."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.unpacked import Constant, Unpacked


def walk(module: Any, name: str = "", above: tuple = ()) -> Iterator[tuple[str, Any, str | None]]:
    """``(name, owner, attribute)`` of all layers and parameters of ``module``, depth first in evaluation order.

    For a layer, the attribute is ``None``; ``module`` itself is the first. A parameter is an attribute of its owner: a
    tensor, a view of packed weights, or the ``data`` of unpacked ones. Names are paths in the tree: ``layers.0``,
    ``layers.0.weights``.

    Raises ``ValueError`` for a network that contains itself.
    """
    check_acyclic(module, above)
    yield name, module, None
    start = f"{name}." if name else ""
    for field, value in _held(module):
        kind = _kind(value.__class__)
        if kind == "unpacked":
            if value.value is not None and not isinstance(value, Constant):
                yield f"{start}data", value.value, "data"
        elif kind == "array":
            yield f"{start}{field}", module, field
        elif kind == "layer":
            yield from walk(value, f"{start}{field}", (*above, module))


@cache  # isinstance() is slow for Dr.Jit's layers, which are abstract base classes
def _kind(held: type) -> str:
    """What an attribute of the type ``held`` is to a walk."""
    kinds = {"unpacked": Unpacked, "array": (dr.ArrayBase, drnn.MatrixView), "layer": drnn.Module}
    return next((kind for kind, types in kinds.items() if issubclass(held, types)), "other")


def _held(module: Any) -> list[tuple[str, Any]]:
    """What ``module`` itself holds, by name; of tuples and lists, the layers in them."""
    found: list[tuple[str, Any]] = []
    for field in getattr(type(module), "DRJIT_STRUCT", None) or ():
        value = getattr(module, field, None)
        if isinstance(value, (tuple, list)):
            found += [(f"{field}.{i}", item) for i, item in enumerate(value) if _kind(item.__class__) == "layer"]
        else:
            found.append((field, value))
    return found


def held_layers(module: Any) -> list:
    """The layers that ``module`` itself holds, in evaluation order."""
    return [value for _, value in _held(module) if _kind(value.__class__) == "layer"]


def children(module: Any) -> Iterator[Any]:
    """All layers inside ``module``, itself first, in evaluation order; raises as :func:`walk`."""
    return (layer for _, layer, attribute in walk(module) if attribute is None)


def check_acyclic(module: Any, above: tuple) -> None:
    """Raise ``ValueError`` if ``module`` is one of the modules ``above`` that contain it."""
    for m in above:
        if m is module:
            problem = f"the network contains itself, through a {type(module).__name__}"
            raise ValueError(f"{type(above[0]).__name__}: {problem}; layers may not hold what holds them.")
