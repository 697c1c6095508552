"""A medium that is a neural field, such as a radiance field of ``ray_march``."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ...checks import check_choice, check_number, check_type, ensure
from ...random.key import Key
from ...render.radiance import COLORS, DENSITIES, FUNCTIONS
from .. import call_targets, keys, spectra
from ..fields import check_sizes, load, show
from ..variants import per_variant, remade
from ..volume import majorant
from ..volume.placed_field import PlacedField, of_placed
from .named_objects import given, object_or_file

#: Meanings of the color of a field with four outputs.
LIGHT = ("emitted", "scattered")


@per_variant
def NeuralMedium() -> type:
    class NeuralMedium(mi.Medium):
        r"""A medium whose density, albedo and emission are one field, evaluated once at each collision.

        The number of outputs determines their meaning:

        - 4, density and color: a radiance field trained with :func:`coopnet.render.ray_march`. With ``light="emitted"``
          the medium absorbs, and emits the color times its density per unit length. With ``"scattered"`` the color is
          the albedo.
        - 7: density, albedo (three) and the emitted color (three).
        - 1, the density: nothing is emitted, and the albedo is ``albedo``.

        The plugin is called ``neural_medium``. It takes ``filename`` (a checkpoint) or ``field`` (a name from
        :func:`hand_over`), the arguments below, and a phase function inside.

        Mitsuba's own ``volpath`` and ``prbvolpath`` render scattering and absorption, but no emission. For that, use
        :class:`NeuralVolpath`, which also evaluates the network outside of virtual calls. In every integrator, a
        density above the majorant is cut to it.

        Args:
            field: a built field of 3 inputs, the position, or 6, the position and the direction of the ray in the
                world, before ``density`` and ``color`` are applied.
            to_world: as in :class:`NeuralVolume`. Outside the box, the medium is empty.
            light: the meaning of the color of 4 outputs: ``"emitted"`` or ``"scattered"``.
            density: activation that turns the raw output into a density, as in :func:`coopnet.render.ray_march`.
            color: the same for colors and albedos; these are cut to [0, 1].
            scale: a factor of the density.
            albedo: the albedo of fields with 1 output, a number in [0, 1].
            phase: a ``mi.PhaseFunction``; ``None`` for an isotropic one.
            maximum: the majorant, including ``scale``. ``None``: it is measured, as in :class:`NeuralVolume`, for
                fields of 6 inputs in random directions.
            key: turns dropout on, and needs an index; :class:`NeuralVolpath` has a key of its own.

        Raises:
            TypeError, ValueError: arguments that do not fit each other or the variant.

        >>> smoke = cn.mitsuba.NeuralMedium(volume, light="scattered", scale=20.0)
        >>> cube = {"type": "cube", "bsdf": {"type": "null"}, "interior": smoke}
        """

        key, field = keys.in_calls, of_placed

        def __init__(
            self, field: Any, to_world: Any = None, light: str = "emitted", density: str = "softplus",
            color: str = "sigmoid", scale: float = 1.0, albedo: float = 0.0, phase: Any = None,
            maximum: float | None = None, key: Key | None = None, properties: Any = None,
        ):  # fmt: skip
            where = "NeuralMedium"
            placed = PlacedField(field, to_world, where, inputs=(3, 6), outputs=(1, 4, 7))
            self.light = check_choice(where, "light", light, LIGHT)
            self.density = check_choice(where, "density", density, DENSITIES)
            self.color = check_choice(where, "color", color, COLORS)
            self.scale, maximum = check_number(where, "scale", scale, 0), majorant.check_maximum(where, maximum)
            self.albedo = check_number(where, "albedo", albedo, 0)
            ensure(albedo <= 1, f"{where}: albedo is {albedo:g}; a number in [0, 1] is needed.")
            varies = f"{where}: albedo is {albedo:g}, but field has {placed.count} outputs, which include the albedo."
            ensure(albedo == 0 or placed.count == 1, varies)
            check_type(where, "phase", phase, mi.PhaseFunction | None, "a mi.PhaseFunction or None")
            properties = mi.Properties() if properties is None else properties
            if phase is not None:
                properties["phase"] = phase
            super().__init__(properties)
            self.placed, self.maximum, self.key = placed, maximum, key
            self.call_targets, self.upsampling = call_targets.pointers(), spectra.table()
            self.m_is_homogeneous, self.m_has_spectral_extinction = False, False
            self.measure()

        # ---- values ---------------------------------------------------------

        def coefficients(self, mei: Any, key: Key | None, active: Any) -> tuple:
            """Density, albedo, and the light emitted per unit length at ``mei``, back along its ray."""
            y, inside = self.placed(mei.p, -mei.wi, key, active)
            color = [FUNCTIONS[self.color](v) for v in y[1:]]
            sigma = dr.select(inside, self._clamped(y[0]), 0)
            scattered = color[:3] if len(y) == 7 or (len(y) == 4 and self.light == "scattered") else []
            emitted = color[3:] if len(y) == 7 else color if self.light == "emitted" else []
            albedo, light = mi.UnpolarizedSpectrum(self.albedo), mi.UnpolarizedSpectrum(0)
            if scattered:
                albedo = spectra.reflectance([dr.clip(v, 0, 1) for v in scattered], mei.wavelengths, self.upsampling)
            if emitted:
                light = sigma * spectra.emitted([dr.maximum(v, 0) for v in emitted], mei.wavelengths, self.upsampling)
            return sigma, albedo, light

        def _clamped(self, y: Any) -> Any:
            return dr.minimum(self.scale * FUNCTIONS[self.density](y), self.largest)

        def get_majorant(self, mei: Any, active: Any = True) -> Any:
            return mi.UnpolarizedSpectrum(self.largest)

        def get_scattering_coefficients(self, mei: Any, active: Any = True) -> tuple:
            sigma, albedo, _ = self.coefficients(mei, self.key, active)
            return sigma * albedo, mi.UnpolarizedSpectrum(self.largest - sigma), mi.UnpolarizedSpectrum(sigma)

        def intersect_aabb(self, ray: Any) -> tuple:
            return self.placed.crossed(ray)

        # ---- the majorant ---------------------------------------------------

        def measure(self) -> None:
            """Measure the majorant again, if no ``maximum`` was given. Call it after the field was trained outside
            Mitsuba.
            """
            largest = majorant.measured(self._density_at) if self.maximum is None else self.maximum
            self.largest = dr.opaque(mi.Float, largest)

        def max(self) -> float:
            """The majorant: the largest density."""
            return float(self.largest[0])

        def exceeded(self, samples: int = 1 << 18, seed: int = 0) -> tuple[float, float]:
            """How often, and by how much, is the density above :meth:`max`? As :meth:`NeuralVolume.exceeded`."""
            return majorant.exceeded("NeuralMedium.exceeded", self._density_at, self.max(), samples, seed)

        def _density_at(self, u: list) -> Any:
            digits = [4096 * x - dr.floor(4096 * x) for x in u[:2]]  # every point has its own direction
            turned = mi.warp.square_to_uniform_sphere(mi.Point2f(digits))
            return self.scale * FUNCTIONS[self.density](self.placed.in_unit_cube(u, turned)[0])

        # ---- Mitsuba's scene graph ------------------------------------------

        def traverse(self, callback: Any) -> None:
            show(callback, self.field)
            callback.put("phase_function", self.phase_function(), mi.ParamFlags.Differentiable)

        def parameters_changed(self, names: Any = ()) -> None:
            check_sizes(self.field, self.placed.sizes, where="NeuralMedium")
            self.measure()

        def to_string(self) -> str:
            how = f"light={self.light}, density={self.density}, color={self.color}, scale={self.scale:g}"
            return f"NeuralMedium[max={self.max():g}, {how}, field={self.field!r}]"

        def __reduce__(self) -> tuple:
            names = ("field", "light", "density", "color", "scale", "albedo", "maximum", "key")
            options = {name: getattr(self, name) for name in names} | {"to_world": self.placed.transform()}
            problem = "a copy would lose its phase function; make another NeuralMedium with phase= instead"
            isotropic = self.phase_function().class_name() == "IsotropicPhaseFunction"
            ensure(isotropic, f"NeuralMedium: {problem}.", TypeError)
            return remade, ("NeuralMedium", options, self.id())

        @classmethod
        def from_properties(cls, properties: Any) -> Any:
            """The plugin ``neural_medium`` of a scene description."""
            field = object_or_file(properties, "neural_medium", "field", load)
            names = ("to_world", "light", "density", "color", "scale", "albedo", "maximum")
            return cls(field, **given(properties, *names), properties=properties)

    return NeuralMedium
