"""Dropout of whole levels of a grid."""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..checks import check_flag, check_int, check_positive, ensure
from ..jit import kinds
from ..random.draws import decisions
from ..random.key import Key, check_key
from .dropout import Dropout
from .lattice import Lattice
from .tangents import linear_jvp


class DropLevels(Dropout):
    r"""Drops whole levels of a grid, all features of a level or none, so that coarse levels learn to work alone.

    .. math::
        y_{lk} = \begin{cases} x_{lk} \cdot 2^k / (2^k - t) & u_l \ge t \\ 0 & \text{otherwise} \end{cases}

    with the draw :math:`u_l` that :func:`dropout` would make for element :math:`l`, the number of the level, and its
    threshold :math:`t`. All samples of a step share the mask of index 0, which depends on seed, step and level. Levels
    below ``first`` are always kept, and not scaled. Without a key the layer returns its input.

    Place it directly after the grid, first in the network: it takes its input in groups, and behind a ``Pad`` or
    ``Composite``, other features would count as levels. To train a field from coarse to fine, lower the rate from a
    high one to 0 by a schedule, ``layer.p = dr.opaque(Float32, p)``.

    Args:
        p: probability that a level is dropped, a number in [0, 1) or a Dr.Jit ``Float32`` of width 1.
        first: number of the coarsest level that may be dropped.
        per_sample: draw a mask for every sample by its index instead.
        n_features_per_level: features per level of the grid; ``None`` takes it from the grid before this layer.
        bits, stream, rounds: as for :class:`Dropout`.

    Raises:
        ValueError, TypeError: arguments that :func:`dropout` refuses, too; no grid before it; an input that is not a
            whole number of levels.

    >>> network = cn.Sequential(cn.DropLevels(0.2, first=2), cn.MLP(out_features=3))
    >>> field = cn.NeuralField(cn.HashGrid(2, n_levels=8), network).build()
    """

    DRJIT_STRUCT = Dropout.DRJIT_STRUCT | {"first": int, "per_sample": bool, "n_features_per_level": int}

    def __init__(
        self,
        p: float = 0.5,
        first: int = 0,
        per_sample: bool = False,
        n_features_per_level: int | None = None,
        bits: int = 16,
        stream: int | None = None,
        rounds: int = 10,
    ):
        super().__init__(p, bits, stream, rounds)
        self.first = check_int("DropLevels", "first", first, 0)
        self.per_sample = check_flag("DropLevels", "per_sample", per_sample)
        if n_features_per_level is not None:
            n_features_per_level = check_positive("DropLevels", "n_features_per_level", n_features_per_level)
        self.n_features_per_level: Any = n_features_per_level

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        where = "DropLevels"
        kind, leaf = kinds.in_kernels(x, where)
        check_key(where, key)
        if key is None or not self.active():
            return x
        each, width = self.n_features_per_level, kinds.features(x, kind)
        ensure(each is not None, f"{where}: the number of features per level is unknown; build the field first.")
        divisible = width % each == 0
        ensure(divisible, f"{where}: the input has {width} features, not a multiple of the {each} features of a level.")
        samples = kinds.samples(x, kind)
        law = self.law
        if not self.per_sample:
            key = Key(key.seed, 0, key.step)
        if law.scheduled:
            law.check_entries()
        traced = law.traced(leaf)
        keeps = decisions(width // each, traced, key, dr.uint32_array_t(leaf), samples)
        parts = kinds.rows(x, kind)
        y = [traced.element(v, keeps[i // each]) if i // each >= self.first else v for i, v in enumerate(parts)]
        return kinds.rebuild(y, x)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        return linear_jvp(self, x, tangents, key)

    def op(self) -> Any:
        return None  # levels below `first` are not scaled, so the derivative cannot be computed from outputs

    def _join(self, layers: list) -> None:
        super()._join(layers)
        if self.n_features_per_level is None:
            index = next(i for i, layer in enumerate(layers) if layer is self)
            before = [layer for layer in layers[:index] if isinstance(layer, Lattice)]
            hint = "put it after a Grid, HashGrid or Permutohedral, or give n_features_per_level"
            ensure(before, f"DropLevels: there is no grid before it; {hint}.")
            self.n_features_per_level = before[-1].n_features_per_level
