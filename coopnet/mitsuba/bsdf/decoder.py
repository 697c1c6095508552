"""The network of a BSDF: the value for a latent code and two directions."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ...checks import check_choice, check_int, ensure
from ...checks.sizes import check_features
from ...field import NeuralField
from ...jit.unpacked import Traversed
from ...random.key import Key
from ..fields import check_field, sizes
from . import directions as features

#: Raw outputs are cut here, exp(LARGEST) being about 1e5: more than any highlight that can be sampled.
LARGEST = 11.5


class Decoder(Traversed):
    r"""A BSDF :math:`f_r(\omega_i, \omega_o) = \exp(\mathrm{field}(\mathrm{code}, \mathrm{features}))`.

    The exponential makes it positive, and lets the network work with logarithms: a BRDF of a glossy material spans
    orders of magnitude. With ``directions="rusinkiewicz"`` it is reciprocal whatever the weights.

    Args:
        field: a built field of ``latent_features`` + 8 (``"rusinkiewicz"``) or + 6 (``"plain"``) inputs and 3 outputs.
        latent_features: length of the code; ``None`` for the number of inputs that the directions leave.
        directions: see :mod:`coopnet.mitsuba.bsdf.directions`.

    Raises:
        TypeError, ValueError: ``field`` is no built field of the backend that Mitsuba's variant runs on, or has other
            numbers of inputs or outputs.

    >>> decoder = cn.mitsuba.Decoder(field, latent_features=8)
    """

    def __init__(self, field: NeuralField, latent_features: int | None = None, directions: str = "rusinkiewicz"):
        where = "Decoder"
        self.directions = check_choice(where, "directions", directions, tuple(features.FEATURES))
        self.direction_features = features.FEATURES[directions]
        check_field(field, where, outputs=(3,))
        if latent_features is None:
            latent_features = field.in_features - self.direction_features
            needed = f"directions={directions!r} alone takes {self.direction_features}"
            ensure(latent_features >= 0, f"{where}: field has {field.in_features} inputs, but {needed}.")
        latent_features = check_int(where, "latent_features", latent_features, 0)
        self.latent_features = check_features(where, "latent_features", latent_features)
        needed_inputs = self.latent_features + self.direction_features
        ensure(
            field.in_features == needed_inputs,
            f"{where}: field has {field.in_features} inputs, but latent_features={self.latent_features} and "
            f"directions={directions!r} make {needed_inputs}.",
        )
        self.field, self.sizes = field, sizes(field)

    def _to(self, mover: Any) -> Decoder:
        """See :func:`coopnet.to`."""
        field = mover.moved(self.field)
        return self if field is self.field else Decoder(field, self.latent_features, self.directions)

    def inputs(self, code: list, wi: Any, wo: Any) -> list:
        """The inputs of the field: ``code``, a list of ``latent_features`` arrays, and the features of the unit
        vectors ``wi`` and ``wo`` in the shading frame.
        """
        return [*code, *features.features(self.directions, wi, wo)]

    def evaluate(self, code: list, wi: Any, wo: Any, key: Key | None = None, active: Any = True) -> Any:
        r"""The BSDF times the cosine, :math:`f_r(\omega_i, \omega_o) \cos\theta_o`, in 1/sr.

        Args:
            code: ``latent_features`` arrays.
            wi, wo: unit vectors in the shading frame.
            key: turns dropout on; inside virtual calls it needs an index.
            active: lanes to evaluate.

        Returns:
            ``Color3f``; 0 where a direction is below the surface.
        """
        front = (wi.z > 0) & (wo.z > 0) & active
        up = type(wi)(0, 0, 1)
        wi, wo = dr.select(front, wi, up), dr.select(front, wo, up)
        raw = self.field(self.inputs(code, wi, wo), key, front)
        return dr.select(front, self.value(raw, wo), 0)

    def value(self, raw: Any, wo: Any) -> Any:
        """The BSDF times the cosine from the three raw outputs of the field, for ``wo`` above the surface."""
        return mi.Color3f(*(dr.exp(dr.minimum(v, LARGEST)) * wo.z for v in raw))

    def __repr__(self) -> str:
        return f"Decoder(latent_features={self.latent_features}, directions={self.directions!r}, field={self.field!r})"
