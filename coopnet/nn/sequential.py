"""Layers one after the other and side by side."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterator
from reprlib import recursive_repr
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import shown
from ..engine import Fork, Mask, Noise, evaluate, evaluate_jet
from ..jit import kinds
from ..limits import check_layers
from ..random.dropout import Dropout
from ..random.key import Key
from ..random.variants import DropPath, GaussianDropout
from .activations import Activation
from .encodings import nested
from .linear import check_input, check_packed
from .linear import stage as linear_stage
from .module import Module
from .tangents import check_jet, jvp
from .tree import check_acyclic


class Sequential(Module):
    """Applies ``layers`` in order, passing the key to each that takes one.

    Layers of ``drjit.nn`` may stand among them. On a ``CoopVec``, runs of linear layers, activations and dropouts go
    to the engine as one network; see :func:`coopnet.engine.evaluate` for how it is differentiated.

    Args:
        layers: ``Module`` instances.
        prefix: prepended to every parameter name, to tell networks apart that share an optimizer.

    Raises:
        TypeError: a layer is no module; an input of another kind, type or backend.
        ValueError: an input of another width; no weights yet. Both before anything is traced.

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
        self.layers, self.prefix = layers, prefix

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        return apply(self.layers, x, key)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        check_jet(self, x, tangents)
        return apply_jvp(self.layers, x, tangents, key)

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:  # type: ignore[override]
        layers = []
        for layer in self.layers:
            layer, size = layer._alloc(dtype, size, rng)
            layers.append(layer)
        return Sequential(*layers, prefix=self.prefix), size

    @recursive_repr()
    def __repr__(self) -> str:
        return f"{type(self).__name__}(\n" + textwrap.indent(",\n".join(map(repr, self.layers)), "  ") + "\n)"


class Parallel(Module):
    """Several bodies on one input. On a ``CoopVec`` it is one network with the layers around it to the engine, unless a
    body holds a layer that the engine does not know, such as an encoding."""

    merge = "concatenate"

    def bodies(self) -> list[list]:
        """The layers of each body; no layers are the input itself."""
        raise NotImplementedError

    @property
    def in_features(self) -> int:
        """Width of the input as the first layer of a body states it; -1 if none does."""
        return max((stated_width(body) for body in self.bodies()), default=-1)

    def check(self, width: int, leaf: type, key: Key | None) -> int:
        """Raise unless a vector of ``width`` values of type ``leaf`` fits; returns the width of the output."""
        widths = [check_all(body, width, leaf, key) for body in self.bodies()]
        return width if self.merge == "sum" else sum(widths)

    def stage(self) -> Fork | None:
        """This layer to the engine, or ``None`` if a body has a layer that the engine does not know."""
        bodies = [stages_or_none(body) for body in self.bodies()]
        if any(body is None for body in bodies):
            return None
        return Fork(bodies, self.merge)  # type: ignore[arg-type]

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        name = type(self).__name__
        kind, leaf = kinds.kind(x, name)
        kinds.require_float(leaf, name)
        if kind == kinds.NUMPY:
            raise TypeError(f"{name}: got a NumPy array; accepted are {kinds.ACCEPTED}.")
        return apply([self], x, key)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        check_jet(self, x, tangents)
        return apply_jvp([self], x, tangents, key)

    def parallel_jvp(self, x: Any, tangents: list, key: Key | None) -> tuple[Any, list]:
        """:meth:`parallel` on the ``CoopVec`` ``x``, with forward derivatives in the directions ``tangents``."""
        pairs = [apply_jvp(body, x, tangents, key) for body in self.bodies()]
        fork = Fork([], self.merge)
        y, *moved = [fork.join(vectors) for vectors in zip(*([y, *moved] for y, moved in pairs), strict=True)]
        return y, moved

    def parallel(self, x: Any, key: Key | None) -> Any:
        """Evaluate one body after the other, not as one network."""
        kind, _ = kinds.kind(x, type(self).__name__)
        ys = [apply(body, x, key) for body in self.bodies()]
        if kind == kinds.TENSOR:
            return sum(ys[1:], ys[0]) if self.merge == "sum" else dr.concat(ys, axis=0)
        parts = [kinds.components(y) for y in ys]
        if self.merge == "sum":
            return kinds.rebuild([sum(v[1:], v[0]) for v in zip(*parts, strict=True)], x)
        joined = [v for part in parts for v in part]
        if kind == kinds.COOPVEC or isinstance(x, (list, tuple)):
            return kinds.rebuild(joined, x)
        return nested(joined)


def flatten(layers: Any, above: tuple = ()) -> Iterator[Any]:
    """The layers inside nested containers, in evaluation order."""
    for layer in layers:
        if isinstance(layer, (Sequential, drnn.Sequential)):
            check_acyclic(layer, above)
            yield from flatten(layer.layers, (*above, layer))
        else:
            yield layer


