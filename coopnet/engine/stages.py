"""What a network is to the engine: a list of stages, evaluated one after the other on a cooperative vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..dropout import dropout
from ..key import Key
from .activations import FUNCTIONS, Function


# Plain classes, not dataclasses: Dr.Jit would take those apart as PyTrees.
class Affine:
    """``y = A x + b`` with packed ``A`` and optional ``b``; ``x`` is filled with zeros to the columns of ``A``."""

    def __init__(self, weights: Any, bias: Any = None):
        self.weights, self.bias = weights, bias

    def forward(self, x: Any, key: Key | None) -> Any:
        missing = self.weights.shape[1] - len(x)
        if missing:
            x = drnn.CoopVec([*x, *[x.type(0)] * missing])
        if self.bias is None:
            return drnn.matvec(self.weights, x)
        return drnn.matvec(self.weights, x, self.bias)

    def views(self) -> list[Any]:
        return [self.weights] if self.bias is None else [self.weights, self.bias]


class Activation:
    """An entry of :data:`FUNCTIONS` with its parameters."""

    def __init__(self, name: str, params: tuple[float, ...] = ()):
        self.name, self.params = name, params

    @property
    def function(self) -> Function:
        return FUNCTIONS[self.name]

    def forward(self, x: Any, key: Key | None) -> Any:
        return self.function.coopvec(x, *self.params)

    def vjp(self, dy: Any, x: Any, y: Any, key: Key | None) -> Any:
        return self.function.vjp(dy, x, y, *self.params)


class Mask:
    """Dropout; linear in ``x``, so its adjoint is itself."""

    def __init__(self, p: float, bits: int, stream: int):
        self.p, self.bits, self.stream = p, bits, stream

    def forward(self, x: Any, key: Key | None) -> Any:
        return dropout(x, self.p, key, stream=self.stream, bits=self.bits)

    def vjp(self, dy: Any, x: Any, y: Any, key: Key | None) -> Any:
        return self.forward(dy, key)


Stage = Affine | Activation | Mask


def forward(stages: Sequence[Stage], x: Any, key: Key | None) -> Any:
    """Evaluate ``stages`` on the ``CoopVec`` ``x`` with Dr.Jit's own differentiation."""
    for stage in stages:
        x = stage.forward(x, key)
    return x


def buffers(stages: Sequence[Stage]) -> list[Any]:
    """The distinct packed buffers that the stages read, in order of first use."""
    found: list[Any] = []
    for stage in stages:
        if isinstance(stage, Affine):
            for view in stage.views():
                if not any(view.buffer is b for b in found):
                    found.append(view.buffer)
    return found


def rebase(stages: Sequence[Stage], old: Sequence[Any], new: Sequence[Any]) -> list[Stage]:
    """The same stages reading from ``new`` buffers in place of ``old`` ones."""

    def move(view: Any) -> Any:
        if view is None:
            return None
        moved = drnn.MatrixView()
        for field in type(view).DRJIT_STRUCT:
            setattr(moved, field, getattr(view, field))
        moved.buffer = next(n for o, n in zip(old, new, strict=True) if o is view.buffer)
        return moved

    return [Affine(move(s.weights), move(s.bias)) if isinstance(s, Affine) else s for s in stages]


def symbolic() -> bool:
    """Is a loop, conditional or call being traced symbolically, so that nothing can be evaluated here?"""
    return bool(dr.flag(dr.JitFlag.SymbolicScope))
