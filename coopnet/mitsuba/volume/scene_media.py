"""The media of a scene along rays and at points; neural ones are evaluated outside virtual calls."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ...random.key import Key
from ..variants import made


class SceneMedia:
    """The distinct :class:`NeuralMedium` s among the media of a scene's shapes, which are numbered from 1 on.

    Mitsuba's own media have the number 0, and are evaluated in virtual calls.
    """

    def __init__(self, scene: Any):
        neural = made("NeuralMedium")
        inside_and_outside = ((s.interior_medium(), s.exterior_medium()) for s in scene.shapes())
        media: list[Any] = [m for pair in inside_and_outside for m in pair if isinstance(m, neural)]
        self.media = list({medium.ptr: medium for medium in media}.values())
        self._number = {medium.ptr: i + 1 for i, medium in enumerate(self.media)}

    def segment(self, medium: Any, ray: Any, mei: Any, active: Any) -> tuple:
        """In a call of one ``medium``: its number, a majorant of all colors, where ``ray`` enters and leaves it, and
        whether emitters are sampled where it scatters."""
        if medium is None:  # there is no medium anywhere
            return mi.UInt32(0), mi.Float(0), mi.Float(0), mi.Float(0), mi.Bool(False)
        _, near, far = medium.intersect_aabb(ray)
        return (
            mi.UInt32(self._number.get(medium.ptr, 0)), dr.max(medium.get_majorant(mei, active)), near, far,
            mi.Bool(medium.use_emitter_sampling()),
        )  # fmt: skip

    def others(self, medium: Any, mei: Any, active: Any) -> tuple:
        """In a call of one ``medium``: its scattering coefficient and density; zeros for neural ones."""
        if medium is None or medium.ptr in self._number:
            return mi.UnpolarizedSpectrum(0), mi.UnpolarizedSpectrum(0)
        sigma_s, _, sigma_t = medium.get_scattering_coefficients(mei, active)
        return sigma_s, sigma_t

    def coefficients(self, medium: Any, number: Any, mei: Any, key: Key | None, active: Any) -> tuple:
        """Scattering coefficient, density, and light emitted per unit length at ``mei``; zeros if not ``active``."""
        sigma_s, sigma_t = dr.dispatch(medium, self.others, mei, active & (number == 0))
        emitted = mi.UnpolarizedSpectrum(0)
        for i, neural in enumerate(self.media):
            # masked lanes return zeros and add nothing to gradients
            sigma, albedo, light = neural.coefficients(mei, key, active & (number == i + 1))
            sigma_s, sigma_t, emitted = sigma_s + sigma * albedo, sigma_t + sigma, emitted + light
        return sigma_s, sigma_t, emitted
