"""Checks of rays, for tracing and for marching."""

from __future__ import annotations

import contextlib
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..backend import namespace, require
from ..checks import check, check_backend, check_lanes, check_mask, check_type, ensure, entries, is_number, plain, shown
from ..field import NeuralField
from ..jit import kinds
from ..jit.kernel_parameters import kept
from ..jit.scopes import frozen


def vector_type(leaf: type) -> Any:
    """``Array3f`` of the backend of ``leaf``, with gradients."""
    return kinds.vector_type(dr.diff_array_t(leaf), 3)


def home(*given: Any) -> type:
    """A type of the backend of the first of ``given`` that has one (an array, a list of arrays or a field), or of the
    default backend."""
    for value in given:
        parts: Any = [value]
        if isinstance(value, (list, tuple, NeuralField)):
            with contextlib.suppress(Exception):  # any list may be given; vector() checks it
                parts = list(value.values() if isinstance(value, NeuralField) else value)
        for v in parts:
            if isinstance(v, drnn.CoopVec):
                return v.type
            if isinstance(v, dr.ArrayBase) and kinds.describe(type(v)).is_jit:
                return kinds.describe(type(v)).leaf
    return namespace(require("auto")).Float32


def vector(where: str, name: str, value: Any, leaf: type) -> Any:
    """``value`` as an ``Array3f``: anything with 3 components that a field takes, or numbers.

    Numbers are a list of three, of rows, or a NumPy array of shape (3,) or (3, samples); they get the backend of
    ``leaf``.
    """
    value, where = _arrays(where, name, value, leaf), f"{where}: {name}"
    kind, leaf = kinds.in_kernels(value, where, single=True)
    given = kinds.features(value, kind)
    ensure(given == 3, f"{where} has {given} components; 3 are needed.")
    single = dr.float32_array_t(leaf)
    return vector_type(single)(*(kept(single(v)) for v in kinds.rows(value, kind)))


def _arrays(where: str, name: str, value: Any, leaf: type) -> Any:
    """``value``, or a list of arrays if it consists of numbers."""
    if isinstance(value, np.ndarray):
        shape = value.shape
        valid = shape[:1] == (3,) and len(shape) < 3
        ensure(valid, f"{where}: {name} is a NumPy array of shape {shape}; (3,) or (3, samples) is needed.")
        value = list(value)
    if not isinstance(value, (list, tuple)):
        return value
    single = dr.float32_array_t(leaf)
    parts = enumerate(entries(where, name, value))
    return [v if isinstance(v, dr.ArrayBase) else _row(where, f"{name}[{i}]", v, single) for i, v in parts]


def _row(where: str, name: str, value: Any, single: type) -> Any:
    """A number, or one for each sample, as a ``Float``."""
    row = np.empty(0, object)
    with contextlib.suppress(Exception):  # any error of NumPy, or of a foreign list
        # NumPy would convert Dr.Jit's arrays, and drop the mask of its own masked arrays
        if not isinstance(value, np.ma.MaskedArray) and not _holds_arrays(value):
            row = np.asarray(value)
    valid = row.dtype.kind in "iuf" and row.ndim < 2
    check(valid, where, name, value, "a number, a list of numbers or a Dr.Jit Float", TypeError)
    # kernels of the CPU depend on the addresses of arrays modulo 64 bytes, and NumPy does not align its arrays so
    memory = np.empty(row.size + 15, np.float32)
    start = -memory.ctypes.data % 64 // 4
    with np.errstate(over="ignore"):
        memory[start : start + row.size] = row
    row = memory[start : start + row.size]
    if row.size == 1:
        return single(row.item())
    hint = "of which Dr.Jit makes no array while it records a frozen function; make it before, as in Float(x)"
    ensure(not frozen(), f"{where}: {name} has {row.size} numbers, {hint}.", TypeError)
    return single(row)


def _holds_arrays(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(v, (dr.ArrayBase, drnn.CoopVec)) for v in value)


def _of_ray(where: str, o: Any, d: Any) -> tuple[Any, Any]:
    """Origin and direction: ``o`` and ``d``, or those of a ray ``o``, such as Mitsuba's."""
    if isinstance(o, (dr.ArrayBase, drnn.CoopVec, np.ndarray, list, tuple)):
        return o, d
    try:
        parts = o.o, o.d
    except Exception:  # it is something else
        return o, d
    ensure(d is None, f"{where}: o is a {type(o).__name__}, which has a direction; leave d out.")
    return parts


def number(where: str, name: str, value: Any, leaf: type, positive: bool = False) -> Any:
    """``value``, a number, a row of them or a ``Float`` of the backend of ``leaf``, as a ``leaf``; of any size."""
    if isinstance(value, (list, tuple, np.ndarray)):
        value = _row(where, name, value, leaf)
    value = plain(value)
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
    ``leaf``. ``lanes`` is the number of rays, from the arguments checked so far; ``where`` opens the messages.

    ``o`` may also be a ray, something with ``o`` and ``d``, and ``d`` then is ``None``. Rays of numbers get the backend
    of the first of ``others`` that has one, or the default.

    Raises:
        TypeError: an argument is of another kind or backend, or in double precision.
        ValueError: numbers out of range, arrays of other sizes.
    """

    def __init__(self, o: Any, d: Any, where: str, *others: Any):
        self.where = where
        o, d = _of_ray(where, o, d)
        self.o = vector(where, "o", o, home(o, d, *others))
        self.point, self.leaf, self.lanes = type(self.o), dr.leaf_t(self.o), dr.width(self.o)
        self.d = self._vector("d", d)

    def _vector(self, name: str, value: Any) -> Any:
        found = vector(self.where, name, value, self.leaf)
        check_backend(f"{self.where}: {name} is", found, self.leaf, "o")
        return self._fit(name, found)

    def _fit(self, name: str, value: Any) -> Any:
        """``value``, an entry for all rays or one for each."""
        check_lanes(self.where, name, value, self.lanes, "rays")
        self.lanes = max(self.lanes, dr.width(value))
        return value

    def number(self, name: str, value: Any, positive: bool = False) -> Any:
        """The argument ``name``, a number or one for each ray, as a ``Float``."""
        return self._fit(name, kept(number(self.where, name, value, self.leaf, positive)))

    def constant(self, name: str, value: Any, positive: bool = False) -> Any:
        """As :meth:`number`, without its gradient."""
        return dr.detach(self.number(name, value, positive))

    def three(self, name: str, value: Any) -> list:
        """The argument ``name``, one number or three (for each ray), as three ``Float`` s."""
        many = isinstance(value, (list, tuple, drnn.CoopVec, np.ndarray))
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
        """Raise ``ValueError`` if ``a`` and ``b`` are numbers or rows of them, and ``b`` is not above ``a``."""
        if not isinstance(a, dr.ArrayBase) and not isinstance(b, dr.ArrayBase) and not np.all(np.less(a, b)):
            raise ValueError(f"{self.where}: {high} is {shown(b)}; a number above {low}, {shown(a)}, is needed.")
