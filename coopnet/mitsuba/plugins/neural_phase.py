"""A phase function whose parameters are a neural field."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ...random.key import Key
from .. import call_targets, keys, spectra
from ..fields import check_sizes, load, show
from ..variants import per_variant, remade
from ..volume.placed_field import PlacedField, of_placed
from .named_objects import given, object_or_file

#: Largest mean cosine of a lobe, forwards or backwards.
MOST = 0.98


@per_variant
def NeuralPhase() -> type:
    class NeuralPhase(mi.PhaseFunction):
        r"""A phase function of Henyey and Greenstein (1941) whose mean cosine varies, or a mixture of two.

        With one output :math:`y`, the mean cosine is :math:`g = 0.98 \tanh y`. With three outputs there are two lobes,

        .. math:: f = w\,f_{g_1} + (1 - w)\,f_{g_2}, \quad g_i = 0.98 \tanh y_i, \quad w = 1 / (1 + e^{-y_3}).

        It is normalized and sampled exactly for any weights, and can be used in any medium. The plugin is
        called ``neural_phase``. It takes ``filename`` (a checkpoint) or ``field`` (a name from :func:`hand_over`), and
        ``to_world``.

        Args:
            field: a built field of 3 inputs, positions, with 1 or 3 outputs, of any sign.
            to_world: as in :class:`NeuralVolume`. Outside the box, outputs count as 0.
            key: turns dropout on. It needs an index, because phase functions are evaluated in virtual calls.

        Raises:
            TypeError, ValueError: arguments that do not fit each other or the variant.

        >>> phase = cn.mitsuba.NeuralPhase(cosine)
        >>> medium = mi.load_dict({"type": "homogeneous", "sigma_t": 4.0, "phase": phase})
        """

        key, field = keys.in_calls, of_placed

        def __init__(self, field: Any, to_world: Any = None, key: Key | None = None, properties: Any = None):
            placed = PlacedField(field, to_world, "NeuralPhase", inputs=(3,), outputs=(1, 3))
            super().__init__(mi.Properties() if properties is None else properties)
            self.placed, self.key, self.call_targets = placed, key, call_targets.pointers()
            self.m_flags = mi.PhaseFunctionFlags.Anisotropic

        def _lobes(self, mei: Any, active: Any) -> tuple[list, Any]:
            """The mean cosines of the lobes, and the weight of the first."""
            y, _ = self.placed(mei.p, None, self.key, active)
            cosines = [MOST * dr.tanh(v) for v in y[:2]]
            return cosines, dr.rcp(1 + dr.exp(-y[2])) if len(y) == 3 else mi.Float(1)

        def sample(self, ctx: Any, mei: Any, sample1: Any, sample2: Any, active: Any = True) -> tuple:
            cosines, weight = self._lobes(mei, active)
            g = dr.select(sample1 < weight, cosines[0], cosines[-1])
            root = (1 - g * g) / (1 - g + 2 * g * sample2.x)
            few = abs(g) < 1e-3  # for small g, the inverse of the distribution divides by almost 0
            cosine = dr.select(few, 2 * sample2.x - 1, (1 + g * g - root * root) / (2 * dr.select(few, 1, g)))
            cosine = dr.clip(cosine, -1, 1)
            sine, (s, c) = dr.safe_sqrt(1 - cosine * cosine), dr.sincos(2 * dr.pi * sample2.y)
            wo = mei.to_world(mi.Vector3f(sine * c, sine * s, -cosine))
            return wo, spectra.depolarized(mi.UnpolarizedSpectrum(1)), _density(cosines, weight, cosine)

        def eval_pdf(self, ctx: Any, mei: Any, wo: Any, active: Any = True) -> tuple:
            cosines, weight = self._lobes(mei, active)
            density = _density(cosines, weight, -dr.dot(wo, mei.wi))
            return spectra.depolarized(mi.UnpolarizedSpectrum(density)), density

        # ---- Mitsuba's scene graph ------------------------------------------

        def traverse(self, callback: Any) -> None:
            show(callback, self.field)

        def parameters_changed(self, names: Any = ()) -> None:
            check_sizes(self.field, self.placed.sizes, where="NeuralPhase")

        def to_string(self) -> str:
            return f"NeuralPhase[lobes={1 if self.placed.count == 1 else 2}, field={self.field!r}]"

        def __reduce__(self) -> tuple:
            options = {"field": self.field, "to_world": self.placed.transform(), "key": self.key}
            return remade, ("NeuralPhase", options, self.id())

        @classmethod
        def from_properties(cls, properties: Any) -> Any:
            """The plugin ``neural_phase`` of a scene description."""
            field = object_or_file(properties, "neural_phase", "field", load)
            return cls(field, **given(properties, "to_world"), properties=properties)

    return NeuralPhase


def _density(cosines: list, weight: Any, cosine: Any) -> Any:
    """Density per solid angle of light that is deflected by an angle of this ``cosine``."""
    first, *second = [_lobe(g, cosine) for g in cosines]
    return dr.lerp(second[0], first, weight) if second else first


def _lobe(g: Any, cosine: Any) -> Any:
    square = 1 + g * g - 2 * g * cosine
    return dr.inv_four_pi * (1 - g * g) * dr.rcp(square * dr.sqrt(square))
