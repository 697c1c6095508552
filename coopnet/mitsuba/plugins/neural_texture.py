"""A texture that is a neural field."""

from __future__ import annotations

from typing import Any, NamedTuple

import drjit as dr
import mitsuba as mi
import numpy as np

from ...checks import check, check_choice, check_flag, check_positive, ensure
from ...random.key import Key
from .. import call_targets, keys
from ..fields import check_field, check_sizes, load_named, sizes
from ..variants import per_variant, remade
from .named_objects import object_or_file

COORDINATES = {"uv": 2, "position": 3}

#: Points a side at which the mean is taken, by number of coordinates.
_MEAN = {2: 64, 3: 16}


@per_variant
def NeuralTexture() -> type:
    class NeuralTexture(mi.Texture):
        """A field as a texture: of the texture coordinates, or of the position.

        Mitsuba takes it wherever it takes a texture that may vary: reflectances, roughnesses and weights of BSDFs, the
        radiance of area lights, displacements of ``bumpmap``. As a plugin it is called ``neural_texture``, with
        ``filename`` (a checkpoint) or ``field`` (a name from :func:`hand_over`) and the arguments below.

        Args:
            field: a built field with 1 or 3 outputs (grey, or linear RGB).
            coordinates: ``"uv"``, two inputs, or ``"position"``, three.
            transform: an affine ``mi.ScalarTransform4f`` applied to them (to ``(u, v, 0)``), such as one that takes
                the bounding box of a shape to the unit cube; ``None`` for none.
            repeat: take ``"uv"`` modulo 1, after the transform. Ignored for positions.
            clamp: cut values to [0, 1], as reflectances must be. Where a value is cut, it has no gradient. Give
                radiances with ``clamp=False``, of a field that is not negative (``output_activation="softplus"``).
            resolution: what Mitsuba is told about the level of detail, in texels a side.
            key: turns dropout on. Textures are evaluated in virtual calls, where it needs an index.

        Raises:
            TypeError, ValueError: arguments that do not fit each other or the variant.

        >>> bsdf = mi.load_dict({"type": "diffuse", "reflectance": cn.mitsuba.NeuralTexture(field)})
        """

        key = keys.in_calls

        def __init__(
            self,
            field: Any,
            coordinates: str = "uv",
            transform: Any = None,
            repeat: bool = True,
            clamp: bool = True,
            resolution: int = 256,
            key: Key | None = None,
            properties: Any = None,
        ):
            where = "NeuralTexture"
            self.coordinates = check_choice(where, "coordinates", coordinates, tuple(COORDINATES))
            self.channels = check_field(field, where, inputs=(COORDINATES[coordinates],), outputs=(1, 3))
            self.clamp = check_flag(where, "clamp", clamp)
            self.repeat = check_flag(where, "repeat", repeat) and coordinates == "uv"
            self.texels = check_positive(where, "resolution", resolution)
            rows = None if transform is None else _rows(transform, where)
            keys.with_index(key, where)
            super().__init__(mi.Properties() if properties is None else properties)
            self.field, self.rows, self.key, self.sizes = field, rows, key, sizes(field)
            self.call_targets = call_targets.pointers()

        # ---- values ---------------------------------------------------------

        def _point(self, si: Any) -> list:
            p = [*si.uv, 0] if self.coordinates == "uv" else list(si.p)
            if self.rows is not None:
                p = [x * p[0] + y * p[1] + z * p[2] + w for x, y, z, w in self.rows]
            if self.repeat:
                p = [x - dr.floor(x) for x in p]
            return p[: COORDINATES[self.coordinates]]

        def _values(self, point: list, active: Any) -> list:
            y = [mi.Float(v) for v in self.field(point, self.key, active)]
            return [dr.clip(v, 0, 1) for v in y] if self.clamp else y

        def eval(self, si: Any, active: Any = True) -> Any:
            return mi.Color3f(*self._values(self._point(si), active))

        def eval_3(self, si: Any, active: Any = True) -> Any:
            return mi.Color3f(*self._values(self._point(si), active))

        def eval_1(self, si: Any, active: Any = True) -> Any:
            return self._grey(self._values(self._point(si), active))

        def sample_spectrum(self, si: Any, sample: Any, active: Any = True) -> tuple[Any, Any]:
            """No wavelengths, and :meth:`eval`: what paths from an emitter ask of its radiance."""
            return mi.Color0f(), self.eval(si, active)

        def _grey(self, values: list) -> Any:
            return values[0] if self.channels == 1 else mi.luminance(mi.Color3f(*values))

        def eval_1_grad(self, si: Any, active: Any = True) -> Any:
            """Derivatives of :meth:`eval_1`, not clamped, with respect to u and v.

            Raises ``RuntimeError`` for a field of positions.
            """
            ensure(self.coordinates == "uv", "NeuralTexture: a field of positions has no gradient in uv.", RuntimeError)
            rows = self.field.jacobian(self._point(si), self.key, active)
            du, dv = (self._grey([row[i] for row in rows]) for i in range(2))
            if self.rows is not None:
                (xu, xv, *_), (yu, yv, *_), _ = self.rows
                du, dv = xu * du + yu * dv, xv * du + yv * dv
            return mi.Vector2f(du, dv)

        def _everywhere(self) -> list:
            """Values at a grid of points of the unit square or cube."""
            n, size = COORDINATES[self.coordinates], _MEAN[COORDINATES[self.coordinates]]
            i = dr.arange(mi.UInt32, size**n)
            point = [(mi.Float(i // size**k % size) + 0.5) / size for k in range(n)]
            with dr.suspend_grad():
                y = [mi.Float(v) for v in self.field(point)]
                return [dr.clip(v, 0, 1) for v in y] if self.clamp else y

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
            for name, value in self.field.items():
                callback.put(name, value, mi.ParamFlags.Differentiable)

        def parameters_changed(self, names: Any = ()) -> None:
            check_sizes(self.field, self.sizes, where="NeuralTexture")  # they are the field's own arrays

        def to_string(self) -> str:
            return (
                f"NeuralTexture[coordinates={self.coordinates}, channels={self.channels}, clamp={self.clamp}, "
                f"field={self.field!r}]"
            )

        def __reduce__(self) -> tuple:
            given = {name: getattr(self, name) for name in ("field", "coordinates", "repeat", "clamp", "key")}
            given |= {"resolution": self.texels, "transform": self.rows and UVTransform([*self.rows, [0, 0, 0, 1]])}
            return remade, ("NeuralTexture", given, self.id())

        @classmethod
        def from_properties(cls, properties: Any) -> Any:
            """Make the plugin ``neural_texture`` that a scene describes."""
            field = object_or_file(properties, "neural_texture", "field", load_named)
            names = ("coordinates", "transform", "repeat", "clamp", "resolution")
            given = {name: properties[name] for name in names if name in properties}
            return cls(field, **given, properties=properties)

    return NeuralTexture


class UVTransform(NamedTuple):
    """A transform as numbers: Mitsuba's cannot be pickled."""

    matrix: list[list[float]]


def _rows(transform: Any, where: str) -> list[list[float]]:
    """The first three rows of an affine transform of Mitsuba's, in any of its precisions."""
    try:
        matrix = np.array(transform.matrix, np.float64)
    except Exception:
        matrix = np.zeros(0)
    affine = matrix.shape == (4, 4) and np.array_equal(matrix[3], [0, 0, 0, 1])
    check(affine, where, "transform", transform, "an affine mi.ScalarTransform4f", TypeError)
    return matrix[:3].tolist()
