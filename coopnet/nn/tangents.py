r"""Forward derivatives of layers that the engine does not know.

A layer's rule is its method ``jvp(x, tangents, key=None) -> (y, tangents of y)``: with ``y = f(x)`` it maps every
tangent :math:`\dot x` to :math:`J_f(x)\,\dot x`, in arithmetic that Dr.Jit can differentiate again. ``x`` and its
tangents are ``CoopVec``s; encodings also take lists of arrays. The rules of ``drjit.nn``'s own layers stand here, in
:data:`RULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import check_type, ensure, entries
from ..engine import FUNCTIONS
from ..jit import kinds
from ..random.key import Key


def jvp(layer: Any, x: Any, tangents: list, key: Key | None) -> tuple[Any, list]:
    """``layer(x, key)`` and its derivatives in the directions ``tangents``.

    Raises:
        TypeError: the layer has no rule.
    """
    rule = next((RULES[cls] for cls in type(layer).__mro__ if cls in RULES), None)
    if rule is not None:
        return rule(layer, x, tangents)
    if not hasattr(layer, "jvp"):
        raise no_rule(layer)
    return layer.jvp(x, tangents, key)


def check_bundle(layer: Any, x: Any, tangents: Any, arrays: bool = False) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``x`` is a ``CoopVec`` (or, with ``arrays``, a list of arrays) and
    ``tangents`` a list of such of the same type and length."""
    where = f"{type(layer).__name__}.jvp"
    listed = arrays and not isinstance(x, drnn.CoopVec)
    also = " or a list of arrays" if arrays else ""
    check_type(where, "x", x, (list, tuple) if listed else drnn.CoopVec, f"a drjit.nn.CoopVec{also}")
    check_type(where, "tangents", tangents, (list, tuple), "a list of directions")
    _, leaf = kinds.kind(x, where)
    for i, t in enumerate(entries(where, "tangents", tangents)):
        what, like = f"{where}: tangents[{i}]", isinstance(t, (list, tuple) if listed else drnn.CoopVec)
        ensure(like, f"{what} is a {type(t).__name__}, but x a {type(x).__name__}.", TypeError)
        own = kinds.kind(t, what)[1]
        ensure(len(t) == len(x), f"{what} has {len(t)} components, but x has {len(x)}.")
        ensure(own is leaf, f"{what} is of {own.__name__}, but x of {leaf.__name__}.", TypeError)
    kinds.check_sizes(kinds.flat([x, *tangents]), where)


def no_rule(layer: Any) -> TypeError:
    """The error of a layer without a forward derivative."""
    name = type(layer).__name__
    return TypeError(
        f"{name}: this layer has no rule for derivatives with respect to its input; define {name}.jvp(x, tangents, "
        f"key=None), which returns the output and one tangent of it for each of x, or use coopnet.numerical_gradient()."
    )


def rebuilt(parts: list, like: Any) -> Any:
    """``parts`` as the kind of vector that ``like`` is."""
    return drnn.CoopVec(parts) if isinstance(like, drnn.CoopVec) else parts


def sines(y: Any, tangents: list, octaves: int, frequency: float = 2 * math.pi) -> list:
    r"""Tangents of :math:`\sin(2^i \omega x + i s)` and cosine from the encoded ``y``, channel by channel.

    ``frequency`` is the lowest one, :math:`\omega`.
    """
    values, result = list(y), []
    for tangent in tangents:
        parts: list[Any] = []
        for channel, dx in enumerate(tangent):
            for i in range(octaves):
                s, c = values[2 * (channel * octaves + i) :][:2]
                slope = dx * (frequency * 2**i)
                parts += [slope * c, -slope * s]
        result.append(rebuilt(parts, y))
    return result


def triangles(x: Any, y: Any, tangents: list, octaves: int, shift: float) -> list:
    """Tangents of triangle waves; 0 at their maxima, and at their minima the slope of either side."""
    slopes: list[list[Any]] = []
    for v in x:
        for i in range(octaves):
            t = dr.fma(v, 2**i, shift * i)
            slopes.append([_falling(s - dr.round(s)) * (4 * 2**i) for s in (t - 0.25, t)])
    return [
        rebuilt(
            [dx * slope for k, dx in enumerate(tangent) for i in range(octaves) for slope in slopes[k * octaves + i]], y
        )
        for tangent in tangents
    ]


def _falling(offset: Any) -> Any:
    """Minus the sign of ``offset``, and 0 at 0."""
    return dr.select(offset > 0, -1, dr.select(offset < 0, type(offset)(1), 0))


def _function(name: str, *params: str) -> Callable[..., tuple[Any, list]]:
    """Rule of an activation of ``drjit.nn``; ``params`` name its attributes."""
    f = FUNCTIONS[name]

    def rule(layer: Any, x: Any, tangents: list) -> tuple[Any, list]:
        y, args = layer(x), [getattr(layer, p) for p in params]
        return y, [f.slope(dx, x, y, *args) for dx in tangents]

    return rule


def _exp2(layer: Any, x: Any, tangents: list) -> tuple[Any, list]:
    y = layer(x)
    return y, [dx * y * math.log(2) for dx in tangents]


#: Rules of ``drjit.nn``'s layers, called with ``(layer, x, tangents)``.
RULES: dict[type, Callable[..., tuple[Any, list]]] = {
    drnn.SinEncode: lambda layer, x, ts: (y := layer(x), sines(y, ts, layer.octaves)),
    drnn.TriEncode: lambda layer, x, ts: (y := layer(x), triangles(x, y, ts, layer.octaves, layer.shift)),
    drnn.Cast: lambda layer, x, ts: (layer(x), [layer(dx) for dx in ts]),
    drnn.ScaleAdd: lambda layer, x, ts: (layer(x), [dx * layer.scale for dx in ts]),
    drnn.ReLU: _function("relu"),
    drnn.LeakyReLU: _function("leaky_relu", "negative_slope"),
    drnn.Tanh: _function("tanh"),
    drnn.Exp: _function("exp"),
    drnn.Exp2: _exp2,
}
