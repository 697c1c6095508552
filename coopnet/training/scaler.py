"""Loss scaling for half precision."""

from __future__ import annotations

from typing import Any

import drjit as dr
from drjit.opt import GradScaler


class LossScaler(GradScaler):
    """``drjit.opt.GradScaler`` whose whole state is arrays, so that it lives in a frozen function, with a count of the
    steps that were skipped because a gradient overflowed (Micikevicius et al. 2018, section 3.2)."""

    DRJIT_STRUCT = {"scale_factor": object, "it": object, "skipped": object}

    def __init__(self, dtype: type | None = None, init_scale: float = 65536.0):
        super().__init__(init_scale=init_scale)
        self.skipped: Any = 0
        if dtype is not None:
            uint32 = dr.uint32_array_t(dtype)
            self.scale_factor = dr.opaque(dtype, init_scale)
            self.it, self.skipped = dr.opaque(uint32, 0), dr.opaque(uint32, 0)

    def step(self, opt: Any, **kwargs: Any) -> None:
        super().step(opt, **kwargs)
        # the base class counts good steps since the last overflow, so 0 means that this one was skipped
        self.skipped = self.skipped + dr.select(self.it == 0, 1, 0)
        dr.schedule(self.skipped, self.it, self.scale_factor)
