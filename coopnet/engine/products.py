"""Weight gradients as products over the sample axis, by whatever multiplies fastest where they are asked for."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr
import numpy as np

from ..jit import cublas, openblas, views
from ..jit.pool import parallel
from ..jit.scopes import frozen
from .ops import Affine
from .rows import Rows

#: Samples that BLAS sums in single precision at a time, see :data:`~.rows.PIECE`.
PIECE = 2048
#: Samples that tensor cores sum up at a time: they add in single precision.
LONG = 1 << 13
#: Multiplications of a slice below which another thread is not worth starting.
LEAST = 1 << 23
#: Bytes of slices' products beyond which layers are multiplied one after the other.
PARTS = 1 << 28
#: Columns that fewer take as long as: the other matrix is copied first in any case.
FEW = 16


class Product:
    """A layer's weight gradient: the sum over samples of the outer products of cotangents and activations.

    Args:
        op: the layer.
        cotangent, activation: the operands.
        of: ``"both"``, matrix and bias, if there is one: the activation has a 1 for it behind its components;
            ``"matrix"`` alone; or ``"bias"`` alone: the activation begins with a 1.
    """

    def __init__(self, op: Affine, cotangent: Rows, activation: Rows, of: str = "both"):
        self.op, self.cotangent, self.activation, self.of = op, cotangent, activation, of

    def unpack(self, product: Any, total: Any) -> None:
        """Write ``product``, which has rows and columns to spare, to its places in ``total``, a packed gradient."""
        op, uint32 = self.op, dr.uint32_array_t(type(total))
        rows, inputs = op.weights.shape
        biased = op.bias is not None and self.of != "matrix"
        inputs = 0 if self.of == "bias" else inputs
        # of the columns, the one behind the matrix's belongs to the bias
        used = inputs + biased
        i = dr.arange(uint32, rows * used)
        row, column = i // used, i % used
        target = views.places(op.weights, row, column, op.layout, column < inputs)
        if biased:
            target = dr.select(column < inputs, target, views.places(op.bias, row))
        value = dr.gather(type(product), product, row * self.activation.columns + column)
        # A plain scatter: scatter_reduce on LLVM turns NaN into 0, and the loss scaler would miss an overflow.
        dr.scatter(total, type(total)(value), target, mode=dr.ReduceMode.Permute)


class Sums:
    """Products by the matrix of one buffer that they are the gradient of, added up: layers may share one."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], tuple[Product, Any]] = {}  # by what of which layer they are

    def add(self, p: Product, parts: Any) -> None:
        """Add a product that :func:`multiply` computed."""
        value, at = _sum(parts, p.cotangent.columns * p.activation.columns), (p.of, p.op.weights.offset)
        known, total = self._entries.get(at, (p, None))
        self._entries[at] = (known, value if total is None else total + value)

    def eval(self) -> None:
        dr.eval([total for _, total in self._entries.values()])

    def gradient(self, like: Any) -> Any:
        """Gradients of all matrices and biases, in their packed layout, as the buffer ``like`` in type and size."""
        # each entry of a gradient is written once: those of whole layers and of their parts may be of the same layer
        found = []
        for whole in (True, False):
            entries = [entry for (of, _), entry in self._entries.items() if (of == "both") == whole]
            if entries or (whole and not self._entries):
                found.append(dr.zeros(type(like), dr.width(like)))
            for p, product in entries:
                p.unpack(product, found[-1])
        return sum(found[1:], found[0])


def library(backend: dr.JitBackend) -> Callable[[Sequence[tuple[Rows, Rows]]], list[Any]] | None:
    """A library's :func:`multiply` on a backend, if there is one. It cannot be called in a recorded function."""
    if backend == dr.JitBackend.CUDA:
        return _by_cublas if cublas.available() else None
    return _by_blas if openblas.available() else None


def multiply(pairs: Sequence[tuple[Rows, Rows]]) -> list[Any]:
    """For each pair the sum over samples of the outer products of their rows, in single precision.

    It is one matrix, or several behind each other, parts of the whole, which :class:`Sums` adds up: rather in a frozen
    function than here.
    """
    if not pairs:
        return []
    by = None if frozen() else library(dr.backend_v(pairs[0][0].leaf))
    return _by_drjit(pairs) if by is None else by(pairs)


