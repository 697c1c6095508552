"""Activation functions on every kind of input, with their derivatives on cooperative vectors.

Cooperative vectors know a handful of operations (+, -, *, fma, min, max, exp2, log2, tanh, step), so each function
is written twice: from those for a :class:`drjit.nn.CoopVec`, and from Dr.Jit's full library for arrays. Derivatives
are computed from the output where that is exact, so that the pre-activation need not stay in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from . import limits

LOG2E = 1.0 / math.log(2.0)
LN2 = math.log(2.0)


@dataclass(frozen=True)
class Function:
    """One activation: value on arrays, value on a ``CoopVec``, and ``slope(x, y, *params)``, the derivative f'(x).

    ``curvature(x, y, *params)`` is f''(x); a function without it is piecewise linear.

    ``dropped_slope(y, scale, *params)`` is ``slope`` of the activation followed by dropout, where the dropped-out
    output ``y`` alone determines it: a dropped element is 0, and its derivative must be 0, too.

    ``from_output(*params)``: ``slope`` and ``curvature`` do not use ``x``.
    """

    array: Callable[..., Any]
    coopvec: Callable[..., Any]
    slope: Callable[..., Any]
    curvature: Callable[..., Any] | None = None
    dropped_slope: Callable[..., Any] | None = None
    from_output: Callable[..., bool] = lambda *params: False

    @property
    def piecewise_linear(self) -> bool:
        return self.curvature is None


def _always(*params: Any) -> bool:
    return True


def _each(f: Callable[[Any], Any], x: Any) -> Any:
    """``f`` of every component of the ``CoopVec`` ``x``, for functions that cooperative vectors don't have."""
    return drnn.CoopVec([f(v) for v in x])


