"""The arguments with which a layer was constructed: its ``repr`` and its description in files are made from them."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable
from functools import cache
from typing import Any

import drjit.nn as drnn


@cache  # finding them takes longer than everything else that a small layer does
def constructor(cls: type) -> dict[str, inspect.Parameter]:
    """Arguments of the constructor of ``cls``, by name."""
    return dict(inspect.signature(cls).parameters)


def arguments(layer: Any, cls: Any = None) -> dict[str, Any]:
    """The arguments of ``layer`` by name, as far as it keeps them: those of its own constructor, or of the one of
    ``cls``.

    An argument is kept under its name, or ``_name`` if that is a method.
    """
    linear = isinstance(layer, drnn.Linear)  # which keeps three in a tuple
    known = dict(zip(("in_features", "out_features", "bias"), layer.config, strict=True)) if linear else {}
    for name in constructor(cls or layer.__class__):
        if name not in known and hasattr(layer, name):
            value = getattr(layer, name)
            known[name] = getattr(layer, f"_{name}") if inspect.ismethod(value) else value
    return known


def block(layer: Any, lines: Iterable[str]) -> str:
    """The ``repr`` of a layer that holds others: its name, and ``lines`` in parentheses, indented."""
    return f"{type(layer).__name__}(\n" + textwrap.indent(",\n".join(lines), "  ") + "\n)"


def fields(init: Any, **others: type | None) -> dict[str, type]:
    """The ``DRJIT_STRUCT`` of a layer that keeps the arguments of its ``__init__``, and ``others``.

    ``None`` among the others removes an argument that is a property, and is kept in another field.
    """
    _, *names = inspect.signature(init).parameters
    struct = {**dict.fromkeys(names, object), **others}
    return {name: tp for name, tp in struct.items() if tp is not None}
