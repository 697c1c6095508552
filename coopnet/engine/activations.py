"""Activation functions on every kind of input, with their adjoints on cooperative vectors.

Cooperative vectors know a handful of operations (+, -, *, fma, min, max, exp2, log2, tanh, step), so each function
is written twice: from those for a :class:`drjit.nn.CoopVec`, and from Dr.Jit's full library for arrays. Adjoints
take the output where that is exact, so that the pre-activation need not stay in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import drjit as dr
import drjit.nn as drnn

LOG2E = 1.0 / math.log(2.0)
LN2 = math.log(2.0)


@dataclass(frozen=True)
class Function:
    """One activation: value on arrays, value on a ``CoopVec``, and adjoint ``vjp(dy, x, y, *params)``.

    ``masked_vjp(dy, y, scale)`` is the adjoint of the activation followed by dropout, where the dropped-out output
    ``y`` alone determines it: a dropped element is 0, and so must its derivative be.

    For second derivatives there is ``second(w, x, y, *params)``, ``w`` times f''; without it, Dr.Jit differentiates
    ``vjp``. A function that is ``flat`` has none: it is linear in pieces.
    """

    array: Callable[..., Any]
    coopvec: Callable[..., Any]
    vjp: Callable[..., Any]
    masked_vjp: Callable[..., Any] | None = None
    second: Callable[..., Any] | None = None
    flat: bool = False


def _positive(y: Any) -> Any:
    # dr.step(a, b) is 0 where a < b and 1 elsewhere, so this is 1 for y > 0 and 0 for y <= 0
    return 1 - dr.step(0, y)


def _sigmoid(x: Any) -> Any:
    return dr.fma(dr.tanh(x * 0.5), 0.5, 0.5)


def _relu(x: Any) -> Any:
    # The maximum is cheapest, but where both arguments are equal Dr.Jit differentiates it to 1. This, too, is exact.
    return x - dr.minimum(x, 0) if dr.grad_enabled(x) else dr.maximum(x, 0)


def _softplus_array(x: Any) -> Any:
    # |x| and max(x, 0) by way of one minimum, so that their derivatives at 0 add up to 1/2, whatever Dr.Jit's is
    return x - dr.minimum(x, 0) + dr.log(1 + dr.exp(2 * dr.minimum(x, 0) - x))


def _softplus(x: Any) -> Any:
    if dr.grad_enabled(x):  # Dr.Jit cannot differentiate log2 of a cooperative vector on the GPU
        return drnn.CoopVec([_softplus_array(v) for v in x])
    magnitude = x - dr.minimum(x, 0) * 2
    return _relu(x) + dr.log2(dr.exp2(magnitude * -LOG2E) + 1) * LN2


def _sine(x: Any, omega: float) -> Any:
    return drnn.CoopVec([dr.sin(v * omega) for v in x])


def _sine_vjp(dy: Any, x: Any, y: Any, omega: float) -> Any:
    return dy * drnn.CoopVec([dr.cos(v * omega) * omega for v in x])


def _silu_vjp(dy: Any, x: Any, y: Any) -> Any:
    s = _sigmoid(x)
    return dy * (s + y * (1 - s))


def _silu_second(w: Any, x: Any, y: Any) -> Any:
    s = _sigmoid(x)
    return w * (s * (1 - s) * (x * (1 - s * 2) + 2))


def _softplus_second(w: Any, x: Any, y: Any) -> Any:
    s = _sigmoid(x)
    return w * (s * (1 - s))


FUNCTIONS: dict[str, Function] = {
    "relu": Function(
        lambda x: dr.maximum(x, 0),
        _relu,
        lambda dy, x, y: dy * _positive(y),
        lambda dy, y, scale: dy * (_positive(y) * scale),
        flat=True,
    ),
    "leaky_relu": Function(
        lambda x, a: dr.maximum(x, 0) + dr.minimum(x, 0) * a,
        lambda x, a: dr.fma(dr.minimum(x, 0), a, _relu(x)),
        lambda dy, x, y, a: dy * dr.fma(dr.step(0, x), a - 1, 1),
        flat=True,
    ),
    "tanh": Function(
        lambda x: dr.tanh(x),
        lambda x: dr.tanh(x),
        lambda dy, x, y: dy * (1 - y * y),
        second=lambda w, x, y: w * (y * (y * y - 1) * 2),
    ),
    "sigmoid": Function(
        lambda x: dr.rcp(1 + dr.exp(-x)),
        _sigmoid,
        lambda dy, x, y: dy * (y * (1 - y)),
        lambda dy, y, scale: dy * (y * (1 - y * (1 / scale))),
        lambda w, x, y: w * (y * (1 - y) * (1 - y * 2)),
    ),
    "softplus": Function(
        _softplus_array,
        _softplus,
        lambda dy, x, y: dy * _sigmoid(x),
        second=_softplus_second,
    ),
    "silu": Function(
        lambda x: x * dr.rcp(1 + dr.exp(-x)),
        lambda x: x * _sigmoid(x),
        _silu_vjp,
        second=_silu_second,
    ),
    "sine": Function(
        lambda x, omega: dr.sin(x * omega), _sine, _sine_vjp, second=lambda w, x, y, omega: w * y * -(omega**2)
    ),
    "exp": Function(
        lambda x: dr.exp(x),
        lambda x: dr.exp2(x * LOG2E),
        lambda dy, x, y: dy * y,
        lambda dy, y, scale: dy * y,
        lambda w, x, y: w * y,
    ),
    "identity": Function(lambda x: x, lambda x: x, lambda dy, x, y: dy, flat=True),
}
