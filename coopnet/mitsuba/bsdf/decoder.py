"""The network of a BSDF: the value for a latent code and two directions."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ...checks import check_above, check_choice, check_int, ensure
from ...checks.sizes import check_features
from ...field import NeuralField
from ...jit.unpacked import Traversed
from ...random.key import Key
from ..fields import check_field, sizes
from . import directions as features

#: Upper limit of raw outputs: exp(LARGEST) is about 1e5, more than any highlight that can be sampled.
LARGEST = 11.5


class Decoder(Traversed):
    r"""A BSDF :math:`f_r(\omega_i, \omega_o) = \exp(\mathrm{field}(\mathrm{code}, \mathrm{features}))`.

    The exponential makes it positive, and the network computes logarithms, because a glossy BRDF spans orders of
    magnitude. With ``directions="rusinkiewicz"`` it is reciprocal for any weights.

    With ``eta`` it also transmits, on both sides of the surface. Between media of indices :math:`\eta_i` and
    :math:`\eta_o`, on the sides of :math:`\omega_i` and :math:`\omega_o`, the exponential is multiplied by
    :math:`\eta_i / \eta_o`, so that for radiance
    :math:`f(\omega_i, \omega_o)\, \eta_o^2 = f(\omega_o, \omega_i)\, \eta_i^2` (Veach 1997, equation 5.14).

    Args:
        field: a built field of 3 outputs and ``latent_features`` + 6 inputs (``"plain"``), or + 8 (``"rusinkiewicz"``),
            or + 12 (``"rusinkiewicz"`` with ``eta``).
        latent_features: length of the code; ``None``: the inputs of ``field`` that are not directions.
        directions: see :mod:`coopnet.mitsuba.bsdf.directions`.
        eta: ``None`` for a reflection on the front side; else the refractive index behind the surface relative to that
            in front of it, 1 for thin sheets.

    Raises:
        TypeError, ValueError: ``field`` is not a built field of the backend that Mitsuba's variant runs on, or has
            other numbers of inputs or outputs.

    >>> decoder = cn.mitsuba.Decoder(field, latent_features=8)
    """

    def __init__(
        self,
        field: NeuralField,
        latent_features: int | None = None,
        directions: str = "rusinkiewicz",
        eta: float | None = None,
    ):
        where = "Decoder"
        self.directions = check_choice(where, "directions", directions, tuple(features.FEATURES))
        self.eta = None if eta is None else check_above(where, "eta", eta)
        self.direction_features = features.count(directions, eta)
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
        return self if field is self.field else Decoder(field, self.latent_features, self.directions, self.eta)

    def inputs(self, code: list, wi: Any, wo: Any) -> list:
        """The inputs of the field: ``code``, a list of ``latent_features`` arrays, and the features of the unit
        vectors ``wi`` and ``wo`` in the shading frame.
        """
        return [*code, *features.features(self.directions, wi, wo, self.eta)]

    def evaluate(self, code: list, wi: Any, wo: Any, key: Key | None = None, active: Any = True) -> Any:
        r"""The BSDF times the cosine, :math:`f_r(\omega_i, \omega_o) |\cos\theta_o|`, in 1/sr.

        Args:
            code: ``latent_features`` arrays.
            wi, wo: unit vectors in the shading frame.
            key: turns dropout on; inside virtual calls it needs an index.
            active: lanes to evaluate.

        Returns:
            ``Color3f``, for radiance. It is 0 where a direction is below the surface or, if the decoder transmits,
            tangent to it. For importance, which conserves energy, multiply it by the square of :meth:`index`.
        """
        sees = [(w.z > 0) if self.eta is None else features.leaves(w) for w in (wi, wo)]
        front = sees[0] & sees[1] & active
        up = type(wi)(0, 0, 1)
        wi, wo = dr.select(front, wi, up), dr.select(front, wo, up)
        raw = self.field(self.inputs(code, wi, wo), key, front)
        return dr.select(front, self.value(raw, wo) / self.index(wi, wo), 0)

    def value(self, raw: Any, wo: Any) -> Any:
        """The exponential of the field's three raw outputs, times the cosine; 0 in directions below the surface. It
        equals the BSDF for radiance times :meth:`index`, and the BSDF for importance divided by :meth:`index`.
        """
        cosine = wo.z if self.eta is None else dr.abs(wo.z)
        return mi.Color3f(*(dr.exp(dr.minimum(v, LARGEST)) * cosine for v in raw))

    def index(self, wi: Any, wo: Any) -> Any:
        """The refractive index on the side of ``wo`` relative to that on the side of ``wi``."""
        return type(wi.z)(1) if self.eta is None else features.relative_index(self.eta, wi, wo)

    def __repr__(self) -> str:
        eta = "" if self.eta is None else f", eta={self.eta:g}"
        known = f"latent_features={self.latent_features}, directions={self.directions!r}{eta}"
        return f"Decoder({known}, field={self.field!r})"
