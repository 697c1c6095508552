"""Density and color of a field, from its outputs and through activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drjit as dr

from ..checks import check_choice, check_type, ensure, entries
from ..checks.warn import warn
from ..field import NeuralField, check_built
from ..nn import Exp, Identity, ReLU, Sigmoid, Softplus, Squareplus
from ..nn.tree import children
from ..random.key import Key
from .arguments import number, vector_type

#: exp(15) is 3 million: beyond, a bin is opaque and its gradient infinite (Müller et al. 2022 clamp there, too).
MOST_EXPONENT = 15

#: Name -> function of a raw output.
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "softplus": Softplus(),
    "exp": lambda x: dr.exp(dr.minimum(x, MOST_EXPONENT)),
    "relu": ReLU(),
    "sigmoid": Sigmoid(),
    "none": Identity(),
}
DENSITIES = ("softplus", "exp", "relu", "none")
COLORS = ("sigmoid", "softplus", "exp", "relu", "none")

#: Output activations that are not negative. A second activation would keep values away from 0: a sigmoid, above 1/2.
_POSITIVE = (Exp, ReLU, Sigmoid, Softplus, Squareplus)
_TWICE = ("exp", "sigmoid", "softplus")


class Radiance:
    """``field`` as a function ``(p, d, key, active) -> (density, [r, g, b])``, both zero where ``active`` is false.

    ``where`` opens the error messages.
    """

    def __init__(self, field: Any, density: str, color: str, where: str):
        self.field, self.where = field, where
        self.neural = isinstance(field, NeuralField)
        self.density = FUNCTIONS[check_choice(where, "density", density, DENSITIES)]
        self.color = FUNCTIONS[check_choice(where, "color", color, COLORS)]
        if self.neural:
            check_built(where, field)
            given = f"field has {field.in_features} inputs"
            ensure(field.in_features in (3, 6), f"{where}: {given}; 3 (a position), or 6 (and a direction) are needed.")
            self._check_activation(density, color)
        else:
            needed = "a NeuralField, or a function (p, d, key, active) -> (density, color),"
            check_type(where, "field", field, object if callable(field) else (), needed)

    def probe(self, leaf: type, key: Key | None) -> None:
        """Raise the error that a call would raise; inside a loop, Dr.Jit turns it into a ``RuntimeError``. Nothing is
        evaluated.
        """
        with dr.suspend_grad():
            self([leaf(0)] * 3, [leaf(0), leaf(0), leaf(1)], key, dr.mask_t(leaf)(False))

    def __call__(self, p: list, d: list, key: Key | None, active: Any) -> tuple[Any, list]:
        single = type(p[0])
        if self.neural:
            y = list(self.field(p if self.field.in_features == 3 else [*p, *d], key, active))
            ensure(len(y) == 4, f"{self.where}: field has {len(y)} outputs; 4, a density and a color, are needed.")
            y = [single(v) for v in y]
            sigma, rgb = self.density(y[0]), [self.color(v) for v in y[1:]]
        else:
            sigma, rgb = self._called(p, d, key, active, single)
        return dr.select(active, sigma, 0), [dr.select(active, v, 0) for v in rgb]

    def _check_activation(self, density: str, color: str) -> None:
        *_, last = children(self.field.network)
        if isinstance(last, _POSITIVE) and (density in _TWICE or color in _TWICE):
            on_top = f"density={density!r} and color={color!r} are applied on top of it"
            hint = "leave output_activation out, or pass 'none'"
            message = f"{self.where}: the network ends in a {type(last).__name__}, and {on_top}; {hint}."
            warn(message)

    def _called(self, p: list, d: list, key: Key | None, active: Any, single: type) -> tuple[Any, list]:
        vector = vector_type(single)
        result = self.field(vector(p), vector(d), key, active)
        two = isinstance(result, (tuple, list)) and len(result) == 2
        given = (
            f"{type(result).__name__} of {len(result)}" if isinstance(result, (tuple, list)) else type(result).__name__
        )
        needed = "a tuple (density, color) is needed"
        ensure(two, f"{self.where}: the field returned a {given}; {needed}.", TypeError)
        sigma, rgb = result
        if isinstance(sigma, dr.ArrayBase) and dr.depth_v(sigma) == 2 and len(sigma) == 1:
            sigma = sigma[0]  # of a field with one output
        rgb = [v.array for v in rgb] if isinstance(rgb, dr.ArrayBase) and dr.is_tensor_v(rgb) else rgb
        rgb = entries(self.where, "the color that field returned", rgb)
        ensure(len(rgb) == 3, f"{self.where}: the field returned {len(rgb)} color components; 3 are needed.")
        names = ("the density that field returned", *(f"color {i} that field returned" for i in range(3)))
        sigma, *rgb = [number(self.where, n, v, single) for n, v in zip(names, (sigma, *rgb), strict=True)]
        return sigma, rgb
