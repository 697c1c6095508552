"""Copies of arrays on another backend, and derivatives that follow them.

Both ends of an edge of Dr.Jit's derivative graph are on one backend, also in custom operations. So copies need two
custom operations. One is on the backend of the originals, and leads from them to *bridges*, arrays that nothing else
uses. The other is on the backend of the copies, and leads to them from *anchors*. Each operation passes gradients on by
traversing the other graph: backward from copies to bridges, forward from originals to anchors. These traversals keep
the edges, since more gradients may come from other copies.

Relies on a traversal being allowed within a custom operation's derivative, and on edges being kept without the flag
``ADFlag.ClearEdges``. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import drjit as dr
import numpy as np

from .owned import from_numpy
from .unpacked import Hidden

#: Clear gradients of inputs and inner nodes, so that the next traversal does not add them again, but keep edges.
_KEEP = dr.ADFlag.ClearInput | dr.ADFlag.ClearInterior


def copied(value: Any, tp: type) -> Any:
    """The entries of ``value``, a flat array of Dr.Jit's or NumPy's, as a ``tp`` with memory of its own.

    ``tp`` is a flat array type, or ``numpy.ndarray``. This evaluates ``value`` and waits for the result.
    """
    numbers = np.array(value.numpy() if isinstance(value, dr.ArrayBase) else value, copy=tp is np.ndarray)
    return numbers if tp is np.ndarray else from_numpy(numbers, tp)


def differentiable_copies(values: Sequence[Any], types: Sequence[type]) -> list[Any]:
    """Differentiable copies of ``values``, flat arrays of one backend that track gradients, as arrays of ``types``.

    Arrays that are copied together are differentiated together, by one traversal of the other graph.
    ``dr.forward_to`` and ``dr.backward_to`` raise ``RuntimeError``: they first collect the edges of a path, and find
    those of one backend only.
    """
    anchors = [dr.zeros(tp, dr.width(value)) for value, tp in zip(values, types, strict=True)]
    dr.enable_grad(anchors)
    # hidden from Dr.Jit, since all inputs of an operation must be on one backend
    bridges = dr.custom(_Depart, list(values), Hidden(anchors))
    copies = [copied(dr.detach(value), tp) for value, tp in zip(values, types, strict=True)]
    return dr.custom(_Arrive, anchors, Hidden(copies), Hidden(bridges))


class _Depart(dr.CustomOp):
    """From the originals to the bridges."""

    def eval(self, values: list, anchors: Hidden) -> list:  # type: ignore[override]
        self.anchors = anchors.value
        return values

    def forward(self) -> None:
        tangents = self.grad_in("values")
        _pass_on(dr.ADMode.Forward, self.anchors, tangents)
        self.set_grad_out(tangents)

    def backward(self) -> None:
        _check_driven()
        self.set_grad_in("values", self.grad_out())


class _Arrive(dr.CustomOp):
    """From the anchors to the copies."""

    def eval(self, anchors: list, copies: Hidden, bridges: Hidden) -> list:  # type: ignore[override]
        self.bridges = bridges.value
        return copies.value

    def forward(self) -> None:
        _check_driven()
        self.set_grad_out(self.grad_in("anchors"))

    def backward(self) -> None:
        cotangents = self.grad_out()
        _pass_on(dr.ADMode.Backward, self.bridges, cotangents)
        self.set_grad_in("anchors", cotangents)


class _Driving(threading.local):
    """How many traversals of another graph are running in this thread."""

    depth = 0


_driving = _Driving()


def _pass_on(mode: dr.ADMode, starts: list, gradients: list) -> None:
    """Set the gradients of ``starts`` to ``gradients`` of another backend, and traverse their graph from there."""
    for start, gradient in zip(starts, gradients, strict=True):
        dr.set_grad(start, copied(gradient, type(start)))
        dr.enqueue(mode, start)
    _driving.depth += 1
    try:
        dr.traverse(mode, flags=_KEEP)
    finally:
        _driving.depth -= 1


def _check_driven() -> None:
    """Raise unless the gradient comes from a traversal of the other graph; otherwise it would count as zero."""
    if not _driving.depth:
        hint = "use dr.forward() from the inputs or dr.backward() from the outputs, or dr.detach() what was moved"
        problem = "dr.forward_to() and dr.backward_to() see one backend only, and something was moved here from another"
        raise RuntimeError(f"to: {problem}; {hint}.")
