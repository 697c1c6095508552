"""Correct gradients of ``dr.backward`` inside loops, for every number of samples."""

from __future__ import annotations

import contextlib
from typing import Any

import drjit.nn as drnn

from ..checks import check_int, ensure, shown
from ..engine import LoopBanks, collecting
from ..jit.scopes import symbolic
from .parameters import parameters

#: Largest number of banks: with more, tracing takes minutes.
MOST = 4096


def gradient_banks(*fields: Any, banks: int | None = None) -> contextlib.AbstractContextManager[None]:
    r"""Within this context, ``dr.backward`` inside symbolic loops gives correct weight gradients in half precision.

    Loops that differentiate each iteration separately, such as the adjoint of path replay backpropagation (Vicini et
    al. 2021), accumulate the gradients of weights inside the loop. Without this context they add up in one buffer in
    half precision, where a sum of more than about 2^13 increments of one sign stops growing. Within it, warp :math:`w`
    of 32 lanes adds to accumulator :math:`w \bmod K` of :math:`K`; on leaving the context, the accumulators are summed
    in single precision and added to the weights' gradients. These are complete only then.

    The networks may be evaluated anywhere in the body of the loop, also by functions that it calls. Other networks, and
    gradients taken outside symbolic loops, are not affected. Virtual calls have no lane numbers, so gradients there
    still add up in one buffer: evaluate networks outside, as ``neural_path`` does. On LLVM there is one accumulator, in
    single precision. Networks in single precision need none: their gradients add up in one buffer.

    In a function frozen by ``dr.freeze``, enter the context inside; with :func:`coopnet.fit`, in the objective.

    Args:
        fields: the networks: :class:`NeuralField`, :class:`MLP` or other modules, packed. Without any, all networks.
        banks: the number :math:`K` of accumulators; ``None`` chooses it by the number of samples. Each is as large as
            the weights. Tracing one takes milliseconds, which ``dr.freeze`` saves.

    Raises:
        TypeError: an argument is not a module.
        ValueError: ``banks`` is not an int from 1 to 4096.
        RuntimeError: entered inside a symbolic loop or call, or outside the frozen function that needs it.

    >>> def turn(i):
    ...     dr.backward(field(p)[0])
    ...     return (i + 1,)
    >>> with cn.gradient_banks(field):
    ...     i = dr.while_loop((UInt32(0),), lambda i: i < 4, turn)
    """
    for i, field in enumerate(fields):
        known, needed = isinstance(field, drnn.Module), "a NeuralField or another module is needed"
        ensure(known, f"gradient_banks: field {i} is {shown(field)}; {needed}.", TypeError)
    if banks is not None:
        banks = check_int("gradient_banks", "banks", banks, 1, MOST, f"None or an int from 1 to {MOST}")
    inside = "inside a symbolic loop, conditional or call the banks could not be summed; enter the context outside"
    ensure(not symbolic(), f"gradient_banks: {inside}.", RuntimeError)

    def wanted() -> set[int]:
        # looked up at every use: an optimizer gives a network other arrays
        return {p.storage.index for field in fields for p in parameters(field) if p.is_matrix}

    return collecting(LoopBanks(wanted if fields else None, banks))
