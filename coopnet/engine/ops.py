r"""What a network is to the engine: a list of operations on bundles.

A *bundle* :math:`(x, \dot x_1, \dots, \dot x_k)` is a vector and its tangents in ``k`` directions, a list of
cooperative vectors; a plain vector is a bundle with none. An op :math:`y = f(x)` with the Jacobian :math:`J` maps it to
:math:`(f(x), J \dot x_1, \dots, J \dot x_k)`, where :math:`J = A` for affine ops and :math:`J = \mathrm{diag} f'(x)`
for activations. Bundles can be differentiated in turn, which makes second derivatives: the cotangents of a bundle that
comes out become those of the one that went in by

.. math::
    \bar A = \bar y x^T + \sum_k \bar{\dot y}_k \dot x_k^T, \quad
    \bar x = J^T \bar y + f''(x) \sum_k \dot x_k \bar{\dot y}_k, \quad
    \bar{\dot x}_k = J^T \bar{\dot y}_k .

The sums over samples in :math:`\bar A` are those of a batch ``1 + k`` times as long, so that weight gradients of
bundles take the same paths as those of plain vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import drjit as dr
import drjit.nn as drnn

from ..jit import views
from ..jit.kinds import flat, packed
from ..jit.registers import in_order
from ..jit.unpacked import Constant
from ..random.key import Key
from .activations import FUNCTIONS, Function
from .blocks import Blocks, product
from .rows import Held

Bundle = list[Any]


class Record:
    """One op's evaluation: the bundle ``x`` that went in, ``y`` that came out, and tapes of the ops inside it."""

    def __init__(self, op: Op, x: Bundle, y: Bundle, inner: Sequence[Tape] = ()):
        self.op, self.x, self.y, self.inner = op, x, y, inner


class Tape:
    """The records of a list of ops, and the bundle ``y`` that came out.

    References to unevaluated vectors cost no memory: a kernel that needs one computes it.
    """

    def __init__(self, records: list[Record], y: Bundle):
        self.records, self.y = records, y

    def flat(self) -> list:
        """The components of the vectors that came out, one after the other."""
        return flat(self.y)


# ---- Lists of ops ------------------------------------------------------------------------------------------


def evaluate(ops: Sequence[Op], x: Bundle, key: Key | None, store: Store | None = None) -> Tape:
    """Evaluate ``ops`` on the bundle ``x``, one after the other.

    ``store(op, x)`` sees what goes into every affine op, and returns it or what is to be used instead.
    """
    records: list[Record] = []
    for op in ops:
        if store is not None and isinstance(op, Affine):
            x = store(op, x)
            if records:
                records[-1].y = x if records[-1].op.anywhere else [packed(v) for v in x]
        elif not op.anywhere:
            x = [packed(v) for v in x]
        records.append(op.evaluate(x, key, store))
        x = records[-1].y
        if len(x) > 1:  # otherwise the vectors of all layers stay live until the last tangent is computed
            in_order(dr.backend_v(x[0].type))
    return Tape(records, x)


def pullback(tape: Tape, dy: Bundle, key: Key | None, wanted: bool, visit: Visit) -> Bundle | None:
    """The cotangents of the bundle that went in, from those of the one that came out; ``None`` unless ``wanted``.

    ``visit(op, cotangent, vector, biased)`` sees every vector of every affine op on the way, ``biased`` where its bias
    was added, and may return the cotangent to go on with. It is called at once: whoever writes cotangents out late
    keeps all of them in registers.
    """
    first = next((i for i, record in enumerate(tape.records) if affine([record.op])), len(tape.records))
    for i in reversed(range(len(tape.records))):
        record = tape.records[i]
        dy = dy if record.op.anywhere else [packed(d) for d in dy]
        below = record.op.pullback(record, dy, key, wanted or i > first, visit)
        if below is None:
            return None
        dy = below
    return dy


def jvp(tape: Tape, moving: Sequence[Op], dx: Bundle, key: Key | None) -> Bundle:
    """The tangents of the bundle that came out, from those of the one that went in.

    ``moving`` are the same ops with the tangents of the weights for weights.
    """
    for record, op in zip(tape.records, moving, strict=True):
        dx = record.op.jvp(record, op, dx, key)
    return dx


def rebase(ops: Sequence[Op], old: Sequence[Any], new: Sequence[Any]) -> list[Op]:
    """The same ops reading from ``new`` buffers in place of ``old`` ones."""

    def move(view: Any) -> Any:
        if view is None:
            return None
        return views.changed(view, buffer=next(n for o, n in zip(old, new, strict=True) if o is view.buffer))

    return [op.rebase(move) for op in ops]


