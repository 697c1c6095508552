"""The constructor's arguments of a layer, from which its ``repr`` and its description in files are made."""

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
    """The arguments of ``layer`` by name, as far as it keeps them, for its own constructor or that of ``cls``.

    An argument ``name`` is kept in the attribute ``name``, or in ``_name`` if ``name`` is a method.
    """
    linear = isinstance(layer, drnn.Linear)  # keeps three arguments in a tuple
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
    """The ``DRJIT_STRUCT`` of a layer: the arguments of its ``__init__``, and the fields ``others``.

    A ``None`` in ``others`` leaves out an argument that is a property, whose value is in another field.
    """
    _, *names = inspect.signature(init).parameters
    struct = {**dict.fromkeys(names, object), **others}
    return {name: tp for name, tp in struct.items() if tp is not None}
