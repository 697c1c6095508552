"""Values that a material asks for several times in one virtual call.

Mitsuba's ``principled``, for one, asks for its roughness in ``sample``, ``eval`` and ``pdf``, several times each.
Dr.Jit does not notice that networks are evaluated at the same place again, and would compile and run each evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr

from ..jit.scopes import scope_id, symbolic


class Memo:
    """The last values of a function that was evaluated while code was traced symbolically.

    They are returned again if the variables are the same, and the loop, conditional or callee that is traced: variables
    of another one may not exist here. The function's settings must not change within one. Values with gradients are not
    kept, as ``dr.backward`` uses up what they were computed from. Nor are those of evaluated code, which may take much
    memory.
    """

    def __init__(self) -> None:
        #: A key, values, and the inputs, which are kept so that no other variables get their numbers. Threads may take
        #: turns at any time, so it is read and replaced as a whole.
        self._last: tuple[tuple | None, list, Sequence[Any]] = None, [], ()

    def __call__(self, function: Callable[[Any], list], active: Any, inputs: Sequence[Any]) -> list:
        """``function(active)``, whose values are zeros where not ``active`` and otherwise depend on ``inputs``: numbers
        and arrays, of which the first is Dr.Jit's.
        """
        if not symbolic() or any(dr.grad_enabled(v) for v in inputs):
            return function(active)
        key = scope_id(type(inputs[0])), *(v.array.index if dr.is_jit_v(v) else v for v in inputs)
        known, values, _ = self._last
        if key != known or key[0][-1] is None:
            values = function(True)  # materials ask with various masks
            self._last = key, values, inputs
        return [dr.select(active, v, 0) for v in values]
