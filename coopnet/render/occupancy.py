"""Which cells of a box are not empty: a bit for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import numpy as np

from ..backend import namespace, require
from ..checks import (
    check,
    check_backend,
    check_int,
    check_number,
    check_same_backend,
    check_type,
    ensure,
)
from ..checks.sizes import check_entries
from ..jit import kinds
from ..jit.kernel_parameters import kept
from ..random import streams
from ..random.key import Key
from ..training.sampling import uniform
from .arguments import vector
from .cells import BoxOfCells
from .radiance import Radiance
from .rays import SampledRays

#: Bits of a word.
WORD = 32


class OccupancyGrid(BoxOfCells):
    r"""A bit for each cell of a box, 0 if the cell is empty. Rays skip empty cells, and everything outside the box.

    :meth:`update` keeps a density for each cell: the larger of the previous one times ``decay`` and a new sample at a
    random point. It sets the bits of cells above a threshold (Müller et al. 2022, appendix E.2). A new grid is full.

    It is a Dr.Jit PyTree of two arrays: ``density``, a ``Float`` per cell, and ``bits``, a ``UInt32`` per 32 cells.
    Cell :math:`(x, y, z)` has the number :math:`i = x + R_x (y + R_y z)`, and bit :math:`i \bmod 32` of word
    :math:`\lfloor i / 32 \rfloor`. Numbers after the last cell are padding.

    Args:
        resolution: cells along each axis, an int or three, at most 1024.
        lower, upper: corners of the box, a number or three each.
        backend: ``"llvm"``, ``"cuda"`` or ``"auto"``.

    Raises:
        ValueError, TypeError: arguments of other kinds or out of range.
        BackendError: no such backend here.

    >>> grid = cn.render.OccupancyGrid(32, lower=-1, upper=1)
    >>> grid.update(volume, cn.Key(seed=0))
    >>> seen = cn.render.ray_march(volume, o, d, 0.5, 3.5, steps=64, occupancy=grid)
    """

    DRJIT_STRUCT = {
        "resolution": tuple, "lower": tuple, "upper": tuple, "density": object, "bits": object,
    }  # fmt: skip

    def __init__(
        self, resolution: int | Sequence[int] = 128, lower: Any = 0.0, upper: Any = 1.0, backend: Any = "auto"
    ):
        where = "OccupancyGrid"
        super().__init__(where, resolution, lower, upper)
        ns = namespace(require(backend))
        check_entries(where, "cells", (self._padded(),), on_host=dr.backend_v(ns.Float32) == dr.JitBackend.LLVM)
        self.density = dr.full(ns.Float32, dr.inf, self._padded())
        self.bits = dr.full(ns.UInt32, 0xFFFFFFFF, self._padded() // WORD)

    @property
    def _home(self) -> Any:
        return self.bits

    def _padded(self) -> int:
        return -(-self.cells // WORD) * WORD

    # ---- reading --------------------------------------------------------

    def occupied(self, p: Any) -> Any:
        """Mask of the points ``p`` whose cell's bit is set.

        Points are an ``Array3f``, or of any other kind that origins may have in :func:`ray_march`. For points outside
        the box, and those that are not finite, the mask is false.

        Raises:
            ValueError, TypeError: ``p`` has another type, or lives on another backend.

        >>> hit = grid.occupied(p)
        """
        where = "OccupancyGrid.occupied"
        p = vector(where, "p", p, type(self.bits))
        check_backend(f"{where}: p is", p, self.bits, "the grid")
        return self.holds(list(p))

    def holds(self, p: list) -> Any:
        """:meth:`occupied` for three arrays that have been checked."""
        cell, inside = self._cell(p, True)
        return inside & self._bit(cell, inside)

    def _bit(self, number: Any, active: Any) -> Any:
        """Mask of the cells ``number`` whose bit is set."""
        word = dr.gather(type(self.bits), self.bits, number // WORD, active)
        return ((word >> (number % WORD)) & 1) == 1

    def share(self) -> float:
        """The share of cells that are occupied; reads them.

        >>> share = grid.share()
        """
        lane = dr.arange(type(self.bits), self._padded())
        return float(dr.count(self._bit(lane, lane < self.cells))[0]) / self.cells

    def skip(self, rays: SampledRays, i: Any) -> Any:
        """The first sample from ``i`` on in an occupied cell; ``rays.steps`` if there is none.

        From an empty cell it continues at the bin in which the ray leaves it (after Amanatides and Woo 1987, who step
        from cell to cell).
        """

        def cond(i: Any, occupied: Any) -> Any:
            return ~occupied & (i < rays.bins)

        def body(i: Any, occupied: Any) -> tuple:
            p = rays.point(rays.distance(i))
            occupied = self.holds(p)
            return dr.select(occupied, i, dr.maximum(i + 1, self._leaves(rays, p, i))), occupied

        start = (dr.detach(i) + 0, i >= rays.bins)
        i, _ = dr.while_loop(start, cond, body, mode="symbolic", label="coopnet.skip")
        return dr.minimum(i, rays.bins)

    def _leaves(self, rays: SampledRays, p: list, i: Any) -> Any:
        """The first bin that is not wholly in the cell of ``p``, the sample of bin ``i``."""
        t = dr.full(rays.float32, dr.inf)
        for v, d, a, s in zip(p, rays.d, self.lower, self._scale(), strict=True):
            position = (v - a) * s
            cell = dr.floor(position)
            beyond = dr.select(d > 0, cell + 1, cell)
            t = dr.minimum(t, dr.select(d == 0, dr.inf, (beyond - position) / (d * s)))
        # from a sample to the face, in bins; slightly less, since rounding may have put either on the wrong side
        bins = dr.clip(t / rays.dt * (1 - 1e-4) + rays.offset(i) - 1e-3, 0, rays.float32(rays.bins))
        return i + rays.uint32(dr.select(bins == bins, bins, 0))

    # ---- changes --------------------------------------------------------

    def update(
        self, field: Any, key: Key, *, density: str = "softplus", decay: float = 0.95, threshold: float = 0.01,
        share: int = 1,
    ) -> None:  # fmt: skip
        r"""Evaluate the density of ``field`` at a random point of each cell, and set the bits.

        .. math:: \rho_c \leftarrow \max(\lambda \rho_c, \sigma(p_c)), \quad
                  \mathrm{bit}_c = \rho_c > \min(\theta, \mathrm{mean}\ \rho)

        In a new grid, :math:`\rho` counts as 0. The method may be called inside ``dr.freeze``, with the grid among the
        arguments of the frozen function, and in the objective of :func:`coopnet.fit`, at every step. To update less
        often, call it in the ``metric`` of ``fit``.

        Args:
            field, density: as in :func:`ray_march`. Fields of 6 inputs and traced code are evaluated in the direction
                (0, 0, 1), and without dropout.
            key: determines the points; give it a new step each time.
            decay: :math:`\lambda`, in [0, 1].
            threshold: :math:`\theta`, a density per unit of :math:`t`: a bin of length :math:`\Delta` in a cell that is
                left out has at most the opacity :math:`1 - e^{-\theta \Delta}`, as far as the samples tell.
            share: evaluate only one cell, drawn at random, out of so many neighbours; the others just decay.

        >>> grid.update(volume, cn.Key(seed=0, step=3), threshold=0.1)
        """
        where = "OccupancyGrid.update"
        radiance = Radiance(field, density, "none", where)
        check_type(where, "key", key, Key, "a coopnet.Key")
        decay, threshold = check_number(where, "decay", decay, 0), check_number(where, "threshold", threshold, 0)
        check(decay <= 1, where, "decay", decay, "a number in [0, 1]")
        share = check_int(where, "share", share, 1, self.cells)
        with dr.suspend_grad():
            uint32, float32 = type(self.bits), type(self.density)
            decay, threshold = kept(float32(decay)), kept(float32(threshold))
            count = -(-self.cells // share)
            lane = dr.arange(uint32, count)
            u = uniform(4, Key(key.seed, lane, key.step), float32, stream=streams.CELLS)
            number = lane
            if share > 1:
                number = dr.minimum(lane * share + uint32(u[3] * share), self.cells - 1)
            x, y, _ = self.resolution
            cell = [number % x, (number // x) % y, number // (x * y)]
            p = [(float32(c) + v) / s + a for c, v, s, a in zip(cell, u[:3], self._scale(), self.lower, strict=True)]
            up = [float32(0), float32(0), float32(1)]
            sigma, _ = radiance(p, up, None, dr.mask_t(uint32)(True))
            sigma = _visible(sigma)
            old = dr.select(dr.isfinite(self.density), self.density, 0) * decay
            there = dr.gather(float32, old, number)
            dr.scatter(old, dr.maximum(there, sigma), number, mode=dr.ReduceMode.Permute)
            self.density = old
            self._set_bits(dr.minimum(threshold, dr.sum(old) * (1 / self.cells)))

    def set_density(self, values: Any, threshold: float = 0.01) -> None:
        """Replace the densities, and set the bits of those above ``threshold``: for loading, and for known scenes.

        Args:
            values: a ``Float`` with an entry per cell in the order of their numbers, or a NumPy array: flat, or of the
                shape (z, y, x). To save a grid, store ``grid.density.numpy()[: grid.cells]``.

        >>> grid.set_density(np.ones((32, 32, 32)), threshold=0.5)
        """
        where = "OccupancyGrid.set_density"
        threshold = check_number(where, "threshold", threshold)
        float32, uint32 = type(self.density), type(self.bits)
        if isinstance(values, dr.ArrayBase):
            _, leaf = kinds.in_kernels(values, where, single=True)
            check_same_backend(f"{where}: values live", leaf, " and the grid", float32)
            densities = float32(values.array if dr.is_tensor_v(values) else values)
        else:
            densities = float32(_numbers(where, values))
        ensure(dr.width(densities) == self.cells, f"{where}: got {dr.width(densities)} values for {self.cells} cells.")
        lane = dr.arange(uint32, self._padded())
        self.density = _visible(dr.gather(float32, densities, lane, lane < self.cells))
        self._set_bits(kept(float32(threshold)))

    def _set_bits(self, threshold: Any) -> None:
        uint32 = type(self.bits)
        lane = dr.arange(uint32, self._padded())
        dr.eval(self.density)
        bit = dr.select((self.density > threshold) & (lane < self.cells), uint32(1) << (lane % WORD), 0)
        self.bits = dr.block_reduce(dr.ReduceOp.Or, bit, WORD)
        dr.eval(self.bits)

    def check_backend(self, leaf: type, where: str) -> None:
        """Raise ``TypeError`` unless the grid lives on the backend of ``leaf``."""
        check_same_backend(f"{where}: occupancy lives", self.bits, ", the rays", leaf)


def _visible(density: Any) -> Any:
    """``density`` without NaN, which rays must see, but which would make the mean of all cells NaN."""
    return dr.select(dr.isnan(density), dr.inf, density)


def _numbers(where: str, values: Any) -> Any:
    try:
        return np.ascontiguousarray(values, np.float32).ravel()
    except Exception as error:  # any error of NumPy
        raise ValueError(f"{where}: got no array of numbers ({str(error)[:80]}).") from None
