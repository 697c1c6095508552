"""Functions that tell whether code is being traced symbolically, recorded by ``dr.freeze``, or inside a virtual call.

Relies on the flags ``SymbolicScope`` and ``FreezingScope``, which Dr.Jit sets while it traces and records, on
``detail.scope``, and on the mangled name of ``jit_var_self``, the only function that tells virtual calls from loops.
Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import Any

import drjit as dr

from ..checks import ensure
from ..context import Context
from . import CHECKED
from .native.core import function

#: ``jit_var_self(JitBackend, uint32_t *value, uint32_t *index)``: the instance that a virtual call is being traced for.
_SYMBOL = "_Z12jit_var_self10JitBackendPjS0_"


def symbolic() -> bool:
    """Is a loop, conditional or call being traced symbolically, so that nothing can be evaluated here?"""
    return bool(dr.flag(dr.JitFlag.SymbolicScope))


def frozen() -> bool:
    """Is a function of ``dr.freeze`` being recorded?"""
    return bool(dr.flag(dr.JitFlag.FreezingScope))


def recording() -> bool:
    """Is a scope traced symbolically or a function recorded, so that nothing can be read or written?"""
    return symbolic() or frozen()


#: ``with only_traced(True)``: code is traced to find its errors before it is recorded, and is not computed.
only_traced = Context("only traced", False)


def check_outside(where: str) -> None:
    """Raise ``RuntimeError`` unless arrays can be read and written here; ``where`` opens the message.

    In a function that is being frozen, freeing an array that holds NumPy's memory would end the process.
    """
    message = f"{where}: called while Dr.Jit records a function or loop; call it outside of it."
    ensure(not (recording() or only_traced.get()), message, RuntimeError)


def suspended(leaf: type) -> bool:
    """Are all gradients suspended, as in ``with dr.suspend_grad()``? ``leaf`` is an array type with gradients."""
    number = leaf(0)
    dr.enable_grad(number)
    return not dr.grad_enabled(number)


def scope_number(tp: type) -> int:
    """A counter that changes whenever a loop, conditional or call has been traced symbolically, on the backend of the
    Dr.Jit type ``tp``.
    """
    return dr.detail.scope(dr.backend_v(tp))


#: (backend, scope number) -> the number that this scope had first; the newest 1024.
_first_numbers: OrderedDict[tuple[Any, int], int] = OrderedDict()


def scope_id(tp: type) -> tuple[Any, int, int | None]:
    """Identifies the innermost loop, conditional or callee that is being traced. Variables that were made under another
    id may not exist here. The id may change within a scope, too.

    All callees of a call have one scope number. They differ in the instance, the last entry, ``None`` if that is not
    known.
    """
    backend, number = dr.backend_v(tp), scope_number(tp)
    return backend, _first_numbers.get((backend, number), number), _instance(tp)


def continue_scope(before: tuple[Any, int, int | None], tp: type) -> None:
    """Note that the present scope is that of the id ``before``: a conditional that was traced since has been left."""
    _first_numbers[dr.backend_v(tp), scope_number(tp)] = before[1]
    while len(_first_numbers) > 1024:
        _first_numbers.popitem(last=False)


def _instance(tp: type) -> int | None:
    """The number of the instance whose method is being traced, 0 outside of virtual calls, ``None`` if unknown."""
    query = function(_SYMBOL)
    if query is None:
        return None if symbolic() else 0  # calls are traced within such a scope
    value, index = ctypes.c_uint32(0), ctypes.c_uint32(0)
    query(ctypes.c_int(int(dr.backend_v(tp).value)), ctypes.byref(value), ctypes.byref(index))
    return value.value


def inside_call(tp: type) -> bool:
    """Is a virtual call being traced on the backend of the Dr.Jit type ``tp``?

    If the library has no such function, raises ``RuntimeError`` in loops, conditionals and calls. If a call were taken
    for a loop, all callees would number their lanes from 0 and share their masks.
    """
    instance = _instance(tp)
    if instance is None:
        raise RuntimeError(
            f"inside_call: this build of Dr.Jit does not tell a virtual call from a loop: its library lacks {_SYMBOL}. "
            "Evaluate networks with dropout or weight gradients outside symbolic loops and calls, or install "
            f"drjit {CHECKED} from PyPI for Linux."
        )
    return instance != 0
