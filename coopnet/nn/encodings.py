"""Encodings by sines, real and triangular."""

from __future__ import annotations

import sys
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import check_in_features, check_number, check_positive, shown
from ..jit import kinds
from ..limits import MAX_OCTAVES, check_features
from ..random.key import Key
from .module import Module
from .tangents import check_bundle, no_rule, rebuilt, sines, triangles


class Encoding(Module):
    """Maps coordinates to features. Takes a ``CoopVec``, a tensor, a nested array or a list of arrays.

    Lists and tuples come back as a list, arrays as a nested ``ArrayXf``, the others as what they were. To write one,
    implement ``width(size)``, ``_features(coordinates)`` on a list of arrays, and ``_alloc`` (see :class:`Module`); for
    derivatives also ``_moved(coordinates, tangents)``, which returns the features and a list of tangents of them.
    ``_features`` and ``_moved`` get single precision, or double if the input is.

    Raises:
        TypeError: the input is a NumPy array, or no floating point.
        ValueError: the input has other than ``in_features`` coordinates; widths that don't fit in ``alloc``.

    >>> class Square(cn.Encoding):
    ...     in_features = -1
    ...     def width(self, size):
    ...         return size
    ...     def _features(self, coordinates):
    ...         return [v * v for v in coordinates]
    ...     def _moved(self, coordinates, tangents):
    ...         moved = [[2 * v * d for v, d in zip(coordinates, t)] for t in tangents]
    ...         return self._features(coordinates), moved
    ...     def _alloc(self, dtype, size, rng):
    ...         return Square(), size
    >>> field = cn.NeuralField(Square(), cn.MLP(2, 1)).build()
    """

    in_features: int

    def width(self, size: int) -> int:
        """Features out for ``size`` features in."""
        raise NotImplementedError

    def _features(self, coordinates: list) -> list:
        """The features of ``coordinates``, arrays in single precision, or in double if the input was double."""
        raise NotImplementedError(f"{type(self).__name__}._features() is missing.")

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        kind = self._check(x)
        parts = [v.array for v in x] if kind == kinds.TENSOR else kinds.even(kinds.components(x))
        leaf = type(parts[0])
        # high frequencies and fine levels need every bit of the coordinates, so half precision is widened
        wide = leaf if dr.itemsize_v(leaf) == 8 else dr.float32_array_t(leaf)
        features = [leaf(f) for f in self._features([wide(v) for v in parts])]
        if kind == kinds.COOPVEC:
            return drnn.CoopVec(features)
        if kind == kinds.TENSOR:
            return type(x)(nested(features))
        return features if isinstance(x, (list, tuple)) else nested(features)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        check_bundle(self, x, tangents, arrays=True)
        self._check(x)
        leaf = type(next(iter(x)))
        wide = leaf if dr.itemsize_v(leaf) == 8 else dr.float32_array_t(leaf)
        y, moved = self._moved([wide(v) for v in x], [[wide(v) for v in t] for t in tangents])
        y, *moved = [rebuilt([leaf(v) for v in vector], x) for vector in (y, *moved)]
        return y, moved

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        """The features, and their derivatives in the directions ``tangents``, all in the precision of ``_features``."""
        raise no_rule(self)

    def _check(self, x: Any) -> str:
        name = type(self).__name__
        kind, leaf = kinds.kind(x, name)
        kinds.require_float(leaf, name)
        if kind == kinds.NUMPY:
            raise TypeError(f"{name}: got a NumPy array; accepted are {kinds.ACCEPTED}.")
        n = kinds.features(x, kind)
        if self.in_features not in (-1, n):
            raise ValueError(f"{name}: the input has {n} features, but the encoding takes {self.in_features}.")
        return kind

    def _size(self, size: int) -> int:
        name = type(self).__name__
        if size > 0 and self.in_features > 0 and size != self.in_features:
            raise ValueError(f"{name}: in_features is {self.in_features}, but the input has {size} features.")
        size = self.in_features if size < 0 else size
        if size < 1:
            raise ValueError(f"{name}: the size of the input is unknown; give in_features, or call alloc(dtype, size).")
        check_features(name, "in_features", size)
        check_features(name, "in_features", size, self.width(size))
        return size

    def _same_backend(self, leaf: type, own: type) -> None:
        """Raise ``TypeError`` unless an input of type ``leaf`` lives where the parameters of type ``own`` do."""
        if dr.backend_v(leaf) != dr.backend_v(own):
            raise TypeError(
                f"{type(self).__name__}: the input lives on the {dr.backend_v(leaf).name} backend and the parameters "
                f"on {dr.backend_v(own).name}; build the network for the backend of its input."
            )


