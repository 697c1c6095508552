"""Products that a frozen function leaves to its caller.

Libraries multiply faster than Dr.Jit, but cannot be called in a function that is being recorded. In the context
:func:`leaving`, networks whose gradients are products over samples may leave these products out and only write the
operands. The function returns the operands, its caller computes the products, and a second function adds them to the
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import drjit as dr

from ..context import Context
from .products import Product, Sums, library, multiply


class ExternalProducts:
    """Describes the products that are left to the caller, without their operands: a constant of the recording.

    Networks look it up when they are evaluated, since the choice of their strategy depends on it. Products are left
    only while it is ``open``: code that differentiates a network by itself needs the gradient at once.

    Args:
        parameters: the arrays, by name, whose gradients may be left.
        runs: how often the function will be called, 0 if that is not known.
    """

    def __init__(self, parameters: Mapping[str, Any], runs: int = 0):
        self.parameters, self.runs, self.open = parameters, runs, False
        self.entries: list[tuple[str, Product]] = []

    @classmethod
    def if_library(cls, parameters: Mapping[str, Any], runs: int = 0) -> ExternalProducts | None:
        """An instance, or ``None`` if there is no library for products on the backend of ``parameters``."""
        first = next(iter(parameters.values()), None)
        return cls(parameters, runs) if first is not None and library(dr.backend_v(first)) else None

    def name(self, buffer: Any) -> str | None:
        """The name of the parameter whose array is ``buffer``, or ``None``."""
        for name, value in self.parameters.items():
            if value.array.index == buffer.index and value.array.index_ad == buffer.index_ad:
                return name
        return None

    def knows(self, buffers: Sequence[Any]) -> bool:
        """Are all ``buffers`` among the parameters?"""
        return all(self.name(buffer) is not None for buffer in buffers)

    def leave(self, products: Sequence[Product]) -> None:
        """Leave ``products`` to the caller. They refer to the field's own layers, which outlive the recording."""
        for p in products:
            op = p.op.origin
            name = self.name(op.weights.buffer)
            assert name is not None
            self.entries.append((name, Product(op, p.cotangent, p.activation, p.of)))

    def take(self) -> list[tuple[Any, Any]]:
        """The operands' numbers, which are removed from here."""
        return [(p.cotangent.take(), p.activation.take()) for _, p in self.entries]

    def multiply(self, operands: Sequence[tuple[Any, Any]]) -> list[Any]:
        """The products of the operands that :meth:`take` returned in a run of the function."""
        pairs = zip(self.entries, operands, strict=True)
        return multiply([(p.cotangent.of(a), p.activation.of(b)) for (_, p), (a, b) in pairs])

    def completed(self, gradients: Mapping[str, Any], products: Sequence[Any]) -> dict[str, Any]:
        """The flat ``gradients``, by name, plus these ``products``, as :meth:`multiply` returns them."""
        sums = Sums()
        for (name, p), product in zip(self.entries, products, strict=True):
            sums.add(name, p, product)
        summed = sums.buffers()
        return {
            name: flat + type(flat)(sums.gradient(name, dr.detach(self.parameters[name].array)))
            if name in summed
            else flat
            for name, flat in gradients.items()
        }


#: ``with leaving(products)``: networks may leave products to these :class:`ExternalProducts`, unless they are ``None``.
leaving = Context("external products")
#: The :class:`ExternalProducts` of the innermost context, or ``None``.
innermost: Callable[[], ExternalProducts | None] = leaving.get
