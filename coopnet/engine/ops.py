"""What a network is to the engine: a list of stages, evaluated one after the other on a cooperative vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit import views
from ..random.key import Key
from ..random.law import Law
from .activations import FUNCTIONS, Function


# Plain classes, not dataclasses: Dr.Jit would take those apart as PyTrees.
class Affine:
    """``y = A x + b`` with packed ``A`` and optional ``b``; ``x`` is filled with zeros to the columns of ``A``."""

    def __init__(self, weights: Any, bias: Any = None, layout: Any = None):
        self.weights, self.bias = weights, bias
        # a Layout, where the packed one is the hardware's own
        self.layout = layout

    def fill(self, x: Any) -> Any:
        """``x`` with zeros for columns of ``A`` that only padding put there."""
        missing = self.weights.shape[1] - len(x)
        return drnn.CoopVec([*x, *[x.type(0)] * missing]) if missing else x

    def forward(self, x: Any, key: Key | None) -> Any:
        if self.bias is None:
            return drnn.matvec(self.weights, self.fill(x))
        return drnn.matvec(self.weights, self.fill(x), self.bias)

    def transposed(self, dy: Any, n: int) -> Any:
        """The first ``n`` components of ``A^T dy``."""
        dx = drnn.matvec(self.weights, dy, transpose=True)
        return dx if len(dx) == n else drnn.CoopVec(list(dx)[:n])

    def linear(self) -> Affine:
        """This stage without its bias, as derivatives see it."""
        return self if self.bias is None else Affine(self.weights, None, self.layout)

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

    def second(self, w: Any, x: Any, y: Any) -> Any:
        """``w`` times the second derivative at ``x``."""
        if self.function.second is not None:
            return self.function.second(w, x, y, *self.params)
        # no formula: differentiate the adjoint
        with dr.resume_grad():
            xs = [dr.detach(v) for v in x]
            dr.enable_grad(xs)
            at = drnn.CoopVec(xs)
            products = list(self.vjp(dr.detach(w), at, self.forward(at, None), None))
            for v in products:
                dr.set_grad(v, 1)
                dr.enqueue(dr.ADMode.Backward, v)
            dr.traverse(dr.ADMode.Backward)
            return drnn.CoopVec([dr.grad(v) for v in xs])


class Mask:
    """Dropout by a law, which is linear in ``x``, so that its adjoint is itself."""

    def __init__(self, law: Law, identity: Any = None):
        self.law, self.identity = law, identity

    def forward(self, x: Any, key: Key | None) -> Any:
        return self.law.apply(x, key, self.identity)

    def vjp(self, dy: Any, x: Any, y: Any, key: Key | None) -> Any:
        return self.forward(dy, key)


class Fork:
    """Runs several lists of stages on one input, and adds their outputs up or puts them one after the other.

    An empty list is the input itself: a residual connection is the sum of it and a body, a skip connection the
    concatenation of a body and it.
    """

    def __init__(self, bodies: Sequence[Sequence[Stage]], merge: str):
        self.bodies, self.merge = bodies, merge

    def forward(self, x: Any, key: Key | None) -> Any:
        return self.join([forward(body, x, key) for body in self.bodies])

    def join(self, ys: Sequence[Any]) -> Any:
        """Outputs of the bodies, merged."""
        if self.merge == "sum":
            return sum(ys[1:], ys[0])
        return drnn.CoopVec([v for y in ys for v in y])

    def split(self, dy: Any, sizes: Sequence[int]) -> list[Any]:
        """The adjoint of :meth:`join`: the gradient of each body's output, those having ``sizes`` components."""
        if self.merge == "sum":
            return [dy] * len(sizes)
        parts, start = list(dy), 0
        result = []
        for size in sizes:
            result.append(drnn.CoopVec(parts[start : start + size]))
            start += size
        return result


Stage = Affine | Activation | Mask | Fork


class Trail(list):
    """The input of every stage, and the output of the last; ``inner`` holds the same of the bodies of forks, by the
    number of the stage."""

    def __init__(self, first: Any):
        super().__init__([first])
        self.inner: dict[int, list[Trail]] = {}


def affine(stages: Sequence[Stage]) -> list[Affine]:
    """All affine stages, those inside forks included, in a fixed order."""
    found: list[Affine] = []
    for stage in stages:
        if isinstance(stage, Affine):
            found.append(stage)
        elif isinstance(stage, Fork):
            for body in stage.bodies:
                found += affine(body)
    return found


def forward(stages: Sequence[Stage], x: Any, key: Key | None) -> Any:
    """Evaluate ``stages`` on the ``CoopVec`` ``x`` with Dr.Jit's own differentiation."""
    for stage in stages:
        x = stage.forward(x, key)
    return x


