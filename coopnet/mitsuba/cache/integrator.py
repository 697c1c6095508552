"""The integrator whose paths end in a radiance cache."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from .. import call_targets, keys
from ..variants import per_variant
from .short_paths import Ending, trace
from .surface import SurfaceRadiance


@per_variant
def RadianceCacheIntegrator() -> type:
    """``RadianceCacheIntegrator`` for the variant that is set."""

    class RadianceCacheIntegrator(mi.SamplingIntegrator):
        """Takes the rest of each path's light from a field; made by :meth:`RadianceCache.integrator`."""

        key = keys.of_paths

        def __init__(self, field: Any, output: SurfaceRadiance, ending: Ending, longest: int, no_emitters: bool):
            super().__init__(mi.Properties())
            self.field, self.output, self.ending = field, output, ending
            self.longest, self.no_emitters, self.call_targets = longest, no_emitters, call_targets.pointers()

        def sample(self, scene: Any, sampler: Any, ray: Any, medium: Any = None, active: Any = True) -> tuple:
            keys.check_paths(self.key, dr.width(ray), "RadianceCacheIntegrator")
            with dr.suspend_grad():
                paths = trace(scene, sampler, ray, self.ending, active, None, self.no_emitters, self.longest)
                end = self.output(self.field, paths.end.interaction(), paths.end.valid, self.key)
                return dr.fma(paths.weight, end, paths.radiance), paths.valid, []

        def __reduce__(self) -> Any:
            hint = "ask the cache for another, cache.integrator()"
            raise TypeError(f"RadianceCacheIntegrator: it belongs to a cache, and cannot be copied or pickled; {hint}.")

        def to_string(self) -> str:
            return f"RadianceCacheIntegrator[{self.ending}, max_depth = {self.longest}]"

    return RadianceCacheIntegrator
