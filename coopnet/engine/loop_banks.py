"""Banks for gradients that ``dr.backward`` computes inside a symbolic loop.

Some loops differentiate each iteration separately (path replay, online losses). No code of the engine runs after such a
loop that could sum the banks. They are summed when the context :func:`collecting` is left.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import drjit as dr

from ..context import Context
from ..jit.deferred import deferred_buffer
from ..jit.lanes import live, only
from ..jit.scopes import frozen
from ..random.key import Key
from . import limits
from .affine import Affine
from .banks import BankOp, Banks, banks_in_scope, separate
from .network_op import Plan
from .ops import affine, rebase
from .stall import warn_stall
from .strategies import SCOPES, GradientScope, choose


class LoopBanks:
    """The banks of a context, by the buffer whose gradient they take.

    Args:
        wanted: returns the current variable numbers of the buffers to collect for; ``None`` for all buffers.
        banks: number of banks for each buffer, or ``None`` to choose it by the number of samples.
    """

    def __init__(self, wanted: Callable[[], set[int]] | None, banks: int | None):
        self.wanted, self.banks, self.frozen = wanted, banks, frozen()
        self._found: dict[tuple, tuple[Any, Any]] = {}
        self._uses: dict[tuple, int] = {}

    def takes(self, buffers: Sequence[Any]) -> bool:
        """Are all ``buffers`` that need gradients among the wanted?

        Raises ``RuntimeError`` in a function that is being frozen if the context was entered outside: the sum would be
        taken once, and never when the function is replayed.
        """
        if self.wanted is not None:
            wanted = self.wanted()
            if not all(b.index in wanted for b in buffers if dr.grad_enabled(b)):
                return False
        if frozen() and not self.frozen:
            raise RuntimeError(
                "gradient_banks: the context was entered outside the function that is being frozen, which could not "
                "sum the banks when it is replayed; enter it inside, around the loop."
            )
        return True

    def once(self, buffer: Any, key: Any, make: Callable[[], Any]) -> Any:
        """The banks of ``buffer`` for ``key``: one of :data:`~.limits.BANK_SETS` sets, in turns.

        ``make()`` is called only for a new set: Dr.Jit may trace a body several times, and keeps the last trace.
        """
        name = (type(buffer), buffer.index_ad, key)
        uses = self._uses[name] = self._uses.get(name, 0) + 1
        one = (*name, uses % limits.BANK_SETS)
        if one not in self._found:
            self._found[one] = type(buffer)(buffer), make()
        return self._found[one][1]

    def finish(self) -> None:
        """Add the sums to the gradients of the buffers."""
        for buffer, banks in self._found.values():
            dr.accum_grad(buffer, banks.sum())
        self._found.clear()


_collecting = Context("loop banks")
#: The banks of the innermost context, or ``None``.
innermost: Callable[[], LoopBanks | None] = _collecting.get


@contextlib.contextmanager
def collecting(banks: LoopBanks) -> Iterator[None]:
    """Within this context, weight gradients computed inside symbolic loops go to ``banks``.

    Nothing is added if the body raises. If weights were computed from other arrays, Dr.Jit propagates the gradients to
    those when the context is left, not earlier (``dr.isolate_grad``).
    """
    with _collecting(banks), dr.isolate_grad():
        yield
        banks.finish()


class LoopSumOp(BankOp):
    """:class:`BankOp` inside a symbolic loop or conditional, with one bank, which is summed when the scope is left.

    ``later`` are the :class:`Deferred` buffers of those ``buffers`` that need gradients. They receive the gradient.
    Tangents come from ``buffers``: in Dr.Jit's forward mode, a loop depends on these only.
    """

    @classmethod
    def more_inputs(cls, plan: Plan) -> list:
        later = [deferred_buffer(b).buffer for b in plan.buffers if dr.grad_enabled(b)]
        # Dr.Jit records that the scope depends on a buffer at ordinary operations, not at custom ones. Without this
        # record, forward mode would lose the tangents of the weights.
        _ = [b * 1 for b in plan.buffers]
        return [later]

    def eval(self, plan: Plan, buffers: list, xs: list, key: Key | None, later: list) -> list:  # type: ignore[override]
        return super().eval(plan, buffers, xs, key)

    def count(self, samples: int, context: LoopBanks | None = None) -> int:
        """Number of banks, if they are summed at the end of the scope, or of ``context``."""
        return 1

    @property
    def stalls(self) -> bool:
        """Would sums in the buffers themselves stall?"""
        return any(map(dr.is_half_v, self.buffers))

    def context(self) -> LoopBanks | None:
        """The context that takes the banks, if ``dr.backward`` is called in the scope. In single precision, the buffers
        themselves can take all sums.
        """
        return innermost() if self.stalls else None

    def pull_back(self, dys: list, samples: int) -> tuple[list, list | None]:
        deferred = {i: deferred_buffer(b) for i, b in enumerate(self.plan.buffers) if dr.grad_enabled(b)}
        waits, context = all(d.waits() for d in deferred.values()), self.context()
        collected = not waits and context is not None and context.takes(self.plan.buffers)
        where, _ = choose(SCOPES, GradientScope(waits, collected))
        if where == "one buffer":
            if self.stalls:
                warn_stall(samples)
            tape = self.plan.evaluate(self.plan.ops, only(live(dys), self.xs), self.key)
            return self.plan.pullback(tape, dys, self.key, Affine.add_outer), None
        if where == "end of scope":
            count = self.count(samples)
            shared: dict[int, Callable] = {i: d.once for i, d in deferred.items()}
        else:
            assert context is not None
            count = self.count(samples, context)
            shared = {i: functools.partial(context.once, self.plan.buffers[i]) for i in deferred}
        apart = tuple(v.offset for op in affine(self.ops) for v, _ in separate(op))
        sets = []
        for i, buffer in enumerate(self.buffers):
            make = functools.partial(Banks, buffer, self.ops, count)
            # All uses of the network in the scope share banks. Those of buffers without gradient are not read.
            sets.append(shared[i]((count, apart), make) if i in shared else make())
        return self._fill(sets, count, self.xs, dys, self._key_args(samples)), None


class LoopBankOp(LoopSumOp):
    """The same with several banks, for GPUs."""

    def eval(self, plan: Plan, buffers: list, xs: list, key: Key | None, later: list) -> list:  # type: ignore[override]
        self.plan, self.buffers, self.xs, self.key = plan, buffers, xs, key
        self.ops = rebase(plan.ops, plan.buffers, buffers)
        # A call has registers of its own and costs little. Inlined in a long loop, above all one that traces rays, the
        # network's vectors would be spilled by OptiX.
        return self.called(dr.uint32_array_t(type(xs[0]))(0), [self.ops])

    def count(self, samples: int, context: LoopBanks | None = None) -> int:
        if context is None:
            return banks_in_scope(samples, self.plan.vectors)
        return context.banks or banks_in_scope(samples, self.plan.vectors, limits.BANKS_TURNS)

    def context(self) -> LoopBanks | None:
        return innermost()
