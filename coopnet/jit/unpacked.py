"""Arrays inside modules that ``drjit.nn.pack`` must leave alone."""

from __future__ import annotations

from typing import Any

import drjit as dr


class Unpacked:
    """Holds an object whose arrays Dr.Jit's traversal sees (``dr.freeze``, ``dr.eval``) and ``drjit.nn.pack`` doesn't.

    ``pack`` turns every array it meets into a view of the packed buffer, which arrays that are no matrices of the
    weights' type don't survive.
    """

    def __init__(self, value: Any = None):
        self.value = value

    def _traverse_1_cb_ro(self, callback: Any) -> None:
        dr.detail.traverse_py_cb_ro(self, callback)

    def _traverse_1_cb_rw(self, callback: Any) -> None:
        dr.detail.traverse_py_cb_rw(self, callback)


class Constant(Unpacked):
    """An :class:`Unpacked` without parameters: neither trained nor saved, made anew when a network is allocated."""
