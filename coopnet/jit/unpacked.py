"""Arrays that some functions of Dr.Jit see and others don't.

Objects without ``DRJIT_STRUCT``, such as Mitsuba's, are traversed through their methods ``_traverse_1_cb_ro`` and
``_traverse_1_cb_rw``. ``dr.freeze`` does so, but neither ``drjit.nn.pack`` nor ``dr.eval``. Relies on these names and
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
    """Does Dr.Jit find the arrays in ``value`` by itself? Textures and Mitsuba's objects can be traversed, too."""
    return isinstance(value, dr.ArrayBase) or hasattr(value, "DRJIT_STRUCT") or hasattr(value, "_traverse_1_cb_ro")


class Hidden:
    """Keeps Dr.Jit from looking for arrays in an argument."""

    def __init__(self, value: Any):
        self.value = value


class Traversed:
    """Shows the arrays in its ``__dict__`` to ``dr.freeze``."""

    def _traverse_1_cb_ro(self, callback: Any) -> None:
        dr.detail.traverse_py_cb_ro(self, callback)

    def _traverse_1_cb_rw(self, callback: Any) -> None:
        dr.detail.traverse_py_cb_rw(self, callback)


class Unpacked(Traversed):
    """Holds an object whose arrays ``dr.freeze`` sees and ``drjit.nn.pack`` doesn't.

    ``pack`` turns every array it finds into a view of the packed buffer, which is wrong for arrays that are not
    matrices of the weights' type.
    """

    def __init__(self, value: Any = None):
        self.value = value


class Constant(Unpacked):
    """An :class:`Unpacked` without parameters: neither trained nor saved, and made again when a network is allocated.

    Copies share it, except arrays, which could be changed in place; pickles leave out everything on a device.
    """

    def __deepcopy__(self, memo: dict) -> Constant:
        array = isinstance(self.value, dr.ArrayBase)
        return type(self)(copy.deepcopy(self.value, memo) if array else self.value)

    def __reduce__(self) -> tuple:
        return type(self), (None if isinstance(self.value, (Layout, drnn.MatrixView)) else self.value,)
