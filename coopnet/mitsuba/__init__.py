"""Neural fields in Mitsuba 3: plugins, an integrator, and fitting.

Importing this needs Mitsuba (``pip install 'coopnet[mitsuba]'``). Mitsuba's classes belong to a variant, so those here
that derive from them are made when they are asked for, for the variant that is set: ``cn.mitsuba.NeuralBSDF``.
"""

from __future__ import annotations

from typing import Any

try:
    import mitsuba as _  # noqa: F401
except ImportError as error:
    raise ImportError("coopnet.mitsuba needs Mitsuba 3: pip install 'coopnet[mitsuba]'") from error

from . import (  # noqa: F401 - classes are found by name; callees is for cn.fit
    cache_integrator,
    callees,
    lobes,
    neural_bsdf,
    neural_path,
    neural_texture,
    variants,
)  # fmt: skip
from .decoder import Decoder
from .fields import build, load
from .fit_bsdf import BSDFFit, fit_bsdf
from .handed import hand_over
from .radiance_cache import RadianceCache
from .register import register
from .render_mc import render_mc

__all__: list[str] = [
    "BSDFFit", "Decoder", "NeuralBSDF", "NeuralPath", "NeuralTexture", "RadianceCache", "build", "fit_bsdf",
    "hand_over", "load", "lobes", "register", "render_mc",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return variants.made(name)
