"""Two backends for tests of what moves between them: LLVM and CUDA, or LLVM in both roles where there is no GPU."""

from __future__ import annotations

import contextlib

import drjit as dr
import pytest

from coopnet import backend as backends
from coopnet import field as fields
from coopnet.backend import section, transfer
from coopnet.jit import backend_copies


def both():
    return set(backends.available()) == {"llvm", "cuda"}


@contextlib.contextmanager
def two_backends():
    """A context in which there are two: yields ``place``, which says on which an array is.

    Without a GPU, what was moved to ``"cuda"`` is marked so, and lives on LLVM. Fields are half precision there.
    """
    if both():
        yield transfer._place
        return
    pretended, known = set(), transfer._place
    flat, storage, require = transfer.Mover._flat, fields.storage, transfer.require
    cross = backend_copies.differentiable_copies

    def mark(tree):
        for array in tree if isinstance(tree, list) else [tree]:
            if isinstance(array, dr.ArrayBase) and dr.is_jit_v(array):
                leaf = array.array if dr.is_tensor_v(array) else array
                if dr.depth_v(leaf) == 1:
                    pretended.add(leaf.index)
                    kept.append(dr.detach(leaf))  # so that no other array gets its number
        return tree

    kept = []

    def place(value):
        if hasattr(value, "_layouts") or hasattr(value, "promote_fp16"):
            return next((place(array) for array in dict(value.items()).values()), None)
        found = known(value)
        if found != "llvm" or not isinstance(value, dr.ArrayBase):
            return found
        leaf = value.array if dr.is_tensor_v(value) else value
        while dr.depth_v(leaf) > 1:
            if not dr.width(leaf):
                return found
            leaf = leaf[0]
        return "cuda" if leaf.index in pretended else "llvm"

    def moved_flat(self, value, tp):
        result = flat(self, value, tp)
        return mark(result) if self.backend == "cuda" else result

    def crossed(values, types):
        home = {place(value) for value in values}
        result = cross(values, types)
        return mark(result) if home == {"llvm"} else result

    def on_llvm(backend, precision, where):
        if backend == "cuda":
            return storage("llvm", "half" if precision == "auto" else precision, where)
        return storage(backend, precision, where)

    def name_of(backend="auto"):
        return "cuda" if isinstance(backend, str) and backend == "cuda" else require(backend)

    def field_to(self, mover):
        result = original(self, mover)
        if mover.backend == "cuda" and result is not self:
            mark([value.array for value in result.values()])
        return result

    original = fields.NeuralField._to
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "_place", place)
        patch.setattr(transfer.Mover, "_flat", moved_flat)
        patch.setattr(backend_copies, "differentiable_copies", crossed)
        patch.setattr(transfer.Mover, "twin", lambda self, tp: tp)
        patch.setattr(transfer, "require", name_of)
        patch.setattr(transfer, "namespace", lambda backend: backends.namespace("llvm"))
        patch.setattr(section, "require", name_of)
        patch.setattr(fields, "storage", on_llvm)
        patch.setattr(fields.NeuralField, "_to", field_to)
        yield place
