"""Permutohedral lattice encoding."""

from __future__ import annotations

from .lattice import Lattice

#: Most coordinates: every level sorts them, which takes operations in proportion to the square of their number.
MAX_DIMENSION = 64


class Permutohedral(Lattice):
    r"""Multiresolution lattice of simplices (Rosu and Behnke 2023, *PermutoSDF*; ``drjit.nn.PermutoEncoding``).

    As :class:`HashGrid`, but each cell is divided into the :math:`d!` simplices of Kuhn's subdivision, and only the
    :math:`d + 1` corners of one simplex are looked up, instead of :math:`2^d`. So it suits many coordinates. With
    :math:`t = s_l x + \tfrac12`, cell :math:`c = \lfloor t \rfloor`, :math:`f = t - c` sorted so that
    :math:`f_{\pi(1)} \le \dots \le f_{\pi(d)}`, and :math:`f_{\pi(0)} = 0`, :math:`f_{\pi(d+1)} = 1`, a level gives

    .. math:: \sum_{r=0}^{d} (f_{\pi(r+1)} - f_{\pi(r)})\; \theta_l\Bigl(c + \sum_{j > r} e_{\pi(j)}\Bigr).

    Coordinates belong in [0, 1]; the encoding is piecewise linear in them. Parameters and their gradients are as in
    :class:`HashGrid`.

    Args:
        in_features: number of coordinates :math:`d`, at most 64; -1 takes it from ``alloc``.
        n_levels, n_features_per_level, hashmap_size, base_resolution, per_level_scale, init_scale, max_level: see
            :class:`HashGrid`.
        precision: see :class:`Grid`.

    Returns:
        ``n_levels * n_features_per_level`` features, coarsest level first.

    Raises:
        ValueError: arguments out of range.
        RuntimeError: as for :class:`Grid`.

    >>> field = cn.NeuralField(cn.Permutohedral(4, n_levels=8), cn.MLP(out_features=3)).build()
    """

    _SIMPLICES = True

    def _check_dimension(self, size: int) -> None:
        if size > MAX_DIMENSION:
            raise ValueError(f"Permutohedral: in_features is {size}; at most {MAX_DIMENSION} coordinates are possible.")
