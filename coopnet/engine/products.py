"""Weight gradients as matrix products over the sample axis, by the library that is fastest in the situation."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr
import numpy as np

from ..jit import views
from ..jit.native import cublas, openblas
from ..jit.native.pool import parallel
from ..jit.scopes import frozen
from . import limits
from .affine import Affine
from .row_vectors import SECTOR_VECTORS, Rows
from .situation import Situation
from .strategies import LIBRARIES, Products, caller_multiplies, choose, short_vectors


class Product:
    """A layer's weight gradient: the sum over samples of the outer products of cotangents and activations.

    Args:
        op: the layer.
        cotangent, activation: the operands.
        of: ``"both"``: the gradient of the matrix and, if there is one, of the bias, for which the activation has a 1
            after its components. ``"matrix"``: of the matrix alone. ``"bias"``: of the bias alone; the activation
            begins with a 1.
    """

    def __init__(self, op: Affine, cotangent: Rows, activation: Rows, of: str = "both"):
        self.op, self.cotangent, self.activation, self.of = op, cotangent, activation, of

    def numbers(self) -> tuple[Any, Any]:
        """The operands' numbers."""
        return self.cotangent.numbers, self.activation.numbers

    def write(self, product: Any, total: Any) -> None:
        """Write ``product``, which has padding, to its places in ``total``, a packed gradient."""
        a, b = self.cotangent, self.activation

        def entry(row: Any, column: Any) -> Any:
            at = [a.place(row, k) * b.width + b.place(column, k) for k in range(a.together)]
            return sum(dr.gather(type(product), product, i) for i in at)

        write_packed(self.op, self.of, entry, total)


def write_packed(op: Affine, of: str, entry: Callable[[Any, Any], Any], total: Any) -> None:
    """Write ``entry(row, column)`` of a gradient to its places in ``total``, a packed gradient; ``of`` as for
    :class:`Product`.
    """
    uint32 = dr.uint32_array_t(type(total))
    rows, inputs = op.weights.shape
    biased = op.bias is not None and of != "matrix"
    inputs = 0 if of == "bias" else inputs
    # the column after those of the matrix belongs to the bias
    used = inputs + biased
    i = dr.arange(uint32, rows * used)
    row, column = i // used, i % used
    target = views.places(op.weights, row, column, op.layout, column < inputs)
    if biased:
        target = dr.select(column < inputs, target, views.places(op.bias, row))
    # Not scatter_reduce: on LLVM it turns NaN into 0, and the loss scaler would miss an overflow.
    dr.scatter(total, type(total)(entry(row, column)), target, mode=dr.ReduceMode.Permute)


class Sums:
    """Sums of the products of each matrix: several layers, or chunks of a batch, may contribute to one gradient."""

    def __init__(self) -> None:
        #: By name of the buffer, :attr:`Product.of`, and offset of the matrix.
        self._entries: dict[tuple[Any, str, int], tuple[Product, Any]] = {}

    def add(self, buffer: Any, p: Product, parts: Any) -> None:
        """Add ``parts``, the result of :func:`multiply` for ``p``, whose matrix is in the buffer named ``buffer``."""
        value, at = _sum(parts, p.cotangent.width * p.activation.width), (buffer, p.of, p.op.weights.offset)
        known, total = self._entries.get(at, (p, None))
        self._entries[at] = (known, value if total is None else total + value)

    def compute(self, products: Sequence[Product]) -> None:
        """Multiply, and add each product. The name of a buffer is its variable number."""
        parts = multiply([(p.cotangent, p.activation) for p in products])
        for p, part in zip(products, parts, strict=True):
            self.add(p.op.weights.buffer.index, p, part)
        dr.eval([total for _, total in self._entries.values()])

    def buffers(self) -> set[Any]:
        """The names of all buffers with products."""
        return {buffer for buffer, _, _ in self._entries}

    def gradient(self, buffer: Any, like: Any) -> Any:
        """Gradients of all matrices and biases of ``buffer``, in the packed layout, with type and size of ``like``."""
        entries = [(of, entry) for (at, of, _), entry in self._entries.items() if at == buffer]
        # One array for products of both matrix and bias, one for others: a layer may have both kinds, and writing does
        # not add.
        gradients = []
        for whole in (True, False):
            part = [entry for of, entry in entries if (of == "both") == whole]
            if part or (whole and not entries):
                gradients.append(dr.zeros(type(like), dr.width(like)))
            for p, product in part:
                p.write(product, gradients[-1])
        return sum(gradients[1:], gradients[0])


def library(backend: dr.JitBackend) -> bool:
    """Is there a library that multiplies matrices on ``backend``? It cannot be called in a recorded function."""
    return cublas.available() if backend == dr.JitBackend.CUDA else openblas.available()


def who_multiplies(backend: dr.JitBackend, by_caller: bool = False) -> str:
    """The name in :data:`~.strategies.LIBRARIES`. ``by_caller``: can the caller of a frozen function multiply?"""
    return choose(LIBRARIES, Products(backend, frozen(), by_caller, library(backend)))[0]


