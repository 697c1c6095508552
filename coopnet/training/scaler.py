"""Loss scaling for half precision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import drjit as dr

from . import limits


class LossScaler:
    """Multiplies the loss so that gradients use the range of half precision, and skips the steps in which they
    overflow (Micikevicius et al. 2018, section 3.2).

    It does the same as ``drjit.opt.GradScaler``, but separately from the optimizer's step, so that either may run
    elsewhere. Its whole state is in arrays, so that it works in a frozen function: ``it`` is the number of steps since
    the last skipped one, ``skipped`` the number of skipped steps, and ``streak`` how many of them were the last ones.
    With ``grows=False`` the scale is never increased.
    """

    DRJIT_STRUCT = {"scale_factor": object, "it": object, "skipped": object, "streak": object}

    def __init__(self, dtype: type, scale: float = limits.SCALE_START, grows: bool = True):
        self.grows = grows
        uint32 = dr.uint32_array_t(dtype)
        self.scale_factor = dr.opaque(dtype, scale)
        self.it, self.skipped, self.streak = (dr.opaque(uint32, 0) for _ in range(3))

    def scale(self, loss: Any) -> Any:
        return loss * self.scale_factor

    def unscale(self, gradients: Iterable[Any]) -> dict[str, Any]:
        """The arguments for ``Optimizer.step``, given flat gradients; the scale for the next step is set."""
        gradients = list(gradients)
        finite = dr.mask_t(dr.leaf_t(gradients[0]))(True)
        for grad in gradients:
            # just before it is read: scheduling an array with pending additions evaluates all that is scheduled so far
            dr.schedule(grad)
            dr.scatter(finite, False, 0, ~dr.isfinite(grad), mode=dr.ReduceMode.NoConflicts)
        return self.update(finite)

    def update(self, good: Any) -> dict[str, Any]:
        """Like :meth:`unscale`, given whether all gradients are finite: ``good`` is one mask or, for several fields
        with their own scales, a mask of all fields.
        """
        larger = self.scale_factor
        if self.grows:
            grown = dr.minimum(larger * limits.SCALE_GROWTH, limits.SCALE_MOST)
            larger = dr.select(self.it >= limits.SCALE_STEPS, grown, larger)
        scale = dr.select(good, larger, self.scale_factor * limits.SCALE_BACKOFF)
        it, unscaling = dr.select(good, self.it + 1, 0), dr.rcp(self.scale_factor)
        self.scale_factor, self.it = scale, it
        self.skipped = self.skipped + dr.select(self.skips(), 1, 0)
        self.streak = dr.select(self.skips(), self.streak + 1, 0)
        dr.schedule(unscaling, scale, it, self.skipped, self.streak)
        return {"grad_scale": unscaling, "active": good}

    def skips(self) -> Any:
        """Must the step that was unscaled last be skipped?"""
        return self.it == 0
