"""Constants before and after an encoding's features."""

from __future__ import annotations

import copy
from collections.abc import Callable
from reprlib import recursive_repr
from typing import Any

import drjit as dr

from ..checks import check_int, check_number, check_type
from ..checks.sizes import check_features
from ..jit.kinds import UnpackedVector
from .activations import Identity
from .arguments import block, fields
from .embedding import Embedding
from .encoding import Encoding, in_unit


class Pad(Encoding):
    r"""An encoding's features :math:`y` between constants, :math:`(c, \dots, c, y, c, \dots, c)`.

    Constants of 1 give the first layer of a network a bias. tiny-cuda-nn pads to multiples of 16 this way:
    ``coopnet.from_config(..., pad="tcnn")``.

    Args:
        nested: an :class:`Encoding`, :class:`Identity` or :class:`Embedding` layer; the coordinates as they are if
            ``None``.
        before, after: number of constants on either side.
        value: the constant :math:`c`.

    Returns:
        The features of ``nested``, and ``before + after`` more.

    Raises:
        TypeError: ``nested`` has another type.
        ValueError: a negative number of constants; a value that is not finite; too many features.

    >>> encoding = cn.nn.Pad(cn.Identity(), after=13)
    >>> field = cn.NeuralField(encoding, cn.MLP(out_features=1), in_features=3).build()
    """

    def __init__(self, nested: Any = None, before: int = 0, after: int = 0, value: float = 1.0):
        kinds = Encoding | Identity | Embedding | None
        check_type("Pad", "nested", nested, kinds, "an Encoding, Identity or Embedding")
        self.nested = Identity() if nested is None else nested
        self.before, self.after = check_int("Pad", "before", before, 0), check_int("Pad", "after", after, 0)
        check_features("Pad", "before + after", self.before + self.after)
        self.value = check_number("Pad", "value", value)
        self.in_features = getattr(self.nested, "in_features", -1)

    DRJIT_STRUCT = fields(__init__, in_features=int)

    def width(self, size: int) -> int:
        return self.before + self.nested.width(size) + self.after

    def _mapped(self, function: Callable[[Encoding], Encoding]) -> Pad:
        nested = function(self.nested) if isinstance(self.nested, Encoding) else self.nested
        if nested is self.nested:
            return self
        layer = copy.copy(self)
        layer.nested = nested
        return layer

    def _in_unit(self, size: int) -> list[int]:
        return in_unit(self.nested, size)

    def _features(self, coordinates: list) -> list:
        return self._between(list(self.nested(UnpackedVector(coordinates))), self.value)

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        y, dys = self.nested.jvp(UnpackedVector(coordinates), tangents)
        return self._between(list(y), self.value), [self._between(list(t), 0.0) for t in dys]

    def _between(self, features: list, value: float) -> list:
        # tensors need an entry for every sample
        constant = dr.full(type(features[0]), value, dr.width(features))
        return [constant] * self.before + features + [constant] * self.after

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:
        layer, width = super()._alloc(dtype, size, rng)
        layer.nested, _ = self.nested._alloc(dtype, layer.in_features, rng)
        return layer, width

    @recursive_repr()
    def __repr__(self) -> str:
        return block(self, [repr(self.nested), f"before={self.before}, after={self.after}, value={self.value}"])
