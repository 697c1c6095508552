"""Sparse random projection whose matrix is drawn where it is used."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..backend import require
from ..checks import check_in_features, check_positive, check_unsigned, is_number, shown
from ..jit import kinds
from ..jit.recording import pin_batch_size
from ..jit.scopes import frozen, symbolic
from ..limits import MAX_ENTRIES, check_entries, check_features
from ..random.key import Key
from ..random.philox import philox4x32
from .encodings import Encoding, nested
from .tangents import check_bundle

#: Word 3 of every counter: a stream that neither dropouts nor samples use.
STREAM = 0xFFFFFFFF
#: Expected nonzero entries up to which arrays and cooperative vectors are projected by plain additions.
UNROLL = 1 << 12
#: Samples that one lane of the looping kernel works on, which share the entries that it draws.
TILE = 8
#: Entries of the matrix that exist at a time on the host.
BLOCK = 1 << 18


class SparseProjection(Encoding):
    r"""Sparse Johnson-Lindenstrauss transform :math:`y = R x` by a random matrix that is never stored.

    .. math::
        R_{ij} = \begin{cases} +a & \text{with probability } q/2 \\ -a & \text{with probability } q/2 \\ 0 &
        \text{otherwise} \end{cases} \qquad a = \frac{1}{\sqrt{q\, n_\mathrm{out}}}

    where :math:`q` is ``density``: 1 or 1/3 in Achlioptas 2003, *Database-friendly random projections*, and
    :math:`1/\sqrt{n_\mathrm{in}}` in Li, Hastie, Church 2006, *Very sparse random projections*. Lengths are kept in the
    mean, :math:`E |Rx|^2 = |x|^2`. By Achlioptas' theorem 1.1, for densities 1 and 1/3, all squared distances between
    :math:`n` points are kept within a factor of :math:`1 \pm \epsilon` with probability at least :math:`1 - n^{-\beta}`
    if :math:`n_\mathrm{out} \ge \frac{4 + 2\beta}{\epsilon^2/2 - \epsilon^3/3} \ln n`.

    **Law of the matrix.** With :math:`t = \mathrm{round}(q\, 2^{31})`, entry :math:`(i, j)` is decided by

    ::

        w = philox4x32(counter=(i // 4, j, 0, 2^32 - 1), key=(seed & 0xffffffff, seed >> 32))[i % 4]
        R[i, j] = 0 if (w >> 1) >= t else -a if w & 1 else a,    a = sqrt(2^31 / (t * out_features))

    The decisions are between integers, so the matrix is the same to the bit on every backend; :math:`a` uses the
    quantized density, so the mean is kept exactly. It is rounded once to single precision (to double precision for
    double inputs); sums are formed in that precision, and half-precision results rounded at the end. The order of the
    sums is not part of the law.

    **How it is evaluated.** Tensors run a kernel over the outputs with a loop over the inputs, in which each lane draws
    four rows of a column and applies them to 8 samples: :math:`n_\mathrm{in} n_\mathrm{out}` multiplications per sample
    whatever the density, one block of the generator per 32 of them, and no memory beside input and output. ``seed`` is
    a parameter of the kernel: another one does not recompile it. ``CoopVec`` and arrays with up to 4096 expected
    nonzero entries, :math:`q\, n_\mathrm{in} n_\mathrm{out}`, become one addition per nonzero entry in the caller's
    kernel, also within loops and calls (the entries are constants there, so that another seed is another kernel); above
    that, they are written to memory and run as tensors. Thousands of separate arrays compile slowly; make them a
    tensor. 4096 to 256 features take 0.07 ms per sample of a tensor on two CPU cores, and 0.08 to 0.09 ms of
    arrays, which compile for 9 s, once (``benchmarks/projection.py``, ``benchmarks/results/projection-llvm.json``).

    The gradient is the product with the transpose, which is drawn in the same way.

    Args:
        in_features: features of a sample, fewer than 2^32; -1 takes them from ``alloc`` or the input.
        out_features: features after the projection, at most 65535.
        density: share of nonzero entries, in (2^-32, 1].
        seed: int in [0, 2^64).

    Inputs are a ``CoopVec``, a tensor or NumPy array ``(in_features, samples)``, a nested array or a list or tuple of
    arrays. The layer has no parameters and needs no ``alloc``.

    Raises:
        ValueError: arguments out of range; an input of another width.
        TypeError: an input of another kind, or no floating point.

    >>> project = cn.SparseProjection(4096, 256, density=1 / 64, seed=3)
    >>> y = project(TensorXf(x))  # (4096, samples) -> (256, samples)
    >>> x2 = project.transpose(y)
    """

    _FIELDS = ("in_features", "out_features", "density", "seed")
    DRJIT_STRUCT = {"in_features": int, "out_features": int, "density": float, "seed": int}

    def __init__(self, in_features: int = -1, out_features: int = 64, density: float = 1 / 3, seed: int = 0):
        where = "SparseProjection"
        if check_in_features(where, in_features) > MAX_ENTRIES:  # a tensor may have more rows than a vector components
            raise ValueError(f"{where}: in_features is {shown(in_features)}; fewer than 2^32 are possible.")
        check_features(where, "out_features", check_positive(where, "out_features", out_features))
        if not is_number(density) or not 2**-32 < density <= 1:
            raise ValueError(f"{where}: density is {shown(density)}; a number in (2^-32, 1] is needed.")
        self.in_features, self.out_features, self.density = in_features, out_features, float(density)
        self.seed = check_unsigned(where, "seed", seed)

    def width(self, size: int) -> int:
        return self.out_features

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        return self._apply(x, False)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        check_bundle(self, x, tangents, arrays=True)
        return self(x), [self(t) for t in tangents]

    def transpose(self, y: Any) -> Any:
        """The adjoint :math:`R^T y`: from ``out_features`` back to ``in_features``; takes what the layer takes.

        Raises:
            ValueError, TypeError: as the layer; also if ``in_features`` is not known.
        """
        self._known("transpose")
        return self._apply(y, True)

    def matrix(self, dtype: Any = np.float32) -> np.ndarray:
        """The matrix ``(out_features, in_features)`` in NumPy's ``float32`` or ``float64``, to check against."""
        n_in = self._known("matrix")
        wide = _float_type(dtype)
        check_entries("SparseProjection.matrix", "entries", (self.out_features, n_in), 8 * wide.itemsize)
        return signs(self._threshold, self.seed, self.out_features, 0, n_in).astype(wide) * wide.type(self._scale)

    @property
    def _threshold(self) -> int:
        return max(round(self.density * 2**31), 1)

    @property
    def _scale(self) -> float:
        return math.sqrt(2**31 / (self._threshold * self.out_features))

    def _known(self, method: str) -> int:
        if self.in_features < 1:
            raise ValueError(
                f"SparseProjection.{method}: in_features is -1; give in_features, or call alloc(dtype, size)."
            )
        return self.in_features

    def _apply(self, x: Any, transposed: bool) -> Any:
        where = "SparseProjection.transpose" if transposed else "SparseProjection"
        kind, leaf = kinds.kind(x, where)
        kinds.require_float(leaf, where)
        size, takes = kinds.features(x, kind), self.out_features if transposed else self.in_features
        if takes not in (-1, size):
            raise ValueError(f"{where}: the input has {size} features, but the projection takes {takes}.")
        n_in = self.in_features if transposed else size
        columns = kinds.samples(x, kind)
        on_host = kind == kinds.NUMPY or dr.backend_v(leaf) == dr.JitBackend.LLVM
        check_entries(where, "results", (n_in if transposed else self.out_features, columns), 4, on_host)
        if kind == kinds.NUMPY:
            return self._numpy(x, n_in, transposed)
        require(leaf)
        if kind != kinds.TENSOR:
            # the adjoint of a broadcast is a sum, which Dr.Jit sees to here
            parts = [v if dr.width(v) == columns else v + dr.zeros(leaf, columns) for v in kinds.components(x)]
            if n_in * self.out_features * self.density <= UNROLL:
                return _rebuild(self._unrolled(parts, leaf, columns, n_in, transposed), x)
        if symbolic():
            what = "tensors" if kind == kinds.TENSOR else f"projections with more than {UNROLL} nonzero entries"
            raise RuntimeError(
                f"{where}: {what} go through memory, which is impossible inside a symbolic loop, conditional or call; "
                f"project outside, or use a smaller density."
            )
        law = (n_in, self.out_features, self._threshold, self._scale, self.seed)
        if kind == kinds.TENSOR:
            y = dr.custom(_Flat, x.array, columns, law, transposed)
            return type(x)(y, (n_in if transposed else self.out_features, columns))
        return _rebuild(dr.custom(_Lists, parts, columns, law, transposed), x)

    def _unrolled(self, parts: list, leaf: type, samples: int, n_in: int, transposed: bool) -> list:
        """One addition per nonzero entry."""
        wide = _accumulator(leaf)
        parts = [wide(v) for v in parts]
        # a replay of a frozen function may have another number of samples, which literals do not follow
        zero = leaf(0) if frozen() else dr.zeros(leaf, samples)
        result = []
        for plus, minus in _entries(self._threshold, self.seed, self.out_features, n_in, transposed):
            total = _sum([parts[j] for j in plus])
            less = _sum([parts[j] for j in minus])
            total = -less if total is None and less is not None else total if less is None else total - less
            result.append(zero if total is None else leaf(total * wide(self._scale)))
        return result

    def _numpy(self, x: np.ndarray, n_in: int, transposed: bool) -> np.ndarray:
        wide = np.result_type(x.dtype, np.float32)
        x_wide = x.astype(wide, copy=False)
        n_out, scale, step = self.out_features, wide.type(self._scale), max(BLOCK // self.out_features, 1)
        y = np.zeros((n_in if transposed else n_out, x.shape[1]), wide)
        for start in range(0, n_in, step):
            part = slice(start, min(start + step, n_in))
            block = signs(self._threshold, self.seed, n_out, part.start, part.stop).astype(wide)
            if transposed:
                y[part] = block.T @ x_wide
            else:
                y += block @ x_wide[part]
        return (y * scale).astype(x.dtype)

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[SparseProjection, int]:  # type: ignore[override]
        if size > 0 and self.in_features > 0 and size != self.in_features:
            raise ValueError(f"SparseProjection: in_features is {self.in_features}, but the input has {size} features.")
        size = self._known("alloc") if size < 0 else size
        return SparseProjection(size, self.out_features, self.density, self.seed), self.out_features

    def __repr__(self) -> str:
        return f"SparseProjection({', '.join(f'{name}={getattr(self, name)}' for name in self._FIELDS)})"


def _float_type(dtype: Any) -> np.dtype:
    with contextlib.suppress(Exception):  # whatever NumPy makes of it
        if np.dtype(dtype) in (np.float32, np.float64):
            return np.dtype(dtype)
    raise ValueError(f"SparseProjection.matrix: dtype is {shown(dtype)}; accepted are float32 and float64.")


# ---- The matrix on the host --------------------------------------------------------------------------------


def signs(threshold: int, seed: int, n_out: int, start: int, stop: int) -> np.ndarray:
    """Columns ``start`` to ``stop`` of the matrix divided by :math:`a`: -1, 0 and 1 as int8."""
    group = np.arange(-(-n_out // 4), dtype=np.uint32)[:, None]
    column = np.arange(start, stop, dtype=np.uint32)[None, :]
    words = np.stack(philox4x32((group, column, 0, STREAM), (seed & 0xFFFFFFFF, seed >> 32)), axis=1)
    words = words.reshape(-1, stop - start)[:n_out]
    sign = 1 - 2 * (words & np.uint32(1)).astype(np.int8)
    return np.where((words >> np.uint32(1)) < threshold, sign, np.int8(0))


@functools.lru_cache(maxsize=32)
def _entries(threshold: int, seed: int, n_out: int, n_in: int, transposed: bool) -> tuple:
    """Positions of the positive and negative entries of each row."""
    result: list[tuple[list, list]] = [([], []) for _ in range(n_in if transposed else n_out)]
    step = max(BLOCK // n_out, 1)
    for start in range(0, n_in, step):
        block = signs(threshold, seed, n_out, start, min(start + step, n_in))
        rows, columns = block.nonzero()
        negative = block[rows, columns] < 0
        for i, j, minus in zip(rows.tolist(), (columns + start).tolist(), negative.tolist(), strict=True):
            result[j if transposed else i][minus].append(i if transposed else j)
    return tuple((tuple(plus), tuple(minus)) for plus, minus in result)


# ---- The matrix in a kernel --------------------------------------------------------------------------------


def _accumulator(leaf: type) -> type:
    return leaf if dr.type_v(leaf) == dr.VarType.Float64 else dr.float32_array_t(leaf)


def _sum(parts: list) -> Any:
    return functools.reduce(operator.add, parts) if parts else None


def _rebuild(parts: list, like: Any) -> Any:
    if isinstance(like, (drnn.CoopVec, list, tuple)):
        return kinds.rebuild(parts, like)
    return nested(parts)


def project(x: Any, columns: int, law: tuple, transposed: bool) -> Any:
    """Product of the matrix, or its transpose, and the flat row-major ``(rows, columns)`` array ``x``.

    A lane owns a tile of 4 rows and up to :data:`TILE` columns of the result. Forward, the words of one block are the
    entries of its 4 rows; transposed, it draws the blocks of 4 columns of the matrix and uses all their words.
    """
    n_in, n_out, threshold, scale, seed = law
    leaf = type(x)
    wide, uint32, uint64 = _accumulator(leaf), dr.uint32_array_t(leaf), dr.uint64_array_t(leaf)
    height, depth = (n_in, -(-n_out // 4)) if transposed else (n_out, n_in)
    tile = min(TILE, 1 << (columns - 1).bit_length())
    bands = -(-height // 4)
    lane = dr.arange(uint32, bands * -(-columns // tile))
    band, first = lane % bands, lane // bands * tile  # neighbours read the same samples
    seed = dr.opaque(uint64, seed)
    key = (uint32(seed), uint32(seed >> 32))

    def entry(word: Any) -> Any:
        return dr.select((word >> 1) < uint32(threshold), dr.select((word & 1) == 0, wide(1), wide(-1)), wide(0))

    def fetch(row: Any, first: Any, active: Any = True) -> list:
        place = row * columns + first
        return [wide(dr.gather(leaf, x, place + s, (first + s < columns) & active)) for s in range(tile)]

    def forward(step: Any, sums: list, band: Any, first: Any, key: tuple) -> list:
        values = fetch(step, first)
        words = philox4x32((band, step, 0, STREAM), key)
        return [dr.fma(c, v, sums[r * tile + s]) for r, c in enumerate(map(entry, words)) for s, v in enumerate(values)]

    def backward(step: Any, sums: list, band: Any, first: Any, key: tuple) -> list:
        blocks = [philox4x32((step, band * 4 + r, 0, STREAM), key) for r in range(4)]
        for i in range(4):
            values = fetch(step * 4 + i, first, step * 4 + i < n_out)
            columns_ = [entry(block[i]) for block in blocks]
            sums = [dr.fma(c, v, sums[r * tile + s]) for r, c in enumerate(columns_) for s, v in enumerate(values)]
        return sums

    turn = backward if transposed else forward
    _, sums, *_ = dr.while_loop(
        (uint32(0), [wide(0)] * (4 * tile), band, first, key),
        lambda step, *_: step < depth,
        lambda step, sums, band, first, key: (step + 1, turn(step, sums, band, first, key), band, first, key),
        label="SparseProjection",
    )
    y = dr.empty(leaf, height * columns)
    for r in range(4):
        row = band * 4 + r
        for s in range(tile):
            value = leaf(sums[r * tile + s] * wide(scale))
            inside = (row < height) & (first + s < columns)
            dr.scatter(y, value, row * columns + first + s, inside, mode=dr.ReduceMode.Permute)
    return y


class _Flat(dr.CustomOp):
    """:func:`project` of a flat array."""

    def eval(self, x: Any, columns: int, law: tuple, transposed: bool) -> Any:
        self.arguments = (columns, law)
        self.transposed = transposed
        return project(x, columns, law, transposed)

    def forward(self) -> None:
        self.set_grad_out(
            project(_full(self.grad_in("x"), self._size(self.transposed)), *self.arguments, self.transposed)
        )

    def backward(self) -> None:
        dy = _full(self.grad_out(), self._size(not self.transposed))
        self.set_grad_in("x", project(dy, *self.arguments, not self.transposed))

    def _size(self, transposed: bool) -> int:
        columns, law = self.arguments
        return columns * law[1 if transposed else 0]

    def name(self) -> str:
        return "SparseProjection"


class _Lists(dr.CustomOp):
    """:func:`project` of a list of arrays."""

    def eval(self, x: list, columns: int, law: tuple, transposed: bool) -> list:
        self.arguments = (columns, law)
        self.transposed = transposed
        return self._project(x, transposed)

    def forward(self) -> None:
        self.set_grad_out(self._project(self.grad_in("x"), self.transposed))

    def backward(self) -> None:
        self.set_grad_in("x", self._project(self.grad_out(), not self.transposed))

    def _project(self, parts: list, transposed: bool) -> list:
        columns, law = self.arguments
        leaf = type(parts[0])
        if frozen():
            sample = _accumulator(leaf)(_full(parts[0], columns)) + 1
            dr.eval(sample)
            pin_batch_size(sample)
        lane = dr.arange(dr.uint32_array_t(leaf), columns)
        flat = dr.empty(leaf, len(parts) * columns)
        for i, v in enumerate(parts):
            dr.scatter(flat, _full(v, columns), lane + i * columns, mode=dr.ReduceMode.Permute)
        y = project(flat, columns, law, transposed)
        dr.eval(y)
        return [dr.gather(leaf, y, lane + i * columns) for i in range(law[0] if transposed else law[1])]

    def name(self) -> str:
        return "SparseProjection"


def _full(v: Any, width: int) -> Any:
    """Gradients may be one number for all."""
    return v if dr.width(v) == width else v + dr.zeros(type(v), width)
