"""The engine for tests: networks that have shapes and nothing else, and modules whose names functions have taken."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from coopnet.engine.affine import Affine, Weights
from coopnet.engine.situation import Network
from coopnet.nn.sequential import known_ops


def module(name: str) -> Any:
    """A module of the engine; of ``evaluate`` and others, the package has a function instead."""
    return importlib.import_module(f"coopnet.engine.{name}")


class View:
    """A matrix without numbers."""

    def __init__(self, shape: tuple[int, int]):
        self.shape = shape


def shaped(*shapes: tuple[int, int], layout: Any = None) -> list[Affine]:
    """Affine ops of matrices of these shapes."""
    return [Affine(Weights(View(shape), layout=layout)) for shape in shapes]


class Described(Network):
    """A network as :mod:`coopnet.engine.strategies` see it, that has no parameters."""

    def __init__(self, net: Any = (), shapes: Sequence[tuple[int, int]] = (), layouts_known: bool = True):
        super().__init__(known_ops([net]) if net else shaped(*shapes))
        self.shapes = list(shapes)
        self.known = layouts_known

    @property
    def layouts_known(self) -> bool:
        return self.known


def described(net: Any, layouts_known: bool = True) -> Network:
    """The facts of an MLP, also of one that is too wide to build in a test."""
    widths = [(layer.config[1], layer.config[0]) for layer in net.layers if hasattr(layer, "config")]
    return Described(net, widths, layouts_known)
