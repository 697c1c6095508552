"""Products that a frozen function leaves to whoever calls it.

Libraries multiply faster than Dr.Jit, but cannot be called in a function that is being recorded. In the context of
:func:`leaving`, networks whose gradients are products over samples may only write the operands: the function returns
them, the products are computed outside, and a second function brings them to the gradients.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .ops import Affine, Op, matrices
from .products import Product, Sums, multiply

#: Multiplications in all products of a network for which it pays to call another function.
LEAST = 1 << 26


class Pending:
    """The products that were left, without their numbers: a constant of the recording.

    ``name`` tells what a packed buffer is a parameter of, or ``None``: gradients of such are computed at once.
    ``steps`` is how often the function will be called, 0 if that is not known. Networks are told of it when they are
    evaluated, since their path may depend on it; products are left only while it is ``open``: code that differentiates
    a network by itself wants the gradient at once.
    """

    def __init__(self, name: Callable[[Any], str | None], steps: int = 0):
        self.name, self.steps, self.open = name, steps, False
        self.entries: list[tuple[str, Product]] = []

    def leaves(self, ops: Sequence[Op], buffers: Sequence[Any], samples: int) -> bool:
        """Are the gradients of ``ops`` over ``samples`` samples to be left now?"""
        return self.open and self.takes(ops, buffers, samples)

    def takes(self, ops: Sequence[Op], buffers: Sequence[Any], samples: int) -> bool:
        """Will they be left, when it comes to that?"""
        work = samples * sum(math.prod(view.shape) for view in matrices(ops))
        return work >= LEAST and all(self.name(buffer) is not None for buffer in buffers)

    def leave(self, op: Affine, product: Product) -> None:
        """Leave ``product`` for later; ``op`` is the layer as the field has it, which outlives the recording."""
        name = self.name(op.weights.buffer)
        assert name is not None
        self.entries.append((name, Product(op, product.cotangent, product.activation, product.of)))

    def take(self) -> list[tuple[Any, Any]]:
        """The operands' numbers, which are not kept here."""
        return [(p.cotangent.take(), p.activation.take()) for _, p in self.entries]

    def multiply(self, operands: Sequence[tuple[Any, Any]]) -> list[Any]:
        """The products of what a run of the function returned by :meth:`take`."""
        pairs = zip(self.entries, operands, strict=True)
        return multiply([(p.cotangent.of(a), p.activation.of(b)) for (_, p), (a, b) in pairs])

    def gradients(self, products: Sequence[Any], like: Mapping[str, Any]) -> dict[str, Any]:
        """The flat gradients of the parameters in question, in the type and size of the flat arrays ``like``."""
        sums: dict[str, Sums] = {}
        for (name, p), product in zip(self.entries, products, strict=True):
            sums.setdefault(name, Sums()).add(p, product)
        return {name: found.gradient(like[name]) for name, found in sums.items()}


_active: contextvars.ContextVar[Pending | None] = contextvars.ContextVar("pending", default=None)


def innermost() -> Pending | None:
    """That of the innermost context, if there is one."""
    return _active.get()


@contextlib.contextmanager
def leaving(found: Pending | None) -> Iterator[None]:
    """A context in which networks know ``found``, if it is not ``None``."""
    token = _active.set(found)
    try:
        yield
    finally:
        _active.reset(token)
