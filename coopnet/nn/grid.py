"""Multiresolution grids as tiny-cuda-nn lays them out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..checks import check_choice
from ..jit.unpacked import Constant, Unpacked
from .arguments import fields
from .lattice import INTERPOLATIONS, Lattice
from .linear import uniform


class Grid(Lattice):
    r"""Multiresolution grid, hashed, dense or tiled (Müller et al. 2022; tiny-cuda-nn's ``Grid``).

    Level :math:`l = 0, \dots, L-1` has :math:`s_l = N_\mathrm{min} 2^{l \log_2 b} - 1` cells per unit length, in
    single precision, and :math:`N_l = \lceil s_l \rceil + 1` vertices a side, each with ``n_features_per_level``
    trained features. A point :math:`x \in [0, 1]^d` lies at :math:`t = s_l x + \tfrac12`; with
    :math:`c = \lfloor t \rfloor` and :math:`f = t - c`, the level gives

    .. math:: \sum_{k \in \{0, 1\}^d} \theta_l(c + k) \prod_i k_i w(f_i) + (1 - k_i)(1 - w(f_i))

    with :math:`w(f) = f` (``"linear"``) or :math:`w(f) = f^2 (3 - 2f)` (``"smoothstep"``, whose first derivative is
    continuous), or :math:`\theta_l(c)` (``"nearest"``, whose derivative with respect to :math:`x` is zero). Vertex
    :math:`v` of a level with :math:`T_l` entries is number :math:`\sum_i v_i N_l^i \bmod T_l`, or, in a hashed level
    of more than :math:`T_l` vertices, :math:`\bigoplus_i v_i \pi_i \bmod T_l`. Before the minimum, :math:`N_l^d` is
    rounded up to a multiple of 8:

    ========= ==============================================
    storage   entries :math:`T_l` of a level
    ========= ==============================================
    "hash"    :math:`\min(N_l^d, \mathrm{hashmap\_size})`
    "dense"   :math:`N_l^d`
    "tiled"   :math:`\min(N_l^d, N_\mathrm{min}^d)`
    ========= ==============================================

    If :math:`N_l^d` exceeds 32 bits, a tiled level wraps around at :math:`2^{32}`; tiny-cuda-nn uses one entry for the
    whole level. Parameters start uniform in :math:`\pm` ``init_scale``. They are not packed with the weights of a
    network, but are the entry ``"data"`` of the layer's mapping, the features of a vertex side by side. Their gradients
    are reproducible on LLVM, and on CUDA inside ``with cn.deterministic():``.

    Args:
        in_features: number of coordinates :math:`d`, at most 7; -1 takes it from ``alloc``.
        storage: ``"hash"``, ``"dense"`` or ``"tiled"`` (tiny-cuda-nn's ``type``).
        n_levels, n_features_per_level, base_resolution: :math:`L`, features per vertex, :math:`N_\mathrm{min}`.
        hashmap_size: most entries of a hashed level.
        per_level_scale: growth :math:`b`; below 1, levels become coarser. ``None`` is 2. For dense storage it is the
            value with which the last level is 256 cells wide.
        init_scale: bound of the initial values.
        interpolation: ``"linear"``, ``"smoothstep"`` or ``"nearest"``.
        max_level: number of the finest level that gives features, to train from coarse to fine. Levels above give
            zeros, and get no gradient. ``None`` for all levels. It may be assigned at any time, ``grid.max_level = 3``,
            also in a packed field and between the steps of ``fit``. Nothing is compiled again; see
            ``docs/encodings.md``.
        precision: of the parameters, on every backend: ``"single"``, or ``"half"`` for half of the memory. Everything
            else is computed in single precision, gradients too, which are rounded once. ``docs/precision.md`` says
            what it gains.

    Returns:
        ``n_levels * n_features_per_level`` features, coarsest level first.

    Raises:
        ValueError: arguments out of range; more than 7 coordinates; more parameters than an array can hold.
        RuntimeError: gradients of half-precision parameters in symbolic calls, or by ``dr.backward`` inside a symbolic
            loop, where they would be summed in half precision.

    >>> grid = cn.Grid(3, "dense", n_levels=4, interpolation="smoothstep")
    >>> field = cn.NeuralField(grid, cn.MLP(out_features=1)).build()
    """

    _MULTIPLE = 8
    _NUMBER = np.float32

    def __init__(
        self, in_features: int = -1, storage: str = "hash", n_levels: int = 16, n_features_per_level: int = 2,
        hashmap_size: int = 2**19, base_resolution: int = 16, per_level_scale: float | None = None,
        init_scale: float = 1e-4, interpolation: str = "linear", max_level: float | None = None,
        precision: str = "single",
    ):  # fmt: skip
        self.storage = check_choice("Grid", "storage", storage, ("hash", "dense", "tiled"))
        self.interpolation = check_choice("Grid", "interpolation", interpolation, INTERPOLATIONS)
        sizes = n_levels, n_features_per_level, hashmap_size, base_resolution
        super().__init__(in_features, *sizes, per_level_scale, init_scale, max_level, precision)

    DRJIT_STRUCT = fields(__init__, grid=Unpacked, limit=Constant, max_level=None)

    def _draw(self, leaf: Any, count: int, rng: Any) -> Any:
        rng.random(leaf, 1)  # not used: initial values are the generator's second draw
        return uniform(leaf, count, self.init_scale, rng)

    def _growth(self) -> float:
        if self.per_level_scale is None and self.storage == "dense" and self.n_levels > 1:
            rate = np.float32(math.log(np.float32(256 / self.base_resolution))) / np.float32(self.n_levels - 1)
            return float(np.float32(math.exp(rate)))
        return super()._growth()
