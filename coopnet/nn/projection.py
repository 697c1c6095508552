"""Sparse random projection, whose matrix is drawn when it is used, and never stored."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import drjit as dr
import numpy as np

from ..backend import require
from ..checks import check, check_in_features, check_positive, check_unsigned, ensure, is_number, shown
from ..checks.sizes import MAX_ENTRIES, check_entries, check_features
from ..jit import kinds
from ..jit.scopes import symbolic
from ..kernels.sparse_projection import Signs, additions, product, product_on_host
from ..random.key import Key
from .arguments import fields
from .encoding import Encoding
from .tangents import check_bundle

#: Expected nonzero entries up to which arrays and cooperative vectors are projected by plain additions.
UNROLL = 1 << 12


class SparseProjection(Encoding):
    r"""Sparse Johnson-Lindenstrauss transform :math:`y = R x` by a random matrix that is never stored.

    .. math::
        R_{ij} = \begin{cases} +a & \text{with probability } q/2 \\ -a & \text{with probability } q/2 \\ 0 &
        \text{otherwise} \end{cases} \qquad a = \frac{1}{\sqrt{q\, n_\mathrm{out}}}

    where :math:`q` is ``density``: 1 or 1/3 in Achlioptas 2003, *Database-friendly random projections*, and
    :math:`1/\sqrt{n_\mathrm{in}}` in Li, Hastie, Church 2006, *Very sparse random projections*. Squared lengths are
    kept on average, :math:`E |Rx|^2 = |x|^2`. By Achlioptas' theorem 1.1, for densities 1 and 1/3, all squared
    distances between :math:`n` points change by at most a factor of :math:`1 \pm \epsilon` with probability at least
    :math:`1 - n^{-\beta}` if :math:`n_\mathrm{out} \ge \frac{4 + 2\beta}{\epsilon^2/2 - \epsilon^3/3} \ln n`.

    **Law of the matrix.** With :math:`t = \mathrm{round}(q\, 2^{31})`, entry :math:`(i, j)` is decided by

    ::

        w = philox4x32(counter=(i // 4, j, 0, 2^32 - 1), key=(seed & 0xffffffff, seed >> 32))[i % 4]
        R[i, j] = 0 if (w >> 1) >= t else -a if w & 1 else a,    a = sqrt(2^31 / (t * out_features))

    Integers are compared, so the matrix is the same to the bit on every backend. The factor :math:`a` uses the
    quantized density, so this average is kept exactly; it is rounded once to single precision (to double precision for
    double inputs). Sums are computed in that precision, and half-precision results rounded at the end. The order of the
    sums is not part of the law.

    **How it is evaluated.** For tensors, a kernel over the outputs loops over the inputs. Each lane draws four rows of
    a column and applies them to 8 samples. For every density this takes :math:`n_\mathrm{in} n_\mathrm{out}`
    multiplications per sample, one block of the generator per 32 of them, and no memory besides input and output.
    ``seed`` is a parameter of the kernel: another seed does not recompile it.

    ``CoopVec`` and arrays with up to 4096 expected nonzero entries, :math:`q\, n_\mathrm{in} n_\mathrm{out}`, become
    one addition per nonzero entry in the caller's kernel, also within loops and calls; the entries are constants there,
    so another seed is another kernel. Above 4096 entries, inputs are written to memory and handled as tensors.
    Thousands of separate arrays compile slowly: make them a tensor. From 4096 to 256 features, a sample of a tensor
    takes 0.07 ms on two CPU cores, and one of arrays 0.08 to 0.09 ms after 9 s of compiling
    (``benchmarks/projection.py``, ``benchmarks/results/projection-llvm.json``).

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
        TypeError: an input of another kind, or not floating point.

    >>> project = cn.SparseProjection(4096, 256, density=1 / 64, seed=3)
    >>> y = project(TensorXf(x))  # (4096, samples) -> (256, samples)
    >>> x2 = project.transpose(y)
    """

    def __init__(self, in_features: int = -1, out_features: int = 64, density: float = 1 / 3, seed: int = 0):
        where = "SparseProjection"
        in_features = check_in_features(where, in_features)
        if in_features > MAX_ENTRIES:  # a tensor may have more rows than a vector components
            raise ValueError(f"{where}: in_features is {shown(in_features)}; fewer than 2^32 are possible.")
        out_features = check_features(where, "out_features", check_positive(where, "out_features", out_features))
        check(is_number(density) and 2**-32 < density <= 1, where, "density", density, "a number in (2^-32, 1]")
        self.in_features, self.out_features, self.density = in_features, out_features, float(density)
        self.seed = check_unsigned(where, "seed", seed)

    DRJIT_STRUCT = fields(__init__)

    def width(self, size: int) -> int:
        return self.out_features

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        return self._apply(x, False)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        check_bundle(self, x, tangents, arrays=True)
        return self(x), [self(t) for t in tangents]

    def transpose(self, y: Any) -> Any:
        """The adjoint :math:`R^T y`: from ``out_features`` back to ``in_features``; for the same kinds of inputs.

        Raises:
            ValueError, TypeError: as the layer; also if ``in_features`` is not known.
        """
        self._known("transpose")
        return self._apply(y, True)

    def dense(self, dtype: Any = np.float32) -> np.ndarray:
        """The matrix ``(out_features, in_features)`` in NumPy's ``float32`` or ``float64``, to check against.

        Raises:
            ValueError: another ``dtype``; ``in_features`` is not known; a matrix that does not fit into memory.
        """
        where, n_in = "SparseProjection.dense", self._known("dense")
        wide = None
        with contextlib.suppress(Exception):  # NumPy may raise anything
            wide = np.dtype(dtype)
        if wide not in (np.float32, np.float64):
            raise ValueError(f"{where}: dtype is {shown(dtype)}; accepted are float32 and float64.")
        check_entries(where, "entries", (self.out_features, n_in), 8 * wide.itemsize)
        signs = self._signs(n_in)
        return signs.columns(0, n_in).astype(wide) * wide.type(signs.scale)

    def _signs(self, n_in: int, transposed: bool = False) -> Signs:
        return Signs(n_in, self.out_features, self.density, self.seed, transposed)

    def _known(self, method: str) -> int:
        hint = "give in_features, or call alloc(dtype, size)"
        ensure(self.in_features > 0, f"SparseProjection.{method}: in_features is -1; {hint}.")
        return self.in_features

    def _apply(self, x: Any, transposed: bool) -> Any:
        where = "SparseProjection.transpose" if transposed else "SparseProjection"
        kind, leaf = kinds.kind(x, where)
        kinds.require_float(leaf, where)
        size, takes = kinds.features(x, kind), self.out_features if transposed else self.in_features
        ensure(takes in (-1, size), f"{where}: the input has {size} features, but the projection takes {takes}.")
        signs, samples = self._signs(self.in_features if transposed else size, transposed), kinds.samples(x, kind)
        on_host = kind == kinds.NUMPY or dr.backend_v(leaf) == dr.JitBackend.LLVM
        check_entries(where, "results", (signs.rows, samples), 4, on_host)
        if kind == kinds.NUMPY:
            return product_on_host(signs, x)
        require(leaf)
        few = kind != kinds.TENSOR and signs.n_in * signs.n_out * self.density <= UNROLL
        if symbolic() and not few:
            inputs = "tensors" if kind == kinds.TENSOR else f"projections with more than {UNROLL} nonzero entries"
            memory = "go through memory, which is impossible inside a symbolic loop, conditional or call"
            raise RuntimeError(f"{where}: {inputs} {memory}; project outside, or use a smaller density.")
        if kind == kinds.TENSOR:
            return type(x)(product(signs, x.array, samples), (signs.rows, samples))
        # the adjoint of a broadcast is a sum, which Dr.Jit computes here
        parts = [kinds.of_width(v, samples) for v in kinds.components(x)]
        parts = (additions if few else product)(signs, parts, samples)
        return kinds.contained(parts, x)

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[SparseProjection, int]:  # type: ignore[override]
        if size > 0 and self.in_features > 0 and size != self.in_features:
            raise ValueError(f"SparseProjection: in_features is {self.in_features}, but the input has {size} features.")
        size = self._known("alloc") if size < 0 else size
        layer = copy.copy(self)
        layer.in_features = size
        return layer, self.out_features