def fused(ops: Sequence[Op]) -> list[Op]:
    """``ops`` with every activation that has a :attr:`Function.dropped_slope` and the mask behind it as one."""
    result: list[Op] = []
    for op in ops:
        before = result[-1] if result else None
        if isinstance(op, Mask) and isinstance(before, Nonlinearity) and before.function.dropped_slope is not None:
            result[-1] = Dropped(before, op)
        else:
            result.append(op)
    return result


def affine(ops: Sequence[Op]) -> list[Affine]:
    """All affine ops, those inside forks included, in a fixed order."""
    return [found for op in ops for found in op.affine()]


def matrices(ops: Sequence[Op]) -> list[Any]:
    """Views of all matrices."""
    return [op.weights for op in affine(ops)]


def widest(ops: Sequence[Op]) -> int:
    """Components of the longest vector between the ops."""
    return max((max(view.shape) for view in matrices(ops)), default=0)


def masked(ops: Sequence[Op]) -> bool:
    """Is there dropout between the ops?"""
    bodies = [body for op in ops if isinstance(op, Fork) for body in op.bodies]
    return any(isinstance(op, (Mask, Dropped)) for op in ops) or any(map(masked, bodies))


def kept(ops: Sequence[Op], vectors: int) -> int:
    """Components in use at a time in the backward pass of ``vectors`` vectors.

    They are what goes into all affine ops, and the cotangents of one.
    """
    return vectors * (sum(view.shape[1] for view in matrices(ops)[1:]) + widest(ops))


def buffers(ops: Sequence[Op]) -> list[Any]:
    """The distinct packed buffers that the ops read, in order of first use."""
    found: list[Any] = []
    for op in affine(ops):
        for view in (op.weights, op.bias):
            if view is not None and not any(view.buffer is b for b in found):
                found.append(view.buffer)
    return found


def go_back(y: Any) -> None:
    """Differentiate the sum of the components of the vector ``y``, in every lane, with respect to what led to it."""
    components = list(y)
    for v in components:
        dr.set_grad(v, 1)
        dr.enqueue(dr.ADMode.Backward, v)
    dr.traverse(dr.ADMode.Backward)


# ---- Ops ---------------------------------------------------------------------------------------------------


# Plain classes, not dataclasses: Dr.Jit would take those apart as PyTrees.
class Op:
    """What the engine can do with a layer; the functions of the same names do it with a list of them."""

    @property
    def flat(self) -> bool:
        """Is it linear in pieces, so that no derivative is infinite?"""
        return False

    #: Does it take vectors that are :class:`~.rows.Held`?
    anywhere = False

    def needs_only_output(self, leaf: Any, key: Key | None, vectors: int) -> bool:
        """Does :meth:`pullback` of so many vectors do without the ones that went in, given those that came out?"""
        return False

    def evaluate(self, x: Bundle, key: Key | None, store: Store | None = None) -> Record:
        raise NotImplementedError

    def pullback(self, record: Record, dy: Bundle, key: Key | None, wanted: bool, visit: Visit) -> Bundle | None:
        raise NotImplementedError

    def jvp(self, record: Record, moving: Any, dx: Bundle, key: Key | None) -> Bundle:
        raise NotImplementedError

    def rebase(self, move: Callable[[Any], Any]) -> Op:
        return self

    def affine(self) -> list[Affine]:
        return []


class Weights(NamedTuple):
    """Views of a packed matrix and bias, and the :class:`Layout` where the packed one is the hardware's own."""

    weights: Any
    bias: Any = None
    layout: Any = None


