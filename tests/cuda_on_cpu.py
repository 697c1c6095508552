"""For tests without a GPU of what coopnet does on one: types of the CPU that are taken for CUDA's."""

from __future__ import annotations

import contextlib

import drjit as dr
import pytest


class _Drjit:
    """Dr.Jit, where everything is said to live on CUDA."""

    def __getattr__(self, name):
        return getattr(dr, name)

    @staticmethod
    def backend_v(value):
        return dr.JitBackend.CUDA


@contextlib.contextmanager
def as_cuda(*modules):
    """Within this context, ``modules`` do what they do on CUDA."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "dr", _Drjit())
        yield
