"""Numbers for every point of a surface: constant, or a function of the texture coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn
import mitsuba as mi
import numpy as np

from ...checks import check_type, ensure, shown
from ...field import NeuralField
from ...jit.owned import own
from ...jit.unpacked import Traversed
from ...nn import Encoding, Identity
from ...nn.tree import children
from .. import fields


class Latent(Traversed):
    """``count`` numbers for every point ``(u, v)`` of a surface: cheap to look up, without matrices.

    Args:
        source: ``None`` for no numbers; a sequence of floats for the same ones everywhere; an ``Encoding`` of two
            coordinates such as ``cn.Grid(2, "dense")``, built or not; or a built field of such an encoding and the
            network ``cn.Identity()``.
        where, name: function and argument for error messages.

    Raises ``TypeError`` or ``ValueError`` for anything else: networks with matrices belong in the decoder.
    """

    def __init__(self, source: Any, where: str, name: str):
        self.constants: Any = None
        self.field: NeuralField | None = None
        if isinstance(source, Encoding):
            source = _field_of(source)
        if isinstance(source, NeuralField):
            self.count = fields.check_field(source, f"{where}: {name}", inputs=(2,))
            matrices = any(isinstance(m, drnn.Linear) for m in children(source))
            ensure(not matrices, f"{where}: {name} has a network; a grid with cn.Identity() is needed.")
            self.field, self.sizes = source, fields.sizes(source)
            return
        kinds = (Sequence, np.ndarray, dr.ArrayBase, type(None))
        check_type(where, name, source, kinds, "None, numbers, an encoding of (u, v) or a built field of one")
        try:
            numbers = np.asarray([] if source is None else source, np.float32).ravel()
        except Exception:
            raise TypeError(f"{where}: {name} is {shown(source)}; numbers are needed.") from None
        ensure(np.isfinite(numbers).all(), f"{where}: {name} has numbers that are not finite.")
        self.count = len(numbers)
        self.constants = mi.Float(numbers)

    def __call__(self, uv: Any, active: Any = True) -> list:
        """The numbers at ``uv``, which repeats in unit squares: ``count`` arrays."""
        if self.field is None:
            return [dr.gather(mi.Float, self.constants, mi.UInt32(i), active) for i in range(self.count)]
        u, v = (x - dr.floor(x) for x in uv)
        return [mi.Float(x) for x in self.field([u, v], active=active)]

    def traverse(self, callback: Any, name: str, flags: Any) -> None:
        """Report the parameters to Mitsuba's ``traverse`` as ``name`` and, for grids, names that begin with it."""
        if self.field is not None:
            fields.show(callback, self.field, f"{name}.", flags)
        elif self.count:
            callback.put(name, self.constants, flags)

    def check_sizes(self, where: str) -> None:
        """Raise ``ValueError`` if the number of parameters has changed."""
        if self.field is not None:
            fields.check_sizes(self.field, self.sizes, where)
        elif self.count:
            given = dr.width(self.constants)
            ensure(given == self.count, f"{where} has {given} numbers now; {self.count} are needed.")
            own(self.constants)

    def source(self) -> Any:
        """The constructor's ``source``: a built field, or a list of numbers."""
        return self.constants.numpy().tolist() if self.field is None else self.field

    @property
    def varies(self) -> bool:
        """Do the numbers depend on the texture coordinates?"""
        return self.field is not None

    def __repr__(self) -> str:
        return f"{self.count} numbers" if self.field is None else repr(self.field)


def _field_of(encoding: Encoding) -> NeuralField:
    field = NeuralField(encoding, Identity(), in_features=2)
    if len(encoding):  # has parameters already
        field.precision = "single"
        return field
    return fields.build(field)
