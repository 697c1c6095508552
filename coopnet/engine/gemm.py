"""Wide layers on a CPU: products of a matrix and the vectors of all samples at once, between kernels.

In a kernel, Dr.Jit multiplies a matrix and a vector by a loop that loads and stores an output for every multiplication.
Its product of two matrices in memory keeps outputs in registers: for wide layers that outweighs writing vectors out and
reading them back. What does not fit into a kernel's registers is faster by the way: functions between two layers act on
the numbers where they stand (:class:`~.rows.Held`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence, Set
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..jit.core import llvm_lanes
from ..jit.kinds import flat
from ..jit.scopes import frozen, symbolic
from ..jit.views import places
from ..random.key import Key
from .chunks import Chunks
from .ops import Affine, Bundle, Fork, Op, affine, rebase
from .plan import Plan
from .rows import PIECE, Held, Rows, columns

#: Components from which on products are worth leaving the kernel, where any are.
LEAST = 32
#: By the lanes of a processor's vectors, the narrower side of a network's largest matrix from which on some are: where
#: all functions are linear in pieces, and where others are, which take time on vectors that do not fit into registers.
#: Measured on one processor.
WIDE = {8: (64, 48), 16: (160, 96)}
#: The same where no gradient of weights is wanted.
EVALUATED = {8: (96, 64), 16: (160, 96)}
#: Samples from which on several kernels in place of one are worth their launches.
SAMPLES = 1 << 11
#: Bytes of vectors in memory at a time where no gradient is wanted.
MEMORY = 1 << 28


def pays(ops: Sequence[Op], samples: int, trained: bool = True) -> bool:
    """Are layers of this network faster one by one? On a CPU, outside symbolic code.

    Not where vectors go several ways, which have to be read again for each.
    """
    if any(isinstance(op, Fork) for op in ops):
        return False
    side = max((min(op.weights.shape) for op in affine(ops)), default=0)
    linear, others = (WIDE if trained else EVALUATED)[16 if llvm_lanes() >= 16 else 8]
    return samples >= SAMPLES and side >= (linear if all(op.flat for op in ops) else others)


def layerwise(ops: Sequence[Op], samples: int, leaf: type) -> bool:
    """Are the layers of a network without gradients better evaluated one by one, now?

    Not in a frozen function, which would be recorded anew for another number of samples.
    """
    cpu = dr.backend_v(leaf) == dr.JitBackend.LLVM
    return cpu and not symbolic() and not frozen() and pays(ops, samples, trained=False)


def large(ops: Sequence[Op]) -> list[Affine]:
    """The layers among ``ops`` that are worth products of their own in one direction or both, where others are."""
    return [op for op in affine(ops) if max(op.weights.shape) >= LEAST]


class Gemm:
    """A layer that multiplies all samples' vectors at once, which stand in rows in memory.

    ``forth`` and ``back`` tell which way: products of few components are as fast in the kernel around them.
    """

    def __init__(self, op: Affine):
        m, n = op.weights.shape
        buffer = op.weights.buffer
        single, uint32 = dr.float32_array_t(type(buffer)), dr.uint32_array_t(type(buffer))
        self.outputs, self.inputs, self.forth, self.back = m, n, m >= LEAST, n >= LEAST
        self.rows, self.columns, self.bias = columns(m, 4), columns(n, 4), None
        i = dr.arange(uint32, self.rows * self.columns)
        row, column = i // self.columns, i % self.columns
        inside = (row < m) & (column < n)
        #: The matrix, with zeros to whole packets. Not evaluated yet, as it has to be.
        self.entries = single(dr.gather(type(buffer), buffer, places(op.weights, row, column), inside))
        if op.bias is not None:
            row = dr.arange(uint32, self.rows)
            self.bias = single(dr.gather(type(buffer), op.bias.buffer, places(op.bias, row), row < m))
        self._products: dict[int, tuple[Any, Rows]] = {}
        self._cotangents: dict[int, tuple[Any, Rows]] = {}

    @staticmethod
    def of(ops: Sequence[Op]) -> list[Gemm]:
        """One for each layer of ``ops``, of one's own, that is large enough, which will use it; evaluated."""
        found = []
        for op in large(ops):
            op.gemm = Gemm(op)
            found.append(op.gemm)
        dr.eval([[gemm.entries, gemm.bias] for gemm in found])
        return found

    def takes(self, vector: Any) -> bool:
        """Can the vector be multiplied where it stands?"""
        return isinstance(vector, Held) and (len(vector), vector.rows.columns) == (self.inputs, self.columns)

    def takes_cotangent(self, vector: Any) -> bool:
        """The same for :meth:`transposed`."""
        return isinstance(vector, Held) and (len(vector), vector.rows.columns) == (self.outputs, self.rows)

    def forget(self) -> None:
        """Keep no vectors: nobody may have asked for the gradient of the input."""
        self._products.clear()
        self._cotangents.clear()

    def multiply(self, rows: Rows) -> Rows:
        """``A x`` of the vectors in ``rows``."""
        return rows.others(dr.matmul(rows.matrix(), self._matrix(), Bt=True).array, self.rows)

    def put(self, vector: Any, product: Rows) -> None:
        """Have :meth:`product` find that of ``vector``."""
        self._products[id(vector)] = vector, product

    def product(self, vector: Any, biased: bool) -> Any:
        """The product of a vector that is known, with the bias if ``biased``, else ``None``."""
        _, rows = self._products.pop(id(vector), (None, None))
        if rows is None:
            return None
        if biased and self.bias is not None:
            i = dr.arange(dr.uint32_array_t(rows.leaf), dr.width(rows.numbers))
            rows = rows.of(rows.numbers + dr.gather(rows.leaf, self.bias, i % self.rows))
        return held(rows, vector.type, self.outputs)

    def put_cotangent(self, vector: Any, rows: Rows) -> None:
        """Have :meth:`transposed` find ``vector`` in ``rows``."""
        self._cotangents[id(vector)] = vector, rows

    def transposed(self, vector: Any, count: int) -> Any:
        """The first ``count`` components of ``A^T x`` for a vector that is known, else ``None``."""
        _, rows = self._cotangents.pop(id(vector), (None, None))
        if rows is None:
            return None
        return held(rows.others(dr.matmul(rows.matrix(), self._matrix()).array, self.columns), vector.type, count)

    def _matrix(self) -> Any:
        return dr.tensor_t(type(self.entries))(self.entries, (self.rows, self.columns))


