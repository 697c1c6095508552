"""Which process has which samples of a batch, and how to select them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import drjit as dr

from ..trees import leaves, mapped


def bounds(total: int, parts: int) -> list[tuple[int, int]]:
    """``(start, end)`` of each of ``parts`` parts of a batch of ``total`` samples. Their sizes differ by at most 1."""
    ends = [total * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(ends))


def sliced(tree: Any, total: int, index: Any) -> Any:
    """The samples ``index`` of a PyTree: selected from all arrays in it that have ``total`` entries."""

    def taken(array: Any) -> Any:
        if not dr.is_tensor_v(array):
            return dr.gather(type(array), array, index) if dr.width(array) == total else array
        if array.ndim == 0 or array.shape[-1] != total:
            return array
        n = dr.width(index)
        lane = dr.arange(type(index), math.prod(array.shape[:-1]) * n)
        entry = lane // n * total + dr.gather(type(index), index, lane % n)
        return type(array)(dr.gather(type(array.array), array.array, entry), (*array.shape[:-1], n))

    for array in leaves(tree):
        dr.schedule(array)
    dr.eval()  # all in one kernel; otherwise each would be evaluated separately when it is read
    return mapped(taken, tree)
