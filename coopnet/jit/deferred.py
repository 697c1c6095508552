"""Work on gradients that has to wait until a symbolic loop or conditional is left.

Inside, nothing can be evaluated, so a loop's sums cannot be read there. Dr.Jit differentiates such a scope by tracing
its body again. It postpones derivatives of variables that are older than this second trace until it has left the scope.
So :func:`deferred_buffer` inserts an operation between a buffer and its users when the body is traced the first time,
and returns the same one the second time. The derivative of this operation runs outside.

Relies on that order, on a custom operation's derivative running once, and on variables keeping their ``index_ad``.
Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import drjit as dr

from .unpacked import Hidden


class Deferred:
    """A buffer for networks in a symbolic scope: the same numbers, but another variable of the AD graph.

    Code that accumulates gradients in other arrays puts an object into ``finish`` whose ``sum()`` returns the total.
    """

    def __init__(self, origin: Any):
        # A copy keeps the variable, whose number is the key in the cache, even after ``dr.disable_grad(origin)``.
        self.origin = type(origin)(origin)
        self.finish: dict[Any, Any] = {}
        # The buffer depends on a new variable, not on ``origin``: Dr.Jit's forward mode does not follow an edge of
        # which both ends are from outside the scope.
        start = type(origin)(0)
        dr.enable_grad(start)
        self.buffer = dr.custom(_Buffer, Hidden(self), start)
        self._called: list[bool] = []
        self._probe = dr.custom(_Probe, Hidden(self._called), start)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """The entry of ``finish`` under ``key``, made by ``make()`` once: Dr.Jit may trace a body several times."""
        if key not in self.finish:
            self.finish[key] = make()
        return self.finish[key]

    def waits(self) -> bool:
        """Called in a derivative: will the derivative of :attr:`buffer` run later, outside the scope?

        It will not if user code calls ``dr.backward`` inside the scope in which this object was made.
        """
        self._called.clear()
        dr.set_grad(self._probe, 1)
        dr.enqueue(dr.ADMode.Backward, self._probe)
        # every network in the scope calls this, so the probe must stay usable
        dr.traverse(dr.ADMode.Backward, dr.ADFlag.ClearVertices)
        return not self._called


class _Buffer(dr.CustomOp):
    def eval(self, hidden: Hidden, start: Any) -> Any:  # type: ignore[override]
        self.deferred = hidden.value
        return dr.detach(self.deferred.origin)

    def backward(self) -> None:
        # Dr.Jit frees edges after use, so this runs once
        for key in [key for key, deferred in _cache.items() if deferred is self.deferred]:
            del _cache[key]
        for sums in self.deferred.finish.values():
            # Arrays from which the origin was computed are older than the scope, and are differentiated after this.
            dr.accum_grad(self.deferred.origin, sums.sum())
        self.deferred.finish.clear()


class _Probe(dr.CustomOp):
    def eval(self, hidden: Hidden, start: Any) -> Any:  # type: ignore[override]
        self.called = hidden.value
        return dr.detach(start)

    def backward(self) -> None:
        self.called.append(True)


_cache: OrderedDict[tuple[type, int], Deferred] = OrderedDict()
#: Most entries in the cache. A scope that is never differentiated leaves its entry there, and a training loop makes a
#: new variable in every step.
REMEMBERED = 32


def deferred_buffer(buffer: Any) -> Deferred:
    """The :class:`Deferred` of ``buffer``; the first call makes it."""
    key = (type(buffer), buffer.index_ad)
    if key not in _cache:
        _cache[key] = Deferred(buffer)
        while len(_cache) > REMEMBERED:
            _cache.popitem(last=False)
    _cache.move_to_end(key)
    return _cache[key]
