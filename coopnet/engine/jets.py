r"""Networks evaluated together with their forward derivatives: *jets* :math:`(x, \dot x_1, \dots, \dot x_k)`.

Every vector of the plain evaluation becomes a jet, the value first and its derivatives in ``k`` directions behind it. A
stage :math:`y = f(x)` maps it to :math:`(f(x), J \dot x_1, \dots, J \dot x_k)` with :math:`J = A` for affine stages and
:math:`J = \mathrm{diag} f'(x)` for activations. Jets can be differentiated in turn, which makes second derivatives:

.. math::
    \bar A = \bar y x^T + \sum_k \bar{\dot y}_k \dot x_k^T, \quad
    \bar x = J^T \bar y + f''(x) \sum_k \dot x_k \bar{\dot y}_k, \quad
    \bar{\dot x}_k = J^T \bar{\dot y}_k .

The sums over samples in :math:`\bar A` are those of a batch ``1 + k`` times as long, so that weight gradients take the
same paths as a plain network's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..key import Key
from .operation import Plan
from .stages import Activation, Affine, Stage


def forward(stages: Sequence[Stage], jet: list[Any], key: Key | None) -> list[Any]:
    """Evaluate ``stages`` on a jet of ``CoopVec``s with Dr.Jit's own differentiation."""
    for stage in stages:
        jet = _step(stage, jet, key)
    return jet


def _step(stage: Stage, jet: list[Any], key: Key | None) -> list[Any]:
    x, *tangents = jet
    y = stage.forward(x, key)
    if isinstance(stage, Affine):
        linear = stage.linear()
        return [y, *(linear.forward(dx, None) for dx in tangents)]
    # the Jacobian is diagonal, so the adjoint is also the tangent
    return [y, *(stage.vjp(dx, x, y, key) for dx in tangents)]


class JetPlan(Plan):
    """A :class:`Plan` whose inputs and outputs are ``vectors`` = 1 + k vectors, flattened one after the other."""

    def __init__(self, stages: Sequence[Stage], buffers: Sequence[Any], wants_x: bool, vectors: int):
        super().__init__(stages, buffers, wants_x)
        self.vectors = vectors

    def split(self, flat: Sequence[Any]) -> list[Any]:
        """The vectors of a flat list."""
        n = len(flat) // self.vectors
        return [drnn.CoopVec(list(flat[i * n : (i + 1) * n])) for i in range(self.vectors)]

    def trail(self, stages: Sequence[Stage], xs: list, key: Key | None) -> list:
        values = [self.split(xs)]
        for stage in stages:
            values.append(_step(stage, values[-1], key))
        return values

    def output(self, values: list) -> list:
        return flat(values[-1])

    def backward(
        self, stages: Sequence[Stage], values: list, dys: list, key: Key | None, visit: Callable[..., None]
    ) -> list:
        bars = self.split(dys)
        first = next((i for i, s in enumerate(stages) if isinstance(s, Affine)), len(stages))
        for i in reversed(range(len(stages))):
            stage, jet = stages[i], values[i]
            if isinstance(stage, Affine):
                for k, (bar, x) in enumerate(zip(bars, jet, strict=True)):
                    visit(stage, bar, x, k == 0)
                if i == first and not self.wants_x:
                    return []
                bars = [stage.transposed(bar, len(jet[0])) for bar in bars]
                continue
            x, y = jet[0], values[i + 1][0]
            below = [stage.vjp(bar, x, y, key) for bar in bars]
            if isinstance(stage, Activation) and not stage.function.flat:
                weight = jet[1] * bars[1]
                for dx, bar in zip(jet[2:], bars[2:], strict=True):
                    weight = weight + dx * bar
                below[0] = below[0] + stage.second(weight, x, y)
            bars = below
        return flat(bars) if self.wants_x else []

    def tangent(
        self, stages: Sequence[Stage], tangents: Sequence[Stage], values: list, dxs: list, key: Key | None
    ) -> list:
        moved = self.split(dxs)
        for i, (stage, dstage) in enumerate(zip(stages, tangents, strict=True)):
            jet = values[i]
            if isinstance(stage, Affine):
                assert isinstance(dstage, Affine)
                matrix, dmatrix = stage.linear(), dstage.linear()
                moved = [
                    matrix.forward(d, None) + (dmatrix if k else dstage).forward(x, None)
                    for k, (d, x) in enumerate(zip(moved, jet, strict=True))
                ]
                continue
            x, y, d0 = jet[0], values[i + 1][0], moved[0]
            moved = [stage.vjp(d, x, y, key) for d in moved]
            if isinstance(stage, Activation) and not stage.function.flat:
                for k in range(1, self.vectors):
                    moved[k] = moved[k] + stage.second(jet[k] * d0, x, y)
        return flat(moved)


def widened(jet: list[Any]) -> list[Any]:
    """A jet whose components all have a lane for every sample.

    Directions are often constants. A vector of one lane would be masked as one sample by dropout, and have a gradient
    that is summed over the samples already.
    """
    samples = max(dr.width(v) for v in flat(jet))

    def wide(vector: Any) -> Any:
        parts = list(vector)
        if all(dr.width(v) == samples for v in parts):
            return vector
        return drnn.CoopVec([v if dr.width(v) == samples else v + dr.zeros(type(v), samples) for v in parts])

    return [wide(vector) for vector in jet]


def flat(jet: list[Any]) -> list[Any]:
    """The components of a jet one after the other."""
    return [v for vector in jet for v in vector]
