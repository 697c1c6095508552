"""Inserts layers into a trained field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drjit.nn as drnn

from ..field import NeuralField, storage
from ..nn import Activation, Heads, Residual, Sequential, Skip
from ..nn.lattice import Lattice
from ..nn.parameters import parameters
from ..nn.tree import children


def rebuilt(field: NeuralField, encoding: Any, network: Any, fresh: Callable[[Any], list] = lambda layer: []) -> Any:
    """A field of ``encoding`` and ``network`` with the parameters of ``field``, in their order.

    ``fresh(layer)`` returns the owners of parameters in a layer that ``field`` does not have.
    """
    assert field.precision is not None
    dtype, precision = storage(field.backend, field.precision, "rebuilt")
    new = NeuralField(encoding, network, field.output, field.in_features, field.bounds).allocate(dtype, precision)
    added = {id(owner) for layer in children(new) for owner in fresh(layer)}
    targets = [p for p in parameters(new) if id(p.owner) not in added]
    for source, target in zip(parameters(field), targets, strict=True):
        target.fill(source.numpy("rebuilt"), "rebuilt")
    return new.pack()


def behind_hidden(network: Any, make: Callable[[], Any]) -> Any:
    """``network`` with the layer ``make()`` behind every activation, except those at the end of the network."""
    return _behind(network, make, ends=True)


def _behind(layer: Any, make: Callable[[], Any], ends: bool) -> Any:
    """:func:`behind_hidden` for a ``layer`` of the network; ``ends``: is it the last one?"""
    if isinstance(layer, Heads):
        trunk = None if layer.trunk is None else _behind(layer.trunk, make, False)
        return Heads(trunk, {name: _behind(head, make, ends) for name, head in layer.heads.items()})
    if isinstance(layer, (Residual, Skip)):
        return type(layer)(_behind(layer.body, make, False))
    if not isinstance(layer, (Sequential, drnn.Sequential)):
        return layer
    last = max((i for i, inner in enumerate(layer.layers) if has_matrix(inner)), default=-1)
    layers: list[Any] = []
    for i, inner in enumerate(layer.layers):
        layers.append(_behind(inner, make, ends and i >= last))
        if is_activation(inner) and not (ends and i > last):
            layers.append(make())
    return Sequential(*layers, prefix=layer.prefix)


def is_activation(layer: Any) -> bool:
    """Is ``layer`` an activation, of coopnet or of ``drjit.nn``?"""
    return isinstance(layer, (Activation, drnn.ReLU, drnn.LeakyReLU, drnn.Tanh, drnn.Exp, drnn.Exp2))


def has_matrix(layer: Any) -> bool:
    """Does ``layer`` contain a linear layer?"""
    return any(isinstance(inner, drnn.Linear) for inner in children(layer))


def grids(encoding: Any) -> list:
    """The layers in ``encoding`` that have trained features at the vertices of grids."""
    return [] if encoding is None else [m for m in children(encoding) if isinstance(m, Lattice)]
