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

from ..jit.registers import ALL, in_order, with_room
from ..random.key import Key
from .operation import Plan
from .ops import Activation, Affine, Fork, Mask, Stage, Trail, affine, matrices, widest


def forward(stages: Sequence[Stage], jet: list[Any], key: Key | None) -> list[Any]:
    """Evaluate ``stages`` on a jet of ``CoopVec``s with Dr.Jit's own differentiation."""
    jet = _with_room(stages, jet)
    for stage in stages:
        if isinstance(stage, Fork):
            jet = _join(stage, [forward(body, jet, key) for body in stage.bodies])
        else:
            jet = _step(stage, jet, key)
        in_order(dr.backend_v(jet[0].type))
    return jet


def _with_room(stages: Sequence[Stage], jet: list[Any]) -> list[Any]:
    used = len(jet) * max(len(jet[0]), widest(stages))
    return [drnn.CoopVec(with_room(jet[0], matrices(stages), used)), *jet[1:]]


def directions(stages: Sequence[Stage], jet: list[Any]) -> int:
    """How many of the directions of ``jet`` to take at a time.

    As many as fit into registers with the value. On the CPU vectors wait in the cache, which is no trouble.
    """
    if dr.backend_v(jet[0].type) != dr.JitBackend.CUDA:
        return len(jet) - 1
    return max(1, ALL // max(len(jet[0]), widest(stages)) - 1)


def _step(stage: Affine | Activation | Mask, jet: list[Any], key: Key | None) -> list[Any]:
    x, *tangents = jet
    y = stage.forward(x, key)
    if isinstance(stage, Affine):
        linear = stage.linear()
        return [y, *(linear.forward(dx, None) for dx in tangents)]
    # the Jacobian is diagonal, so the adjoint is also the tangent
    return [y, *(stage.vjp(dx, x, y, key) for dx in tangents)]


def _join(stage: Fork, jets: Sequence[list[Any]]) -> list[Any]:
    """The outputs of a fork's bodies, merged vector by vector."""
    return [stage.join(vectors) for vectors in zip(*jets, strict=True)]


def trail(stages: Sequence[Stage], jet: list[Any], key: Key | None) -> Trail:
    """As :func:`coopnet.engine.stages.trail`, of jets."""
    values = Trail(jet)
    for i, stage in enumerate(stages):
        if isinstance(stage, Fork):
            values.inner[i] = inner = [trail(body, values[i], key) for body in stage.bodies]
            values.append(_join(stage, [t[-1] for t in inner]))
        else:
            values.append(_step(stage, values[i], key))
        in_order(dr.backend_v(jet[0].type))
    return values


def backward(
    stages: Sequence[Stage],
    values: Trail,
    bars: list[Any],
    key: Key | None,
    wants_x: bool,
    visit: Callable[..., None],
) -> list[Any] | None:
    """The gradients of the jet that goes in, from those of the one that comes out; ``None`` unless ``wants_x``."""
    first = next((i for i, s in enumerate(stages) if affine([s])), len(stages))
    for i in reversed(range(len(stages))):
        stage, jet = stages[i], values[i]
        if isinstance(stage, Affine):
            for k, (bar, x) in enumerate(zip(bars, jet, strict=True)):
                visit(stage, bar, x, k == 0)
            if i == first and not wants_x:
                return None
            bars = [stage.transposed(bar, len(jet[0])) for bar in bars]
        elif isinstance(stage, Fork):
            wanted = wants_x or i > first
            sizes = [len(t[-1][0]) for t in values.inner[i]]
            parts = zip(*(stage.split(bar, sizes) for bar in bars), strict=True)
            below = [
                backward(body, inner, list(part), key, wanted, visit)
                for body, inner, part in zip(stage.bodies, values.inner[i], parts, strict=True)
            ]
            if not wanted:
                return None
            bars = [sum(vectors[1:], vectors[0]) for vectors in zip(*below, strict=True)]  # type: ignore[arg-type]
        else:
            x, y = jet[0], values[i + 1][0]
            moved = [stage.vjp(bar, x, y, key) for bar in bars]
            if isinstance(stage, Activation) and not stage.function.flat:
                weight = jet[1] * bars[1]
                for dx, bar in zip(jet[2:], bars[2:], strict=True):
                    weight = weight + dx * bar
                moved[0] = moved[0] + stage.second(weight, x, y)
            bars = moved
    return bars


def tangent(
    stages: Sequence[Stage], tangents: Sequence[Stage], values: Trail, moved: list[Any], key: Key | None
) -> list[Any]:
    """Forward derivative; ``tangents`` are the stages with the tangents of the weights for weights."""
    for i, (stage, dstage) in enumerate(zip(stages, tangents, strict=True)):
        jet = values[i]
        if isinstance(stage, Affine):
            assert isinstance(dstage, Affine)
            matrix, dmatrix = stage.linear(), dstage.linear()
            moved = [
                matrix.forward(d, None) + (dmatrix if k else dstage).forward(x, None)
                for k, (d, x) in enumerate(zip(moved, jet, strict=True))
            ]
        elif isinstance(stage, Fork):
            assert isinstance(dstage, Fork)
            pairs = zip(stage.bodies, dstage.bodies, values.inner[i], strict=True)
            moved = _join(stage, [tangent(body, dbody, inner, moved, key) for body, dbody, inner in pairs])
        else:
            x, y, d0 = jet[0], values[i + 1][0], moved[0]
            moved = [stage.vjp(d, x, y, key) for d in moved]
            if isinstance(stage, Activation) and not stage.function.flat:
                for k in range(1, len(jet)):
                    moved[k] = moved[k] + stage.second(jet[k] * d0, x, y)
    return moved


class JetPlan(Plan):
    """A :class:`Plan` whose inputs and outputs are ``vectors`` = 1 + k vectors, flattened one after the other."""

    def __init__(self, stages: Sequence[Stage], buffers: Sequence[Any], wants_x: bool, vectors: int):
        super().__init__(stages, buffers, wants_x)
        self.vectors = vectors

    def split(self, flat: Sequence[Any]) -> list[Any]:
        """The vectors of a flat list."""
        n = len(flat) // self.vectors
        return [drnn.CoopVec(list(flat[i * n : (i + 1) * n])) for i in range(self.vectors)]

    def trail(self, stages: Sequence[Stage], xs: list, key: Key | None) -> Trail:
        return trail(stages, _with_room(stages, self.split(xs)), key)

    def output(self, values: Trail) -> list:
        return flat(values[-1])

    def backward(
        self, stages: Sequence[Stage], values: Trail, dys: list, key: Key | None, visit: Callable[..., None]
    ) -> list:
        bars = backward(stages, values, self.split(dys), key, self.wants_x, visit)
        return flat(bars) if bars is not None and self.wants_x else []

    def tangent(
        self, stages: Sequence[Stage], tangents: Sequence[Stage], values: Trail, dxs: list, key: Key | None
    ) -> list:
        return flat(tangent(stages, tangents, values, self.split(dxs), key))


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
