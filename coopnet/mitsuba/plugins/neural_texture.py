"""A texture that is a neural field."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ...checks import check, check_choice, check_flag, check_int, check_positive, ensure, entries, is_int
from ...random.key import Key
from .. import call_targets, keys, spectra, texels, transforms
from ..fields import check_field, check_sizes, load, show, sizes
from ..memo import Memo
from ..variants import per_variant, remade
from .named_objects import given, object_or_file

COORDINATES = {"uv": 2, "position": 3}

#: Ways to treat coordinates beyond [0, 1], as in Mitsuba's bitmaps.
WRAP_MODES = ("repeat", "mirror", "clamp")

#: Share of uniform points on area lights, so that black parts of the picture are sampled, too.
_FLOOR = 0.05

#: Points per axis at which the mean is taken, by number of coordinates.
_MEAN = {2: 64, 3: 16}


@per_variant
def NeuralTexture() -> type:
    class NeuralTexture(mi.Texture):
        """A field as a texture, a function of the texture coordinates or of the position.

        Mitsuba takes it wherever it takes a texture that may vary: reflectances, roughnesses and weights of BSDFs, the
        radiance of area lights, displacements of ``bumpmap``. The plugin is called ``neural_texture``. It takes
        ``filename`` (a checkpoint) or ``field`` (a name from :func:`hand_over`), and the arguments below.

        Args:
            field: a built field with 1 or 3 outputs (grey, or linear RGB), or more with ``channels``.
            coordinates: ``"uv"``, two inputs, or ``"position"``, three.
            transform: an affine ``mi.ScalarTransform4f`` applied to them (to ``(u, v, 0)``), such as one that maps
                the bounding box of a shape to the unit cube; ``None`` for none.
            repeat: take ``"uv"`` modulo 1, after the transform, or as they are. Ignored for positions.
            clamp: cut values to [0, 1], as reflectances must be. A value that is cut has no gradient. For radiances,
                use ``clamp=False`` and a field that is not negative (``output_activation="softplus"``).
            resolution: level of detail that is reported to Mitsuba, in texels per axis.
            key: turns dropout on. It needs an index, because textures are evaluated in virtual calls.
            wrap_mode: for ``"uv"`` beyond [0, 1], as in Mitsuba's ``bitmap``: ``"repeat"``, ``"mirror"`` or
                ``"clamp"``. ``None``: as ``repeat`` says.
            to_uv: in place of ``transform`` for ``"uv"``, as in ``bitmap``: an affine ``mi.ScalarTransform3f``, or one
                of four dimensions.
            wavelengths: the field is a spectrum, for spectral variants: its last input is a wavelength, 0 at 360 nm and
                1 at 830 nm, and its one output is the value there. Without it, colors become spectra like those
                of a ``bitmap``, or luminances in monochromatic variants.
            sampling: texels per axis of a picture of the luminance by which area lights sample (u, v) (:meth:`bake`); 0
                for uniform (u, v). Only for ``"uv"``, and for surfaces whose (u, v) are in the unit square.
            channels: numbers of the outputs that are the texture, 1 or 3 of them, such as ``[0, 1, 2]``; ``None`` for
                all. So several textures may share one field. In a scene description, a string such as ``"0 1 2"``.

        Raises:
            TypeError, ValueError: arguments that do not fit each other or the variant.

        >>> bsdf = mi.load_dict({"type": "diffuse", "reflectance": cn.mitsuba.NeuralTexture(field)})
        """

        key = keys.in_calls

        def __init__(
            self, field: Any, coordinates: str = "uv", transform: Any = None, repeat: bool = True, clamp: bool = True,
            resolution: int = 256, key: Key | None = None, wrap_mode: str | None = None, to_uv: Any = None,
            wavelengths: bool = False, sampling: int = 0, channels: Any = None, properties: Any = None,
        ):  # fmt: skip
            where = "NeuralTexture"
            self.coordinates = check_choice(where, "coordinates", coordinates, tuple(COORDINATES))
            self.wavelengths = check_flag(where, "wavelengths", wavelengths)
            spectral = f"{where}: wavelengths=True needs a spectral variant, and the Mitsuba variant is {mi.variant()}."
            ensure(not wavelengths or mi.is_spectral, spectral)
            inputs, outputs = (COORDINATES[coordinates] + wavelengths,), (1,) if wavelengths else (1, 3)
            count = check_field(field, where, inputs, outputs if channels is None else ())
            self.outputs = tuple(range(count)) if channels is None else _chosen(where, channels, count, outputs)
            self.channels = len(self.outputs)
            self.clamp = check_flag(where, "clamp", clamp)
            check_flag(where, "repeat", repeat)
            if wrap_mode is not None:
                check_choice(where, "wrap_mode", wrap_mode, WRAP_MODES)
                ensure(repeat, f"{where}: wrap_mode is {wrap_mode!r}, but repeat=False keeps coordinates as they are.")
            self.texels = check_positive(where, "resolution", resolution)
            for_uv = coordinates == "uv" or (wrap_mode is None and to_uv is None)
            ensure(for_uv, f"{where}: wrap_mode and to_uv are for coordinates='uv'; give positions a transform.")
            both = transform is not None and to_uv is not None
            ensure(not both, f"{where}: got transform and to_uv, which are the same argument; pass one.")
            needed = "an affine mi.ScalarTransform4f"
            rows = None if transform is None else transforms.rows(where, "transform", transform, needed, 4)
            if to_uv is not None:
                rows = transforms.rows(where, "to_uv", to_uv, "an affine mi.ScalarTransform3f", 3, 4)
            self.sampling = check_int(where, "sampling", sampling, 0, 4096)
            by_uv = coordinates == "uv" or not sampling
            ensure(by_uv, f"{where}: sampling is for coordinates='uv'; area lights sample points by those.")
            super().__init__(mi.Properties() if properties is None else properties)
            self.wrap_mode = (wrap_mode or "repeat") if repeat and coordinates == "uv" else None
            self.field, self.rows, self.key, self.sizes = field, rows, key, sizes(field)
            self.call_targets, self.upsampling = call_targets.pointers(), spectra.table()
            self.tables: Any = None
            self.memo = Memo()
            self.bake()

        # ---- values ---------------------------------------------------------

        def _point(self, si: Any) -> tuple[list, list]:
            """Coordinates for the field, and their derivatives with respect to the coordinates before wrapping."""
            p = [*si.uv, 0] if self.coordinates == "uv" else list(si.p)
            if self.rows is not None:
                p = transforms.applied(self.rows, p)
            wrapped = [_wrapped(x, self.wrap_mode) for x in p[: COORDINATES[self.coordinates]]]
            return [x for x, _ in wrapped], [slope for _, slope in wrapped]

        def _values(self, point: list, key: Key | None, active: Any = True) -> list:
            y = self.field(point, key, active)
            y = [mi.Float(y[c]) for c in self.outputs]
            return [dr.clip(v, 0, 1) for v in y] if self.clamp else y

        def _values_at(self, si: Any, active: Any) -> list:
            """Values at ``si`` for each wavelength or channel, evaluated once in a call; zeros where not ``active``."""
            place = [*(si.uv if self.coordinates == "uv" else si.p), *(si.wavelengths if self.wavelengths else ())]
            key = () if self.key is None else (self.key.seed, self.key.index, self.key.step)

            def evaluate(active: Any) -> list:
                point = self._point(si)[0]
                if self.wavelengths:
                    asked = spectra.units(si.wavelengths)
                    return [self._values([*point, w], self.key, active)[0] for w in asked]
                return self._values(point, self.key, active)

            return self.memo(evaluate, active, [*place, *key, *self.field.values()])

        def eval(self, si: Any, active: Any = True) -> Any:
            values = self._values_at(si, active)
            if self.wavelengths:
                return mi.UnpolarizedSpectrum(*values)
            color = spectra.reflectance if self.clamp else spectra.unbounded
            return color(values, si.wavelengths, self.upsampling)

        def eval_3(self, si: Any, active: Any = True) -> Any:
            self._check_color("eval_3")
            return mi.Color3f(*self._values_at(si, active))

        def eval_1(self, si: Any, active: Any = True) -> Any:
            self._check_color("eval_1")
            return self._grey(self._values_at(si, active))

        def _check_color(self, method: str) -> None:
            spectrum = f"NeuralTexture: a field that takes a wavelength returns a spectrum, and has no {method}"
            ensure(not self.wavelengths, f"{spectrum}.", RuntimeError)

        def sample_spectrum(self, si: Any, sample: Any, active: Any = True) -> tuple[Any, Any]:
            """Wavelengths, if the variant has any, and :meth:`eval` divided by their density, for paths from an
            emitter."""
            if not mi.is_spectral:
                return mi.Color0f(), self.eval(si, active)
            extent, si = spectra.LONGEST - spectra.SHORTEST, mi.SurfaceInteraction3f(si)
            si.wavelengths = spectra.SHORTEST + extent * sample
            return si.wavelengths, self.eval(si, active) * extent

        def _grey(self, values: list) -> Any:
            return values[0] if self.channels == 1 else mi.luminance(mi.Color3f(*values))

        def eval_1_grad(self, si: Any, active: Any = True) -> Any:
            """Derivatives of :meth:`eval_1`, not clamped, with respect to u and v.

            Raises ``RuntimeError`` for a field of positions.
            """
            ensure(self.coordinates == "uv", "NeuralTexture: a field of positions has no gradient in uv.", RuntimeError)
            self._check_color("eval_1_grad")
            point, slopes = self._point(si)
            rows = self.field.jacobian(point, self.key, active)
            rows = [rows[c] for c in self.outputs]
            du, dv = (self._grey([row[i] for row in rows]) * slope for i, slope in enumerate(slopes))
            if self.rows is not None:
                (xu, xv, *_), (yu, yv, *_), _ = self.rows
                du, dv = xu * du + yu * dv, xv * du + yv * dv
            return mi.Vector2f(du, dv)

        def _everywhere(self) -> list:
            """Values at a grid of points of the unit square or cube."""
            n, size = COORDINATES[self.coordinates], _MEAN[COORDINATES[self.coordinates]]
            i = dr.arange(mi.UInt32, size**n)
            point = [(mi.Float(i // size**k % size) + 0.5) / size for k in range(n)]
            if self.wavelengths:
                point.append(mi.Float(i % 8 + 0.5) / 8)
            with dr.suspend_grad():
                return self._values(point, None)

        # ---- area lights ----------------------------------------------------

        def bake(self) -> None:
            """Update the picture by which area lights sample (u, v), such as after every hundred training steps.

            Mitsuba's ``params.update()`` does so, too. Values are always the field's: an outdated picture adds
            noise, but no bias. This copies the picture to NumPy, so ``dr.freeze`` cannot record it.
            """
            n = self.sampling
            if not n:
                return
            i, si = dr.arange(mi.UInt32, n * n), dr.zeros(mi.SurfaceInteraction3f, n * n)
            si.uv = (mi.Point2f(i % n, i // n) + 0.5) / n
            with dr.suspend_grad():
                point = self._point(si)[0] + ([mi.Float(0.5)] if self.wavelengths else [])
                light = self._grey(self._values(point, None)).numpy()
            self.tables = texels.tables(light.reshape(n, n), _FLOOR)

        def sample_position(self, sample: Any, active: Any = True) -> tuple[Any, Any]:
            """A point (u, v) for two uniform numbers, and its density."""
            if self.tables is None:
                return sample, mi.Float(1)
            point = texels.sampled(self.tables, sample)
            return point, self.pdf_position(point, active)

        def pdf_position(self, point: Any, active: Any = True) -> Any:
            """The density of :meth:`sample_position` at ``point``."""
            if self.tables is None:
                return mi.Float(1)
            return dr.select(active, texels.density(self.tables, point), 0)

        def mean(self) -> Any:
            """Mean over the unit square or cube, where the field is defined; without gradient."""
            return dr.mean(self._grey(self._everywhere()))

        def max(self) -> float:
            """Largest value at the points of :meth:`mean`."""
            values = self._everywhere()
            return max(float(dr.max(v)[0]) for v in values)

        def resolution(self) -> Any:
            return mi.ScalarVector2i(self.texels, self.texels)

        def is_spatially_varying(self) -> bool:
            return True

        # ---- Mitsuba's scene graph ------------------------------------------

        def traverse(self, callback: Any) -> None:
            show(callback, self.field)

        def parameters_changed(self, names: Any = ()) -> None:
            check_sizes(self.field, self.sizes, where="NeuralTexture")
            self.bake()

        def to_string(self) -> str:
            return (
                f"NeuralTexture[coordinates={self.coordinates}, channels={self.channels}, clamp={self.clamp}, "
                f"field={self.field!r}]"
            )

        def __reduce__(self) -> tuple:
            names = ("field", "coordinates", "clamp", "key", "wrap_mode", "wavelengths", "sampling")
            options = {name: getattr(self, name) for name in names}
            options |= {"resolution": self.texels, "transform": self.rows and transforms.matrix(self.rows)}
            options |= {"repeat": self.wrap_mode is not None, "channels": self.outputs}
            return remade, ("NeuralTexture", options, self.id())

        @classmethod
        def from_properties(cls, properties: Any) -> Any:
            """The plugin ``neural_texture`` of a scene description."""
            field = object_or_file(properties, "neural_texture", "field", load)
            coordinates = "coordinates", "transform", "repeat", "wrap_mode", "to_uv"
            names = *coordinates, "clamp", "resolution", "wavelengths", "sampling", "channels"
            return cls(field, **given(properties, *names), properties=properties)

    return NeuralTexture


def _chosen(where: str, channels: Any, count: int, accepted: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of outputs, checked; a string holds them with spaces between."""
    numbers = channels.split() if isinstance(channels, str) else channels
    found = [int(c) if isinstance(c, str) and c.isdecimal() else c for c in entries(where, "channels", numbers)]
    known = all(is_int(c, 0, count - 1) for c in found)
    many = " or ".join(map(str, accepted))
    check(known and len(found) in accepted, where, "channels", channels, f"{many} numbers from 0 to {count - 1}")
    return tuple(map(int, found))


def _wrapped(x: Any, mode: str | None) -> tuple[Any, Any]:
    """A coordinate in [0, 1], and its derivative with respect to ``x``; without a ``mode``, ``x`` unchanged."""
    if mode is None:
        return x, 1
    if mode == "clamp":
        return dr.clip(x, 0, 1), dr.select((x >= 0) & (x <= 1), 1, 0)
    cell = dr.floor(x)
    if mode == "repeat":
        return x - cell, 1
    odd = cell - 2 * dr.floor(0.5 * cell) == 1
    return dr.select(odd, 1 - (x - cell), x - cell), dr.select(odd, -1, 1)
