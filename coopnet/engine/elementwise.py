"""Ops that act on every component separately: activations, dropout, and both as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.kinds import packed
from ..random.key import Key
from .activations import FUNCTIONS, Function
from .ops import Bundle, Op, Record, Store, Visit, evaluate, jvp, pullback
from .row_vectors import in_place


class Elementwise(Op):
    """``y_i = f(x_i)``: the Jacobian is diagonal, so :meth:`slope` serves tangents and cotangents."""

    def value(self, x: Any, key: Key | None) -> Any:
        raise NotImplementedError

    def slope(self, w: Any, record: Record, key: Key | None) -> Any:
        """``w`` times the derivative at the input of ``record``."""
        raise NotImplementedError

    def curvature(self, x: Any, y: Any) -> Any:
        """The second derivative at ``x``."""
        raise NotImplementedError

    def evaluate(self, x: Bundle, key: Key | None, store: Store | None = None) -> Record:
        record = Record(self, x, [self.value(x[0], key)])
        record.y += [self.slope(tangent, record, key) for tangent in x[1:]]
        return record

    def pullback(self, record: Record, dy: Bundle, key: Key | None, wanted: bool, visit: Visit) -> Bundle | None:
        dx = [self.slope(d, record, key) for d in dy]
        if len(dy) > 1 and not self.piecewise_linear:
            (x, *tangents), y, dy = [packed(v) for v in record.x], packed(record.y[0]), [packed(d) for d in dy]
            weight = tangents[0] * dy[1]
            for t, d in zip(tangents[1:], dy[2:], strict=True):
                weight = weight + t * d
            dx[0] = dx[0] + weight * self.curvature(x, y)
        return dx

    def jvp(self, record: Record, moving: Any, dx: Bundle, key: Key | None) -> Bundle:
        (x, *tangents), y = [packed(v) for v in record.x], packed(record.y[0])
        dy = [self.slope(d, record, key) for d in dx]
        if not self.piecewise_linear:
            for i, tangent in enumerate(tangents, 1):
                dy[i] = dy[i] + tangent * dx[0] * self.curvature(x, y)
        return dy


class Nonlinearity(Elementwise):
    """An entry of :data:`FUNCTIONS`: the one that ``layer.function`` names, with the parameters ``layer.params()``."""

    takes_rows = True

    def __init__(self, layer: Any):
        self.layer = layer

    @property
    def function(self) -> Function:
        return FUNCTIONS[self.layer.function]

    @property
    def piecewise_linear(self) -> bool:  # type: ignore[override]
        return self.function.piecewise_linear

    def needs_only_output(self, key: Key | None, vectors: int) -> bool:
        return self.function.from_output(*self.layer.params())

    def value(self, x: Any, key: Key | None = None) -> Any:
        if in_place(x):
            return x.of(self.function.coopvec(x.numbers(), *self.layer.params()))
        return self.function.coopvec(packed(x), *self.layer.params())

    def slope(self, w: Any, record: Record, key: Key | None) -> Any:
        if record.slope is not None:
            return packed(w) * record.slope
        x, y, params = record.x[0], record.y[0], self.layer.params()
        from_output = self.function.from_output(*params)
        if in_place(w, y) and (from_output or in_place(x)):
            at = None if from_output else x.numbers()
            return w.slope(lambda d: d * self.function.slope(at, y.numbers(), *params))
        return packed(w) * self.derivative(record)

    def derivative(self, record: Record) -> Any:
        """The derivative at the input of ``record``: a vector or, if it is constant, a number."""
        return self.function.slope(packed(record.x[0]), packed(record.y[0]), *self.layer.params())

    def kept_slope(self, record: Record, key: Key | None) -> Any:
        return None if self.function.from_output(*self.layer.params()) else self.derivative(record)

    def curvature(self, x: Any, y: Any) -> Any:
        assert self.function.curvature is not None
        return self.function.curvature(x, y, *self.layer.params())


class Mask(Elementwise):
    """Dropout of any law. It is linear, so it maps tangents and cotangents as it maps vectors.

    ``layer`` has a ``law`` and is called as ``layer(x, key)``.
    """

    dropout = piecewise_linear = True

    def __init__(self, layer: Any):
        self.layer = layer

    @property
    def factors(self) -> bool:  # type: ignore[override]
        return not (self.layer.law.binary or self.layer.law.shared)

    def value(self, x: Any, key: Key | None) -> Any:
        return self.layer(x, key)

    def slope(self, w: Any, record: Record, key: Key | None) -> Any:
        return self.layer(w, key)


class LearnedMask(Op):
    """Dropout whose rate is learned.

    ``layer`` is called as that of :class:`Mask`. Its attribute ``relaxed`` says whether masks depend on the rate
    ``layer.logit`` smoothly. Then ``mask(x, rate, key)`` returns the factors of the elements of ``x``, and the
    derivatives of these by the rate, as vectors. ``layer.ones`` may hold a row of ones, as long as ``x``: its product
    with a vector is the sum of the components, without a conversion from the layout of the tensor cores.
    """

    dropout = factors = piecewise_linear = True

    def __init__(self, layer: Any, mask: Callable[[Any, Any, Key], tuple[Any, Any]], rate: Any = None):
        self.layer, self.mask, self._rate = layer, mask, rate

    @property
    def rate(self) -> Any:  # type: ignore[override]
        return self._rate if self._rate is not None else self.layer.logit.value.data if self.layer.relaxed else None

    def with_rate(self, rate: Any) -> LearnedMask:
        """The same op with another rate."""
        return LearnedMask(self.layer, self.mask, rate)

    def evaluate(self, x: Bundle, key: Key | None, store: Store | None = None) -> Record:
        mask = None if key is None or self.rate is None else self.mask(x[0], self.rate, key)
        record = Record(self, x, [v * mask[0] if mask else self.layer(v, key) for v in x])
        record.mask = mask
        return record

    def pullback(self, record: Record, dy: Bundle, key: Key | None, wanted: bool, visit: Visit) -> Bundle | None:
        if record.mask is None:
            return [self.layer(d, key) for d in dy]
        (factors, slopes), single = record.mask, type(self.rate)
        terms = [d * packed(v) * slopes for d, v in zip(dy, record.x, strict=True)]
        row = self.layer.ones.value
        if row is not None and row.shape[1] == len(terms[0]):
            terms = [drnn.matvec(row, term) for term in terms]
        self.rate_gradient = sum((single(t) for term in terms for t in term), single(0))
        return [d * factors for d in dy]

    def jvp(self, record: Record, moving: Any, dx: Bundle, key: Key | None) -> Bundle:
        dx = [packed(d) for d in dx]
        if record.mask is None:
            return [self.layer(d, key) for d in dx]
        factors, slopes = record.mask
        return [d * factors + packed(v) * slopes * v.type(moving.rate) for d, v in zip(dx, record.x, strict=True)]


class MaskedNonlinearity(Op):
    """An activation followed by dropout.

    For some activations, the derivative of both follows from their output alone (see :attr:`Function.dropped_slope`):
    the backward pass needs neither the mask nor the pre-activation.
    """

    takes_rows = dropout = True

    def __init__(self, activation: Nonlinearity, mask: Mask):
        self.activation, self.mask = activation, mask

    @property
    def piecewise_linear(self) -> bool:  # type: ignore[override]
        return self.activation.piecewise_linear

    @property
    def factors(self) -> bool:  # type: ignore[override]
        return self.mask.factors

    def evaluate(self, x: Bundle, key: Key | None, store: Store | None = None) -> Record:
        # dropout needs vectors in registers; the activation then costs less there than on rows
        x = [packed(v) for v in x]
        inner = evaluate((self.activation, self.mask), x, key)
        return Record(self, x, inner.y, [inner])

    def needs_only_output(self, key: Key | None, vectors: int) -> bool:
        law, known = self.mask.layer.law, self.activation.function.dropped_slope is not None
        return known and law.binary and vectors == 1 and law.active(key)

    def kept_slope(self, record: Record, key: Key | None) -> Any:
        if len(record.y) > 1 or self.needs_only_output(key, 1):
            return None
        slope = self.activation.derivative(record.inner[0].records[0])
        return self.mask.value(slope, key) if isinstance(slope, drnn.CoopVec) else None

    def pullback(self, record: Record, dy: Bundle, key: Key | None, wanted: bool, visit: Visit) -> Bundle | None:
        if record.slope is not None:
            return [packed(dy[0]) * record.slope]
        if not self.needs_only_output(key, len(dy)):
            return pullback(record.inner[0], dy, key, True, visit)
        y = record.y[0]
        scale = self.mask.layer.law.scale(y.type)
        f, params = self.activation.function.dropped_slope, self.activation.layer.params()
        assert f is not None
        if in_place(dy[0], y) and dr.width(scale) == 1:
            return [dy[0].slope(lambda d: d * f(y.numbers(), scale, *params))]
        return [packed(dy[0]) * f(packed(y), scale, *params)]

    def jvp(self, record: Record, moving: Any, dx: Bundle, key: Key | None) -> Bundle:
        return jvp(record.inner[0], (self.activation, self.mask), dx, key)


def fused(ops: Sequence[Op]) -> list[Op]:
    """``ops``, where an activation and the dropout after it become one op."""
    result: list[Op] = []
    for op in ops:
        before = result[-1] if result else None
        if isinstance(op, Mask) and isinstance(before, Nonlinearity):
            result[-1] = MaskedNonlinearity(before, op)
        else:
            result.append(op)
    return result
