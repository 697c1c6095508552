"""Which samples of a batch are whose, and how to take those of what was drawn."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import drjit as dr
import drjit.nn as drnn


def bounds(total: int, parts: int) -> list[tuple[int, int]]:
    """The first sample of every part of a batch, and that behind its last: sizes differ by 1 at most."""
    ends = [total * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(ends))


def sliced(tree: Any, total: int, index: Any) -> Any:
    """The samples ``index`` of a PyTree: of the arrays in it that have an entry for each of ``total``."""

    def scheduled(array: Any) -> Any:
        dr.schedule(array)
        return array

    def taken(array: Any) -> Any:
        if not dr.is_tensor_v(array):
            return dr.gather(type(array), array, index) if dr.width(array) == total else array
        if array.ndim == 0 or array.shape[-1] != total:
            return array
        n = dr.width(index)
        lane = dr.arange(type(index), math.prod(array.shape[:-1]) * n)
        place = lane // n * total + dr.gather(type(index), index, lane % n)
        return type(array)(dr.gather(type(array.array), array.array, place), (*array.shape[:-1], n))

    tree = _mapped(tree, scheduled)
    dr.eval()  # all in one kernel: to be read at places, each would be evaluated by itself
    return _mapped(tree, taken)


def _mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """A PyTree of what ``function`` makes of the flat arrays and tensors in one."""
    if isinstance(tree, drnn.CoopVec):
        return drnn.CoopVec(_mapped(list(tree), function))
    if isinstance(tree, dr.ArrayBase):
        if dr.is_tensor_v(tree) or dr.depth_v(tree) == 1:
            return function(tree)
        return type(tree)([_mapped(part, function) for part in tree])
    if isinstance(tree, dict):
        return {name: _mapped(value, function) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [_mapped(value, function) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    names = getattr(type(tree), "DRJIT_STRUCT", getattr(tree, "__dataclass_fields__", None))
    if names is None:
        return tree
    new = copy.copy(tree)
    for name in names:
        setattr(new, name, _mapped(getattr(tree, name), function))
    return new
