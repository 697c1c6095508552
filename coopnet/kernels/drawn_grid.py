"""Grid features that a key draws, each with a mean and a standard deviation."""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..jit.kinds import nested_type
from ..jit.masks import unmasked
from ..jit.scopes import symbolic
from ..random.key import Key
from ..random.normal import of_parameters
from .grid import FeatureGrid


class DrawnFeatureGrid(FeatureGrid):
    r"""``grid`` with the features :math:`\theta_{ek} + \sigma_{ek} z_{ek}` instead of :math:`\theta_{ek}`.

    :math:`z_{ek}`, of feature :math:`k` of entry :math:`e`, is number :math:`k \bmod 4` of :func:`of_parameters` for
    row :math:`e` and block :math:`\lfloor k / 4 \rfloor`. If all samples have one key, the table is drawn
    once, by a kernel of its own (:meth:`drawn`). Otherwise every look-up draws the features that it reads. The results
    are bitwise equal.

    Args:
        grid: the means :math:`\theta`.
        deviation: the standard deviations :math:`\sigma`, an array of the size of the grid's ``data``.
        key, stream: as for :func:`of_parameters`.
    """

    def __init__(self, grid: FeatureGrid, deviation: Any, key: Key, stream: int):
        self.__dict__.update(grid.__dict__)
        self.deviation, self.key, self.stream = dr.detach(deviation), key.traced(dr.uint32_array_t(self.dtype)), stream

    def drawn(self) -> FeatureGrid:
        """The grid in which to look up features: one with a drawn table if all samples share it, otherwise ``self``."""
        several = dr.width(self.key.step) > 1 or dr.width(self.key.seed) > 1
        if symbolic() or several:
            return self
        n, entries = self.n_features, self.levels[-1].end
        table = dr.empty(self.dtype, entries * n)
        with unmasked(self.dtype):  # the mask of an evaluated loop must not apply to entries of the table
            entry = dr.arange(dr.uint32_array_t(self.dtype), entries)
            dr.scatter(table, self.read(dr.detach(self.data), entry), entry, mode=dr.ReduceMode.Permute)
            dr.eval(table)
        grid = object.__new__(FeatureGrid)
        grid.__dict__.update(self.__dict__)
        grid.data = dr.replace_grad(table, self.dtype(self.data)) if dr.grad_enabled(self.data) else table
        return grid

    def read(self, data: Any, index: Any) -> Any:
        features = super().read(data, index)
        if dr.detach(data).index != dr.detach(self.data).index:
            return features  # forward mode reads tangents; the noise has none
        deviations = super().read(self.deviation, index)
        drawn = []
        for k in range(self.n_features):
            if k % 4 == 0:
                numbers = of_parameters(index, k // 4, self.key, self.stream)
            drawn.append(dr.fma(numbers[k % 4], deviations[k], features[k]))
        return nested_type(self.dtype)(drawn)
