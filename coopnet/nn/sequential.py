"""Layers one after the other."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import drjit.nn as drnn

from ..dropout import Dropout
from ..engine import Mask, evaluate, evaluate_jet
from ..key import Key
from .activations import Activation
from .linear import check_input, check_packed
from .linear import stage as linear_stage
from .module import Module
from .tangents import jvp


class Sequential(Module):
    """Applies ``layers`` in order, passing the key to each that takes one.

    Layers of ``drjit.nn`` may stand among them. On a ``CoopVec``, runs of linear layers, activations and dropouts go
    to the engine as one network; see :func:`coopnet.engine.evaluate` for how it is differentiated.

    Args:
        layers: ``Module`` instances.
        prefix: prepended to every parameter name, to tell networks apart that share an optimizer.

    >>> net = cn.Sequential(cn.Sinusoidal(8), cn.Linear(-1, 64), cn.ReLU(), cn.Dropout(0.1), cn.Linear(-1, 3))
    >>> net = drjit.nn.pack(net.alloc(TensorXf, size=2), layout="training")
    >>> y = net(drjit.nn.CoopVec(x), cn.Key(seed=0))
    """

    DRJIT_STRUCT = {"layers": tuple, "prefix": str}

    def __init__(self, *layers: Any, prefix: str = ""):
        for i, layer in enumerate(layers):
            if not isinstance(layer, drnn.Module):
                raise TypeError(f"Sequential: layer {i} is a {type(layer).__name__}; a Module instance is needed.")
        self.layers, self.prefix = layers, prefix

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        return apply(self.layers, x, key)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        return apply_jvp(self.layers, x, tangents, key)

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:  # type: ignore[override]
        layers = []
        for layer in self.layers:
            layer, size = layer._alloc(dtype, size, rng)
            layers.append(layer)
        return Sequential(*layers, prefix=self.prefix), size

    def __repr__(self) -> str:
        return f"{type(self).__name__}(\n" + textwrap.indent(",\n".join(map(repr, self.layers)), "  ") + "\n)"


def flatten(layers: Any) -> Iterator[Any]:
    """The layers inside nested containers, in evaluation order."""
    for layer in layers:
        if isinstance(layer, (Sequential, drnn.Sequential)):
            yield from flatten(layer.layers)
        else:
            yield layer


def stages_of(layers: Any) -> list[Any]:
    """What the engine gets to see of packed ``layers``: linear layers, activations and dropouts."""
    stages: list[Any] = []
    for layer in flatten(layers):
        if isinstance(layer, drnn.Linear):
            check_packed(layer)
        stage = _stage(layer)
        if stage is not None:
            stages.append(stage)
    return stages


def _stage(layer: Any) -> Any:
    if isinstance(layer, drnn.Linear):
        return linear_stage(layer)
    if isinstance(layer, Activation):
        return layer.stage()
    if isinstance(layer, Dropout):
        return Mask(layer.p, layer.bits, layer.stream or 0, layer.identity.value)
    return None


def apply(layers: Any, x: Any, key: Key | None) -> Any:
    """Evaluate ``layers`` on ``x``; consecutive ones that the engine knows run as one network."""
    run: list[Any] = []
    width, leaf = 0, object
    if not layers:
        return x
    if key is not None and not isinstance(key, Key):
        raise TypeError(f"Sequential: key is a {type(key).__name__}; a coopnet.Key or None is needed.")
    coop = isinstance(x, drnn.CoopVec)
    for layer in flatten(layers):
        if key is not None and isinstance(layer, Dropout) and layer.stream is None:
            raise ValueError(
                "Sequential: a Dropout has no stream number yet, so that two of them would share a mask; call "
                "net = net.alloc(dtype, size) first, or pass Dropout(stream=...)."
            )
        stage: Any = None
        if coop:
            if not run:
                width, leaf = len(x), x.type
            if isinstance(layer, drnn.Linear):
                check_packed(layer)
                check_input(layer, width, leaf)
                width = layer.weights.shape[0]
            stage = _stage(layer)
        if stage is not None:
            run.append(stage)
            continue
        if run:
            x, run = evaluate(run, x, key), []
        x = layer(x, key) if isinstance(layer, (Module, Dropout)) else layer(x)
        coop = isinstance(x, drnn.CoopVec)
    return evaluate(run, x, key) if run else x


def apply_jvp(layers: Any, x: Any, tangents: list, key: Key | None) -> tuple[Any, list]:
    """:func:`apply` on the ``CoopVec`` ``x``, with forward derivatives in the directions ``tangents``."""
    run: list[Any] = []
    jet = [x, *tangents]
    width, leaf = len(x), x.type
    for layer in flatten(layers):
        stage = None
        if isinstance(jet[0], drnn.CoopVec):
            if not run:
                width, leaf = len(jet[0]), jet[0].type
            if isinstance(layer, drnn.Linear):
                check_packed(layer)
                check_input(layer, width, leaf)
                width = layer.weights.shape[0]
            stage = _stage(layer)
        if stage is not None:
            run.append(stage)
            continue
        if run:
            jet, run = evaluate_jet(run, jet, key), []
        y, moved = jvp(layer, jet[0], jet[1:], key)
        jet = [y, *moved]
    if run:
        jet = evaluate_jet(run, jet, key)
    return jet[0], jet[1:]
