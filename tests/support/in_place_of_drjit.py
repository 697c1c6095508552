"""Plugin of pytest: Dr.Jit's own tests of ``drjit.nn``, with the layers of coopnet in place of those of that name.

``make drjit-check DRJIT_SOURCE=path`` runs them, where ``path`` is Dr.Jit's repository at the installed version.
"""

from __future__ import annotations

import types

import drjit.nn
import pytest

import coopnet as cn
from coopnet import backend as backends

REPLACED = ("Linear", "Sequential", "ReLU", "LeakyReLU", "Exp", "Exp2", "Tanh")
OURS = types.ModuleType("drjit.nn")
OURS.__dict__.update(vars(drjit.nn) | {name: getattr(cn.nn, name) for name in REPLACED if hasattr(cn.nn, name)})


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makemodule(module_path, parent):
    """What a file of tests imported as ``nn``; the library itself goes on with what is there."""
    module = yield
    if getattr(module.obj, "nn", None) is drjit.nn:
        module.obj.nn = OURS
    return module


def pytest_collection_modifyitems(items):
    """Dr.Jit's tests are made for types of all backends; here, only some are."""
    for item in items:
        named = [name for name in ("llvm", "cuda", "metal") if f"drjit.{name}." in item.nodeid]
        if named and named[0] not in backends.available():
            item.add_marker(pytest.mark.skip(reason=f"needs {named[0].upper()}"))