def vectors_together(s: Situation, whole: bool = True) -> int:
    """How many vectors are in a row of the operands, see :class:`~.row_vectors.Rows`.

    Dr.Jit's own product, and those of long vectors, are bound by arithmetic, so they get no entries that are not
    needed. ``whole``: are the samples not a chunk of a batch, whose product is needed at once?
    """
    able = short_vectors(s) and who_multiplies(s.backend, whole and caller_multiplies(s)) != "Dr.Jit"
    return SECTOR_VECTORS if able else 1


def multiply(pairs: Sequence[tuple[Rows, Rows]]) -> list[Any]:
    """For each pair, the sum over samples of the outer products of their rows, in single precision.

    A result is one matrix, or several partial sums one after the other. :class:`Sums` adds them up, preferably in a
    frozen function.
    """
    if not pairs:
        return []
    return _BY[who_multiplies(dr.backend_v(pairs[0][0].leaf))](pairs)


def _by_drjit(pairs: Sequence[tuple[Rows, Rows]]) -> list[Any]:
    single = dr.tensor_t(dr.float32_array_t(pairs[0][0].leaf))
    return [single(dr.matmul(a.tensor(), b.tensor(), At=True)).array for a, b in pairs]


def _by_cublas(pairs: Sequence[tuple[Rows, Rows]]) -> list[Any]:
    result = []
    for a, b in pairs:
        pieces, length = a.pieces, a.length
        while pieces % 2 == 0 and length < limits.TENSOR_CORE_SAMPLES:
            pieces, length = pieces // 2, length * 2
        result.append(cublas.batched(a.numbers, b.numbers, pieces, length, a.width, b.width))
    return result


def _sum(parts: Any, size: int) -> Any:
    """The sum of matrices of ``size`` entries, stored one after the other."""
    count = dr.width(parts) // size
    if count == 1:
        return parts
    # By a product: a reduction over the first axis would use few threads.
    tensor = dr.tensor_t(type(parts))
    return (dr.full(tensor, 1, (1, count)) @ tensor(parts, (count, size))).array


def _by_blas(pairs: Sequence[tuple[Rows, Rows]]) -> list[Any]:
    products = blas([(_matrix(a), _matrix(b)) for a, b in pairs])
    # Copied to Dr.Jit's memory: the alignment of NumPy's varies, and Dr.Jit compiles a kernel for each.
    results = [dr.empty(a.leaf, product.size) for (a, _), product in zip(pairs, products, strict=True)]
    dr.eval(results)
    for result, product in zip(results, products, strict=True):
        result.numpy()[:] = product.ravel()
    return results


#: Functions that multiply, by the names in :data:`~.strategies.LIBRARIES`.
_BY = {"Dr.Jit": _by_drjit, "cuBLAS": _by_cublas, "BLAS": _by_blas}


def _matrix(rows: Rows) -> np.ndarray:
    return rows.numbers.numpy().reshape(-1, rows.width)  # without a copy


def blas(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """``a.T @ b`` for each pair of single-precision ``a`` of shape ``(samples, m)`` and ``b`` of ``(samples, n)``.

    Sums are in double precision. Each of Dr.Jit's threads takes slices of the samples and calls BLAS with one thread.
    BLAS's own threads spin while they wait, as do Dr.Jit's, and both would become several times slower.
    """
    if len(pairs) > 1 and dr.thread_count() * sum(8 * a.shape[1] * b.shape[1] for a, b in pairs) > limits.SLICES_BYTES:
        return [product for pair in pairs for product in blas([pair])]
    work = [len(a) * max(limits.BLAS_COLUMNS, a.shape[1]) * max(limits.BLAS_COLUMNS, b.shape[1]) for a, b in pairs]
    most = [min(dr.thread_count(), multiplications // limits.SLICE_MULTIPLICATIONS) for multiplications in work]
    slices = [max(1, min(count, len(a))) for count, (a, _) in zip(most, pairs, strict=True)]
    tasks = [
        (a[len(a) * i // count : len(a) * (i + 1) // count], b[len(b) * i // count : len(b) * (i + 1) // count])
        for (a, b), count in zip(pairs, slices, strict=True) for i in range(count)
    ]  # fmt: skip
    with openblas.one_thread():
        few = sum(work) < limits.SLICE_MULTIPLICATIONS
        parts = [_product(*task) for task in tasks] if few else parallel(lambda i: _product(*tasks[i]), len(tasks))
    rest = iter(parts)
    # the order of the sums is fixed
    return [functools.reduce(np.add, itertools.islice(rest, count)) for count in slices]


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a.T @ b`` in pieces that are added up in double precision."""
    out = np.empty((a.shape[1], b.shape[1]), a.dtype)
    total = np.zeros(out.shape, np.float64)
    with np.errstate(all="ignore"):  # the caller looks for infinities and NaN
        for start in range(0, len(a), limits.BLAS_SAMPLES):
            rows = slice(start, start + limits.BLAS_SAMPLES)
            # With out=, NumPy calls BLAS without the interpreter's lock. A product of matrices sums samples one by one,
            # unlike one with a vector, so samples of zeros do not change its bits.
            total += np.dot(a[rows].T, b[rows], out=out)
    return total