def _by_drjit(pairs: Sequence[tuple[Rows, Rows]]) -> list[Any]:
    single = dr.tensor_t(dr.float32_array_t(pairs[0][0].leaf))
    return [single(dr.matmul(a.tensor(), b.tensor(), At=True)).array for a, b in pairs]


def _by_cublas(pairs: Sequence[tuple[Rows, Rows]]) -> list[Any]:
    return [_one_by_cublas(a, b) for a, b in pairs]


def _one_by_cublas(a: Rows, b: Rows) -> Any:
    pieces, length = a.pieces, a.length
    while pieces % 2 == 0 and length < LONG:
        pieces, length = pieces // 2, length * 2
    return cublas.batched(a.numbers, b.numbers, pieces, length, a.columns, b.columns)


def _sum(parts: Any, size: int) -> Any:
    """The sum of matrices of ``size`` entries behind one another."""
    count = dr.width(parts) // size
    if count == 1:
        return parts
    # by a product, too: as a reduction over the first axis it is a few threads' work
    tensor = dr.tensor_t(type(parts))
    return (dr.full(tensor, 1, (1, count)) @ tensor(parts, (count, size))).array


def _by_blas(pairs: Sequence[tuple[Rows, Rows]]) -> list[Any]:
    found = blas([(_matrix(a), _matrix(b)) for a, b in pairs])
    # into memory of Dr.Jit's own: it compiles another kernel for other addresses, and NumPy's vary
    results = [dr.empty(a.leaf, product.size) for (a, _), product in zip(pairs, found, strict=True)]
    dr.eval(results)
    for result, product in zip(results, found, strict=True):
        result.numpy()[:] = product.ravel()
    return results


def _matrix(rows: Rows) -> np.ndarray:
    return rows.numbers.numpy().reshape(-1, rows.columns)  # without a copy


def blas(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """``a.T @ b`` for each pair of single-precision ``a`` of shape ``(samples, m)`` and ``b`` of ``(samples, n)``.

    In double precision. Dr.Jit's threads each take slices of the samples and call BLAS on one thread. BLAS's own
    threads spin while they wait, as do Dr.Jit's, and together they slow each other down several times.
    """
    if len(pairs) > 1 and dr.thread_count() * sum(8 * a.shape[1] * b.shape[1] for a, b in pairs) > PARTS:
        return [product for pair in pairs for product in blas([pair])]
    work = [len(a) * max(FEW, a.shape[1]) * max(FEW, b.shape[1]) for a, b in pairs]
    slices = [_slices(len(a), multiplications) for (a, _), multiplications in zip(pairs, work, strict=True)]
    tasks = [
        (a[len(a) * i // count : len(a) * (i + 1) // count], b[len(b) * i // count : len(b) * (i + 1) // count])
        for (a, b), count in zip(pairs, slices, strict=True) for i in range(count)
    ]  # fmt: skip
    with openblas.one_thread():
        few = sum(work) < LEAST
        parts = [_product(*task) for task in tasks] if few else parallel(lambda i: _product(*tasks[i]), len(tasks))
    rest = iter(parts)
    # in this order, whichever is done first
    return [functools.reduce(np.add, itertools.islice(rest, count)) for count in slices]


def _slices(samples: int, multiplications: int) -> int:
    return max(1, min(dr.thread_count(), multiplications // LEAST, samples))


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a.T @ b`` in pieces that are added up in double precision."""
    out = np.empty((a.shape[1], b.shape[1]), a.dtype)
    total = np.zeros(out.shape, np.float64)
    with np.errstate(all="ignore"):  # infinities and NaN are for the caller to find
        for start in range(0, len(a), PIECE):
            rows = slice(start, start + PIECE)
            # with out=, NumPy calls BLAS without the interpreter's lock; and unlike its products with vectors, those of
            # matrices sum samples one by one, so that zeros among them change nothing
            total += np.dot(a[rows].T, b[rows], out=out)
    return total
