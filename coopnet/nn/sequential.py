"""Layers one after the other, and the networks as which the engine runs them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from reprlib import recursive_repr
from typing import Any, NamedTuple

import drjit.nn as drnn

from ..checks import shown
from ..checks.sizes import check_layers
from ..engine import Affine, evaluate, fused
from ..jit.kinds import UnpackedVector, packed
from ..jit.literals import varying
from ..random.key import Key, check_key
from .activations import Activation
from .arguments import block
from .dropout import Dropout
from .linear import checked_width
from .module import Module
from .tangents import check_bundle, jvp
from .tree import check_acyclic


class Composed(Module):
    """Base of layers that consist of others, one after the other or side by side; :func:`apply` evaluates them."""

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        check_key(type(self).__name__, key)
        return apply([self], [x], key)[0]

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        check_bundle(self, x, tangents)
        check_key(type(self).__name__, key)
        y, *dys = apply([self], [x, *tangents], key)
        return y, dys


class Sequential(Composed):
    """Applies ``layers`` in order, and passes the key to those that take one.

    Layers of ``drjit.nn`` may be among them. On a ``CoopVec``, the engine runs consecutive linear layers, activations
    and dropouts as one network; :func:`coopnet.engine.evaluate` says how it is differentiated.

    Args:
        layers: ``Module`` instances. One that is there twice becomes two when weights are allocated.
        prefix: prepended to every parameter name, so that networks that share an optimizer have different names.

    Raises:
        TypeError: a layer is not a module; an input of another kind, type or backend.
        ValueError: an input of another width; no weights yet. Both are raised before anything is traced.

    >>> net = cn.Sequential(cn.Sinusoidal(8), cn.Linear(-1, 64), cn.ReLU(), cn.Dropout(0.1), cn.Linear(-1, 3))
    >>> net = drjit.nn.pack(net.alloc(TensorXf, size=2), layout="training")
    >>> y = net(drjit.nn.CoopVec(x), cn.Key(seed=0))
    """

    DRJIT_STRUCT = {"layers": tuple, "prefix": str}

    def __init__(self, *layers: Any, prefix: str = ""):
        check_layers("Sequential", "the number of layers", len(layers))
        for i, layer in enumerate(layers):
            if not isinstance(layer, drnn.Module):
                raise TypeError(f"Sequential: layer {i} is a {type(layer).__name__}; a Module instance is needed.")
        if not isinstance(prefix, str):
            raise TypeError(f"Sequential: prefix is {shown(prefix)}; a string is needed.")
        self.layers, self.prefix = layers, str.__str__(prefix)  # a plain string

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:  # type: ignore[override]
        layers = []
        for layer in self.layers:
            layer, size = layer._alloc(dtype, size, rng)
            layers.append(layer)
        return Sequential(*layers, prefix=self.prefix), size

    @recursive_repr()
    def __repr__(self) -> str:
        return block(self, map(repr, self.layers))


class Segment(NamedTuple):
    """Consecutive layers and their ``ops`` in the engine; or a layer that it does not know, with ``None`` for ops.

    ``checks`` are the layers' methods :meth:`Module.output_width`.
    """

    layers: tuple
    ops: list | None
    checks: tuple = ()

    def output_width(self, width: int, leaf: type, key: Key | None) -> int:
        """Width of the output for ``width`` values of type ``leaf``; raises unless they fit."""
        for check in self.checks:
            width = check(width, leaf, key)
        return width


def apply(layers: Sequence[Any], x: list, key: Key | None) -> list:
    """Evaluate ``layers`` on the bundle ``x``: any input, or a ``CoopVec`` or :class:`UnpackedVector` with tangents.

    Consecutive layers that the engine knows run as one network. ``key`` has been checked; layers check the input.
    """
    try:
        for segment in segments(layers):
            if segment.ops is not None and isinstance(x[0], (drnn.CoopVec, UnpackedVector)):
                segment.output_width(len(x[0]), x[0].type, key)
                x = evaluate(segment.ops, x, key)
            else:
                x = [packed(v) for v in x]
                for layer in segment.layers:
                    check_stream(layer, key)
                    x = _alone(layer, x, key)
    except RecursionError:
        raise ValueError("Sequential: the layers are nested too deep, or contain themselves.") from None
    return [packed(v) for v in x]


def _alone(layer: Any, x: list, key: Key | None) -> list:
    if hasattr(layer, "side_by_side"):
        return layer.side_by_side(x, key)  # not its __call__, which calls apply()
    if len(x) == 1:
        return [layer(x[0], key) if isinstance(layer, Module) else layer(x[0])]
    x = varying(x) if isinstance(x[0], drnn.CoopVec) else x
    y, dys = jvp(layer, x[0], x[1:], key)
    return [y, *dys]


def segments(layers: Sequence[Any]) -> list[Segment]:
    """The segments of ``layers``, in evaluation order; those of a single :class:`Sequential` are cached."""
    owner = layers[0] if len(layers) == 1 and isinstance(layers[0], Sequential) else None
    made_of = None if owner is None else tuple(_inside(layers))
    known = getattr(owner, "_segments", None)
    if made_of and known and len(known[0]) == len(made_of) and all(map(operator.is_, known[0], made_of)):
        return known[1]
    result: list[Segment] = []
    for layer in flatten(layers):
        op, check = _seen(layer)
        before = result[-1] if result else None
        if op is not None and before is not None and before.ops is not None:
            result[-1] = Segment((*before.layers, layer), [*before.ops, op], (*before.checks, check))
        else:
            result.append(Segment((layer,), None if op is None else [op], (check,)))
    result = [s._replace(ops=fused(s.ops)) if s.ops else s for s in result]
    if owner is not None:
        owner._segments = made_of, result
    return result


def _inside(layers: Sequence[Any]) -> Iterator[Any]:
    """All layers from which the ops of ``layers`` are made; ``None`` separates bodies that are side by side."""
    for layer in flatten(layers):
        yield layer
        if hasattr(layer, "bodies"):
            for body in layer.bodies():
                yield None
                yield from _inside(body)
            yield None


def known_ops(layers: Sequence[Any]) -> list | None:
    """The ops of ``layers``, or ``None`` if the engine does not know all of them."""
    parts = segments(layers)
    return [] if not parts else parts[0].ops if len(parts) == 1 else None


def _seen(layer: Any) -> tuple[Any, Any]:
    """The op of a layer, or ``None``, and its check, if any. Ops look up the layer's weights at every use."""
    if isinstance(layer, Dropout):
        return layer.op(), functools.partial(_checked_stream, layer)
    if isinstance(layer, Module):
        return layer.op(), layer.output_width
    if isinstance(layer, drnn.Linear):
        return Affine(layer), functools.partial(checked_width, layer)
    return None, None


