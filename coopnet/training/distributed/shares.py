"""Which samples of a batch are whose, and how to take or draw those."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ...checks import check_positive, check_type
from ...random.key import Key


def bounds(total: int, parts: int) -> list[tuple[int, int]]:
    """The first sample of every part of a batch, and that behind its last: sizes differ by 1 at most."""
    ends = [total * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(ends))


def by_index(samples: int) -> Callable[[Callable[[Key], Any]], Callable[[Key], Any]]:
    """Decorates a batch function that draws the samples which its key names: each process its own alone.

    Of what other batch functions draw, a process takes its share. One with this decorator is called with a key that
    has an index: the numbers of the samples wanted, among those from 0 to ``samples``. Entry :math:`i` of all arrays
    it returns belongs to sample ``key.index[i]``, and must depend on nothing but that number, the seed and the step.
    :func:`coopnet.uniform` draws such numbers, and reading tables at ``key.index`` gives such values. Called with a key
    that has no index, as by :func:`coopnet.fit` on one process, it draws all.

    Args:
        samples: how many a whole batch has, a positive int.

    Raises:
        TypeError, ValueError: ``samples`` is no positive int; what is decorated is no function.

    >>> @cn.training.by_index(1 << 18)
    ... def batch(key):
    ...     x, y = cn.uniform(2, key, Float)
    ...     return [x, y], [dr.sin(6 * x) * y]
    """
    check_positive("by_index", "samples", samples)

    def decorate(function: Callable[[Key], Any]) -> Callable[[Key], Any]:
        check_type("by_index", "the batch", function, Callable, "a function key -> batch")

        @functools.wraps(function)
        def batch(key: Key) -> Any:
            if key.index is None:
                traced = isinstance(key.seed, dr.ArrayBase)
                index = dr.arange(dr.uint32_array_t(type(key.seed)), samples) if traced else np.arange(samples)
                key = Key(key.seed, index, key.step)
            return function(key)

        batch.samples = samples  # type: ignore[attr-defined]
        return batch

    return decorate


def sliced(tree: Any, total: int, index: Any) -> Any:
    """The samples ``index`` of a PyTree: of the arrays in it that have an entry for each of ``total``.

    Its arrays are evaluated, if they are to be read at places.
    """
    dr.eval(tree)
    return _sliced(tree, total, index)


def _sliced(tree: Any, total: int, index: Any) -> Any:
    if isinstance(tree, drnn.CoopVec):
        return drnn.CoopVec(_sliced(list(tree), total, index))
    if isinstance(tree, dr.ArrayBase):
        if dr.is_tensor_v(tree):
            if tree.ndim == 0 or tree.shape[-1] != total:
                return tree
            n = dr.width(index)
            lane = dr.arange(type(index), math.prod(tree.shape[:-1]) * n)
            place = lane // n * total + dr.gather(type(index), index, lane % n)
            return type(tree)(dr.gather(type(tree.array), tree.array, place), (*tree.shape[:-1], n))
        if dr.depth_v(tree) == 1:
            return dr.gather(type(tree), tree, index) if dr.width(tree) == total else tree
        return type(tree)([_sliced(part, total, index) for part in tree])
    if isinstance(tree, dict):
        return {name: _sliced(value, total, index) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [_sliced(value, total, index) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    names = getattr(type(tree), "DRJIT_STRUCT", getattr(tree, "__dataclass_fields__", None))
    if names is None:
        return tree
    new = copy.copy(tree)
    for name in names:
        setattr(new, name, _sliced(getattr(tree, name), total, index))
    return new
