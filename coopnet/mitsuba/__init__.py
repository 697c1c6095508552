"""Neural fields in Mitsuba 3: plugins, an integrator, and fitting.

Importing this needs Mitsuba, which the extra ``mitsuba`` installs. Mitsuba's classes belong to a variant. So classes
here that derive from them, such as ``cn.mitsuba.NeuralBSDF``, are made when they are accessed, for the variant that is
set.

======================  ========================================================================
:mod:`.plugins`         plugins that scenes name: materials, textures, volumes, integrators
:mod:`.bsdf`            BSDFs as networks, and fitting them
:mod:`.path`            the loop of the integrator ``neural_path``
:mod:`.volume`          fields as media, and the loop of ``neural_volpath``
:mod:`.cache`           the radiance cache
:mod:`.render_mc`       mean and deviation of a picture over draws of the networks
shared parts
:mod:`.variants`        classes that derive from Mitsuba's, one for each variant
:mod:`.fields`          fields for the variant that is set
:mod:`.keys`            the attribute ``key`` of plugins
:mod:`.transforms`      affine transforms, in numbers
:mod:`.spectra`         colors as the spectra that a variant computes with
:mod:`.texels`          points drawn by the brightness of a picture
:mod:`.memo`            values that a material asks for several times in one call
:mod:`.call_targets`    targets of virtual calls, as an input of frozen functions
======================  ========================================================================
"""

from __future__ import annotations

from typing import Any

try:
    import mitsuba as _  # noqa: F401
except ImportError as error:
    raise ImportError("coopnet.mitsuba needs Mitsuba 3; pip install mitsuba, or coopnet[mitsuba].") from error

from . import call_targets, variants  # noqa: F401 - call_targets is for cn.fit
from .bsdf import lobes
from .bsdf.decoder import Decoder
from .bsdf.fit import BSDFFit, fit_bsdf
from .bsdf.rgl import rgl
from .cache import integrator  # noqa: F401 - its class is found by name
from .cache.radiance_cache import RadianceCache
from .fields import build, load
from .plugins import (  # noqa: F401 - so are these
    merl,
    neural_bsdf,
    neural_envmap,
    neural_medium,
    neural_path,
    neural_phase,
    neural_texture,
    neural_volpath,
    neural_volume,
)
from .plugins.named_objects import hand_over
from .plugins.register import register
from .render_mc import render_mc

__all__: list[str] = [
    "BSDFFit", "Decoder", "MERL", "NeuralBSDF", "NeuralEnvmap", "NeuralMedium", "NeuralPath", "NeuralPhase",
    "NeuralTexture", "NeuralVolpath", "NeuralVolume", "RadianceCache", "build", "fit_bsdf", "hand_over", "load",
    "lobes", "register", "render_mc", "rgl",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return variants.made(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
