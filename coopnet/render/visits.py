"""How often rays have visited a place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import drjit as dr

from ..backend import namespace, require
from ..checks import check_backend, check_int, check_same_backend, ensure
from ..checks.sizes import check_entries
from ..field import NeuralField
from ..jit.kernel_parameters import kept
from ..jit.scopes import symbolic
from .arguments import Rays, vector
from .cells import BoxOfCells
from .march_loop import Marcher
from .radiance import Radiance
from .ray_march import MAX_STEPS
from .rays import SampledRays

#: Visits are counted in units of 1 / UNIT, as integers: sums do not depend on the order of the rays.
UNIT = 1 << 20
#: A ray is followed while its transmittance is above this. The fourth power of 2^-5 is one unit, 1 / UNIT.
DARK = 2.0**-5


class Visits(BoxOfCells):
    r"""How often rays have visited the cells of a box: which places of a radiance field its cameras have seen.

    :meth:`add` follows rays through a trained field, those of its training. A ray that enters a cell adds

    .. math:: T^4

    to the number :math:`n` of its visits, with the transmittance :math:`T` in front of the ray's first sample in the
    cell. A ray that has lost half of its light adds a sixteenth of a visit, so that places behind a partly learned
    surface hardly count as seen. Then

    .. math:: u(p) = \frac{1}{1 + n(p)}, \qquad U = \max_i\, T_i\, u(p_i)

    measure how unseen a place is (:meth:`unseen`; :math:`n` is interpolated linearly between the middles of cells), and
    a ray (:meth:`along`): 0 if it is absorbed before it reaches an unseen place, 1 if it reaches one without loss. Only
    densities are used, so it works for all fields, with a grid or without.

    It is a Dr.Jit PyTree of one array, ``counts``: a ``UInt64`` per cell, :math:`2^{20} n` rounded. Sums do not depend
    on the order of the rays. Cell :math:`(x, y, z)` has the number :math:`x + R_x (y + R_y z)`.

    Args:
        resolution: cells along each axis, an int or three, at most 1024. Take cells that are about as wide as a pixel
            is in the middle of the scene: rays miss some of smaller ones.
        lower, upper: corners of the box, a number or three each.
        backend: ``"llvm"``, ``"cuda"`` or ``"auto"``.

    Raises:
        ValueError, TypeError: arguments of other kinds or out of range, or more cells than fit into the memory.
        BackendError: no such backend here.

    >>> visits = cn.render.Visits(24, lower=-1, upper=1)
    >>> visits.add(volume, o, d, 0.5, 3.5, steps=64)
    >>> unseen = visits.along(volume, o, d, 0.5, 3.5, steps=64)
    """

    DRJIT_STRUCT = {"resolution": tuple, "lower": tuple, "upper": tuple, "counts": object}

    def __init__(self, resolution: int | Sequence[int] = 32, lower: Any = 0.0, upper: Any = 1.0, backend: Any = "auto"):
        super().__init__("Visits", resolution, lower, upper)
        uint64 = namespace(require(backend)).UInt64
        check_entries("Visits", "cells", (self.cells,), 8, dr.backend_v(uint64) == dr.JitBackend.LLVM)
        self.counts = dr.zeros(uint64, self.cells)

    @property
    def _home(self) -> Any:
        return self.counts

    def add(
        self, field: NeuralField | Callable, o: Any, d: Any = None, near: Any = None, far: Any = None,
        steps: Any = None, *, density: str = "softplus", active: Any = True,
    ) -> None:  # fmt: skip
        """Follow rays through ``field``, and add their visits.

        Args:
            field, o, d, near, far, density, active: as in :func:`ray_march`. Samples lie in the middles of their bins,
                and keys draw nothing.
            steps: number of bins; enough that they are shorter than the cells.

        Raises:
            ValueError, TypeError: as :func:`ray_march`.
            RuntimeError: called in a symbolic loop, conditional or call.

        >>> visits.add(volume, o, d, 0.5, 3.5, steps=64)
        """
        where = "Visits.add"
        outside = "called in a symbolic loop, conditional or call; call it outside of it"
        ensure(not symbolic(), f"{where}: {outside}.", RuntimeError)
        with dr.suspend_grad():
            rays, marcher = self._rays(where, field, o, d, near, far, steps, density, active, DARK)
            uint64 = type(self.counts)
            counts = dr.opaque(uint64, 0, self.cells)

            def visit(i: Any, transmittance: Any, state: list, active: Any) -> tuple:
                p = rays.point(rays.distance(i))
                cell, inside = self._cell(p, active)
                before, counted = self._cell(rays.point(rays.distance(i - 1)), active & (i > 0))
                visits = uint64(dr.square(dr.square(transmittance)) * UNIT + 0.5)
                enters = inside & ~(counted & (cell == before))
                dr.scatter_reduce(dr.ReduceOp.Add, counts, visits, cell, enters)
                return self._behind(marcher, rays, p, transmittance, active), state

            dr.eval(marcher.along(rays, visit, [], "coopnet.visits"))
            self.counts = self.counts + counts
            dr.eval(self.counts)

    def unseen(self, p: Any) -> Any:
        """How unseen the places ``p`` are, a ``Float`` in (0, 1]: 1 where no ray has come, and outside the box.

        Raises:
            ValueError, TypeError: ``p`` is not a valid origin of :func:`ray_march`, or is on another backend.

        >>> unknown = visits.unseen(p)
        """
        where = "Visits.unseen"
        p = vector(where, "p", p, type(self.counts))
        check_backend(f"{where}: p is", p, self.counts, "the visits")
        with dr.suspend_grad():
            return self._unseen(list(p), True, outside=1)

    def along(
        self, field: NeuralField | Callable, o: Any, d: Any = None, near: Any = None, far: Any = None,
        steps: Any = None, *, density: str = "softplus", active: Any = True,
    ) -> Any:  # fmt: skip
        """The largest product of transmittance and :meth:`unseen` along each ray within the box, a ``Float`` in [0, 1].
        It takes one kernel.

        Args:
            field, o, d, near, far, steps, density, active: as in :meth:`add`. The field is usually the same.

        Returns:
            ``Float``; 0 for rays that are not marched, and for those that do not come to the box.

        Raises:
            ValueError, TypeError: as :func:`ray_march`.

        >>> trusted = visits.along(volume, o, d, 0.5, 3.5, steps=64) < 0.5
        """
        where = "Visits.along"
        with dr.suspend_grad():
            rays, marcher = self._rays(where, field, o, d, near, far, steps, density, active, 0.0)

            def visit(i: Any, transmittance: Any, state: list, active: Any) -> tuple:
                p = rays.point(rays.distance(i))
                found = transmittance * self._unseen(p, active, outside=0)
                return self._behind(marcher, rays, p, transmittance, active), [dr.maximum(state[0], found)]

            return marcher.along(rays, visit, [0], "coopnet.unseen")[0]

    def _rays(
        self, where: str, field: Any, o: Any, d: Any, near: Any, far: Any, steps: Any, density: str, active: Any,
        dark: float,
    ) -> tuple[SampledRays, Marcher]:  # fmt: skip
        steps = check_int(where, "steps", steps, 1, MAX_STEPS)
        radiance = Radiance(field, density, "none", where)
        checked = Rays(o, d, where, field, self.counts)
        rays, _ = SampledRays.of(checked, near, far, steps, None, False, "off", active)
        check_same_backend(f"{where}: the visits live", self.counts, ", the rays", rays.float32)
        radiance.probe(rays.float32, None)
        return rays, Marcher(radiance, None, kept(checked.leaf(dark)))

    def _behind(self, marcher: Marcher, rays: SampledRays, p: list, transmittance: Any, active: Any) -> Any:
        """The light that is left behind a sample."""
        return transmittance * dr.exp(-marcher.radiance(p, rays.d, None, active)[0] * rays.dt)

    def _unseen(self, p: list, active: Any, outside: float) -> Any:
        positions, inside = self._positions(p, active)
        places = [dr.clip(v - 0.5, 0, n - 1) for v, n in zip(positions, self.resolution, strict=True)]
        lowest = [dr.floor(v) for v in places]
        fractions = [v - low for v, low in zip(places, lowest, strict=True)]
        total: Any = 0
        for corner in range(8):
            weight, cell = 1, []
            for k, (low, f, n) in enumerate(zip(lowest, fractions, self.resolution, strict=True)):
                upper = corner >> k & 1
                weight = weight * (f if upper else 1 - f)
                cell.append(dr.minimum(low + upper, n - 1))
            count = dr.gather(type(self.counts), self.counts, self._number(cell), inside)
            total = dr.fma(weight, type(weight)(count), total)
        return dr.select(inside, dr.rcp(1 + total * (1 / UNIT)), outside)