class Affine(Op):
    """``y = A x + b`` with packed ``A`` and optional ``b``; ``x`` is filled with zeros to the columns of ``A``.

    ``source`` is :class:`Weights` or a linear layer, asked at every use: whoever packs or loads a network replaces
    them.
    """

    anywhere = True

    def __init__(self, source: Any):
        self.source = source
        self.forth: Blocks | None = None  # copies to multiply with, on the way forward and back, where they are faster
        self.back: Blocks | None = None
        self.gemm: Any = None  # a Gemm, which multiplies all samples' vectors at once, where they are in memory

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
        """``x`` with zeros for columns of ``A`` that only padding put there."""
        missing = self.source.weights.shape[1] - len(x)
        return drnn.CoopVec([*x, *[x.type(0)] * missing]) if missing else x

    def product(self, x: Any, biased: bool = True) -> Any:
        """``A x``, and ``b`` added if ``biased``: derivatives do without."""
        made = None if self.gemm is None else self.gemm.product(x, biased)
        if made is not None:
            return made
        x, bias = packed(self.fill(x)), self.source.bias if biased else None
        return product(self.source.weights, x, bias) if self.forth is None else self.forth.product(x, bias)

    def transposed(self, dy: Any, n: int) -> Any:
        """The first ``n`` components of ``A^T dy``."""
        made = None if self.gemm is None else self.gemm.transposed(dy, n)
        if made is not None:
            return made
        dy = packed(dy)
        dx = drnn.matvec(self.weights, dy, transpose=True) if self.back is None else self.back.product(dy)
        return dx if len(dx) == n else drnn.CoopVec(list(dx)[:n])

    @property
    def flat(self) -> bool:
        return True

    def evaluate(self, x: Bundle, key: Key | None, store: Store | None = None) -> Record:
        y = [self.product(x[0])]
        for tangent in x[1:]:
            y.append(self.product(tangent, False))
        return Record(self, x, y)

    def pullback(self, record: Record, dy: Bundle, key: Key | None, wanted: bool, visit: Visit) -> Bundle | None:
        seen = [visit(self, d, x, i == 0) for i, (d, x) in enumerate(zip(dy, record.x, strict=True))]
        dy = [d if s is None else s for d, s in zip(dy, seen, strict=True)]
        return [self.transposed(d, len(record.x[0])) for d in dy] if wanted else None

    def jvp(self, record: Record, moving: Affine, dx: Bundle, key: Key | None) -> Bundle:
        pairs = enumerate(zip(dx, record.x, strict=True))
        return [self.product(d, False) + moving.product(x, i == 0) for i, (d, x) in pairs]

    def rebase(self, move: Callable[[Any], Any]) -> Affine:
        return Affine(Weights(move(self.weights), move(self.bias), self.layout))

    def affine(self) -> list[Affine]:
        return [self]


class Elementwise(Op):
    """``y_i = f(x_i)``: the Jacobian is diagonal, so that tangents and cotangents move alike."""

    #: Is the second derivative other than zero?
    curved = False

    def value(self, x: Any, key: Key | None) -> Any:
        raise NotImplementedError

    def slope(self, w: Any, x: Any, y: Any, key: Key | None) -> Any:
        """``w`` times the derivative at ``x``, whose value is ``y``."""
        raise NotImplementedError

    def curvature(self, w: Any, x: Any, y: Any) -> Any:
        """``w`` times the second derivative at ``x``."""
        raise NotImplementedError

    def evaluate(self, x: Bundle, key: Key | None, store: Store | None = None) -> Record:
        y = [self.value(x[0], key)]
        for tangent in x[1:]:
            y.append(self.slope(tangent, x[0], y[0], key))
        return Record(self, x, y)

    def pullback(self, record: Record, dy: Bundle, key: Key | None, wanted: bool, visit: Visit) -> Bundle | None:
        if len(dy) == 1:
            return [self.slope(dy[0], record.x[0], record.y[0], key)]
        (x, *tangents), y, dy = [packed(v) for v in record.x], packed(record.y[0]), [packed(d) for d in dy]
        dx = [self.slope(d, x, y, key) for d in dy]
        if self.curved:
            weight = tangents[0] * dy[1]
            for t, d in zip(tangents[1:], dy[2:], strict=True):
                weight = weight + t * d
            dx[0] = dx[0] + self.curvature(weight, x, y)
        return dx

    def jvp(self, record: Record, moving: Any, dx: Bundle, key: Key | None) -> Bundle:
        x, y = record.x[0], record.y[0]
        dy = [self.slope(d, x, y, key) for d in dx]
        if self.curved:
            for i in range(1, len(dx)):
                dy[i] = dy[i] + self.curvature(record.x[i] * dx[0], x, y)
        return dy


class Nonlinearity(Elementwise):
    """An entry of :data:`FUNCTIONS`: the one that ``layer.function`` names, with the parameters ``layer.params()``."""

    anywhere = True

    def __init__(self, layer: Any):
        self.layer = layer

    @property
    def function(self) -> Function:
        return FUNCTIONS[self.layer.function]

    @property
    def flat(self) -> bool:
        return self.function.flat

    @property
    def curved(self) -> bool:  # type: ignore[override]
        return not self.flat

    def needs_only_output(self, leaf: Any, key: Key | None, vectors: int) -> bool:
        return self.function.from_output and (vectors == 1 or self.flat)

    def value(self, x: Any, key: Key | None = None) -> Any:
        if isinstance(x, Held):
            return x.of(self.function.coopvec(x.numbers(), *self.layer.params()))
        return self.function.coopvec(x, *self.layer.params())

    def slope(self, w: Any, x: Any, y: Any, key: Key | None = None) -> Any:
        if isinstance(w, Held) and isinstance(y, Held) and (self.function.from_output or isinstance(x, Held)):
            at = None if self.function.from_output else x.numbers()
            return w.slope(lambda d: self.function.slope(d, at, y.numbers(), *self.layer.params()))
        w, x, y = packed(w), packed(x), packed(y)
        return self.function.slope(w, x, y, *self.layer.params())

    def curvature(self, w: Any, x: Any, y: Any) -> Any:
        if self.function.curvature is not None:
            return self.function.curvature(w, x, y, *self.layer.params())
        # no formula: differentiate the slope
        with dr.resume_grad():
            xs = [dr.detach(v) for v in x]
            dr.enable_grad(xs)
            at = drnn.CoopVec(xs)
            go_back(self.slope(dr.detach(w), at, self.value(at)))
            return drnn.CoopVec([dr.grad(v) for v in xs])


