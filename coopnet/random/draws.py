"""Random draws for every kind of input.

Each element has a *draw*, a number of a few bits that depends on its sample, its place within the sample, and the key.
A :class:`~.law.Law` says what the draw does to the element. The generator makes draws in blocks (:func:`block`). For
most inputs, all elements of a sample are drawn together (:func:`decisions`). Tensors are handled separately, since
their samples are side by side in one array:

* tensors in memory are processed in packets of samples, see :func:`_in_memory`;
* tensors that are not evaluated yet are processed element by element, see :func:`_as_expression`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import drjit as dr
import numpy as np

from ..backend import require
from ..jit import kinds
from ..jit.masks import unmasked
from ..jit.scopes import inside_call, symbolic
from .key import Key
from .philox import generate, round_keys

#: A tensor in memory with at least so many elements gets a kernel of its own, see :func:`_in_memory`.
LARGE = 1 << 16
#: Neighbouring samples that one lane of that kernel reads at a time.
PACKET = {dr.JitBackend.LLVM: 8, dr.JitBackend.CUDA: 4}
#: Rows that such a lane processes if all elements of a sample share one draw.
ROWS = 8


def apply(law: Any, x: Any, key: Key, kind: str) -> Any:
    """``x`` after ``law``, which is traced for the type of ``x``; ``kind`` is as :func:`kinds.kind` returns it.

    Tensors of at least :data:`LARGE` elements in memory get a kernel of their own, which makes every random
    block once; their gradient is another such kernel. For all other inputs, and inside symbolic loops, conditionals and
    calls, dropout becomes part of the kernel that uses it.
    """
    leaf, n = law.leaf, kinds.features(x, kind)
    if kind == kinds.NUMPY:
        return law.element(x, np.stack(decisions(n, law, key, np.uint32, x.shape[1])))
    require(leaf)
    if kind == kinds.TENSOR:
        if key.index is not None and symbolic() and inside_call(leaf):
            # Dr.Jit 1.5 aborts if later code, such as a sum, evaluates an array that was gathered in a call
            where = "inside a symbolic virtual call, whose lanes are not those of a tensor"
            raise TypeError(f"dropout: got a {type(x).__name__} {where}; pass its rows as arrays.")
        return type(x)(_tensor(x.array, x.shape[0], x.shape[1], law, key), x.shape)
    decided = decisions(n, law, key, dr.uint32_array_t(leaf), kinds.samples(x, kind))
    return kinds.rebuild([law.element(v, d) for v, d in zip(kinds.components(x), decided, strict=True)], x)


def block(counter: Any, keys: Any, bits: int) -> Iterator[Any]:
    """The draws of one block of the generator, in the order of elements, each in the upper ``bits`` of a word."""
    for word in generate(counter, keys):
        for shift in range(32 - bits, -1, -bits):
            yield word << shift if shift else word


def decisions(n: int, law: Any, key: Key, uint32: type, width: int) -> list:
    """The law's decisions for ``n`` elements, as arrays over ``width`` samples; NumPy's if ``uint32`` is NumPy's."""
    index, step, seed = key.words(uint32, width)
    sample, keys = (index, step, uint32(law.stream)), round_keys(seed, law.rounds)
    count = 1 if law.shared else n
    blocks = range(-(-count * law.bits // 128))
    if uint32 is np.uint32:  # as one array
        numbers = np.array(blocks, uint32)[:, None]
        places = [law.decide(draw) for draw in block((numbers, *sample), keys, law.bits)]
        decided = [place[b] for b in blocks for place in places][:count]
    else:
        drawn = (draw for b in blocks for draw in block((uint32(b), *sample), keys, law.bits))
        decided = [law.decide(draw) for draw in itertools.islice(drawn, count)]
    return decided * n if law.shared else decided


# ---- Tensors -----------------------------------------------------------------------------------------------


def _tensor(x: Any, rows: int, columns: int, law: Any, key: Key) -> Any:
    """``law`` applied to a flattened tensor: by :func:`_in_memory` or :func:`_as_expression`."""
    states = (dr.VarState.Evaluated, dr.VarState.Dirty)
    with unmasked(type(x)):  # masks of evaluated loops are for samples, not for elements or packets
        if symbolic() or rows * columns < LARGE or dr.detach(x).state not in states:
            return law.element(x, _as_expression(rows, columns, law, key, type(x)))
        if dr.grad_enabled(x):
            return dr.custom(_InMemory, x, rows, columns, law, key)
        return _in_memory(x, rows, columns, law, key)


def _as_expression(rows: int, columns: int, law: Any, key: Key, leaf: type) -> Any:
    """The decisions for a ``(rows, columns)`` tensor, flattened.

    For every element, its whole block is drawn and one draw taken from it. This needs more arithmetic than
    :func:`_in_memory`, but it fuses with code that reads or writes the tensor, and stores nothing.
    """
    uint32 = dr.uint32_array_t(leaf)
    i = dr.arange(uint32, rows * columns)
    row, column = (i // columns, i % columns) if rows > 1 else (uint32(0), i)
    key = key.traced(uint32)
    step = key.step
    if dr.width(step) == rows * columns:  # in a loop whose state is a tensor, lanes are elements
        index, _, seed = Key(key.seed, key.index, uint32(0)).words(uint32, columns, tensor=True)
    else:
        index, step, seed = key.words(uint32, columns, tensor=True)
        step = dr.gather(uint32, step, column) if dr.width(step) > 1 else step
    if law.shared:
        row = uint32(0)
    sample = column if key.index is None else dr.gather(uint32, index, column) if dr.width(index) > 1 else index
    fields = 32 // law.bits
    word_number = row // fields
    words = generate((word_number // 4, sample, step, uint32(law.stream)), round_keys(seed, law.rounds))
    lane = word_number & 3
    word = dr.select(lane < 2, dr.select(lane == 0, words[0], words[1]), dr.select(lane == 2, words[2], words[3]))
    return law.decide(word << ((fields - 1 - row % fields) * law.bits) if fields > 1 else word)


def _in_memory(x: Any, rows: int, columns: int, law: Any, key: Key) -> Any:
    """``law`` applied to a flattened tensor in memory, at close to the speed of copying it.

    A block serves neighbouring rows of one column. A lane draws the blocks of a packet of neighbouring columns, and
    reads and writes their rows. Neighbouring lanes read and write neighbouring memory.
    """
    leaf = type(x)
    uint32 = dr.uint32_array_t(leaf)
    index, step, seed = key.words(uint32, columns, tensor=True)
    stream, keys = uint32(law.stream), round_keys(seed, law.rounds)
    v = next(v for v in (8, 4, 2, 1) if v <= PACKET[dr.backend_v(leaf)] and columns % v == 0)
    packets = columns // v
    packet = kinds.nested_type(leaf) if v > 1 else leaf
    word = kinds.nested_type(uint32) if v > 1 else uint32
    size = ROWS if law.shared else 128 // law.bits
    result = dr.empty(leaf, rows * columns)

    def read(tp: type, source: Any, place: Any) -> Any:
        return dr.gather(tp, source, place, shape=(v, dr.width(place))) if v > 1 else dr.gather(tp, source, place)

    # Rows after the last full block get a kernel of their own; otherwise all lanes would need a mask.
    for first, count, height in ((0, rows // size, size), (rows // size, 1, rows % size)):
        if count * height == 0:
            continue
        lane = dr.arange(uint32, count * packets)
        number, place = (first + lane // packets, lane % packets) if count > 1 else (uint32(first), lane)
        sample, time = index, step
        if key.index is None:
            sample = word([place * v + i for i in range(v)]) if v > 1 else place
        elif dr.width(index) > 1:
            sample = read(word, index, place)
        if dr.width(step) > 1:
            time = read(word, step, place)
        drawn = block((uint32(0) if law.shared else number, sample, time, stream), keys, law.bits)
        decision = law.decide(next(drawn)) if law.shared else None
        start = number * (size * packets) + place
        for r in range(height):
            if not law.shared:
                decision = law.decide(next(drawn))
            target = start + r * packets
            y = law.element(read(packet, x, target), decision)
            # Permute: no two lanes write the same entry. Without this promise, every scatter is a kernel of its own.
            dr.scatter(result, y, target, mode=dr.ReduceMode.Permute)
    return result


class _InMemory(dr.CustomOp):
    """Applies a law to a flattened tensor in memory, and to its gradient and tangent; stores none of them."""

    def eval(self, x: Any, rows: int, columns: int, law: Any, key: Key) -> Any:  # type: ignore[override]
        self.arguments = rows, columns, law, key
        return self._apply(x)

    def _apply(self, x: Any) -> Any:
        rows, columns, *_ = self.arguments
        return _tensor(x + dr.zeros(type(x), rows * columns) if dr.width(x) == 1 else x, *self.arguments)

    def forward(self) -> None:
        self.set_grad_out(self._apply(self.grad_in("x")))

    def backward(self) -> None:
        self.set_grad_in("x", self._apply(self.grad_out()))

    def name(self) -> str:
        return "coopnet: dropout"
