"""Wrappers of arrays that ``dr.freeze`` must find and ``drjit.nn.pack`` must not.

``dr.freeze`` traverses objects without ``DRJIT_STRUCT``, such as Mitsuba's, through their methods ``_traverse_1_cb_ro``
and ``_traverse_1_cb_rw``. Neither ``drjit.nn.pack`` nor ``dr.eval`` does so. Relies on these names and
on ``detail.traverse_py_cb_ro`` and ``_rw``, which call back for all arrays in the ``__dict__``. Checked with Dr.Jit
1.5.0.
"""

from __future__ import annotations

import copy
from typing import Any

import drjit as dr
import drjit.nn as drnn

from .layout import Layout


def traversable(value: Any) -> bool:
    """Does ``dr.freeze`` find the arrays in ``value``? It does in arrays, PyTrees, textures and Mitsuba's objects."""
    return isinstance(value, dr.ArrayBase) or hasattr(value, "DRJIT_STRUCT") or hasattr(value, "_traverse_1_cb_ro")


class Hidden:
    """Wraps an argument in which Dr.Jit shall not look for arrays."""

    def __init__(self, value: Any):
        self.value = value


class Traversed:
    """Base of objects in whose ``__dict__`` ``dr.freeze`` finds arrays."""

    def _traverse_1_cb_ro(self, callback: Any) -> None:
        dr.detail.traverse_py_cb_ro(self, callback)

    def _traverse_1_cb_rw(self, callback: Any) -> None:
        dr.detail.traverse_py_cb_rw(self, callback)


class Unpacked(Traversed):
    """Holds an object whose arrays ``dr.freeze`` finds and ``drjit.nn.pack`` doesn't.

    ``pack`` turns every array that it finds into a view of the packed buffer. That is wrong for arrays other than
    matrices of the weights' type.
    """

    def __init__(self, value: Any = None):
        self.value = value


class Constant(Unpacked):
    """An :class:`Unpacked` value that is no parameter: neither trained nor saved, and made again by ``alloc``.

    Deep copies of a network share the value, but copy arrays, which could be changed in place. Pickles leave out
    layouts and matrix views.
    """

    def __deepcopy__(self, memo: dict) -> Constant:
        array = isinstance(self.value, dr.ArrayBase)
        return type(self)(copy.deepcopy(self.value, memo) if array else self.value)

    def __reduce__(self) -> tuple:
        return type(self), (None if isinstance(self.value, (Layout, drnn.MatrixView)) else self.value,)
