"""Which group the ``distributed`` argument of functions means."""

from __future__ import annotations

from typing import Any

import drjit as dr

from ...checks import check
from ...field import NeuralField
from .group import Group
from .torch_group import TorchGroup, is_there


def find_group(where: str, distributed: Any, field: Any) -> Group | None:
    """The group that ``distributed`` means for a ``field``, or for one on LLVM if it is none."""
    if distributed is None or isinstance(distributed, Group):
        return distributed
    automatic = isinstance(distributed, str) and distributed == "auto"
    check(automatic, where, "distributed", distributed, 'None, "auto" or a coopnet.training.Group', TypeError)
    if not is_there():
        return None
    first = next(iter(field.values()), None) if isinstance(field, NeuralField) and field.precision else None
    on_gpu = first is not None and dr.backend_v(first) == dr.JitBackend.CUDA
    return TorchGroup("cuda" if on_gpu else "llvm")
