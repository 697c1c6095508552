r"""Several fields of one architecture in one kernel: each lane uses the parameters of its own field.

The parameters of the fields are side by side in one array. Within :func:`stacking`, each lane evaluates the network
with the parameters of its field. They are reached through ``dr.switch``, whose callables trace to the same code and
differ only in the captured buffers, so that Dr.Jit compiles one (as in :mod:`.banks`; each field has one bank here).
All lanes of a warp must have the same field: a GPU adds all outer products of a warp to the matrix of one lane. Tables
and grids are indexed with an offset instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import drjit as dr

from ..checks import ensure
from ..context import Context
from ..jit.kinds import flat, of_width
from ..jit.scopes import symbolic
from ..random.key import Key
from .banks import BankOp
from .network_op import Plan
from .ops import Bundle, Op, rebase


class StackError(RuntimeError):
    """An operation was tried that is not possible if lanes have their own parameters."""


class Stack:
    """Parameters of ``count`` fields side by side.

    Args:
        which: ``UInt32``, the field of each lane; on CUDA one for each 32 lanes.
        count: number of fields.
        arrays: the stacked flat arrays, by the variable number of the array that each replaces in the network.
    """

    def __init__(self, which: Any, count: int, arrays: Mapping[int, Any]):
        self.which, self.count, self.arrays = which, count, arrays

    def of(self, array: Any) -> Any:
        """The stacked array that replaces the flat ``array`` of a network; raises :class:`StackError` for unknown
        ones.
        """
        stacked_array = self.arrays.get(array.index)
        wrong = "a network is evaluated whose parameters are not those of the lanes"
        ensure(stacked_array is not None, wrong, StackError)
        return stacked_array


_FIELDS = "fields that one kernel trains together"
#: ``with stacking(stack)``: each lane has the parameters of its field in ``stack``.
stacking = Context("stack")
#: The :class:`Stack` of the innermost context, or ``None``.
stacked: Callable[[], Stack | None] = stacking.get


def evaluate(plan: Plan, x: Bundle, key: Key | None) -> Bundle:
    """Evaluate a network on a bundle with an entry for every lane of the stack."""
    stack = stacked()
    assert stack is not None
    xs, lanes = flat(x), dr.width(stack.which)
    ensure(not symbolic(), f"{_FIELDS} cannot be evaluated in a symbolic loop", StackError)
    samples = dr.width(xs)
    wrong = f"{_FIELDS} are evaluated at {samples} samples instead of {lanes}, those of all fields"
    ensure(samples in (1, lanes), wrong, StackError)
    xs = [of_width(v, lanes) for v in xs]
    return plan.split(dr.custom(StackOp, plan, [stack.of(b) for b in plan.buffers], xs, key))


class StackOp(BankOp):
    """Evaluates and differentiates each lane with the weights of its field; ``buffers`` are the stacked arrays."""

    def eval(self, plan: Plan, buffers: list, xs: list, key: Key | None) -> list:  # type: ignore[override]
        stack = stacked()
        assert stack is not None
        self.plan, self.xs, self.key, self.stack = plan, xs, key, stack
        parts = [_parts(buffer, stack.count) for buffer in buffers]
        dr.eval(parts)  # calls can capture only evaluated arrays
        self.fields = [rebase(plan.ops, plan.buffers, each) for each in zip(*parts, strict=True)]
        # banks have the layout of the first field, as all fields have the same
        self.ops, self.buffers = self.fields[0], [part[0] for part in parts]
        return self.called(stack.which, self.fields)

    def ops_for(self, k: int) -> Sequence[Op]:
        return self.fields[k]

    def forward(self) -> None:
        raise StackError(f"{_FIELDS} have no forward mode")

    def pull_back(self, dys: list, samples: int) -> tuple[list, list | None]:
        sets, dxs = self.filled(dys, samples, self.stack.count, self.stack.which)
        return dxs, [banks.side_by_side() for banks in sets]


def _parts(buffer: Any, count: int) -> list:
    """The ``count`` parts of a flat array, each an array of its own."""
    size = dr.width(buffer) // count
    entry = dr.arange(dr.uint32_array_t(type(buffer)), size)
    return [dr.gather(type(buffer), dr.detach(buffer), entry + k * size) for k in range(count)]
