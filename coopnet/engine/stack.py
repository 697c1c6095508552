r"""Several fields of one architecture in one kernel: each lane has the parameters of its own.

The parameters of the fields stand side by side in one array. Within :func:`stacking`, a network that is evaluated reads
those of its lane's field: through ``dr.switch``, whose callables trace to the same code and differ only in the buffers
that they capture, so that Dr.Jit compiles one (as for :mod:`.banks`, of which each field has one here). The lanes of a
warp must have one field: a GPU adds all of its outer products to the matrix of one lane. Tables and grids are offset
instead.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import drjit as dr

from ..checks import ensure
from ..jit.batch_size import batch_sample, pin_batch_size
from ..jit.kinds import flat
from ..jit.lanes import Warps
from ..jit.scopes import symbolic
from ..random.key import Key
from .banks import BankOp, Banks, bank_key
from .network_op import Plan
from .ops import Bundle, Op, rebase


class StackError(RuntimeError):
    """Lanes with parameters of their own cannot do what they are asked for."""


class Stack:
    """Parameters of ``count`` fields side by side.

    Args:
        which: ``UInt32``, the field of each lane; on CUDA one for each 32 lanes.
        count: number of fields.
        arrays: the flat arrays of ``count`` fields, by the number of the variable that a network has instead.
    """

    def __init__(self, which: Any, count: int, arrays: Mapping[int, Any]):
        self.which, self.count, self.arrays = which, count, arrays

    def of(self, array: Any) -> Any:
        """What stands for the flat ``array`` of a network's own; raises :class:`StackError` for others."""
        found = self.arrays.get(array.index)
        ensure(found is not None, "a network is evaluated whose parameters are not those of the lanes", StackError)
        return found


_OF_LANES = "of which each lane has parameters of its own"
_active: contextvars.ContextVar[Stack | None] = contextvars.ContextVar("stack", default=None)


def stacked() -> Stack | None:
    """That of the innermost context, if there is one."""
    return _active.get()


@contextlib.contextmanager
def stacking(stack: Stack) -> Iterator[None]:
    """A context in which each lane has the parameters of its field in ``stack``."""
    token = _active.set(stack)
    try:
        yield
    finally:
        _active.reset(token)


def evaluate(plan: Plan, x: Bundle, key: Key | None) -> Bundle:
    """Evaluate a network on a bundle with an entry for every lane of the stack."""
    stack = stacked()
    assert stack is not None
    xs, lanes = flat(x), dr.width(stack.which)
    ensure(not symbolic(), f"a network {_OF_LANES} is evaluated in a symbolic loop", StackError)
    samples = max(dr.width(v) for v in xs)
    given = f"a network {_OF_LANES} is evaluated at {samples} samples, where there are {lanes} lanes"
    ensure(samples in (1, lanes), given, StackError)
    xs = [v if dr.width(v) == lanes else v + dr.zeros(type(v), lanes) for v in xs]
    return plan.split(dr.custom(StackOp, plan, [stack.of(b) for b in plan.buffers], xs, key))


class StackOp(BankOp):
    """Evaluates and differentiates each lane with the weights of its field; ``buffers`` are stacked ones."""

    def eval(self, plan: Plan, buffers: list, xs: list, key: Key | None) -> list:  # type: ignore[override]
        stack = stacked()
        assert stack is not None
        self.plan, self.buffers, self.xs, self.key, self.stack = plan, buffers, xs, key, stack
        parts = [_parts(buffer, stack.count) for buffer in buffers]
        dr.eval(parts)  # in a kernel of their own: calls take what is in memory
        self.sets = [rebase(plan.ops, plan.buffers, own) for own in zip(*parts, strict=True)]
        self.own = [list(own) for own in zip(*parts, strict=True)]
        bodies = [self._forward(ops) for ops in self.sets]
        return dr.switch(stack.which, bodies, xs, self._arguments())

    def _arguments(self) -> list:
        return self._key_args(type(self.stack.which), dr.width(self.stack.which))

    def _forward(self, ops: Sequence[Op]) -> Any:
        def body(xs: list, key_args: list) -> list:
            return flat(self.plan.evaluate(ops, xs, bank_key(key_args)).y)

        return body

    def forward(self) -> None:
        raise StackError(f"a network {_OF_LANES} has no forward mode")

    def pull_back(self, dys: list, samples: int) -> None:
        xs, stack, uint32 = self.xs, self.stack, type(self.stack.which)
        sample = batch_sample([*dys, *xs], samples)
        key_args, which = self._arguments(), stack.which
        dr.eval(xs, dys, which, sample)
        lanes = Warps(uint32, samples)
        (which, *dys), xs = lanes.widen([which, *dys]), lanes.widen(xs)
        # a lane number beyond the samples draws what nobody sees
        key_args = [v if dr.width(v) == 1 else lanes.widen([v])[0] for v in key_args]
        first, own = self.sets[0], self.own[0]
        banks = [Banks(buffer, first, stack.count) for buffer in own]
        for bank in banks:
            bank.open()
        bodies = [self.body(banks, k, first, own, self.sets[k]) for k in range(stack.count)]
        dxs = lanes.narrow(dr.switch(which, bodies, xs, dys, key_args))
        dr.eval(dxs, sample)
        pin_batch_size(sample)
        if self.plan.wants_x:
            self.set_grad_in("xs", dxs)
        self.set_grad_in("buffers", [bank.side_by_side() for bank in banks])


def _parts(buffer: Any, count: int) -> list:
    """The ``count`` parts of a flat array, each an array of its own."""
    size = dr.width(buffer) // count
    place = dr.arange(dr.uint32_array_t(type(buffer)), size)
    return [dr.gather(type(buffer), dr.detach(buffer), place + k * size) for k in range(count)]