def held(rows: Rows, leaf: type, count: int) -> Any:
    """The vector of type ``leaf`` in ``rows``."""
    return Held(rows, count) if leaf is rows.leaf else drnn.CoopVec(rows.read(leaf, count))


def kept_outputs(ops: Sequence[Op], unneeded: Set[int]) -> list[Affine]:
    """The layers that are products on the way forward, but for those that are ``unneeded`` (see :func:`spare`)."""
    return [op for op in large(ops) if op.weights.shape[0] >= LEAST and id(op) not in unneeded]


def outputs_per_sample(ops: Sequence[Op]) -> int:
    """Bytes of one sample's outputs that are kept for the way back, in training without dropout."""
    return sum(4 * columns(op.weights.shape[0], 4) for op in kept_outputs(ops, spare(ops, None, None, 1)))


def spare(ops: Sequence[Op], leaf: Any, key: Key | None, vectors: int) -> set[int]:
    """Numbers (``id``) of layers whose output is not needed on the way back, if what goes into all layers is at hand.

    They are those between whose output and the next layer's input there is a single function, whose output is enough.
    """
    found: set[int] = set()
    for op in ops:
        if isinstance(op, Fork):
            found.update(*(spare(body, leaf, key, vectors) for body in op.bodies))
    for op, after, last in zip(ops, ops[1:], ops[2:], strict=False):
        enough = after.needs_only_output(leaf, key, vectors)
        if enough and isinstance(op, Affine) and isinstance(last, Affine):
            found.add(id(op))
    return found


def evaluated(ops: Sequence[Op], packed: Sequence[Any], x: Bundle, key: Key | None) -> Bundle:
    """The evaluated output of ``ops``, whose buffers are ``packed``, where no gradient is wanted.

    Not in symbolic code, nor in frozen functions.
    """
    plan = Plan(ops, packed, len(x), wants_x=False)
    own, xs, leaf = rebase(ops, packed, packed), flat(x), x[0].type
    Gemm.of(own)
    samples, uint32 = max(dr.width(v) for v in xs), dr.uint32_array_t(leaf)
    size = sum(4 * (columns(n, 4) + columns(m, 4)) for m, n in (op.weights.shape for op in large(own)))
    most = max(PIECE, MEMORY // (len(x) * size) // PIECE * PIECE)
    if samples <= most:
        y = plan.evaluate(own, xs, key, functools.partial(_through, samples)).flat()
        dr.eval(y)
        return plan.split(y)
    dr.eval(xs)
    y = []
    for chunk, part in Chunks(uint32, samples, most, key):
        found = plan.evaluate(own, [chunk.part(v) for v in xs], part, functools.partial(_through, most)).flat()
        y = y or [dr.empty(type(v), samples) for v in found]
        chunk.put(y, found)
        dr.eval(y)
    return plan.split(y)


def _through(samples: int, op: Affine, x: Bundle) -> Bundle:
    """Ends a kernel before every large layer; nothing is kept for a way back."""
    if op.gemm is None or not op.gemm.forth:
        return x
    rows = []
    for vector in x:
        rows.append(vector.rows if op.gemm.takes(vector) else Rows(list(op.fill(vector)), samples))
    dr.eval([one.numbers for one in rows])
    for one, vector in zip(rows, x, strict=True):
        op.gemm.put(vector, op.gemm.multiply(one))
    return x
