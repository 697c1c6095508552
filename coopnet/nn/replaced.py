"""Modules that compute with other parameters for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import drjit as dr

from .concrete_dropout import ConcreteDropout, relaxing


@contextmanager
def replaced(
    modules: Sequence[Any], arrays: Iterable, relaxed: Iterable[tuple[ConcreteDropout, bool]]
) -> Iterator[None]:
    """A block in which ``modules``, distinct :class:`coopnet.Module`s, have ``arrays`` in place of their parameters, in
    the order of their mappings. Flat arrays may take the place of tensors. ``relaxed`` is as for :func:`relaxing`.
    """
    kept = [type(v)(v) for module in modules for v in module.values()]  # copies, as assigning overwrites packed arrays
    _set(modules, arrays)
    try:
        with relaxing(relaxed):
            yield
    finally:
        _set(modules, kept)


def _set(modules: Sequence[Any], arrays: Iterable) -> None:
    remaining = iter(arrays)
    for module in modules:
        for name, current in module.items():
            value = next(remaining)
            flat = dr.is_tensor_v(current) and not dr.is_tensor_v(value)
            module[name] = type(current)(value, dr.shape(current)) if flat else value
