"""Mitsuba's list of plugins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mitsuba as mi

from .. import variants

#: Name of a plugin -> Mitsuba's function that registers its kind, and the class, made for each variant. Its
#: ``from_properties`` makes an instance of a scene's ``mi.Properties``.
PLUGINS: dict[str, tuple[str, str]] = {
    "neural_texture": ("register_texture", "NeuralTexture"),
    "neural_bsdf": ("register_bsdf", "NeuralBSDF"),
    "neural_path": ("register_integrator", "NeuralPath"),
}

_registered: set[tuple[str, str]] = set()
_following = False


def register() -> None:
    """Make the plugins ``neural_texture``, ``neural_bsdf`` and ``neural_path`` known to Mitsuba.

    For the variant that is set and all that are set later; in those that fields do not run in, making one raises an
    error that says so. May be called again.

    >>> cn.mitsuba.register()
    >>> texture = mi.load_dict({"type": "neural_texture", "field": cn.mitsuba.hand_over("wood", field)})
    """
    global _following
    if not _following:
        mi.detail.add_variant_callback(_changed)
        _following = True
    _changed(None, mi.variant())


def _changed(_: Any, variant: str | None) -> None:
    if variant is None:
        return
    for name, (function, cls) in PLUGINS.items():
        if (name, variant) not in _registered:
            getattr(mi, function)(name, _maker(cls))
            _registered.add((name, variant))


def _maker(cls: str) -> Callable[[Any], Any]:
    return lambda properties: variants.made(cls).from_properties(properties)  # type: ignore[attr-defined]
