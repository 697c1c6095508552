"""What rays may be, whoever traces or marches along them."""

from __future__ import annotations

from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import check, check_backend, check_lanes, check_mask, check_type, ensure, entries, is_number, shown
from ..jit import kinds


def vector_type(leaf: type) -> Any:
    """``Array3f`` of the backend of ``leaf``, with gradients."""
    return kinds.vector_type(dr.diff_array_t(leaf), 3)


def vector(where: str, name: str, value: Any) -> Any:
    """``value``, anything with 3 components that a field takes, as an ``Array3f``."""
    where = f"{where}: {name}"
    kind, leaf = kinds.in_kernels(value, where, single=True)
    given = kinds.features(value, kind)
    ensure(given == 3, f"{where} has {given} components; 3 are needed.")
    single = dr.float32_array_t(leaf)
    return vector_type(single)(*(single(v) for v in kinds.rows(value, kind)))


def number(where: str, name: str, value: Any, leaf: type, positive: bool = False) -> Any:
    """``value``, a number or a ``Float`` of the backend of ``leaf``, as a ``leaf``; not checked for its size."""
    if not isinstance(value, dr.ArrayBase):
        kind = "positive" if positive else "finite"
        ok = is_number(value) and (value > 0 or not positive)
        check(ok, where, name, value, f"a {kind} number or a Dr.Jit Float")
        return leaf(value)
    flat = dr.depth_v(value) == 1 and dr.is_float_v(value) and not dr.is_tensor_v(value)
    check_type(where, name, value, dr.ArrayBase if flat else (), "a number or a Dr.Jit Float")
    kinds.in_kernels(value, f"{where}: {name}", single=True)
    check_backend(f"{where}: {name} is", value, leaf, "o")
    return leaf(value)


class Rays:
    """Checked rays ``o + t d``: arrays of the type ``point``, an ``Array3f`` of their backend, whose ``Float`` is
    ``leaf``. ``lanes`` counts those that were seen so far, in whatever argument; ``where`` opens the messages.

    Raises:
        TypeError: an argument is of another kind or backend, or in double precision.
        ValueError: numbers out of range, arrays of other sizes.
    """

    def __init__(self, o: Any, d: Any, where: str):
        self.where = where
        self.o = vector(where, "o", o)
        self.point, self.leaf, self.lanes = type(self.o), dr.leaf_t(self.o), dr.width(self.o)
        self.d = self._vector("d", d)

    def _vector(self, name: str, value: Any) -> Any:
        found = vector(self.where, name, value)
        check_backend(f"{self.where}: {name} is", found, self.leaf, "o")
        return self._fit(name, found)

    def _fit(self, name: str, value: Any) -> Any:
        """``value``, an entry for all rays or one for each."""
        check_lanes(self.where, name, value, self.lanes, "rays")
        self.lanes = max(self.lanes, dr.width(value))
        return value

    def number(self, name: str, value: Any, positive: bool = False) -> Any:
        """The argument ``name``, a number or one for each ray, as a ``Float``."""
        return self._fit(name, number(self.where, name, value, self.leaf, positive))

    def constant(self, name: str, value: Any, positive: bool = False) -> Any:
        """As :meth:`number`, without its gradient."""
        return dr.detach(self.number(name, value, positive))

    def three(self, name: str, value: Any) -> list:
        """The argument ``name``, one number or three (for each ray), as three ``Float`` s."""
        many = isinstance(value, (list, tuple, drnn.CoopVec))
        many = many or (isinstance(value, dr.ArrayBase) and (dr.is_tensor_v(value) or dr.depth_v(value) > 1))
        if not many:
            return [self.number(name, value)] * 3
        if not isinstance(value, (list, tuple)):
            return list(self._vector(name, value))
        parts = entries(self.where, name, value)
        ensure(len(parts) == 3, f"{self.where}: {name} has {len(parts)} components; 3 are needed.")
        return [self.number(f"{name}[{i}]", v) for i, v in enumerate(parts)]

    def mask(self, active: Any) -> Any:
        """The argument ``active`` as a ``Bool``."""
        return self._fit("active", check_mask(self.where, "active", active, self.leaf, "o"))

    def ordered(self, low: str, a: Any, high: str, b: Any) -> None:
        """Raise ``ValueError`` if ``a`` and ``b`` are numbers, and ``b`` is not above ``a``."""
        if not isinstance(a, dr.ArrayBase) and not isinstance(b, dr.ArrayBase) and not b > a:
            raise ValueError(f"{self.where}: {high} is {shown(b)}; a number above {low}, {shown(a)}, is needed.")