def trail(stages: Sequence[Stage], x: Any, key: Key | None) -> Trail:
    """The input of every stage, and the output of the last.

    References to unevaluated vectors cost no memory: a kernel that needs one computes it.
    """
    values = Trail(x)
    for i, stage in enumerate(stages):
        if isinstance(stage, Fork):
            values.inner[i] = inner = [trail(body, values[i], key) for body in stage.bodies]
            values.append(stage.join([t[-1] for t in inner]))
        else:
            values.append(stage.forward(values[i], key))
    return values


def backward(
    stages: Sequence[Stage],
    values: Trail,
    dy: Any,
    key: Key | None,
    wants_x: bool,
    visit: Callable[..., None],
) -> Any:
    """Run the chain of deltas from the output back, and ``visit(stage, delta, input)`` every affine stage on the way.

    Returns the gradient of the input, or ``None`` unless ``wants_x``.
    """
    first = next((i for i, s in enumerate(stages) if affine([s])), len(stages))
    i = len(stages) - 1
    while i >= 0:
        stage, x, y = stages[i], values[i], values[i + 1]
        if isinstance(stage, Affine):
            # visited at once: whoever writes deltas out late keeps all of them in registers
            visit(stage, dy, x)
            if i == first and not wants_x:
                return None
            dy = stage.transposed(dy, len(x))
        elif isinstance(stage, Fork):
            wanted = wants_x or i > first
            dys = stage.split(dy, [len(t[-1]) for t in values.inner[i]])
            dxs = [
                backward(body, inner, part, key, wanted, visit)
                for body, inner, part in zip(stage.bodies, values.inner[i], dys, strict=True)
            ]
            if i <= first and not wanted:
                return None
            dy = sum(dxs[1:], dxs[0])
        elif isinstance(stage, Mask) and _one_step(stages, i, key) and (scale := stage.law.scale(y.type)) is not None:
            # the output alone tells the derivative of both, so neither mask nor pre-activation is needed again
            i -= 1
            before: Any = stages[i]
            dy = before.function.masked_vjp(dy, y, scale, *before.params)
        else:
            dy = stage.vjp(dy, x, y, key)
        i -= 1
    return dy


def _one_step(stages: Sequence[Stage], i: int, key: Key | None) -> bool:
    stage, before = stages[i], stages[i - 1] if i else None
    active = isinstance(stage, Mask) and stage.law.active(key)
    return active and isinstance(before, Activation) and before.function.masked_vjp is not None


def tangent(stages: Sequence[Stage], tangents: Sequence[Stage], values: Trail, dx: Any, key: Key | None) -> Any:
    """Forward derivative: ``tangents`` are the same stages with the tangents of the weights for weights."""
    for i, (stage, dstage) in enumerate(zip(stages, tangents, strict=True)):
        if isinstance(stage, Affine):
            dx = stage.linear().forward(dx, None) + dstage.forward(values[i], None)
        elif isinstance(stage, Fork):
            moving: Any = dstage
            pairs = zip(stage.bodies, moving.bodies, values.inner[i], strict=True)
            dx = stage.join([tangent(body, dbody, inner, dx, key) for body, dbody, inner in pairs])
        else:
            # the Jacobian is diagonal, so the adjoint is also the tangent
            dx = stage.vjp(dx, values[i], values[i + 1], key)
    return dx


def widest(stages: Sequence[Stage]) -> int:
    """Components of the longest vector between the stages."""
    return max((max(s.weights.shape) for s in affine(stages)), default=0)


def matrices(stages: Sequence[Stage]) -> list[Any]:
    """Views of all matrices."""
    return [s.weights for s in affine(stages)]


def kept(stages: Sequence[Stage], vectors: int) -> int:
    """Components in use at a time in the backward pass of ``vectors`` vectors.

    They are what goes into all affine stages, and the deltas of one.
    """
    return vectors * (sum(s.weights.shape[1] for s in affine(stages)[1:]) + widest(stages))


def buffers(stages: Sequence[Stage]) -> list[Any]:
    """The distinct packed buffers that the stages read, in order of first use."""
    found: list[Any] = []
    for stage in affine(stages):
        for view in stage.views():
            if not any(view.buffer is b for b in found):
                found.append(view.buffer)
    return found


def rebase(stages: Sequence[Stage], old: Sequence[Any], new: Sequence[Any]) -> list[Stage]:
    """The same stages reading from ``new`` buffers in place of ``old`` ones."""

    def move(view: Any) -> Any:
        if view is None:
            return None
        return views.changed(view, buffer=next(n for o, n in zip(old, new, strict=True) if o is view.buffer))

    def rebased(stage: Stage) -> Stage:
        if isinstance(stage, Affine):
            return Affine(move(stage.weights), move(stage.bias), stage.layout)
        if isinstance(stage, Fork):
            return Fork([rebase(body, old, new) for body in stage.bodies], stage.merge)
        return stage

    return [rebased(stage) for stage in stages]