def stated_width(layers: Any) -> int:
    """Width of the input of ``layers`` as the first that states one says; -1 if what it becomes before is not known."""
    # activations and dropouts keep the width; what other layers do to it is not known
    first = next((m for m in flatten(layers) if not isinstance(m, (Activation, Dropout))), None)
    return int(first.config[0] if isinstance(first, drnn.Linear) else getattr(first, "in_features", -1))


def stages_of(layers: Any) -> list[Any]:
    """What the engine gets to see of packed ``layers``: linear layers, activations, dropouts and forks of those."""
    return [stage for layer in flatten(layers) if (stage := _stage(layer)) is not None]


def stages_or_none(layers: Any) -> list[Any] | None:
    """:func:`stages_of` layers of which the engine knows all, else ``None``."""
    stages = [_stage(layer) for layer in flatten(layers)]
    return None if any(stage is None for stage in stages) else stages


def _stage(layer: Any) -> Any:
    if isinstance(layer, drnn.Linear):
        check_packed(layer)
        return linear_stage(layer)
    if isinstance(layer, GaussianDropout):
        return Noise(layer.p, layer.stream or 0, layer.identity.value)
    if isinstance(layer, Dropout):
        shared = isinstance(layer, DropPath)
        return Mask(layer.p, layer.bits, layer.stream or 0, layer.identity.value, shared)
    return layer.stage() if isinstance(layer, (Activation, Parallel)) else None


def check_all(layers: Any, width: int, leaf: type, key: Key | None) -> int:
    """Raise unless a vector of ``width`` values of type ``leaf`` fits all of ``layers``, which the engine knows.

    Returns the width of their output.
    """
    for layer in flatten(layers):
        width = _check(layer, width, leaf, key)
    return width


def _check(layer: Any, width: int, leaf: type, key: Key | None) -> int:
    if isinstance(layer, drnn.Linear):
        check_packed(layer)
        check_input(layer, width, leaf)
        return int(layer.weights.shape[0])
    _check_stream(layer, key)
    return layer.check(width, leaf, key) if isinstance(layer, Parallel) else width


def _check_stream(layer: Any, key: Key | None) -> None:
    if key is not None and isinstance(layer, Dropout) and layer.stream is None:
        raise ValueError(
            f"Sequential: a {type(layer).__name__} has no stream number yet, so that two of them would share a mask; "
            f"call net = net.alloc(dtype, size) first, or pass {type(layer).__name__}(stream=...)."
        )


def apply(layers: Any, x: Any, key: Key | None) -> Any:
    """Evaluate ``layers`` on ``x``; consecutive ones that the engine knows run as one network."""

    def alone(layer: Any, x: Any) -> Any:
        if isinstance(layer, Parallel):
            return layer.parallel(x, key)  # its __call__ may have come from here
        return layer(x, key) if isinstance(layer, (Module, Dropout)) else layer(x)

    return _walk(layers, x, key, lambda x: x, evaluate, alone)


def apply_jvp(layers: Any, x: Any, tangents: list, key: Key | None) -> tuple[Any, list]:
    """:func:`apply` on the ``CoopVec`` ``x``, with forward derivatives in the directions ``tangents``."""

    def alone(layer: Any, jet: list) -> list:
        forward = layer.parallel_jvp if isinstance(layer, Parallel) else functools.partial(jvp, layer)
        y, moved = forward(jet[0], jet[1:], key)
        return [y, *moved]

    y, *moved = _walk(layers, [x, *tangents], key, lambda jet: jet[0], evaluate_jet, alone)
    return y, moved


def _walk(layers: Any, state: Any, key: Key | None, value: Callable, together: Callable, alone: Callable) -> Any:
    """Take ``state``, whose ``value`` is the vector itself, through ``layers``.

    ``together(stages, state, key)`` evaluates consecutive layers that the engine knows, ``alone(layer, state)`` others.
    """
    try:
        return _steps(layers, state, key, value, together, alone)
    except RecursionError:
        raise ValueError("Sequential: the layers are nested too deep, or contain themselves.") from None


def _steps(layers: Any, state: Any, key: Key | None, value: Callable, together: Callable, alone: Callable) -> Any:
    if key is not None and not isinstance(key, Key):
        raise TypeError(f"Sequential: key is a {type(key).__name__}; a coopnet.Key or None is needed.")
    run: list[Any] = []
    width, leaf = 0, object
    for layer in flatten(layers):
        _check_stream(layer, key)
        x = value(state)
        stage = _stage(layer) if isinstance(x, drnn.CoopVec) else None
        if stage is not None:
            if not run:
                width, leaf = len(x), x.type
            width = _check(layer, width, leaf, key)
            run.append(stage)
            continue
        if run:
            state, run = together(run, state, key), []
        state = alone(layer, state)
    return together(run, state, key) if run else state
