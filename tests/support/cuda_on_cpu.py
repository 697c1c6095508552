"""For tests without a GPU of what coopnet does on one: types of the CPU that are taken for CUDA's."""

from __future__ import annotations

import contextlib

import drjit as dr
import pytest


class Drjit:
    """Dr.Jit with another ``backend_v``: by default, everything is said to live on CUDA."""

    def __init__(self, backend_v=lambda value: dr.JitBackend.CUDA):
        self.backend_v = backend_v

    def __getattr__(self, name):
        return getattr(dr, name)


@contextlib.contextmanager
def as_cuda(*modules):
    """Within this context, ``modules`` do what they do on CUDA."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "dr", Drjit())
        yield
