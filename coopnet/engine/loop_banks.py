"""Banks for gradients that ``dr.backward`` computes inside a symbolic loop.

Some loops differentiate each iteration separately (path replay, online losses). No code of the engine runs after such a
loop that could sum the banks. They are summed when the context :func:`collecting` is left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import drjit as dr

from ..context import Context
from ..jit.scopes import frozen
from . import limits


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
