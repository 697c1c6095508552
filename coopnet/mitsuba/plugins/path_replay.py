"""The common base of integrators that replay paths through networks (Vicini et al. 2021)."""

from __future__ import annotations

import contextlib
from typing import Any

import mitsuba as mi

from ...checks import check_flag, check_int
from ...nn.gradient_banks import MOST, gradient_banks
from ...random.key import Key
from .. import call_targets, keys


def path_replay() -> type:
    """The class for the variant that is set."""

    class PathReplay(mi.ad.integrators.common.RBIntegrator):  # type: ignore[name-defined]
        """Checks and keeps the arguments, and sums weight gradients; a subclass has ``fields(scene)`` and ``sample``.

        ``where`` opens errors; the other arguments are those of :class:`NeuralPath`.
        """

        key = keys.of_paths

        def __init__(
            self, where: str, max_depth: int, rr_depth: int, hide_emitters: bool, banks: int, key: Key | None,
            properties: Any,
        ):  # fmt: skip
            max_depth = check_int(where, "max_depth", max_depth, -1, 2**31 - 1, "-1 or an int from 0 on")
            rr_depth = check_int(where, "rr_depth", rr_depth, 1, 2**31 - 1, "an int from 1 on")
            check_flag(where, "hide_emitters", hide_emitters)
            banks = check_int(where, "banks", banks, 0, MOST, f"an int from 0 to {MOST}")
            properties = mi.Properties() if properties is None else properties
            properties["max_depth"], properties["rr_depth"] = max_depth, rr_depth
            properties["hide_emitters"] = hide_emitters
            super().__init__(properties)
            self.hide_emitters, self.banks, self.key = hide_emitters, banks, key
            self.call_targets = call_targets.pointers()

        def render_backward(
            self, scene: Any, params: Any, grad_in: Any, sensor: Any = 0, seed: Any = 0, spp: int = 0
        ) -> None:
            fields = self.fields(scene)
            # Every iteration of the loop is differentiated separately, so this context has to sum the banks.
            with gradient_banks(*fields, banks=self.banks or None) if fields else contextlib.nullcontext():
                super().render_backward(scene, params, grad_in, sensor, seed, spp)

        @property
        def longest(self) -> int:
            """``max_depth`` as it was given: -1 for any."""
            return self.max_depth if self.max_depth < 2**31 else -1

    return PathReplay
