"""Copies of arrays on another backend, and derivatives that follow them.

An edge of Dr.Jit's derivative graph has one backend at both ends, custom operations included. So a copy has two of
them: one at the source, from the original to a bridge that nobody computes with, and one at the copy, from an anchor to
the copy. Each passes on what arrives by a traversal of its own of the other graph: backward from copy to bridge,
forward from original to anchor. Those keep the edges they take, as more may come from other copies.

Relies on a traversal being allowed within a custom operation's derivative, on ``ADFlag.ClearEdges`` being left out of
its flags to keep edges, and on LLVM's arrays sharing memory with the NumPy arrays that they are made of. Checked with
Dr.Jit 1.5.0.
"""

from __future__ import annotations

from typing import Any

import drjit as dr
import numpy as np

from .unpacked import Hidden

#: Gradients in between are cleared, so that the next traversal does not add them again; edges stay.
_KEEP = dr.ADFlag.ClearInput | dr.ADFlag.ClearInterior


def copied(value: Any, tp: type) -> Any:
    """The entries of ``value``, a flat array of Dr.Jit's or NumPy's, as a ``tp`` with memory of its own.

    ``tp`` is a flat array type, or ``numpy.ndarray``. Evaluates ``value``, and waits for it.
    """
    numbers = np.array(value.numpy() if isinstance(value, dr.ArrayBase) else value, copy=tp is np.ndarray)
    if tp is np.ndarray:
        return numbers
    shared = tp(numbers)
    if dr.backend_v(tp) != dr.JitBackend.LLVM or not len(numbers):
        return shared
    lane = dr.arange(dr.uint32_array_t(tp), len(numbers))
    own = dr.select(lane == 0xFFFFFFFF, tp(0), shared)  # what no lane has, but Dr.Jit does not know
    dr.eval(own)
    dr.sync_thread()  # NumPy's memory may go with ``numbers``
    return own


def crossing(value: Any, tp: type) -> Any:
    """:func:`copied`, with derivatives: ``value``, a flat array that tracks gradients, as a ``tp`` that does."""
    anchor = dr.zeros(tp, dr.width(value))
    dr.enable_grad(anchor)
    # out of sight of the operations, whose inputs must have one backend
    bridge = dr.custom(_Depart, value, Hidden(anchor))
    return dr.custom(_Arrive, anchor, Hidden(copied(dr.detach(value), tp)), Hidden(bridge))


class _Depart(dr.CustomOp):
    """From the original to the bridge."""

    def eval(self, value: Any, anchor: Hidden) -> Any:  # type: ignore[override]
        self.anchor = anchor.value
        return value

    def forward(self) -> None:
        tangent = self.grad_in("value")
        _pass_on(dr.ADMode.Forward, self.anchor, tangent)
        self.set_grad_out(tangent)

    def backward(self) -> None:
        self.set_grad_in("value", self.grad_out())


class _Arrive(dr.CustomOp):
    """From the anchor to the copy."""

    def eval(self, anchor: Any, copy: Hidden, bridge: Hidden) -> Any:  # type: ignore[override]
        self.bridge = bridge.value
        return copy.value

    def forward(self) -> None:
        self.set_grad_out(self.grad_in("anchor"))

    def backward(self) -> None:
        cotangent = self.grad_out()
        _pass_on(dr.ADMode.Backward, self.bridge, cotangent)
        self.set_grad_in("anchor", cotangent)


def _pass_on(mode: dr.ADMode, start: Any, gradient: Any) -> None:
    """Traverse the graph that ``start`` belongs to, from there, with a ``gradient`` of another backend."""
    dr.set_grad(start, copied(gradient, type(dr.detach(start))))
    dr.enqueue(mode, start)
    dr.traverse(mode, flags=_KEEP)