@functools.cache  # slow for Dr.Jit's modules, which are abstract base classes
def _is_chain(tp: type) -> bool:
    return issubclass(tp, (Sequential, drnn.Sequential))


def flatten(layers: Any, above: tuple = ()) -> Iterator[Any]:
    """The layers inside nested containers, in evaluation order."""
    for layer in layers:
        if _is_chain(type(layer)):  # type: ignore[arg-type]
            check_acyclic(layer, above)
            yield from flatten(layer.layers, (*above, layer))
        else:
            yield layer


def stated_width(layers: Any) -> int:
    """Input width of ``layers``, as the first layer states it that may change the width; -1 if it states none."""
    first = next((m for m in flatten(layers) if not isinstance(m, (Activation, Dropout))), None)
    return int(first.config[0] if isinstance(first, drnn.Linear) else getattr(first, "in_features", -1))


def _checked_stream(layer: Dropout, width: int, leaf: type, key: Key | None) -> int:
    check_stream(layer, key)
    return width


def check_stream(layer: Any, key: Key | None) -> None:
    """Raise unless a dropout has a stream number; without one, two dropouts would share a mask."""
    if key is not None and isinstance(layer, Dropout) and layer.stream is None:
        raise ValueError(
            f"Sequential: a {type(layer).__name__} has no stream number yet, so that two of them would share a mask; "
            f"call net = net.alloc(dtype, size) first, or pass {type(layer).__name__}(stream=...)."
        )
