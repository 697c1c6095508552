"""What else a march may be given beside rays: modules to differentiate by, and where to sample."""

from __future__ import annotations

from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import check, check_type, ensure, entries
from ..field import NeuralField
from ..nn import Module
from ..random.key import Key
from .arguments import Rays
from .parameters import ModuleParameters
from .rays import SampledRays


def modules(field: Any, parameters: Any, mode: str, where: str) -> ModuleParameters | None:
    """The modules that the march depends on, or ``None`` if traced code does not tell."""
    if isinstance(field, NeuralField):
        check(parameters is None, where, "parameters", parameters, "None, the field having its own,")
        return ModuleParameters([field])
    if parameters is None:
        unknown = "parameters is None, but field is traced code; the modules that it evaluates, or [],"
        ensure(mode != "replay", f"{where}: {unknown} are needed in mode 'replay'.")
        return None
    found = [parameters] if isinstance(parameters, drnn.Module) else entries(where, "parameters", parameters)
    for i, module in enumerate(found):
        check_type(where, f"parameters[{i}]", module, Module, "a coopnet Module")
    return ModuleParameters(list({id(m): m for m in found}.values()))


def sampled(
    checked: Rays, near: Any, far: Any, steps: int, key: Key | None, jitter: bool, masks: str, active: Any
) -> tuple[SampledRays, Any]:
    """The rays, with zeros for those that are not marched, and the mask of those that are."""
    near, far, alive = checked.number("near", near), checked.number("far", far), checked.mask(active)
    leaf, n = checked.leaf, checked.lanes
    parts = [*checked.o, *checked.d, near, far]
    parts = [v + dr.zeros(leaf, n) if dr.width(v) == 1 else v for v in parts]
    for v in parts:
        alive = alive & dr.isfinite(v)
    parts = [dr.select(alive, v, 0) for v in parts]
    o, d, (near, far) = parts[:3], parts[3:6], parts[6:]
    words = None
    if key is not None:
        uint32 = dr.uint32_array_t(leaf)
        key = key.traced(uint32)
        index, step, _ = key.words(uint32, n)
        words = index, step, key.seed
    dt = (far - near) * (1 / steps)
    return SampledRays(o, d, near, dt, steps, alive & (far > near), words, jitter, masks), alive
