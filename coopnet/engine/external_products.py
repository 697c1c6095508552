"""Products that a frozen function leaves to its caller.

Libraries multiply faster than Dr.Jit, but cannot be called in a function that is being recorded. In the context of
:func:`leaving`, networks whose gradients are products over samples may only write the operands: the function returns
them, the products are computed outside, and a second function brings them to the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import drjit as dr

from .modes import Context
from .products import Product, Sums, library, multiply


class ExternalProducts:
    """The products that were left to the caller, without their numbers: a constant of the recording.

    Networks get it when they are evaluated, since their way may depend on it. Products are left only while it
    is ``open``: code that differentiates a network by itself needs the gradient at once.

    Args:
        parameters: the arrays, by name, whose gradients may be left.
        runs: how often the function will be called, 0 if that is not known.
    """

    def __init__(self, parameters: Mapping[str, Any], runs: int = 0):
        self.parameters, self.runs, self.open = parameters, runs, False
        self.entries: list[tuple[str, Product]] = []

    @classmethod
    def where_faster(cls, parameters: Mapping[str, Any], runs: int = 0) -> ExternalProducts | None:
        """One, if there is a library to multiply with on the backend of ``parameters``."""
        first = next(iter(parameters.values()), None)
        return cls(parameters, runs) if first is not None and library(dr.backend_v(first)) else None

    def name(self, buffer: Any) -> str | None:
        """The parameter that ``buffer`` is."""
        for name, value in self.parameters.items():
            if value.array.index == buffer.index and value.array.index_ad == buffer.index_ad:
                return name
        return None

    def knows(self, buffers: Sequence[Any]) -> bool:
        """Are all ``buffers`` among the parameters?"""
        return all(self.name(buffer) is not None for buffer in buffers)

    def leave(self, products: Sequence[Product]) -> None:
        """Leave ``products`` for later, of the layers as the field has them, which outlive the recording."""
        for p in products:
            op = p.op.origin
            name = self.name(op.weights.buffer)
            assert name is not None
            self.entries.append((name, Product(op, p.cotangent, p.activation, p.of)))

    def take(self) -> list[tuple[Any, Any]]:
        """The operands' numbers, which are not kept here."""
        return [(p.cotangent.take(), p.activation.take()) for _, p in self.entries]

    def multiply(self, operands: Sequence[tuple[Any, Any]]) -> list[Any]:
        """The products of the operands that :meth:`take` returned in a run of the function."""
        pairs = zip(self.entries, operands, strict=True)
        return multiply([(p.cotangent.of(a), p.activation.of(b)) for (_, p), (a, b) in pairs])

    def completed(self, gradients: Mapping[str, Any], products: Sequence[Any]) -> dict[str, Any]:
        """The flat ``gradients`` so far, by name, with these ``products``, as :meth:`multiply` returns them."""
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


#: ``with leaving(products)``: networks know these :class:`ExternalProducts`, if they are not ``None``.
leaving = Context("external products")
#: Those of the innermost context, or ``None``.
innermost: Callable[[], ExternalProducts | None] = leaving.get
