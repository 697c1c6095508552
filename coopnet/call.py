"""A call of a field: checks of its arguments, and conversions of inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from .checks import check_lanes, check_mask, ensure
from .context import Context
from .jit import kinds
from .jit.half import widened
from .jit.lanes import Gate, only
from .jit.scopes import symbolic
from .random.key import check_key, draws

_notes = Context("notes")


@contextmanager
def noting() -> Iterator[list[tuple[Any, list, Any]]]:
    """A block that records calls of fields outside symbolic loops and calls, where values can be read.

    It yields a list of tuples: the field, the components of its coordinates, and the mask of active lanes or ``None``.
    """
    notes: list[tuple[Any, list, Any]] = []
    with _notes(notes):
        yield notes


def note(field: Any, parts: list, active: Any) -> None:
    """Add a call to the list of :func:`noting`, if there is one."""
    notes = _notes.get()
    if notes is not None and not symbolic():
        notes.append((field, parts, active))


class Call:
    """The checked arguments of one call: ``kind`` and scalar type ``leaf`` of the coordinates, and a traced ``key``.

    ``directions`` are those of derivatives, of the same kind as the coordinates. Raises the errors that
    :meth:`NeuralField.__call__` and :meth:`NeuralField.jvp` document; ``where`` opens the messages.
    """

    def __init__(self, p: Any, in_features: int, key: Any, active: Any, where: str, *directions: Any):
        kind, leaf = kinds.in_kernels(p, where, single=True)
        coordinates = kinds.features(p, kind)
        if coordinates != in_features:
            turned = kind == kinds.TENSOR and kinds.samples(p, kind) == in_features
            hint = "; the shape of a tensor is (coordinates, samples)" if turned else ""
            raise ValueError(f"{where}: p has {coordinates} coordinates, but the field takes {in_features}{hint}.")
        check_key(where, key)
        self.kind, self.leaf, self.single = kind, leaf, dr.float32_array_t(leaf)
        self.key = None if key is None else key.traced(dr.uint32_array_t(leaf))
        self.active = None  # for all lanes
        if not (isinstance(active, (bool, np.bool_)) and active):
            self.active = check_mask(where, "active", active, leaf, "p")
            check_lanes(where, "active", self.active, kinds.samples(p, kind))
        for v in directions:
            self._check_direction(v, p, in_features, where)
        self._gate: Gate | None = None

    def _check_direction(self, v: Any, p: Any, in_features: int, where: str) -> None:
        kind, leaf = kinds.kind(v, f"{where}: v")
        if kind != kinds.NUMPY:
            kinds.require_single(leaf, f"{where}: v")
        alike = kind == self.kind and dr.backend_v(leaf) == dr.backend_v(self.leaf)
        both = [f"{k} of {tp.__module__}.{tp.__name__}" for k, tp in ((kind, leaf), (self.kind, self.leaf))]
        ensure(alike, f"{where}: v is {both[0]} and p {both[1]}; both must agree.", TypeError)
        components = kinds.features(v, kind)
        ensure(components == in_features, f"{where}: v has {components} components, but p has {in_features}.")
        one_size = len({kinds.samples(p, kind), kinds.samples(v, kind)} - {1}) < 2
        ensure(one_size, f"{where}: p and v have different numbers of samples; they must have one, or 1.")

    def enter(self, *vectors: Any) -> list[list]:
        """The components of ``vectors``, coordinates or directions, in single precision and with 0 in masked lanes."""
        parts = [kinds.rows(v, self.kind) for v in vectors]
        if symbolic():
            # In a loop, Dr.Jit 1.5 loses the gradient of outer variables that are packed without an operation before.
            parts = [[v * 1 for v in vector] for vector in parts]
        parts = [list(map(self.single, vector)) for vector in parts]
        if self.active is not None:
            parts = [only(self.active, vector) for vector in parts]
        flat = kinds.flat(parts)
        if any(dr.grad_enabled(v) for v in flat):
            self._gate = Gate()
            even = kinds.tracked_in_all_lanes(flat, draws(self.key))
            gated = iter(self._gate.enter([v for v in even if dr.grad_enabled(v)]))
            parts = kinds.split([next(gated) if dr.grad_enabled(v) else v for v in even], len(parts))
        return parts

    def leave(self, result: type, y: Any, *tangents: list) -> tuple[Any, list[list]]:
        """The network's output, of type ``result`` and in the container of the call, and its tangents as lists."""
        if self.kind == kinds.COOPVEC and y.type is result and self._gate is None and self.active is None:
            return y, list(tangents)
        vectors = [converted(y, result), *tangents]
        if self._gate is not None:
            flat = iter(self._gate.leave(kinds.flat(vectors)))
            vectors = [[next(flat) for _ in vector] for vector in vectors]
        if self.active is not None:
            vectors = [only(self.active, vector) for vector in vectors]
        return self.contained(vectors[0]), vectors[1:]

    def contained(self, parts: Sequence[Any]) -> Any:
        """``parts`` in the container that a call returns."""
        if self.kind == kinds.COOPVEC:
            return drnn.CoopVec(parts)
        out = kinds.nested(list(parts))
        return dr.tensor_t(type(parts[0]))(out) if self.kind == kinds.TENSOR else out


def result_type(output: str, leaf: type) -> type:
    """Type of a field's outputs, by its argument ``output``, on the backend of ``leaf``."""
    return dr.float16_array_t(leaf) if output == "float16" else dr.float32_array_t(leaf)


def converted(y: Sequence[Any], result: type) -> list:
    """The components of a network's output ``y``, converted to the type ``result``."""
    return widened(list(y), result) if result is dr.float32_array_t(result) else [result(v) for v in y]
