"""The parameters of the networks that a function evaluates, as inputs of a custom operation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import drjit as dr

from ..kernels.grid import FeatureGrid
from ..kernels.lookup import Table
from ..nn.concrete_dropout import relaxed_layers, relaxing
from ..nn.parameters import parameters


class ModuleParameters:
    """All parameters of ``modules``, distinct :class:`coopnet.Module`s."""

    def __init__(self, modules: Sequence[Any]):
        self.modules = list(modules)

    def arrays(self) -> list:
        """The parameters in a fixed order."""
        return [module[name] for module in self.modules for name in module]

    @contextlib.contextmanager
    def replaced(self, arrays: list) -> Iterator[None]:
        """Within this context, the modules compute with ``arrays`` in place of :meth:`arrays`. Masks of learned rates
        are relaxed as they are outside.
        """
        kept = [type(v)(v) for v in self.arrays()]  # copies, because the arrays themselves are overwritten
        decided = [pair for module in self.modules for pair in relaxed_layers(module)]
        self._set(arrays)
        try:
            with relaxing(decided):
                yield
        finally:
            self._set(kept)

    def _set(self, arrays: list) -> None:
        remaining = iter(arrays)
        for module in self.modules:
            for name in module:
                module[name] = next(remaining)

    def half_tables(self) -> bool:
        """Does a table or grid in half precision track gradients?"""
        found = [p for module in self.modules for p in parameters(module) if isinstance(p.owner, (FeatureGrid, Table))]
        return any(dr.is_half_v(p.storage) and dr.grad_enabled(p.storage) for p in found)

    def wanted(self) -> bool:
        """Does any parameter track gradients?"""
        return any(dr.grad_enabled(v) for v in self.arrays())