class Mask(Elementwise):
    """Dropout of any law; linear, so that its derivative is itself.

    ``layer`` has a ``law`` and is called as ``layer(x, key)``.
    """

    def __init__(self, layer: Any):
        self.layer = layer

    @property
    def flat(self) -> bool:
        return True

    def value(self, x: Any, key: Key | None) -> Any:
        return self.layer(x, key)

    def slope(self, w: Any, x: Any, y: Any, key: Key | None) -> Any:
        return self.layer(w, key)


class Dropped(Op):
    """An activation and the dropout behind it.

    Their output alone tells the derivative of both (see :attr:`Function.dropped_slope`), so that going back neither the
    mask nor the pre-activation is needed again.
    """

    anywhere = True

    def __init__(self, activation: Nonlinearity, mask: Mask):
        self.activation, self.mask = activation, mask

    @property
    def flat(self) -> bool:
        return self.activation.flat

    def evaluate(self, x: Bundle, key: Key | None, store: Store | None = None) -> Record:
        # the mask wants vectors, and reading them is dearer than the function
        x = [packed(v) for v in x]
        inner = evaluate((self.activation, self.mask), x, key)
        return Record(self, x, inner.y, [inner])

    def needs_only_output(self, leaf: Any, key: Key | None, vectors: int) -> bool:
        return self._scale(leaf, key, vectors) is not None

    def _scale(self, leaf: Any, key: Key | None, vectors: int) -> Any:
        law = self.mask.layer.law
        return law.scale(leaf) if vectors == 1 and law.active(key) else None

    def pullback(self, record: Record, dy: Bundle, key: Key | None, wanted: bool, visit: Visit) -> Bundle | None:
        y = record.y[0]
        scale = self._scale(y.type, key, len(dy))
        if scale is None:
            return pullback(record.inner[0], [packed(d) for d in dy], key, True, visit)
        f, params = self.activation.function.dropped_slope, self.activation.layer.params()
        assert f is not None
        if isinstance(dy[0], Held) and isinstance(y, Held) and dr.width(scale) == 1:
            return [dy[0].slope(lambda d: f(d, y.numbers(), scale, *params))]
        return [f(packed(dy[0]), packed(y), scale, *params)]

    def jvp(self, record: Record, moving: Any, dx: Bundle, key: Key | None) -> Bundle:
        return jvp(record.inner[0], (self.activation, self.mask), dx, key)


class Fork(Op):
    """Runs several lists of ops on one input, and adds their outputs up or puts them one after the other.

    An empty list is the input itself: a residual connection is the sum of it and a body, a skip connection the
    concatenation of a body and it.
    """

    def __init__(self, bodies: Sequence[Sequence[Op]], merge: str):
        self.bodies, self.merge = bodies, merge

    def join(self, ys: Sequence[Any]) -> Any:
        """Outputs of the bodies, merged."""
        if self.merge == "sum":
            return sum(ys[1:], ys[0])
        return drnn.CoopVec([v for y in ys for v in y])

    def split(self, dy: Any, sizes: Sequence[int]) -> list[Any]:
        """The adjoint of :meth:`join`: the cotangent of each body's output, those having ``sizes`` components."""
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

    @property
    def flat(self) -> bool:
        return all(op.flat for body in self.bodies for op in body)

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

    def jvp(self, record: Record, moving: Fork, dx: Bundle, key: Key | None) -> Bundle:
        pairs = zip(record.inner, moving.bodies, strict=True)
        return self.joined([jvp(tape, body, dx, key) for tape, body in pairs])

    def rebase(self, move: Callable[[Any], Any]) -> Fork:
        return Fork([[op.rebase(move) for op in body] for body in self.bodies], self.merge)

    def affine(self) -> list[Affine]:
        return [found for body in self.bodies for found in affine(body)]


Visit = Callable[[Affine, Any, Any, bool], Any]
Store = Callable[[Affine, Bundle], Bundle]
