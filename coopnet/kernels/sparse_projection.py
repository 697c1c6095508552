"""Products with a sparse random matrix that is not stored: on the host, as additions, or drawn in a kernel."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import drjit as dr
import numpy as np

from ..jit.batch_size import pin_batch_size
from ..jit.kernel_parameters import kernel_parameter
from ..jit.kinds import of_width
from ..jit.masks import unmasked
from ..jit.scopes import frozen
from ..random import streams
from ..random.philox import philox4x32

#: Samples per lane in the looping kernel. The lane draws entries once for all of them.
TILE = 8
#: Entries of the matrix that exist at a time on the host.
BLOCK = 1 << 18


class Signs:
    """A random matrix of shape ``(n_out, n_in)`` with the entries 0 and :math:`\\pm` ``scale``, or its transpose.

    Its law is that of :class:`coopnet.SparseProjection`.
    """

    def __init__(self, n_in: int, n_out: int, density: float, seed: int, transposed: bool = False):
        self.n_in, self.n_out, self.density, self.seed, self.transposed = n_in, n_out, density, seed, transposed
        self.threshold = max(round(density * 2**31), 1)
        self.scale = math.sqrt(2**31 / (self.threshold * n_out))
        self.rows, self.depth = (n_in, n_out) if transposed else (n_out, n_in)

    @property
    def adjoint(self) -> Signs:
        """The transpose."""
        return Signs(self.n_in, self.n_out, self.density, self.seed, not self.transposed)

    def columns(self, start: int, stop: int) -> np.ndarray:
        """Columns ``start`` to ``stop`` of the matrix, not transposed, divided by ``scale``: -1, 0 and 1 as int8."""
        group = np.arange(-(-self.n_out // 4), dtype=np.uint32)[:, None]
        column = np.arange(start, stop, dtype=np.uint32)[None, :]
        seed = (self.seed & 0xFFFFFFFF, self.seed >> 32)
        words = np.stack(philox4x32((group, column, 0, streams.SIGNS), seed), axis=1)
        words = words.reshape(-1, stop - start)[: self.n_out]
        sign = 1 - 2 * (words & np.uint32(1)).astype(np.int8)
        return np.where((words >> np.uint32(1)) < self.threshold, sign, np.int8(0))

    def blocks(self) -> Any:
        """All :meth:`columns`, in blocks: pairs of a slice and its columns."""
        step = max(BLOCK // self.n_out, 1)
        for start in range(0, self.n_in, step):
            stop = min(start + step, self.n_in)
            yield slice(start, stop), self.columns(start, stop)


# ---- On the host -------------------------------------------------------------------------------------------


def product_on_host(signs: Signs, x: np.ndarray) -> np.ndarray:
    """The product with a NumPy array ``(depth, samples)``."""
    wide = np.result_type(x.dtype, np.float32)
    x_wide = x.astype(wide, copy=False)
    y = np.zeros((signs.rows, x.shape[1]), wide)
    for part, block in signs.blocks():
        if signs.transposed:
            y[part] = block.T.astype(wide) @ x_wide
        else:
            y += block.astype(wide) @ x_wide[part]
    return (y * wide.type(signs.scale)).astype(x.dtype)


# ---- As additions ------------------------------------------------------------------------------------------


def additions(signs: Signs, parts: list, samples: int) -> list:
    """The product with a list of ``depth`` arrays of ``samples`` entries: one addition per nonzero matrix entry."""
    leaf = type(parts[0])
    wide = _accumulator(leaf)
    parts = [wide(v) for v in parts]
    # in a frozen function, the result must not have a fixed width: replays may have another number of samples
    zero = leaf(0) if frozen() else dr.zeros(leaf, samples)
    result = []
    for plus, minus in _entries(signs.n_in, signs.n_out, signs.density, signs.seed, signs.transposed):
        total, less = _sum([parts[j] for j in plus]), _sum([parts[j] for j in minus])
        total = -less if total is None and less is not None else total if less is None else total - less
        result.append(zero if total is None else leaf(total * wide(signs.scale)))
    return result


@functools.lru_cache(maxsize=32)
def _entries(n_in: int, n_out: int, density: float, seed: int, transposed: bool) -> tuple:
    """Positions of the positive and negative entries of each row."""
    signs = Signs(n_in, n_out, density, seed, transposed)
    result: list[tuple[list, list]] = [([], []) for _ in range(signs.rows)]
    for part, block in signs.blocks():
        rows, columns = block.nonzero()
        negative = block[rows, columns] < 0
        for i, j, minus in zip(rows.tolist(), (columns + part.start).tolist(), negative.tolist(), strict=True):
            result[j if transposed else i][minus].append(i if transposed else j)
    return tuple((tuple(plus), tuple(minus)) for plus, minus in result)


def _sum(parts: list) -> Any:
    return functools.reduce(operator.add, parts) if parts else None


# ---- In a kernel -------------------------------------------------------------------------------------------


def product(signs: Signs, x: Any, samples: int) -> Any:
    """The product with a flat row-major array ``(depth, samples)``, or with a list of its rows; of the same kind.

    The gradient is the product with the transpose.
    """
    return dr.custom(_Projection, signs, x, samples)


class _Projection(dr.CustomOp):
    def eval(self, signs: Signs, x: Any, samples: int) -> Any:  # type: ignore[override]
        self.signs, self.samples = signs, samples
        return self._apply(signs, x)

    def forward(self) -> None:
        self.set_grad_out(self._apply(self.signs, self.grad_in("x")))

    def backward(self) -> None:
        self.set_grad_in("x", self._apply(self.signs.adjoint, self.grad_out()))

    def _apply(self, signs: Signs, x: Any) -> Any:
        n = self.samples
        if not isinstance(x, list):
            return _flat(signs, of_width(x, n * signs.depth), n)
        leaf = type(x[0])
        if frozen():
            sample = _accumulator(leaf)(of_width(x[0], n)) + 1
            dr.eval(sample)
            pin_batch_size(sample)
        lane = dr.arange(dr.uint32_array_t(leaf), n)
        flat = dr.empty(leaf, len(x) * n)
        for i, v in enumerate(x):
            dr.scatter(flat, of_width(v, n), lane + i * n, mode=dr.ReduceMode.Permute)
        y = _flat(signs, flat, n)
        dr.eval(y)
        return [dr.gather(leaf, y, lane + i * n) for i in range(signs.rows)]

    def name(self) -> str:
        return "SparseProjection"


def _accumulator(leaf: type) -> type:
    return leaf if dr.type_v(leaf) == dr.VarType.Float64 else dr.float32_array_t(leaf)


def _flat(signs: Signs, x: Any, samples: int) -> Any:
    """The product with a flat array. Its lanes are not samples, so masks of evaluated loops do not apply."""
    with unmasked(type(x)):
        return _by_tiles(signs, x, samples)


def _by_tiles(signs: Signs, x: Any, samples: int) -> Any:
    """:func:`_flat`, in tiles.

    Each lane computes a tile of 4 rows and up to :data:`TILE` columns of the result. For the product with the matrix,
    the 4 words of one block are the entries of its rows. With the transpose, the lane draws the blocks of 4 matrix
    columns and uses all their words.
    """
    leaf = type(x)
    wide, uint32, uint64 = _accumulator(leaf), dr.uint32_array_t(leaf), dr.uint64_array_t(leaf)
    depth = -(-signs.depth // 4) if signs.transposed else signs.depth
    tile = min(TILE, 1 << (samples - 1).bit_length())
    bands = -(-signs.rows // 4)
    lane = dr.arange(uint32, bands * -(-samples // tile))
    band, first = lane % bands, lane // bands * tile  # neighbours read the same samples
    seed = kernel_parameter(uint64, signs.seed)
    key = (uint32(seed), uint32(seed >> 32))

    def entry(word: Any) -> Any:
        return dr.select((word >> 1) < uint32(signs.threshold), dr.select((word & 1) == 0, wide(1), wide(-1)), wide(0))

    def fetch(row: Any, first: Any, active: Any = True) -> list:
        entry = row * samples + first
        return [wide(dr.gather(leaf, x, entry + s, (first + s < samples) & active)) for s in range(tile)]

    def forward(step: Any, sums: list, band: Any, first: Any, key: tuple) -> list:
        values = fetch(step, first)
        words = philox4x32((band, step, 0, streams.SIGNS), key)
        return [dr.fma(c, v, sums[r * tile + s]) for r, c in enumerate(map(entry, words)) for s, v in enumerate(values)]

    def backward(step: Any, sums: list, band: Any, first: Any, key: tuple) -> list:
        blocks = [philox4x32((step, band * 4 + r, 0, streams.SIGNS), key) for r in range(4)]
        for i in range(4):
            values = fetch(step * 4 + i, first, step * 4 + i < signs.n_out)
            columns = [entry(block[i]) for block in blocks]
            sums = [dr.fma(c, v, sums[r * tile + s]) for r, c in enumerate(columns) for s, v in enumerate(values)]
        return sums

    order = backward if signs.transposed else forward
    _, sums, *_ = dr.while_loop(
        (uint32(0), [wide(0)] * (4 * tile), band, first, key),
        lambda step, *_: step < depth,
        lambda step, sums, band, first, key: (step + 1, order(step, sums, band, first, key), band, first, key),
        label="SparseProjection",
    )
    y = dr.empty(leaf, signs.rows * samples)
    for r in range(4):
        row = band * 4 + r
        for s in range(tile):
            value = leaf(sums[r * tile + s] * wide(signs.scale))
            inside = (row < signs.rows) & (first + s < samples)
            dr.scatter(y, value, row * samples + first + s, inside, mode=dr.ReduceMode.Permute)
    return y
