"""Random factors for every kind of input: what all kinds of dropout share.

An element's random digit is a function of its sample, its place within the sample, and the key. This file makes the
digits, wherever the elements are; a :class:`Law` says which factor a digit means.
"""

from __future__ import annotations

import sys
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..backend import require
from ..jit import kinds
from ..jit.registers import with_room
from ..jit.scopes import inside_call, symbolic
from .key import Key
from .philox import philox4x32

#: Elements from which on a tensor in memory is worth a kernel of its own, see :func:`_in_blocks`.
LARGE = 1 << 16
#: Neighbouring samples that one lane of that kernel reads at a time.
PACKET = {dr.JitBackend.LLVM: 8, dr.JitBackend.CUDA: 4}
#: Rows of such a lane where all elements of a sample share one digit.
ROWS = 8
_NESTED = {dr.VarType.Float16: "ArrayXf16", dr.VarType.Float32: "ArrayXf", dr.VarType.Float64: "ArrayXf64"}


class Law:
    """What a random digit does to an element.

    ``bits`` wide digits are taken from the generator's stream number ``stream``; with ``shared``, all elements of a
    sample have the digit of element 0. Laws are linear in ``x``, so that the derivative of one is itself.
    """

    def __init__(self, bits: int, stream: int, shared: bool = False):
        self.bits, self.stream, self.shared = bits, stream, shared

    def decide(self, word: Any) -> Any:
        """What a digit means, from a ``uint32`` whose upper ``bits`` are the digit; those below it are arbitrary."""
        raise NotImplementedError

    def apply(self, x: Any, decision: Any) -> Any:
        """An element after its decision."""
        raise NotImplementedError

    def factor(self, decision: Any) -> Any:
        """What :meth:`apply` multiplies by."""
        raise NotImplementedError


def modulate(x: Any, law: Law, key: Key, kind: str, leaf: type, identity: Any = None) -> Any:
    """``x``, of a kind and type as :func:`kinds.kind` says, with ``law`` applied to all its elements.

    Tensors of at least :data:`LARGE` elements that lie in memory get a kernel of their own, which makes every random
    block once and whose gradient is another such kernel. All other input, and everything inside symbolic loops,
    conditionals and calls, becomes part of the kernel that uses it.
    """
    if kind == kinds.NUMPY:
        return law.apply(x, _numpy(x.shape[0], x.shape[1], law, key))
    require(leaf)
    if kind == kinds.TENSOR:
        if key.index is not None and symbolic() and inside_call(leaf):
            # Dr.Jit 1.5 aborts where what follows, such as a sum, evaluates what is gathered in a call
            raise TypeError(
                f"dropout: got a {type(x).__name__} inside a symbolic virtual call, whose lanes are not those of a "
                f"tensor; pass its rows as arrays."
            )
        return type(x)(_tensor(x.array, x.shape[0], x.shape[1], law, key), x.shape)
    n = kinds.features(x, kind)
    decisions = samples(n, law, key, leaf, kinds.samples(x, kind))
    if kind == kinds.COOPVEC and dr.backend_v(leaf) == dr.JitBackend.CUDA:
        # A product keeps x in the tensor cores' layout; taking it apart to select would cost more.
        factors = [law.factor(d) for d in decisions]
        if identity is None:
            return x * drnn.CoopVec(factors)
        # the vector, the factors, and the digits that they come from
        factors = with_room(factors, [identity], 3 * n)
        return x * drnn.matvec(identity, drnn.CoopVec(factors))
    return kinds.rebuild([law.apply(v, d) for v, d in zip(kinds.components(x), decisions, strict=True)], x)


