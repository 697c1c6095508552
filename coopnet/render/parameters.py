"""The parameters of the networks that a function evaluates, as inputs of a custom operation."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..kernels.grid import FeatureGrid
from ..kernels.lookup import Table
from ..nn.concrete_dropout import relaxed_layers
from ..nn.parameters import parameters
from ..nn.replaced import replaced


class ModuleParameters:
    """All parameters of ``modules``, distinct :class:`coopnet.Module`s."""

    def __init__(self, modules: Sequence[Any]):
        self.modules = list(modules)

    def arrays(self) -> list:
        """The parameters in a fixed order."""
        return [module[name] for module in self.modules for name in module]

    def replaced(self, arrays: list) -> contextlib.AbstractContextManager[None]:
        """Within this context, the modules compute with ``arrays`` in place of :meth:`arrays`. Masks of learned rates
        are relaxed as they are outside.
        """
        return replaced(self.modules, arrays, [pair for module in self.modules for pair in relaxed_layers(module)])

    def half_tables(self) -> bool:
        """Does a table or grid in half precision track gradients?"""
        found = [p for module in self.modules for p in parameters(module) if isinstance(p.owner, (FeatureGrid, Table))]
        return any(dr.is_half_v(p.storage) and dr.grad_enabled(p.storage) for p in found)

    def wanted(self) -> bool:
        """Does any parameter track gradients?"""
        return any(dr.grad_enabled(v) for v in self.arrays())
