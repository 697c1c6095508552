"""Base class of encodings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import check_same_backend, ensure
from ..checks.sizes import check_features
from ..jit import kinds
from ..random.key import Key
from .module import Module
from .sequential import Sequential
from .tangents import check_bundle, no_rule, rebuilt


class Encoding(Module):
    """Maps coordinates to features. Takes a ``CoopVec``, a tensor, a nested array or a list of arrays.

    The result is a list for lists and tuples, a nested ``ArrayXf`` for arrays, and otherwise of the input's kind. To
    write an encoding, implement ``width(size)`` and ``_features(coordinates)`` on a list of arrays. For derivatives,
    implement ``_moved(coordinates, tangents)``, which returns the features and a list of their tangents; then
    ``_features`` is not needed. Implement ``_alloc`` if it has parameters (see :class:`Module`). Coordinates are single
    precision, or double if the input is.

    Raises:
        TypeError: the input is a NumPy array, or not floating point; a method that a class has to implement is missing.
        ValueError: the input has other than ``in_features`` coordinates; widths that don't fit in ``alloc``.

    >>> class Square(cn.Encoding):
    ...     def width(self, size):
    ...         return size
    ...     def _features(self, coordinates):
    ...         return [v * v for v in coordinates]
    ...     def _moved(self, coordinates, tangents):
    ...         moved = [[2 * v * d for v, d in zip(coordinates, t)] for t in tangents]
    ...         return self._features(coordinates), moved
    >>> field = cn.NeuralField(Square(), cn.MLP(2, 1)).build()
    """

    in_features: int = -1

    def width(self, size: int) -> int:
        """Number of output features for ``size`` coordinates."""
        raise self._missing("width(size)")

    def _features(self, coordinates: list) -> list:
        """The features of ``coordinates``, arrays in single precision, or in double if the input was double. By
        default, those of :meth:`_moved` without tangents.
        """
        if type(self)._moved is Encoding._moved:
            raise self._missing("_features(coordinates)")
        return self._moved(coordinates, [])[0]

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        drawn = self._drawn(key)
        parts = kinds.tracked_in_all_lanes(kinds.rows(x, drawn._check(x)))
        leaf, wide = _types(parts)
        features = [leaf(f) for f in drawn._features([wide(v) for v in parts])]
        return features if isinstance(x, tuple) else kinds.contained(features, x)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        drawn = self._drawn(key)
        check_bundle(drawn, x, tangents, arrays=True)
        drawn._check(x)
        leaf, wide = _types(list(x))
        y, dys = drawn._moved([wide(v) for v in x], [[wide(v) for v in t] for t in tangents])
        y, *dys = [rebuilt([leaf(v) for v in vector], x) for vector in (y, *dys)]
        return y, dys

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        """The features, and their derivatives in the directions ``tangents``, all in the precision of ``_features``."""
        raise no_rule(self)

    def _drawn(self, key: Key | None) -> Encoding:
        """The encoding with the parameters that ``key`` draws; this encoding if no parameters are drawn."""
        return self._mapped(lambda encoding: encoding._drawn(key))

    def _mapped(self, function: Callable[[Encoding], Encoding]) -> Encoding:
        """This encoding with ``function(e)`` in place of each nested encoding ``e``; itself if none is replaced."""
        return self

    def _missing(self, method: str) -> TypeError:
        name = type(self).__name__
        return TypeError(f"{name}: {method} is missing; coopnet.Encoding says what a class of encodings implements.")

    def _in_unit(self, size: int) -> list[int]:
        """Which of ``size`` coordinates belong in [0, 1], as a list of numbers."""
        return []

    def _check(self, x: Any) -> str:
        name, kind = type(self).__name__, kinds.ARRAYS
        if not isinstance(x, kinds.UnpackedVector):  # its components were checked when it was made
            kind, _ = kinds.in_kernels(x, name)
        n, takes = kinds.features(x, kind), self.in_features
        if takes not in (-1, n):
            raise ValueError(f"{name}: the input has {n} features, but the encoding takes {takes}.")
        return kind

    def _size(self, size: int) -> int:
        name, takes = type(self).__name__, self.in_features
        valid = size < 0 or takes < 0 or size == takes
        ensure(valid, f"{name}: in_features is {takes}, but the input has {size} features.")
        size = takes if size < 0 else size
        ensure(size > 0, f"{name}: the size of the input is unknown; give in_features, or call alloc(dtype, size).")
        check_features(name, "in_features", size)
        check_features(name, "in_features", size, self.width(size))
        return size

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:  # type: ignore[override]
        layer = copy.copy(self)
        layer.in_features = self._size(size)
        return layer, self.width(layer.in_features)

    def _same_backend(self, leaf: type, own: type) -> None:
        """Raise ``TypeError`` unless inputs of type ``leaf`` and parameters of type ``own`` are on one backend."""
        check_same_backend(f"{type(self).__name__}: the input lives", leaf, " and the parameters", own)


def _types(parts: list) -> tuple[type, type]:
    """Type of the coordinates, and the type from which features are computed.

    High frequencies and fine levels need every bit of the coordinates, so half precision is widened.
    """
    leaf = type(parts[0])
    return leaf, leaf if dr.itemsize_v(leaf) == 8 else dr.float32_array_t(leaf)


def in_unit(layer: Any, size: int) -> list[int]:
    """Which of ``size`` inputs of ``layer`` belong in [0, 1], as a list of numbers."""
    if isinstance(layer, Encoding):
        return layer._in_unit(size)
    if isinstance(layer, (Sequential, drnn.Sequential)):
        return in_unit(layer.layers[0], size) if layer.layers else []
    return list(range(size)) if isinstance(layer, drnn.HashEncodingLayer) else []
