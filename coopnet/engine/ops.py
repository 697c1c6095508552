r"""The network as the engine sees it: a list of operations on bundles.

A *bundle* :math:`(x, \dot x_1, \dots, \dot x_k)` is a vector and its tangents in ``k`` directions, a list of
cooperative vectors; a plain vector is a bundle with none. An op :math:`y = f(x)` with the Jacobian :math:`J` maps it to
:math:`(f(x), J \dot x_1, \dots, J \dot x_k)`, where :math:`J = A` for affine ops and :math:`J = \mathrm{diag} f'(x)`
for activations. Bundles can be differentiated in turn, which gives second derivatives. The cotangents of an output
bundle become those of the input bundle by

.. math::
    \bar A = \bar y x^T + \sum_k \bar{\dot y}_k \dot x_k^T, \quad
    \bar x = J^T \bar y + f''(x) \sum_k \dot x_k \bar{\dot y}_k, \quad
    \bar{\dot x}_k = J^T \bar{\dot y}_k .

The sum over samples in :math:`\bar A` is that of a batch ``1 + k`` times as long. So weight gradients of bundles are
computed in the same ways as those of plain vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import drjit as dr

from ..jit import views
from ..jit.kinds import flat, packed
from ..jit.registers import in_order
from ..random.key import Key

Bundle = list[Any]


class Record:
    """One op's evaluation: the input bundle ``x``, the output bundle ``y``, and tapes of the ops inside it.

    ``slope`` is :meth:`Op.kept_slope`, if slopes are kept, and ``mask`` what an op with a :attr:`Op.rate` has drawn.
    """

    slope: Any = None
    mask: Any = None

    def __init__(self, op: Op, x: Bundle, y: Bundle, inner: Sequence[Tape] = ()):
        self.op, self.x, self.y, self.inner = op, x, y, inner


class Tape:
    """The records of a list of ops, and the output bundle ``y``.

    References to unevaluated vectors take no memory: a kernel that needs one computes it.
    """

    def __init__(self, records: list[Record], y: Bundle):
        self.records, self.y = records, y

    @property
    def ops(self) -> Sequence[Op]:
        return [record.op for record in self.records]

    @property
    def x(self) -> Bundle:
        """The input bundle."""
        return self.records[0].x

    def backward(self) -> Iterator[Record]:
        """The records, the last one first."""
        return reversed(self.records)

    def flat(self) -> list:
        """The components of the output's vectors, one after the other."""
        return flat(self.y)


# ---- Ops ---------------------------------------------------------------------------------------------------


# Not dataclasses, which Dr.Jit would take apart as PyTrees.
class Op:
    """A layer as the engine sees it. The functions named like its methods take lists of ops."""

    #: Does it multiply by a matrix?
    affine = False
    #: Does it take :class:`~.row_vectors.RowVector`?
    takes_rows = False
    #: Does it contain dropout? Does that multiply elements by numbers of their own, and not only keep or drop them?
    dropout = False
    factors = False
    #: Is it piecewise linear, so that its derivatives are finite?
    piecewise_linear = False
    #: The lists of ops inside, if it is a branch.
    bodies: Sequence[Sequence[Op]] = ()
    #: A number that it reads and that may be trained: an array of width 1. The backward pass leaves its gradient for
    #: each sample in :attr:`rate_gradient`.
    rate: Any = None
    rate_gradient: Any = None

    def needs_only_output(self, key: Key | None, vectors: int) -> bool:
        """Does :meth:`pullback` of so many vectors need only the outputs, and not the inputs?"""
        return False

    def evaluate(self, x: Bundle, key: Key | None, store: Store | None = None) -> Record:
        raise NotImplementedError

    def kept_slope(self, record: Record, key: Key | None) -> Any:
        """The derivative of an op that acts on every component separately, if it takes more than the output."""
        return None

    def pullback(self, record: Record, dy: Bundle, key: Key | None, wanted: bool, visit: Visit) -> Bundle | None:
        raise NotImplementedError

    def jvp(self, record: Record, moving: Any, dx: Bundle, key: Key | None) -> Bundle:
        raise NotImplementedError

    def map(self, function: Callable[[Any], Any]) -> Op:
        """``function(self)``; for a branch, the same with ``function(op)`` for every op in it."""
        return function(self)

    def moved(self, move: Callable[[Any], Any]) -> Op:
        """The same op with ``move(view)`` for its views of matrices."""
        return self


#: ``visit(op, cotangent, vector, biased)`` is called for every vector of every affine op in the backward pass.
#: ``biased`` says whether the bias was added to it. It may return a cotangent to continue with. The pass calls it as
#: soon as the cotangent is known: if cotangents were written later, all of them would stay in registers.
Visit = Callable[[Any, Any, Any, bool], Any]


