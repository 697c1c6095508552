"""An environment light that is a neural field."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi
import numpy as np

from ...checks import check_choice, check_int, check_number, ensure
from ...random.key import Key
from .. import call_targets, keys, spectra, transforms
from ..fields import check_field, check_sizes, load, show, sizes
from ..variants import per_variant, remade
from .named_objects import given, object_or_file

#: Coordinates with which a field is evaluated, and their number.
COORDINATES = {"direction": 3, "uv": 2}
#: Distance to the light, in units of the scene: beyond everything, and small enough that its square is finite.
FAR = 1e10


@per_variant
def NeuralEnvmap() -> type:
    class NeuralEnvmap(mi.Emitter):
        """A field as an environment light, such as a sky.

        Radiance is always evaluated by the field, for paths that leave the scene and for sampled directions.
        Directions are sampled by Mitsuba's own ``envmap``, in proportion to a picture of the luminance (:meth:`bake`).
        ``sample``, ``pdf`` and ``eval`` agree also after the field has changed: an outdated picture adds noise, but
        no bias. The plugin is called ``neural_envmap``. It takes ``filename`` (a checkpoint) or
        ``field`` (a name from :func:`hand_over`), and the arguments below.

        Args:
            field: a built field with 1 or 3 outputs that are not negative, such as with
                ``output_activation="softplus"``; negative values are cut to 0.
            coordinates: ``"direction"``, three inputs: the unit vector to where light comes from. There are no seams
                and no poles. ``"uv"``, two inputs: the texture coordinates of ``envmap``.
            to_world: a ``mi.ScalarTransform4f`` that rotates the light, as in ``envmap``.
            scale: a factor of the radiance.
            resolution: height of the baked picture, which is twice as wide.
            floor: share of samples that is uniform in the picture, so that no direction is left out.
            key: turns dropout on. It needs an index, because emitters are evaluated in virtual calls.

        Raises:
            TypeError, ValueError: arguments that do not fit each other or the variant.

        >>> sky = cn.mitsuba.NeuralEnvmap(radiance)
        >>> scene = mi.load_dict({"type": "scene", "sky": sky, "ball": {"type": "sphere"}})
        """

        key = keys.in_calls

        def __init__(
            self, field: Any, coordinates: str = "direction", to_world: Any = None, scale: float = 1.0,
            resolution: int = 64, floor: float = 0.05, key: Key | None = None, properties: Any = None,
        ):  # fmt: skip
            where = "NeuralEnvmap"
            self.coordinates = check_choice(where, "coordinates", coordinates, tuple(COORDINATES))
            self.channels = check_field(field, where, inputs=(COORDINATES[coordinates],), outputs=(1, 3))
            self.scale = check_number(where, "scale", scale, 0)
            self.texels = check_int(where, "resolution", resolution, 4, 4096)
            self.floor = check_number(where, "floor", floor, 0)
            ensure(0 < floor <= 1, f"{where}: floor is {floor:g}; a number in (0, 1] is needed.")
            rows = np.eye(4)[:3].tolist()
            if to_world is not None:
                rows = transforms.rows(where, "to_world", to_world, "an affine mi.ScalarTransform4f", 4)
            turn = np.array(rows)[:, :3]
            rotation = np.allclose(turn @ turn.T, np.eye(3), atol=1e-4)
            ensure(rotation, f"{where}: to_world is not a rotation or mirror image, which directions need.")
            super().__init__(mi.Properties() if properties is None else properties)
            self.field, self.rows, self.key, self.sizes = field, rows, key, sizes(field)
            self.m_flags = mi.EmitterFlags.Infinite | mi.EmitterFlags.SpatiallyVarying
            self.call_targets, self.upsampling = call_targets.pointers(), spectra.table()
            self.white: Any = mi.load_dict({"type": "d65"}) if mi.is_spectral else None
            self._turn = [[*row, 0.0] for row in turn.T.tolist()]
            self.in_scene = False
            self.baked: Any = None
            self.bake()

        # ---- the density ----------------------------------------------------

        def bake(self) -> None:
            """Update the picture by which directions are sampled, such as after every hundred training steps.

            Mitsuba's ``params.update()`` does so, too. This copies the picture to NumPy, so ``dr.freeze`` cannot record
            it.
            """
            height, width = self.texels, 2 * self.texels
            i = dr.arange(mi.UInt32, height * width)
            u, v = (mi.Float(i % width) + 0.5) / width, (mi.Float(i // width) + 0.5) / height
            with dr.suspend_grad():
                color = self._values(_direction(u, v), None, True)
                light = color[0] if self.channels == 1 else mi.luminance(mi.Color3f(*color))
            light = np.nan_to_num(light.numpy(), posinf=0).reshape(height, width)
            mean = max(float(light.mean()), 1e-12)
            light = (1 - self.floor) * light / mean + self.floor
            picture = np.repeat(light[..., None], 3, axis=2).astype(np.float32)
            if self.baked is None:
                matrix = mi.ScalarTransform4f(transforms.matrix(self.rows))
                self.baked = mi.load_dict({"type": "envmap", "bitmap": mi.Bitmap(picture), "to_world": matrix})
                return
            replaced = mi.traverse(mi.load_dict({"type": "envmap", "bitmap": mi.Bitmap(picture)}))
            params = mi.traverse(self.baked)
            params["data"] = replaced["data"]
            params.update()

        # ---- light ----------------------------------------------------------

        def _values(self, local: list, key: Key | None, active: Any) -> list:
            """The color of the light from the direction ``local``, in the frame of the field."""
            coordinates = local
            if self.coordinates == "uv":
                coordinates = [dr.atan2(local[0], -local[2]) * (0.5 / dr.pi), dr.safe_acos(local[1]) / dr.pi]
                coordinates[0] -= dr.floor(coordinates[0])
            return [self.scale * dr.maximum(mi.Float(v), 0) for v in self.field(coordinates, key, active)]

        def _light(self, direction: Any, wavelengths: Any, active: Any) -> Any:
            """The radiance from a ``direction`` of the world."""
            color = self._values(transforms.applied(self._turn, direction), self.key, active)
            light = spectra.emitted(color, wavelengths, self.upsampling)
            return spectra.depolarized(dr.select(active, light, 0))

        def eval(self, si: Any, active: Any = True) -> Any:
            return self._light(-si.wi, si.wavelengths, active)

        def sample_direction(self, it: Any, sample: Any, active: Any = True) -> tuple:
            ds, _ = self.baked.sample_direction(it, sample, active)
            active &= ds.pdf > 0
            ds.emitter = mi.EmitterPtr(self)
            if not self.in_scene:
                ds.dist = mi.Float(FAR)
                ds.p = it.p + FAR * ds.d
            light = self._light(ds.d, it.wavelengths, active)
            return ds, light * dr.select(active, dr.rcp(ds.pdf), 0)

        def pdf_direction(self, it: Any, ds: Any, active: Any = True) -> Any:
            return dr.select(active, self.baked.pdf_direction(it, ds, active), 0)

        def eval_direction(self, it: Any, ds: Any, active: Any = True) -> Any:
            return self._light(ds.d, it.wavelengths, active)

        def set_scene(self, scene: Any) -> None:
            """Store the size of the scene, which integrators that follow light from emitters need (``ptracer``)."""
            self.baked.set_scene(scene)
            self.in_scene = True

        def sample_ray(self, time: Any, sample1: Any, sample2: Any, sample3: Any, active: Any = True) -> tuple:
            unknown = "NeuralEnvmap: the size of the scene is unknown; call emitter.set_scene(scene)"
            ensure(self.in_scene, f"{unknown} before light is followed from emitters.", RuntimeError)
            ray, weight = self.baked.sample_ray(time, sample1, sample2, sample3, active)
            si = dr.zeros(mi.SurfaceInteraction3f, dr.width(ray))
            si.wi, si.wavelengths = ray.d, ray.wavelengths
            baked, light = self.baked.eval(si, active), self._light(-ray.d, ray.wavelengths, active)
            if mi.is_polarized:
                return ray, light @ weight * dr.rcp(baked[0][0])
            return ray, light * weight * dr.select(baked > 0, dr.rcp(baked), 0)

        def sample_wavelengths(self, si: Any, sample: Any, active: Any = True) -> tuple:
            """Wavelengths sampled like daylight, and the light from the point ``si.uv`` of the picture divided by
            their density; only the light in variants without wavelengths."""
            color = self._values(_direction(*si.uv), self.key, active)
            if not mi.is_spectral:
                return mi.Color0f(), spectra.unbounded(color, None, None)
            wavelengths, weight = self.white.sample_spectrum(si, spectra.spread(sample), active)
            return wavelengths, weight * spectra.unbounded(color, wavelengths, self.upsampling)

        def sample_position(self, time: Any, sample: Any, active: Any = True) -> tuple:
            """Zeros: the light has no position, but virtual calls evaluate this method of all emitters."""
            return dr.zeros(mi.PositionSample3f), mi.Float(0)

        def bbox(self) -> Any:
            return mi.ScalarBoundingBox3f()

        # ---- Mitsuba's scene graph ------------------------------------------

        def traverse(self, callback: Any) -> None:
            show(callback, self.field)

        def parameters_changed(self, names: Any = ()) -> None:
            check_sizes(self.field, self.sizes, where="NeuralEnvmap")
            self.bake()

        def to_string(self) -> str:
            how = f"coordinates={self.coordinates}, channels={self.channels}, scale={self.scale:g}"
            return f"NeuralEnvmap[{how}, resolution={self.texels}, field={self.field!r}]"

        def __reduce__(self) -> tuple:
            options = {name: getattr(self, name) for name in ("field", "coordinates", "scale", "floor", "key")}
            options |= {"resolution": self.texels, "to_world": transforms.matrix(self.rows)}
            return remade, ("NeuralEnvmap", options, self.id())

        @classmethod
        def from_properties(cls, properties: Any) -> Any:
            """The plugin ``neural_envmap`` of a scene description."""
            field = object_or_file(properties, "neural_envmap", "field", load)
            names = ("coordinates", "to_world", "scale", "resolution", "floor")
            return cls(field, **given(properties, *names), properties=properties)

    return NeuralEnvmap


def _direction(u: Any, v: Any) -> list:
    """The unit vector for a point of the picture, as in Mitsuba's ``envmap``."""
    (sine, cosine), (s, c) = dr.sincos(dr.pi * v), dr.sincos(2 * dr.pi * u)
    return [s * sine, cosine, -c * sine]
