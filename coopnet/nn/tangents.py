r"""Forward derivatives of layers that the engine does not know.

A layer's rule is its method ``jvp(x, tangents, key=None) -> (y, tangents of y)``: with ``y = f(x)`` it maps every
tangent :math:`\dot x` to :math:`J_f(x)\,\dot x`, in arithmetic that Dr.Jit can differentiate again. ``x`` and its
tangents are ``CoopVec``s; encodings also take lists of arrays. The rules of ``drjit.nn``'s own layers are here, in
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
    """Raise ``TypeError`` or ``ValueError`` unless ``x`` and all ``tangents`` are vectors of one type and length.

    A vector is a ``CoopVec`` or, with ``arrays``, a list of arrays.
    """
    if isinstance(x, kinds.UnpackedVector):  # its components were checked when it was made
        return
    where = f"{type(layer).__name__}.jvp"
    listed = arrays and not isinstance(x, drnn.CoopVec)
    also = " or a list of arrays" if arrays else ""
    check_type(where, "x", x, (list, tuple) if listed else drnn.CoopVec, f"a drjit.nn.CoopVec{also}")
    check_type(where, "tangents", tangents, (list, tuple), "a list of directions")
    _, leaf = kinds.kind(x, where)
    for i, t in enumerate(entries(where, "tangents", tangents)):
        what, like = f"{where}: tangents[{i}]", isinstance(t, (list, tuple) if listed else drnn.CoopVec)
        ensure(like, f"{what} is a {type(t).__name__}, but x a {type(x).__name__}.", TypeError)
        _, leaf_t = kinds.kind(t, what)
        ensure(len(t) == len(x), f"{what} has {len(t)} components, but x has {len(x)}.")
        ensure(leaf_t is leaf, f"{what} is of {leaf_t.__name__}, but x of {leaf.__name__}.", TypeError)
    kinds.check_sizes(kinds.flat([x, *tangents]), where)


def of_all_lanes(bundle: list) -> list:
    """The vectors of ``bundle``, each with a lane for every sample.

    Dropout would give a constant of one lane the mask of one sample.
    """
    parts = [list(vector) for vector in bundle]
    lanes = dr.width(kinds.flat(parts))
    return [
        rebuilt([kinds.of_width(v, lanes) for v in part], vector) for part, vector in zip(parts, bundle, strict=True)
    ]


def linear_jvp(layer: Any, x: Any, tangents: list, key: Key | None) -> tuple[Any, list]:
    """The rule of a layer that is linear for a given draw: it maps tangents like the input, with the same draw."""
    check_bundle(layer, x, tangents)
    y, *dys = [layer(v, key) for v in of_all_lanes([x, *tangents])]
    return y, dys


def no_rule(layer: Any) -> TypeError:
    """The error of a layer without a forward derivative."""
    name = type(layer).__name__
    return TypeError(
        f"{name}: this layer has no rule for derivatives with respect to its input; define {name}.jvp(x, tangents, "
        f"key=None), which returns the output and one tangent of it for each of x, or use coopnet.numerical_gradient()."
    )


def rebuilt(parts: list, like: Any) -> Any:
    """``parts`` as a ``CoopVec`` if ``like`` is one, otherwise as a list."""
    return drnn.CoopVec(parts) if isinstance(like, drnn.CoopVec) else parts


def _function(name: str, *params: str) -> Callable[..., tuple[Any, list]]:
    """The rule of an activation of ``drjit.nn``; ``params`` are the names of its attributes."""
    f = FUNCTIONS[name]

    def rule(layer: Any, x: Any, tangents: list) -> tuple[Any, list]:
        y, args = layer(x), [getattr(layer, p) for p in params]
        return y, [dx * f.slope(x, y, *args) for dx in tangents]

    return rule


def _exp2(layer: Any, x: Any, tangents: list) -> tuple[Any, list]:
    y = layer(x)
    return y, [dx * y * math.log(2) for dx in tangents]


#: Rules of ``drjit.nn``'s layers, called with ``(layer, x, tangents)``.
RULES: dict[type, Callable[..., tuple[Any, list]]] = {
    drnn.Cast: lambda layer, x, ts: (layer(x), [layer(dx) for dx in ts]),
    drnn.ScaleAdd: lambda layer, x, ts: (layer(x), [dx * layer.scale for dx in ts]),
    drnn.ReLU: _function("relu"),
    drnn.LeakyReLU: _function("leaky_relu", "negative_slope"),
    drnn.Tanh: _function("tanh"),
    drnn.Exp: _function("exp"),
    drnn.Exp2: _exp2,
}