class Store:
    """What is done with vectors during an evaluation."""

    def inputs(self, op: Any, x: Bundle) -> Bundle:
        """Called for the input bundle of every affine op; returns it or a replacement."""
        return x

    def outputs(self, op: Any, y: Bundle) -> None:
        """Called for the output bundle of every affine op."""


# ---- Lists of ops ------------------------------------------------------------------------------------------


def evaluate(
    ops: Sequence[Op], x: Bundle, key: Key | None, store: Store | None = None, ordered: bool = False,
    slopes: bool = False,
) -> Tape:  # fmt: skip
    """Evaluate ``ops`` on the bundle ``x``, one after the other.

    With ``ordered``, kernels do so, too, even if an op needs only a part of what another one computes. With ``slopes``,
    derivatives are computed with the values: an ``ordered`` backward pass would compute their common parts (a tanh, a
    mask) again.
    """
    records: list[Record] = []
    for op in ops:
        if not op.takes_rows:
            x = [packed(v) for v in x]
        record = op.evaluate(x, key, store)
        if slopes:
            record.slope = op.kept_slope(record, key)
        if records:
            records[-1].y = record.x  # `store` may have replaced it
        records.append(record)
        x = record.y
        # otherwise the vectors of all layers stay in registers until the last tangent, or the last row, is computed
        if ordered or len(x) > 1:
            in_order(dr.backend_v(x[0].type))
    return Tape(records, x)


def pullback(
    tape: Tape, dy: Bundle, key: Key | None, wanted: bool, visit: Visit, ordered: bool = False
) -> Bundle | None:  # fmt: skip
    """The cotangents of the input bundle, from those of the output bundle; ``None`` unless ``wanted``.

    ``ordered`` as for :func:`evaluate`: without it, the input's cotangents would come before what ``visit`` traces.
    """
    ops = tape.ops
    first = next((i for i, op in enumerate(ops) if affine([op]) or rated([op])), len(ops))
    for i, record in zip(reversed(range(len(ops))), tape.backward(), strict=True):
        dy = dy if record.op.takes_rows else [packed(d) for d in dy]
        below = record.op.pullback(record, dy, key, wanted or i > first, visit)
        if below is None:
            return None
        dy = below
        if ordered:
            in_order(dr.backend_v(dy[0].type))
    return dy


def jvp(tape: Tape, moving: Sequence[Op], dx: Bundle, key: Key | None) -> Bundle:
    """The tangents of the output bundle, from those of the input bundle.

    ``moving`` are the same ops, in which tangents of the weights take the place of the weights.
    """
    for record, op in zip(tape.records, moving, strict=True):
        dx = record.op.jvp(record, op, dx, key)
    return dx


def simple(ops: Sequence[Op]) -> list[Any]:
    """All ops in a fixed order; branches are replaced by the ops of their bodies."""
    result: list[Any] = []
    for op in ops:
        if op.bodies:
            result += [inner for body in op.bodies for inner in simple(body)]
        else:
            result.append(op)
    return result


def affine(ops: Sequence[Op]) -> list[Any]:
    """All affine ops, including those of branches, in a fixed order."""
    return [op for op in simple(ops) if op.affine]


def rated(ops: Sequence[Op]) -> list[Op]:
    """All ops with a :attr:`Op.rate`, including those of branches, in a fixed order."""
    return [op for op in simple(ops) if op.rate is not None]


def with_rates(ops: Sequence[Op], rates: Sequence[Any]) -> list[Op]:
    """The same ops, those that are :func:`rated` with other ``rates``."""
    remaining = iter(rates)
    return [op.map(lambda o: o if o.rate is None else o.with_rate(next(remaining))) for op in ops]


def matrices(ops: Sequence[Op]) -> list[Any]:
    """Views of all matrices."""
    return [op.weights for op in affine(ops)]


def buffers(layers: Sequence[Any]) -> list[Any]:
    """The distinct packed buffers that the affine ops ``layers`` read, in order of first use.

    In an evaluated loop whose state is the network, every view has a buffer of its own to differentiate, all of them of
    one variable. The first that needs a gradient stands for all: the loop adds their gradients.
    """
    result: dict[int, Any] = {}
    for op in layers:
        for view in (op.weights, op.bias):
            if view is not None:
                known = result.setdefault(view.buffer.index, view.buffer)
                if not dr.grad_enabled(known):
                    result[known.index] = view.buffer
    return list(result.values())


def rebase(ops: Sequence[Op], old: Sequence[Any], new: Sequence[Any]) -> list[Op]:
    """The same ops reading from ``new`` buffers in place of ``old`` ones."""

    def move(view: Any) -> Any:
        if view is None:
            return None
        buffer = next(n for o, n in zip(old, new, strict=True) if o.index == view.buffer.index)
        return views.changed(view, buffer=buffer, dtype=dr.type_v(buffer))

    return [op.map(lambda layer: layer.moved(move)) for op in ops]
