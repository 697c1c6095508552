"""Parameters of a BSDF's lobes: constants, textures or a network."""

from __future__ import annotations

from typing import Any

import drjit as dr

from ...checks import ensure
from ...field import NeuralField
from .. import fields
from . import lobes
from .latent import Latent

#: Number of inputs of a network of lobes for the direction of incidence: its components.
DIRECTION = 3


class Sampler(Latent):
    """Parameters of :mod:`.lobes` for points and directions of incidence.

    Args:
        source: two or eight numbers, for the same lobes everywhere; an ``Encoding`` of the texture coordinates with as
            many outputs, or a built field of one; or a built field with eight outputs and ``latent_features`` + 3
            inputs, the latent code and the direction of incidence. With ``eta``, fifteen numbers or outputs.
            :func:`.lobes.from_raw` maps outputs to parameters.
        latent_features: length of the code.
        where: function for error messages.
        eta: the refractive index of a decoder that transmits. Parameters are then fifteen numbers and ``eta``.

    Raises ``TypeError`` or ``ValueError`` for anything else.
    """

    def __init__(self, source: Any, latent_features: int, where: str, eta: float | None = None):
        self.latent_features, inputs = latent_features, latent_features + DIRECTION
        self.eta = eta
        self.network = isinstance(source, NeuralField) and source.in_features != 2
        if self.network:
            self.count = fields.check_field(source, f"{where}: lobes", (2, inputs), outputs=(8 if eta is None else 15,))
            self.constants, self.field, self.sizes = None, source, fields.sizes(source)
            return
        super().__init__(source, where, "lobes")
        reflects = (2, 8), "two or eight are needed"
        known, needed = reflects if eta is None else ((15,), "a decoder that transmits needs fifteen")
        ensure(self.count in known, f"{where}: lobes has {self.count} numbers; {needed}.")
        if self.constants is not None:
            lobes.check(self.constants.numpy().tolist(), where)

    @property
    def size(self) -> int:
        """The length of the parameters."""
        return self.count + (self.eta is not None)

    def parameters(self, uv: Any, code: list, wi: Any, active: Any = True) -> list:
        """The parameters at ``uv`` with latent ``code`` for the direction ``wi``, without derivatives."""
        if self.network:
            return self.directional(code, wi, active)
        params = self(uv, active)
        return self._complete(lobes.from_raw(params) if self.varies else params)

    def directional(self, code: list, wi: Any, active: Any = True) -> list:
        """The parameters from the network of lobes, which must exist."""
        assert self.field is not None
        raw = self.field([*dr.detach(code), *dr.detach(wi)], active=active)
        return self._complete(lobes.from_raw([type(wi.x)(v) for v in raw]))

    def _complete(self, params: list) -> list:
        return dr.detach(params if self.eta is None else [*params, type(params[0])(self.eta)])
