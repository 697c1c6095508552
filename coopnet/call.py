"""A call of a field: what its arguments may be, and the way into the network and out again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from .jit import kinds
from .jit.half import widened
from .jit.lanes import Gate, only
from .jit.scopes import symbolic
from .random.key import Key


class Call:
    """The checked arguments of one call: ``kind`` and scalar type ``leaf`` of the coordinates, and a traced ``key``.

    Raises what :meth:`NeuralField.__call__` documents; ``where`` opens the messages.
    """

    def __init__(self, p: Any, in_features: int, key: Any, active: Any, where: str):
        kind, leaf = kinds.kind(p, where)
        if kind == kinds.NUMPY:
            raise TypeError(f"{where}: got a NumPy array; accepted are {kinds.ACCEPTED}.")
        kinds.require_single(leaf, where)
        if kinds.features(p, kind) != in_features:
            given = kinds.features(p, kind)
            raise ValueError(f"{where}: p has {given} coordinates, but the field takes {in_features}.")
        if key is not None and not isinstance(key, Key):
            raise TypeError(f"{where}: key is a {type(key).__name__}; a coopnet.Key or None is needed.")
        self.kind, self.leaf, self.single = kind, leaf, dr.float32_array_t(leaf)
        self.key = None if key is None else key.traced(dr.uint32_array_t(leaf))
        self.active = _mask(active, leaf, kinds.samples(p, kind), where)
        self._gate: Gate | None = None

    def enter(self, *vectors: Any) -> list[list]:
        """The components of ``vectors``, which are of the kind of the coordinates, as the network is to see them.

        In single precision, and zeros in inactive lanes.
        """
        parts = [self._components(v) for v in vectors]
        if any(dr.grad_enabled(v) for vector in parts for v in vector):
            self._gate = Gate()
            even = kinds.even([v for vector in parts for v in vector])
            gated = iter(self._gate.enter([v for v in even if dr.grad_enabled(v)]))
            flat = iter([next(gated) if dr.grad_enabled(v) else v for v in even])
            parts = [[next(flat) for _ in vector] for vector in parts]
        return parts

    def _components(self, x: Any) -> list:
        parts = [v.array for v in x] if self.kind == kinds.TENSOR else kinds.components(x)
        if symbolic():
            # In a loop, Dr.Jit 1.5 loses the gradient of variables from outside that are packed as they are.
            parts = [v * 1 for v in parts]
        parts = [self.single(v) for v in parts]
        return parts if self.active is None else only(self.active, parts)

    def leave(self, result: type, y: Any, *tangents: list) -> tuple[Any, list[list]]:
        """The network's output, of type ``result`` and in the container of the call, and its tangents as lists."""
        if self.kind == kinds.COOPVEC and y.type is result and self._gate is None and self.active is None:
            return y, list(tangents)
        vectors = [widened(list(y), result) if result is self.single else [result(v) for v in y], *tangents]
        if self._gate is not None:
            flat = iter(self._gate.leave([v for vector in vectors for v in vector]))
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


def _mask(active: Any, leaf: type, samples: int, where: str) -> Any:
    """``active`` as a mask of the backend of ``leaf``, or ``None`` where it is ``True``."""
    if isinstance(active, (bool, np.bool_)):
        return None if active else dr.mask_t(leaf)(False)
    if not isinstance(active, dr.ArrayBase) or not dr.is_mask_v(active) or dr.depth_v(active) != 1:
        raise TypeError(f"{where}: active is a {type(active).__name__}; a bool or a Dr.Jit Bool is needed.")
    if dr.is_tensor_v(active) or dr.backend_v(active) != dr.backend_v(leaf):
        raise TypeError(
            f"{where}: active is a {type(active).__module__}.{type(active).__name__}, but p lives on the "
            f"{dr.backend_v(leaf).name} backend; a Bool of that is needed."
        )
    if dr.width(active) == 0 or len({dr.width(active), samples} - {1}) > 1:
        entries = dr.width(active)
        raise ValueError(f"{where}: active has {entries} entries for {samples} samples; both must agree, or be 1.")
    return dr.mask_t(leaf)(active)
