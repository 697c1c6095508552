"""Nested arrays of every scalar type."""

from __future__ import annotations

import drjit as dr
import pytest

from coopnet.jit import kinds


@pytest.mark.parametrize(
    "leaf, name",
    [
        ("Float16", "ArrayXf16"), ("Float", "ArrayXf"), ("Float64", "ArrayXf64"), ("Int", "ArrayXi"),
        ("UInt32", "ArrayXu"), ("Bool", "ArrayXb"),
    ],
)  # fmt: skip
def test_nested_types(ns, leaf, name):
    leaf = getattr(ns, leaf)
    assert kinds.nested_type(leaf) is getattr(ns, name)
    x = kinds.nested([leaf(1), leaf(0)])
    assert type(x) is getattr(ns, name) and dr.shape(x) == (2, 1)
    assert [bool(v[0]) for v in kinds.components(x)] == [True, False]
