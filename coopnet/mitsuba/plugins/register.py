"""Registration of plugins in Mitsuba."""

from __future__ import annotations

import functools
from typing import Any

import mitsuba as mi

from ...jit.native.plain_errors import fail
from .. import variants

#: By name of a plugin: Mitsuba's function that registers its kind, and the name of the class, of which each variant has
#: one. Its ``from_properties`` makes an instance from the ``mi.Properties`` of a scene.
PLUGINS: dict[str, tuple[str, str]] = {
    "neural_texture": ("register_texture", "NeuralTexture"),
    "neural_bsdf": ("register_bsdf", "NeuralBSDF"),
    "merl": ("register_bsdf", "MERL"),
    "neural_path": ("register_integrator", "NeuralPath"),
    "neural_volume": ("register_texture", "NeuralVolume"),
    "neural_phase": ("register_phase", "NeuralPhase"),
    "neural_medium": ("register_medium", "NeuralMedium"),
    "neural_envmap": ("register_emitter", "NeuralEnvmap"),
    "neural_volpath": ("register_integrator", "NeuralVolpath"),
}

_registered: set[str] = set()


#: A plugin that must not be registered in this variant, as a texture: whichever variant is set, Mitsuba looks up the
#: kind of a plugin in a dictionary among those registered in this one. No function registers volumes.
_NO_TEXTURE = "neural_volume", "scalar_rgb"


def register() -> None:
    """Make the plugins known to Mitsuba: ``neural_texture``, ``neural_bsdf``, ``neural_path``, ``neural_volume``,
    ``neural_phase``, ``neural_medium``, ``neural_envmap``, ``neural_volpath`` and ``merl``.

    They are registered in the variant that is set, and in all that are set later. In variants in which fields do not
    run, loading such a plugin raises an error that says so. Calling this again does nothing.

    >>> cn.mitsuba.register()
    >>> texture = mi.load_dict({"type": "neural_texture", "field": cn.mitsuba.hand_over("wood", field)})
    """
    _follow()
    _changed(None, mi.variant())


@functools.cache
def _follow() -> None:
    mi.detail.add_variant_callback(_changed)


def _changed(_: Any, variant: str | None) -> None:
    if variant is not None and variant not in _registered:
        _registered.add(variant)
        for name, (function, cls) in PLUGINS.items():
            why = _refused(function, variant)
            if why is None:
                getattr(mi, function)(name, functools.partial(_make, cls))
            elif (name, variant) != _NO_TEXTURE:
                # an exception raised in Python would put its traceback into the message of Mitsuba's parser
                getattr(mi, function)(name, functools.partial(fail, RuntimeError, f"{name}: {why}".encode()))


def _refused(function: str, variant: str) -> str | None:
    """Why plugins that ``function`` registers do not run in ``variant``; ``None`` if they do."""
    if not variants.runs(variant):
        return variants.unfit(variant)
    return variants.polarized(variant) if "polarized" in variant and function == "register_integrator" else None


def _make(cls: str, properties: Any) -> Any:
    return variants.made(cls).from_properties(properties)  # type: ignore[attr-defined]
