"""PyTrees: dictionaries, lists, tuples, objects with named fields, and nested arrays, down to their flat arrays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import is_flat


def leaves(tree: Any) -> Iterator[Any]:
    """The flat arrays and tensors in ``tree``."""
    if isinstance(tree, dr.ArrayBase):
        if is_flat(tree) or dr.is_tensor_v(tree):
            yield tree
            return
    elif isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple, drnn.CoopVec)):
        tree = [getattr(tree, name, None) for name in _fields(tree)]
    for entry in tree:
        yield from leaves(entry)


def mapped(function: Callable[..., Any], *trees: Any) -> Any:
    """A tree of the results of ``function`` on the flat arrays and tensors at each place of trees of one structure.

    Everything that is not an array is taken from the first tree.
    """
    first = trees[0]
    if isinstance(first, drnn.CoopVec):
        return drnn.CoopVec(mapped(function, *map(list, trees)))
    if isinstance(first, dr.ArrayBase):
        if is_flat(first) or dr.is_tensor_v(first):
            return function(*trees)
        return type(first)([mapped(function, *parts) for parts in zip(*trees, strict=True)])
    if isinstance(first, dict):
        return {name: mapped(function, *(tree[name] for tree in trees)) for name in first}
    if isinstance(first, (list, tuple)):
        parts = [mapped(function, *entries) for entries in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    new = copy.copy(first) if _fields(first) else first
    for name in _fields(first):
        setattr(new, name, mapped(function, *(getattr(tree, name) for tree in trees)))
    return new


def named(tree: Any, name: str = "") -> dict[str, Any]:
    """The arrays inside dictionaries, lists and tuples, by path, in the order of :func:`mapped`."""
    if isinstance(tree, dr.ArrayBase):
        return {name: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (tuple, list)) else ()
    opening = f"{name}/" if name else ""
    return {path: array for key, value in items for path, array in named(value, f"{opening}{key}").items()}


def _fields(tree: Any) -> Any:
    return getattr(type(tree), "DRJIT_STRUCT", getattr(tree, "__dataclass_fields__", ()))
