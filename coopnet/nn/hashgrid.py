"""Hash grid encoding."""

from __future__ import annotations

from ..checks import check_choice
from ..jit.unpacked import Constant, Unpacked
from .arguments import fields
from .lattice import INTERPOLATIONS, Lattice


class HashGrid(Lattice):
    r"""Multiresolution hash grid (Müller et al. 2022, *Instant NGP*; ``drjit.nn.HashGridEncoding``).

    It has ``n_levels`` grids. Number :math:`l` has about ``base_resolution * per_level_scale**l`` cells per axis, and
    ``n_features_per_level`` features at each vertex, which are interpolated linearly. In grids of more than
    ``hashmap_size`` vertices, several vertices share an entry through a hash. Output: ``n_levels *
    n_features_per_level`` features. Coordinates belong in [0, 1].

    This is :class:`Grid` with ``storage="hash"``, except for the sizes of levels that are not hashed. Here these are
    rounded up to a multiple of ``n_features_per_level``, as in ``drjit.nn``.

    Its parameters start uniform in :math:`\pm` ``init_scale``. They are not packed with the weights of a network, but
    are the entry ``"data"`` of the layer's mapping.

    Args:
        in_features: number of coordinates; -1 takes it from ``alloc``.
        n_levels, n_features_per_level, base_resolution, per_level_scale: as above. For a finest level of :math:`N`
            cells per axis, give ``(N / base_resolution) ** (1 / (n_levels - 1))`` as ``per_level_scale``.
        hashmap_size: most entries of one level; a multiple of ``n_features_per_level``.
        init_scale: bound of the initial values.
        interpolation, max_level, precision: see :class:`Grid`.

    Raises:
        ValueError: arguments out of range; more coordinates than grids can have; an input of another width; no
            parameters yet.
        TypeError: an input of another kind or backend.
        RuntimeError: as for :class:`Grid`.

    >>> field = cn.NeuralField(cn.HashGrid(2), cn.MLP(out_features=3)).build()
    """

    def __init__(
        self, in_features: int = -1, n_levels: int = 16, n_features_per_level: int = 2, hashmap_size: int = 2**19,
        base_resolution: int = 16, per_level_scale: float = 2.0, init_scale: float = 1e-4,
        interpolation: str = "linear", max_level: float | None = None,
        precision: str = "single",
    ):  # fmt: skip
        self.interpolation = check_choice("HashGrid", "interpolation", interpolation, INTERPOLATIONS)
        sizes = n_levels, n_features_per_level, hashmap_size, base_resolution
        super().__init__(in_features, *sizes, per_level_scale, init_scale, max_level, precision)

    DRJIT_STRUCT = fields(__init__, grid=Unpacked, limit=Constant, max_level=None)