def _single(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``f`` computed in single precision where the argument is half."""

    def run(x: Any) -> Any:
        return type(x)(f(dr.float32_array_t(x)(x))) if dr.is_half_v(x) else f(x)

    return run


def _of_vectors(x: Any) -> bool:
    """Is a function of ``x`` to be computed by operations on vectors, though its components have a better one?

    Yes on a GPU, which takes longer to take a short vector apart than for a dozen operations on it. Long ones have no
    place in its registers. The formulas are for half precision, and Dr.Jit's derivatives of them would be wrong.
    """
    gpu = dr.backend_v(x.type) == dr.JitBackend.CUDA and dr.is_half_v(x.type)
    return gpu and len(x) <= limits.LONG_VECTOR and not dr.grad_enabled(x)


def _positive(y: Any) -> Any:
    """1 for y > 0 and 0 for y <= 0."""
    if dr.backend_v(y.type) != dr.JitBackend.CUDA:
        return 1 - dr.step(0, y)  # dr.step(a, b) is 0 where a < b and 1 elsewhere
    # Products, minima and maxima take OptiX much less time than dr.step. The least positive number (2^-24 in half
    # precision) times `large` is `bound`.
    large, bound = (2.0**15, 2.0**-9) if dr.is_half_v(y.type) else (2.0**126, 2.0**-23)
    return dr.maximum(dr.minimum(y * large, bound), 0) * (1 / bound)


def _leaky_relu_slope(x: Any, y: Any, a: float) -> Any:
    p = _positive(y if a >= 0 else x)
    return dr.fma(1 - p, a, p)  # exactly 1 or a


def _sigmoid(x: Any) -> Any:
    return dr.fma(dr.tanh(x * 0.5), 0.5, 0.5)


def _relu(x: Any) -> Any:
    # The maximum is cheapest, but Dr.Jit's derivative of it is 1 where both arguments are equal. `x - min(x, 0)` has
    # the same value, and the derivative 0 there.
    return x - dr.minimum(x, 0) if dr.grad_enabled(x) else dr.maximum(x, 0)


def _leaky_relu(x: Any, a: float) -> Any:
    if dr.grad_enabled(x):  # Dr.Jit's derivative of the lines below would be 1 + a at 0
        return dr.fma(dr.minimum(x, 0), a, _relu(x))
    # one operation less than above, and NaN stays NaN
    return dr.maximum(x, x * a) if a <= 1 else dr.minimum(x, x * a)


def _softplus_array(x: Any, beta: float) -> Any:
    # |x| and max(x, 0) are written with min(x, 0): whatever its derivative at 0, that of softplus is 1/2.
    def one(x: Any) -> Any:
        low = dr.minimum(x, 0)
        # the sum is at least 1; LLVM takes minutes for the logarithms of many half-precision numbers unless it knows
        return x - low + dr.log(dr.maximum(1 + dr.exp((2 * low - x) * beta), 1)) * (1 / beta)

    return _single(one)(x)


def _softplus(x: Any, beta: float) -> Any:
    # Dr.Jit cannot differentiate log2 of a cooperative vector on the GPU; for half precision on CPUs see above
    if dr.grad_enabled(x) or (dr.is_half_v(x.type) and dr.backend_v(x.type) == dr.JitBackend.LLVM):
        return _each(lambda v: _softplus_array(v, beta), x)
    # the logarithm of 1 + 2^(c x), as long as the power is finite; beyond, softplus is x
    c = LOG2E * beta
    near = dr.minimum(x, (15 if dr.is_half_v(x.type) else 126) / c)
    return dr.fma(dr.log2(dr.exp2(near * c) + 1), 1 / c, x - near)


def _squareplus_array(x: Any, beta: float) -> Any:
    # (X + sqrt(X^2 + 4)) / 2 suffers from cancellation for negative X. The equal expression max(X, 0) + 2 / (|X| +
    # sqrt(X^2 + 4)) does not. It is computed in single precision, as the square of a half-precision X soon overflows.
    def one(x: Any) -> Any:
        x = x * beta
        low = dr.minimum(x, 0)
        return (x - low + 2 * dr.rcp(x - 2 * low + dr.sqrt(x * x + 4))) * (1 / beta)

    return _single(one)(x)


def _squareplus(x: Any, beta: float) -> Any:
    if not _of_vectors(x):
        return _each(lambda v: _squareplus_array(v, beta), x)
    size = dr.maximum(x, x * -1)
    scaled = dr.minimum(size, 60_000 / beta) * beta
    near = dr.minimum(scaled, 250)
    root = dr.maximum(dr.exp2(dr.log2(dr.fma(near, near, 4)) * 0.5), scaled)  # of X^2 + 4, which may overflow
    divisor = dr.minimum(scaled + root, 60_000)
    rcp = dr.exp2(dr.log2(divisor) * -1)
    rcp = dr.fma(rcp, dr.fma(divisor * -1, rcp, 1), rcp)  # a step of Newton's method
    return dr.fma(rcp, 2 / beta, dr.fma(x, 0.5, size * 0.5))  # NaN stays NaN, as it would not in max(x, 0)


def _squareplus_slope(y: Any, beta: float) -> Any:
    # with q = beta y: X = q - 1/q and sqrt(X^2 + 4) = q + 1/q, so the derivative is q^2 / (q^2 + 1) = sigmoid(2 log q)
    if _of_vectors(y):
        return _sigmoid(dr.log2(y * beta) * (2 * LN2))

    def one(y: Any) -> Any:
        square = dr.square(y * beta)
        return square * dr.rcp(square + 1)

    return _each(_single(one), y)


#: For larger |x|, a Gaussian's distribution function is 0 or 1 in single precision. For smaller ones, powers of x are
#: finite in half precision.
GELU_LIMIT = 10.0
GELU_LINEAR = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715 * GELU_LINEAR


def _gelu_step(x: Any) -> tuple[Any, Any, Any]:
    """The hyperbolic tangent in GELU's formula, the derivative of its argument, and ``x`` within the limits: an
    infinite one times ``1 - t * t`` = 0 would be NaN.
    """
    x = dr.maximum(dr.minimum(x, GELU_LIMIT), -GELU_LIMIT)
    square = x * x
    t = dr.tanh(x * dr.fma(square, GELU_CUBIC, GELU_LINEAR))
    return t, dr.fma(square, 3 * GELU_CUBIC, GELU_LINEAR), x


def _gelu(x: Any) -> Any:
    return x * dr.fma(_gelu_step(x)[0], 0.5, 0.5)


def _gelu_slope(x: Any, y: Any) -> Any:
    t, slope, inside = _gelu_step(x)
    return dr.fma(t, 0.5, 0.5) + (1 - t * t) * slope * inside * 0.5


def _squareplus_curvature(x: Any, y: Any, beta: float) -> Any:
    # 2 beta / (X^2 + 4)^(3/2), with the root as in the slope
    def one(y: Any) -> Any:
        q = y * beta
        root = q * dr.rcp(dr.fma(q, q, 1))
        return root * root * root * (2 * beta)

    return _each(_single(one), y)


def _gelu_curvature(x: Any, y: Any) -> Any:
    # with t = tanh u(x): (1 - t^2) (u' + x (u'' / 2 - t u'^2))
    t, slope, inside = _gelu_step(x)
    return (1 - t * t) * (slope + inside * (inside * (3 * GELU_CUBIC) - t * slope * slope))


def _silu(x: Any) -> Any:
    half = x * 0.5
    return dr.fma(half, dr.tanh(half), half)


def _silu_slope(x: Any, y: Any) -> Any:
    # not from y as well: with long vectors, a GPU's registers hold one less
    half = x * 0.5
    t = dr.tanh(half)
    return dr.fma(t, 0.5, 0.5) * dr.fma(half, 1 - t, 1)


def _silu_curvature(x: Any, y: Any) -> Any:
    s = _sigmoid(x)
    return s * (1 - s) * (x * (1 - s * 2) + 2)


def _softplus_tail(y: Any, beta: float) -> Any:
    """1 minus the slope of softplus: 1 - sigmoid(beta x) = exp(-beta y)."""
    return dr.exp2(y * (-LOG2E * beta))


def _softplus_curvature(x: Any, y: Any, beta: float) -> Any:
    tail = _softplus_tail(y, beta)
    return tail * (1 - tail) * beta


def _quarters(x: Any, omega: float) -> tuple[Any, Any]:
    """``omega x`` in quarters of a period, less whole periods, in [-2, 2], and its square, for half-precision ``x``.

    Beyond some hundred periods, where such numbers are half a radian or more apart, more is left. The bound of the
    square, which is 4 in [-2, 2], then keeps sines and cosines below 6.
    """
    quarters = 2 * omega / math.pi
    high = float(np.float16(quarters))
    # half-precision numbers about 6144 are multiples of 4, which is one period
    t = dr.fma(x, quarters - high, dr.fma(x, high, 6144 - dr.fma(x, high, 6144)))
    return t, dr.minimum(t * t, 5)


def _sine(x: Any, omega: float) -> Any:
    if not _of_vectors(x):
        return _each(lambda v: dr.sin(v * omega), x)
    # t (4 - t^2), which has the zeros of sin(pi t / 2) in [-2, 2], times a polynomial: 3e-4 off before rounding
    t, square = _quarters(x, omega)
    return t * (4 - square) * dr.fma(dr.fma(square, 0.003389, -0.06234), square, 0.39238)


def _sine_slope(x: Any, y: Any, omega: float) -> Any:
    if not _of_vectors(x):
        return _each(lambda v: dr.cos(v * omega) * omega, x)
    # 1 - t^2, which has the zeros of cos(pi t / 2) in [-2, 2], times a polynomial: 5e-5 off before rounding
    _, square = _quarters(x, omega)
    a, b, c, d = (omega * v for v in (0.99995, -0.2332, 0.019429, -0.00069837))
    return (1 - square) * dr.fma(dr.fma(dr.fma(square, d, c), square, b), square, a)


def _identity(x: Any, scale: float | None = None, offset: float = 0.0) -> Any:
    return x if scale is None else x * scale + offset


FUNCTIONS: dict[str, Function] = {
    "relu": Function(
        lambda x: dr.maximum(x, 0),
        _relu,
        lambda x, y: _positive(y),
        dropped_slope=lambda y, scale: _positive(y) * scale,
        from_output=_always,
    ),
    "leaky_relu": Function(
        lambda x, a: dr.maximum(x, 0) + dr.minimum(x, 0) * a,
        _leaky_relu,
        _leaky_relu_slope,
        from_output=lambda a: a >= 0,  # then x and y have one sign
    ),
    "tanh": Function(
        dr.tanh,
        dr.tanh,
        lambda x, y: 1 - y * y,
        lambda x, y: y * (y * y - 1) * 2,
        from_output=_always,
    ),
    "sigmoid": Function(
        lambda x: dr.rcp(1 + dr.exp(-x)),
        _sigmoid,
        lambda x, y: y * (1 - y),
        lambda x, y: y * (1 - y) * (1 - y * 2),
        dropped_slope=lambda y, scale: y * (1 - y * (1 / scale)),
        from_output=_always,
    ),
    "softplus": Function(
        _softplus_array,
        _softplus,
        lambda x, y, beta: 1 - _softplus_tail(y, beta),
        _softplus_curvature,
        dropped_slope=lambda y, scale, beta: (1 - _softplus_tail(y, beta / scale)) * scale,
        from_output=_always,
    ),
    "squareplus": Function(
        _squareplus_array,
        _squareplus,
        lambda x, y, beta: _squareplus_slope(y, beta),
        _squareplus_curvature,
        dropped_slope=lambda y, scale, beta: _squareplus_slope(y, beta / scale) * scale,
        from_output=_always,
    ),
    "gelu": Function(_gelu, _gelu, _gelu_slope, _gelu_curvature),
    "silu": Function(lambda x: x * dr.rcp(1 + dr.exp(-x)), _silu, _silu_slope, _silu_curvature),
    "sine": Function(
        lambda x, omega: dr.sin(x * omega),
        _sine,
        _sine_slope,
        lambda x, y, omega: y * -(omega**2),
    ),
    "exp": Function(
        dr.exp,
        lambda x: dr.exp2(x * LOG2E),
        lambda x, y: y,
        lambda x, y: y,
        dropped_slope=lambda y, scale: y,
        from_output=_always,
    ),
    "identity": Function(
        _identity,
        _identity,
        lambda x, y, scale=1.0, offset=0.0: scale,
        from_output=_always,
    ),
}
