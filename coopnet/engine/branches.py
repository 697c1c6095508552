"""Ops with several lists of ops inside: residual and skip connections, heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import drjit.nn as drnn

from ..jit.kinds import packed
from ..random.key import Key
from .ops import Bundle, Op, Record, Store, Visit, evaluate, jvp, pullback


class Branching(Op):
    """Runs several lists of ops on one input, and adds their outputs up or concatenates them.

    An empty list returns the input. A residual connection is the sum of an empty list and a body. A skip connection is
    the concatenation of a body and an empty list.
    """

    def __init__(self, bodies: Sequence[Sequence[Op]], merge: str):
        self.bodies, self.merge = bodies, merge

    def join(self, ys: Sequence[Any]) -> Any:
        """Outputs of the bodies, merged."""
        if self.merge == "sum":
            return sum(ys[1:], ys[0])
        return drnn.CoopVec([v for y in ys for v in y])

    def split(self, dy: Any, sizes: Sequence[int]) -> list[Any]:
        """The adjoint of :meth:`join`: the cotangent of each body's output. The outputs have ``sizes`` components."""
        if self.merge == "sum":
            return [dy] * len(sizes)
        parts, start = list(dy), 0
        result = []
        for size in sizes:
            result.append(drnn.CoopVec(parts[start : start + size]))
            start += size
        return result

    def joined(self, bundles: Sequence[Bundle]) -> Bundle:
        """:meth:`join` of bundles, vector by vector."""
        return [self.join(vectors) for vectors in zip(*bundles, strict=True)]

    def evaluate(self, x: Bundle, key: Key | None, store: Store | None = None) -> Record:
        inner = [evaluate(body, x, key, store) for body in self.bodies]
        return Record(self, x, self.joined([[packed(v) for v in tape.y] for tape in inner]), inner)

    def pullback(self, record: Record, dy: Bundle, key: Key | None, wanted: bool, visit: Visit) -> Bundle | None:
        sizes = [len(tape.y[0]) for tape in record.inner]
        parts = zip(*(self.split(d, sizes) for d in dy), strict=True)
        below = [pullback(tape, list(part), key, wanted, visit) for tape, part in zip(record.inner, parts, strict=True)]
        if not wanted:
            return None
        bundles = zip(*([packed(d) for d in bundle] for bundle in below if bundle is not None), strict=True)
        return [sum(vectors[1:], vectors[0]) for vectors in bundles]

    def jvp(self, record: Record, moving: Branching, dx: Bundle, key: Key | None) -> Bundle:
        pairs = zip(record.inner, moving.bodies, strict=True)
        return self.joined([jvp(tape, body, dx, key) for tape, body in pairs])

    def map(self, function: Callable[[Any], Any]) -> Branching:
        return Branching([[op.map(function) for op in body] for body in self.bodies], self.merge)