class _Octaves(Encoding):
    DRJIT_STRUCT = {"octaves": int, "shift": float, "in_features": int}
    _layer: type

    def __init__(self, octaves: int = 8, shift: float = 0.0, in_features: int = -1):
        name = type(self).__name__
        self.octaves = check_octaves(name, "octaves", octaves)
        self.shift = check_number(name, "shift", shift)
        self.in_features = check_in_features(name, in_features)
        check_features(name, "octaves", octaves, self.width(abs(in_features)))

    def width(self, size: int) -> int:
        return 2 * self.octaves * size

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        kind = self._check(x)
        layer = self._layer(self.octaves, self.shift)
        if kind != kinds.ARRAYS:
            return layer(x)
        features = list(layer(drnn.CoopVec(kinds.even(kinds.components(x)))))
        return features if isinstance(x, (list, tuple)) else nested(features)

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:  # type: ignore[override]
        size = self._size(size)
        return type(self)(self.octaves, self.shift, size), self.width(size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(octaves={self.octaves}, shift={self.shift}, in_features={self.in_features})"


class Sinusoidal(_Octaves):
    r"""Sines and cosines of doubling frequency (Vaswani et al. 2017; NeRF, Mildenhall et al. 2020, eq. 4).

    Each coordinate :math:`x` becomes, for octave :math:`i = 0, \dots, n-1`,
    :math:`\sin 2\pi(2^i x + i s),\ \cos 2\pi(2^i x + i s)`: ``2 * octaves`` features. Coordinates belong in [0, 1].
    This is ``drjit.nn.SinEncode``, which doubles angles; rounding errors double with them, to about
    :math:`2^{n} \cdot 10^{-7}` in single precision.

    Args:
        octaves: number of frequencies :math:`n`, at most 128.
        shift: phase :math:`s` per octave, in periods.
        in_features: number of coordinates; -1 takes it from ``alloc`` or the network.

    Raises:
        ValueError: arguments out of range; an input with other than ``in_features`` coordinates.
        TypeError: an input that is a NumPy array, or no floating point.

    >>> field = cn.NeuralField(cn.Sinusoidal(6, in_features=2), cn.MLP(out_features=3)).build()
    """

    _layer = drnn.SinEncode

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        check_bundle(self, x, tangents, arrays=True)
        y = self(x)
        return y, sines(y, tangents, self.octaves)


class Triangular(_Octaves):
    r"""Triangle waves of doubling frequency, cheaper than sines (Müller et al. 2021; ``drjit.nn.TriEncode``).

    As :class:`Sinusoidal` with :math:`\cos_\triangle(t) = 1 - 4|t - \mathrm{round}(t)|` and
    :math:`\sin_\triangle(t) = \cos_\triangle(t - \tfrac14)`, at :math:`t = 2^i x + i s`.
    Arguments, features and errors are the same, too.

    >>> field = cn.NeuralField(cn.Triangular(6, in_features=2), cn.MLP(out_features=3)).build()
    """

    _layer = drnn.TriEncode

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        check_bundle(self, x, tangents, arrays=True)
        y = self(x)
        return y, triangles(x, y, tangents, self.octaves, self.shift)


def nested(parts: list) -> Any:
    """A nested ``ArrayXf`` (or ``ArrayXf16``, ``ArrayXf64``) of 1D arrays."""
    leaf = type(parts[0])
    suffix = {dr.VarType.Float16: "f16", dr.VarType.Float32: "f", dr.VarType.Float64: "f64"}[dr.type_v(leaf)]
    return getattr(sys.modules[leaf.__module__], "ArrayX" + suffix)(parts)


def check_octaves(layer: str, name: str, value: Any) -> int:
    """``value``; raises ``ValueError`` unless it is a number of doublings that single precision can hold."""
    if check_positive(layer, name, value) > MAX_OCTAVES:
        raise ValueError(
            f"{layer}: {name} is {shown(value)}; at most {MAX_OCTAVES} are possible, beyond which single precision has "
            f"no frequencies."
        )
    return value