def samples(n: int, law: Law, key: Key, leaf: type, width: int) -> list:
    """Decisions for ``n`` elements as arrays over ``width`` samples.

    All Philox blocks run as one nested array, so tracing costs the same few operations for 8 elements as for 128.
    """
    uint32 = dr.uint32_array_t(leaf)
    index, step, seed = key.words(uint32, width)
    if law.shared:
        word = philox4x32((uint32(0), index, step, law.stream), seed)[0]
        return [law.decide(_left(word, 0, law.bits))] * n
    fields = 32 // law.bits
    blocks = -(-n // (4 * fields))
    counter = _nested(uint32)([uint32(b) for b in range(blocks)])
    words = philox4x32((counter, index, step, law.stream), seed)
    decisions: list[Any] = [None] * (blocks * 4 * fields)
    for j, word in enumerate(words):
        for f in range(fields):
            decision = law.decide(_left(word, f, law.bits))
            for b in range(blocks):
                decisions[b * 4 * fields + j * fields + f] = decision[b]
    return decisions[:n]


def _left(word: Any, field: int, bits: int) -> Any:
    """``word`` with its digit number ``field`` moved to the top."""
    shift = 32 - bits - bits * field
    return word << shift if shift else word


def _nested(leaf: type) -> type:
    return sys.modules[leaf.__module__].ArrayXu


# ---- Tensors -----------------------------------------------------------------------------------------------


def _tensor(x: Any, rows: int, columns: int, law: Law, key: Key) -> Any:
    """``law`` applied to a flattened tensor: by :func:`_in_blocks` or :func:`_element_by_element`."""
    states = (dr.VarState.Evaluated, dr.VarState.Dirty)
    if symbolic() or rows * columns < LARGE or dr.detach(x).state not in states:
        return law.apply(x, _element_by_element(rows, columns, law, key, type(x)))
    if dr.grad_enabled(x):
        return dr.custom(_BlocksOp, _Plan(rows, columns, law), x, key)
    return _in_blocks(x, rows, columns, law, key)


def _words(uint32: type, columns: int, key: Key) -> tuple[Any, Any, tuple[Any, Any]]:
    index, step, seed = key.words(uint32, columns)
    for name, value in (("index", index), ("step", step)):
        if dr.width(value) not in (1, columns):
            raise ValueError(f"Key: {name} has {dr.width(value)} entries, but the input has {columns} samples.")
    if dr.width(seed[0]) != 1:
        raise ValueError(f"Key: seed has {dr.width(seed[0])} entries; one is needed for a tensor.")
    return index, step, seed


def _element_by_element(rows: int, columns: int, law: Law, key: Key, leaf: type) -> Any:
    """The decisions for a ``(rows, columns)`` tensor, flattened.

    Every element evaluates the block it lies in: more arithmetic than :func:`_in_blocks`, but it fuses with whatever
    reads or writes the tensor, and nothing is stored.
    """
    uint32 = dr.uint32_array_t(leaf)
    i = dr.arange(uint32, rows * columns)
    row, column = (i // columns, i % columns) if rows > 1 else (uint32(0), i)
    key = key.traced(uint32)
    step = key.step
    if dr.width(step) == rows * columns:  # the lanes of a loop whose state is a tensor are its elements
        index, _, seed = _words(uint32, columns, Key(key.seed, key.index, uint32(0)))
    else:
        index, step, seed = _words(uint32, columns, key)
        step = dr.gather(uint32, step, column) if dr.width(step) > 1 else step
    if law.shared:
        row = uint32(0)
    sample = column if key.index is None else dr.gather(uint32, index, column) if dr.width(index) > 1 else index
    fields = 32 // law.bits
    word_number = row // fields
    words = philox4x32((word_number // 4, sample, step, law.stream), seed)
    lane = word_number & 3
    word = dr.select(lane < 2, dr.select(lane == 0, words[0], words[1]), dr.select(lane == 2, words[2], words[3]))
    return law.decide(word << ((fields - 1 - row % fields) * law.bits) if fields > 1 else word)


def _in_blocks(x: Any, rows: int, columns: int, law: Law, key: Key) -> Any:
    """``law`` applied to a flattened tensor in memory, at close to the speed of copying it.

    A Philox block serves neighbouring rows of one column. A lane makes the blocks of a packet of neighbouring columns,
    and reads and writes their rows: next to what the next lane reads and writes.
    """
    leaf = type(x)
    uint32 = dr.uint32_array_t(leaf)
    index, step, seed = _words(uint32, columns, key)
    v = next(v for v in (8, 4, 2, 1) if v <= PACKET[dr.backend_v(leaf)] and columns % v == 0)
    packets = columns // v
    number, fields = (sys.modules[leaf.__module__], 32 // law.bits)
    packet = getattr(number, _NESTED[dr.type_v(leaf)]) if v > 1 else leaf
    size = ROWS if law.shared else 4 * fields
    result = dr.empty(leaf, rows * columns)

    def read(tp: type, source: Any, place: Any) -> Any:
        return dr.gather(tp, source, place, shape=(v, dr.width(place))) if v > 1 else dr.gather(tp, source, place)

    # Rows behind the last full block get a kernel of their own, rather than all lanes a mask.
    for first, count, height in ((0, rows // size, size), (rows // size, 1, rows % size)):
        if count * height == 0:
            continue
        lane = dr.arange(uint32, count * packets)
        block, place = (first + lane // packets, lane % packets) if count > 1 else (uint32(first), lane)
        sample, time = index, step
        if key.index is None:
            sample = _nested(uint32)([place * v + i for i in range(v)]) if v > 1 else place
        elif dr.width(index) > 1:
            sample = read(_nested(uint32) if v > 1 else uint32, index, place)
        if dr.width(step) > 1:
            time = read(_nested(uint32) if v > 1 else uint32, step, place)
        words = philox4x32((uint32(0) if law.shared else block, sample, time, law.stream), seed)
        decision = law.decide(_left(words[0], 0, law.bits)) if law.shared else None
        start = block * (size * packets) + place
        for r in range(height):
            if not law.shared:
                decision = law.decide(_left(words[r // fields], r % fields, law.bits))
            target = start + r * packets
            y = law.apply(read(packet, x, target), decision)
            # Permute promises that no two lanes write the same entry; without it every scatter is a kernel of its own.
            dr.scatter(result, y, target, mode=dr.ReduceMode.Permute)
    return result


class _Plan:
    """Arguments of :class:`_BlocksOp` that Dr.Jit's traversal must not take apart."""

    def __init__(self, rows: int, columns: int, law: Law):
        self.rows, self.columns, self.law = rows, columns, law


class _BlocksOp(dr.CustomOp):
    """Applies a law to a flattened tensor, its gradient and its tangent, and keeps none of them."""

    def eval(self, plan: _Plan, x: Any, key: Key) -> Any:  # type: ignore[override]
        self.plan, self.key = plan, key
        return self._apply(x)

    def _apply(self, x: Any) -> Any:
        plan = self.plan
        if dr.width(x) == 1:
            x = x + dr.zeros(type(x), plan.rows * plan.columns)
        return _tensor(x, plan.rows, plan.columns, plan.law, self.key)

    def forward(self) -> None:
        self.set_grad_out(self._apply(self.grad_in("x")))

    def backward(self) -> None:
        self.set_grad_in("x", self._apply(self.grad_out()))

    def name(self) -> str:
        return "coopnet: dropout"


# ---- NumPy -------------------------------------------------------------------------------------------------


def _numpy(rows: int, columns: int, law: Law, key: Key) -> np.ndarray:
    """The decisions for a ``(rows, columns)`` NumPy array."""
    return numpy_decisions(1 if law.shared else rows, columns, law, key, rows)


def numpy_decisions(n: int, columns: int, law: Law, key: Key, rows: int | None = None) -> np.ndarray:
    """Decisions for ``n`` elements of ``columns`` samples, repeated to ``rows`` rows."""
    index, step, seed = key.words_numpy(columns)
    fields = 32 // law.bits
    blocks = -(-n // (4 * fields))
    counter = np.arange(blocks, dtype=np.uint32)[:, None]
    words = np.stack(philox4x32((counter, index[None, :], step, law.stream), seed), axis=1)  # block, lane, sample
    shifts = np.uint32(32 - law.bits) - np.arange(fields, dtype=np.uint32) * np.uint32(law.bits)
    digits = words[:, :, None, :] << shifts[None, None, :, None]
    decisions = law.decide(digits.reshape(-1, words.shape[-1])[:n])
    return np.broadcast_to(decisions, (rows or n, columns))
