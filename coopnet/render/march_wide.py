"""All samples of all rays in one batch."""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..jit.batch_size import batch_sample, pin_batch_size
from ..jit.scopes import frozen
from .compositing import CompositeOp
from .march_loop import Marcher, Sums
from .rays import SampledRays


def march_wide(marcher: Marcher, rays: SampledRays) -> Sums:
    """The sums of rays, by an evaluation of the field at all samples at once and a walk through memory.

    Samples are stored step by step: neighbours in memory belong to neighbouring rays, whose threads read them together.
    """
    n, steps = dr.width(rays.dt), rays.steps
    if frozen():
        # the number of samples is a constant of the recording, which must not be replayed with another number of rays
        sample = dr.detach(batch_sample([rays.dt, *rays.o, *rays.d], n))
        dr.eval(sample)
        pin_batch_size(sample)
    sample = dr.arange(rays.uint32, n * steps)
    where = None
    occupied = None if marcher.occupancy is None else _occupied(marcher, rays.gather(sample % n), sample // n)
    if occupied is not None and not frozen():
        where = sample = dr.compress(occupied)
        occupied = None
        if dr.width(where) == 0:  # one masked sample: gradients of zero can be taken
            where = sample = dr.zeros(rays.uint32)
            occupied = dr.opaque(dr.mask_t(sample), False)
    here, i = rays.gather(sample % n), sample // n
    t = here.distance(i)
    active = here.alive if occupied is None else occupied
    sigma, rgb = marcher.radiance(here.point(t), here.d, here.key(i), active)
    return dr.custom(CompositeOp, marcher, n, steps, sigma * here.dt, [*rgb, t], where)


def _occupied(marcher: Marcher, rays: SampledRays, i: Any) -> Any:
    with dr.suspend_grad():
        return rays.alive & marcher.occupancy.holds(rays.point(rays.distance(i)))
