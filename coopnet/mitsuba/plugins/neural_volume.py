"""A volume that is a neural field."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ...checks import check_positive
from ...random.key import Key
from .. import call_targets, keys, spectra
from ..fields import check_sizes, load, show
from ..variants import per_variant, remade
from ..volume import majorant
from ..volume.placed_field import PlacedField, of_placed
from .named_objects import given, object_or_file


@per_variant
def NeuralVolume() -> type:
    class NeuralVolume(mi.Volume):
        """A field of positions as a volume: extinction or albedo of Mitsuba's media.

        Mitsuba takes it wherever it takes a ``gridvolume``: ``sigma_t`` and ``albedo`` of ``heterogeneous`` media, and
        ``albedo`` of ``homogeneous`` ones. The plugin is called ``neural_volume``. It takes
        ``filename`` (a checkpoint) or ``field`` (a name from :func:`hand_over`), and the arguments below.

        Values are cut to the range from 0 to :meth:`max`, which media use as their majorant. Outside the box, the
        volume is 0.

        Args:
            field: a built field of 3 inputs, positions, with 1 or 3 outputs, that are not negative (such as with
                ``output_activation="softplus"``).
            to_world: an affine ``mi.ScalarTransform4f`` that maps the unit cube to the box of the volume, as in
                ``gridvolume``. ``None``: the box is the field's ``bounds``, or the unit cube.
            maximum: the largest value, such as 1 for an albedo. ``None``: 1.1 times the largest that is found at some
                50,000 points, when the volume is made and when its parameters change.
            resolution: level of detail that is reported to Mitsuba, in cells per axis.
            key: turns dropout on. It needs an index, because volumes are evaluated in virtual calls.

        Raises:
            TypeError, ValueError: arguments that do not fit each other or the variant.

        >>> smoke = cn.mitsuba.NeuralVolume(density)
        >>> medium = mi.load_dict({"type": "heterogeneous", "sigma_t": smoke, "albedo": 0.9, "scale": 20.0})
        """

        key, field = keys.in_calls, of_placed

        def __init__(
            self, field: Any, to_world: Any = None, maximum: float | None = None, resolution: int = 64,
            key: Key | None = None, properties: Any = None,
        ):  # fmt: skip
            where = "NeuralVolume"
            placed = PlacedField(field, to_world, where, inputs=(3,), outputs=(1, 3))
            maximum = majorant.check_maximum(where, maximum)
            self.cells = check_positive(where, "resolution", resolution)
            properties = mi.Properties() if properties is None else properties
            properties["to_world"] = mi.ScalarTransform4f(placed.transform())
            super().__init__(properties)
            self.placed, self.maximum, self.key = placed, maximum, key
            self.call_targets, self.upsampling = call_targets.pointers(), spectra.table()
            self.measure()

        # ---- values ---------------------------------------------------------

        def _values(self, it: Any, active: Any) -> list:
            y, inside = self.placed(it.p, None, self.key, active)
            return [dr.select(inside, dr.clip(v, 0, self.largest), 0) for v in y]

        def eval(self, it: Any, active: Any = True) -> Any:
            return spectra.unbounded(self._values(it, active), it.wavelengths, self.upsampling)

        def eval_3(self, it: Any, active: Any = True) -> Any:
            return mi.Vector3f(*self._values(it, active))

        def eval_1(self, it: Any, active: Any = True) -> Any:
            y = self._values(it, active)
            return y[0] if len(y) == 1 else mi.luminance(mi.Color3f(*y))

        # ---- the majorant ---------------------------------------------------

        def max(self) -> float:
            """The largest value that :meth:`eval` returns. If colors become spectra, it is twice that of the colors."""
            return self.largest * (2 if self.upsampling and self.placed.count == 3 else 1)

        def measure(self) -> None:
            """Measure :meth:`max` again, if no ``maximum`` was given. Call it after the field was trained outside
            Mitsuba.

            A medium reads it when it is made, and when ``params.update()`` says that something has changed.
            """
            self.largest = majorant.measured(self._largest_at) if self.maximum is None else self.maximum

        def exceeded(self, samples: int = 1 << 18, seed: int = 0) -> tuple[float, float]:
            """Look for places where the field is above :meth:`max`, at other points than those of :meth:`measure`.

            Args:
                samples: number of points, drawn uniformly from the box.
                seed: of the points.

            Returns:
                The share of points above :meth:`max`, and the largest value found divided by :meth:`max`.

            Warns:
                RuntimeWarning: there are such points; values are cut there.
            """
            return majorant.exceeded("NeuralVolume.exceeded", self._largest_at, self.largest, samples, seed)

        def _largest_at(self, u: list) -> Any:
            y = self.placed.in_unit_cube(u)
            return y[0] if len(y) == 1 else dr.maximum(dr.maximum(y[0], y[1]), y[2])

        def resolution(self) -> Any:
            return mi.ScalarVector3i(self.cells)

        # ---- Mitsuba's scene graph ------------------------------------------

        def traverse(self, callback: Any) -> None:
            show(callback, self.field)

        def parameters_changed(self, names: Any = ()) -> None:
            check_sizes(self.field, self.placed.sizes, where="NeuralVolume")
            self.measure()

        def to_string(self) -> str:
            return f"NeuralVolume[max={self.largest:g}, channels={self.placed.count}, field={self.field!r}]"

        def __reduce__(self) -> tuple:
            options = {"field": self.field, "to_world": self.placed.transform(), "maximum": self.maximum}
            return remade, ("NeuralVolume", options | {"resolution": self.cells, "key": self.key}, self.id())

        @classmethod
        def from_properties(cls, properties: Any) -> Any:
            """The plugin ``neural_volume`` of a scene description."""
            field = object_or_file(properties, "neural_volume", "field", load)
            return cls(field, **given(properties, "to_world", "maximum", "resolution"), properties=properties)

    return NeuralVolume
