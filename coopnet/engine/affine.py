"""Affine ops: the only ones that have weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import drjit as dr
import drjit.nn as drnn

from ..jit.literals import is_zero
from ..jit.unpacked import Constant
from ..random.key import Key
from .multipliers import IN_KERNEL, Multiplier, padded
from .ops import Bundle, Op, Record, Store, Visit


class Weights(NamedTuple):
    """Views of a packed matrix and bias, and the :class:`Layout` if they are packed in the hardware's own layout."""

    weights: Any
    bias: Any = None
    layout: Any = None


class Affine(Op):
    """``y = A x + b`` with packed ``A`` and optional ``b``; ``x`` is filled with zeros to the columns of ``A``.

    Args:
        source: :class:`Weights` or a linear layer. It is read at every use, since packing or loading replaces views.
        multiplier: the :class:`~.multipliers.Multiplier` that computes the products.
        origin: the network's own op from which this one was made for an evaluation.
    """

    affine = takes_rows = piecewise_linear = True

    def __init__(self, source: Any, multiplier: Multiplier = IN_KERNEL, origin: Affine | None = None):
        self.source, self._origin = source, origin
        self.multiplier: Any = multiplier

    @property
    def origin(self) -> Affine:
        """The network's own op. Not an attribute: in a cycle, the weights would be freed some time later, by Python's
        collector, which may end the process while a function is recorded.
        """
        return self._origin or self

    @property
    def weights(self) -> Any:
        return self.source.weights

    @property
    def bias(self) -> Any:
        return self.source.bias

    @property
    def layout(self) -> Any:
        layout = getattr(self.source, "layout", None)  # drjit.nn's layers have none
        return layout.value if isinstance(layout, Constant) else layout

    def fill(self, x: Any) -> Any:
        """``x`` with zeros for the padding columns of ``A``."""
        return padded(x, self.source.weights.shape[1], x.type)

    def product(self, x: Any, biased: bool = True) -> Any:
        """``A x``, plus ``b`` if ``biased``. Tangents have no bias."""
        return self.multiplier.product(self, x, biased)

    def evaluate(self, x: Bundle, key: Key | None, store: Store | None = None) -> Record:
        x = x if store is None else store.inputs(self, x)
        y = [self.product(vector, i == 0) for i, vector in enumerate(x)]
        if store is not None:
            store.outputs(self, y)
        return Record(self, x, y)

    def pullback(self, record: Record, dy: Bundle, key: Key | None, wanted: bool, visit: Visit) -> Bundle | None:
        visited = [visit(self, d, x, i == 0) for i, (d, x) in enumerate(zip(dy, record.x, strict=True))]
        dy = [d if s is None else s for d, s in zip(dy, visited, strict=True)]
        return [self.multiplier.transposed(self, d, len(record.x[0])) for d in dy] if wanted else None

    def jvp(self, record: Record, moving: Affine, dx: Bundle, key: Key | None) -> Bundle:
        products = [self.product(d, False) for d in dx]
        if moving.still():
            return products
        return [p + moving.product(x, i == 0) for i, (p, x) in enumerate(zip(products, record.x, strict=True))]

    def add_outer(self, dy: Any, x: Any, biased: bool) -> None:
        """Add the outer product of ``dy`` and ``x`` to the matrix's gradient and, if ``biased``, ``dy`` to the bias's.

        Missing components of ``dy`` and ``x`` are zeros. Dr.Jit has this operation only as the adjoint of a product
        with the matrix. The value of that is not used. The gradient is added up in the type of the matrix.
        """
        leaf = type(self.weights.buffer)
        if x.type is not leaf:
            dy, x = (drnn.cast(drnn.CoopVec(list(v)), leaf) for v in (dy, x))
        dy = padded(dy, self.weights.shape[0], leaf)
        with dr.resume_grad():
            for v in list(self.product(dr.detach(x), biased) * dr.detach(dy)):
                dr.set_grad(v, 1)
                dr.enqueue(dr.ADMode.Backward, v)
            dr.traverse(dr.ADMode.Backward)

    def still(self) -> bool:
        """Are these the tangents of weights that have none?"""
        views = (self.weights, self.bias)
        return all(v is None or is_zero(v.buffer) for v in views)

    def moved(self, move: Callable[[Any], Any]) -> Affine:
        """The same op with ``move(view)`` for its views."""
        return Affine(Weights(move(self.weights), move(self.bias), self.layout), origin=self.origin)

    def multiplied(self, multiplier: Multiplier) -> Affine:
        """The same op with another multiplier."""
        return Affine(self.source, multiplier, self.origin)


def with_bias(op: Affine, x: Sequence[Any], biased: bool) -> list[Any]:
    """``x`` and, for a layer with a bias, one more input: 1 if ``biased``, otherwise 0. The bias is its weight."""
    return list(x) if op.bias is None else [*x, type(x[0])(1 if biased else 0)]
