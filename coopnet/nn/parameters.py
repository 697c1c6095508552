"""The parameters of a network one by one, by name, wherever they are stored.

To an optimizer, a packed network is one array, on the GPU in the hardware's order and with gaps. Here its parameters
are plain matrices and vectors. Their names are their paths in the tree of layers: ``layers.0.weights``,
``layers.0.bias``, in a field ``network.layers.0.weights`` and ``encoding.data``. Checkpoints use these names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..checks import check_type, ensure, on_host, shown
from ..jit import views
from ..jit.masks import unmasked
from ..jit.owned import from_numpy
from ..jit.scopes import check_outside
from ..kernels.grid import FeatureGrid
from .tree import walk

#: The types that parameters may have, in NumPy.
NUMPY_TYPES = {dr.VarType.Float16: np.float16, dr.VarType.Float32: np.float32, dr.VarType.Float64: np.float64}


class ParameterArray:
    """An array that is a parameter of a layer, but is not packed. Its layer uses it for all lanes alike, so fields with
    one cannot be trained in one kernel by :func:`coopnet.fit_many`.
    """

    DRJIT_STRUCT = {"data": object}

    def __init__(self, data: Any = None):
        self.data = data


class _Entries(dr.CustomOp):
    """Gathers entries of a parameter. On LLVM, Dr.Jit's own derivative would lose the gradient that it computes for a
    network with the same array.
    """

    def eval(self, storage: Any, places: Any) -> Any:  # type: ignore[override]
        self.size, self.places = dr.width(storage), places
        return dr.gather(type(storage), storage, places)

    def forward(self) -> None:
        tangent = self.grad_in("storage")
        self.set_grad_out(dr.gather(type(tangent), tangent, self.places))

    def backward(self) -> None:
        cotangent = self.grad_out()
        gradient = dr.zeros(type(cotangent), self.size)
        dr.scatter(gradient, cotangent, self.places, mode=dr.ReduceMode.Permute)
        dr.eval(gradient)
        self.set_grad_in("storage", gradient)

    def name(self) -> str:
        return "coopnet: entries"


class Parameter(NamedTuple):
    """A matrix, bias or table of a network: the ``attribute`` of ``owner``, a layer or its unpacked array."""

    name: str
    owner: Any
    attribute: str

    @property
    def value(self) -> Any:
        """A tensor, a view of packed weights, or a flat array."""
        return getattr(self.owner, self.attribute)

    @property
    def storage(self) -> Any:
        """The array that holds the numbers: a packed buffer, which holds others, too, a tensor, or a flat array."""
        return self.value.buffer if isinstance(self.value, drnn.MatrixView) else self.value

    @property
    def is_matrix(self) -> bool:
        """Is this the matrix of a linear layer?"""
        return isinstance(self.owner, drnn.Linear) and self.attribute == "weights"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape without extra columns that a backend needs; ``(n,)`` for a bias."""
        shape = self._stored_shape
        if isinstance(self.owner, drnn.Linear):
            return (shape[0], self.owner.config[0]) if self.is_matrix else shape[:1]
        return shape

    @property
    def _stored_shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape if isinstance(self.value, drnn.MatrixView) else dr.shape(self.value))

    def places(self) -> Any:
        """Positions of the entries, row by row, in the (flattened) :attr:`storage`: a ``UInt32``.

        This evaluates nothing, and can be recorded by ``dr.freeze``. Raises ``RuntimeError`` if a packed layout is not
        known.
        """
        uint32 = dr.uint32_array_t(dr.leaf_t(type(self.storage)))
        shape = self.shape
        i = dr.arange(uint32, math.prod(shape))
        row, column = (i // shape[1], i % shape[1]) if len(shape) == 2 else (i, uint32(0))
        if isinstance(self.value, drnn.MatrixView):
            layout = getattr(self.owner, "layout", None) if self.is_matrix else None
            return views.places(self.value, row, column, layout and layout.value)
        return row * self._stored_shape[1] + column if self.is_matrix else i

    def entries(self) -> Any:
        """The entries, row by row, as a flat array that can be differentiated."""
        flat, places = self.storage.array, self.places()
        if dr.backend_v(flat) == dr.JitBackend.CUDA:
            return dr.gather(type(flat), flat, places)
        return dr.custom(_Entries, flat, places)

    def pieces(self) -> dict[str, Any]:
        """:meth:`places` by name: those of each level of a grid, or those of the whole parameter."""
        if not isinstance(self.owner, FeatureGrid):
            return {self.name: self.places()}
        above, _, _ = self.name.rpartition("data")
        uint32, n = dr.uint32_array_t(dr.leaf_t(type(self.storage))), self.owner.n_features
        levels = enumerate(self.owner.levels)
        return {f"{above}levels.{i}": dr.arange(uint32, v.offset * n, v.end * n) for i, v in levels}

    def numpy(self, where: str, of: Callable[[Any], Any] = dr.detach) -> np.ndarray:
        """The numbers as a contiguous array of :attr:`shape`; with ``of=dr.grad``, their gradient.

        ``where`` opens error messages.
        """
        check_outside(where)
        value = self.value
        if isinstance(value, drnn.MatrixView):
            value = views.changed(value, buffer=of(value.buffer))
            # vectors are row-major already, and unpack() on CUDA rejects them for their alignment
            plain = value if value.layout == "row_major" else drnn.unpack(value)
            value = dr.tensor_t(type(value.buffer))(plain)
        else:
            value = of(value)
        kind = dr.type_v(value)
        floating = kind in NUMPY_TYPES
        ensure(floating, f"{where}: {self.name} holds {kind.name}; parameters must be floating point.", TypeError)
        array = value.numpy()
        if self.is_matrix:
            array = array[:, : self.shape[1]]
        return np.require(array.reshape(self.shape), requirements="C")

    def fill(self, value: np.ndarray, where: str) -> None:
        """Replace a parameter that is not packed by a NumPy array; raises ``ValueError`` if numbers are too large."""
        dtype = NUMPY_TYPES[dr.type_v(self.value)]
        numbers = converted(value, dtype)
        if numbers is None:
            largest, name = np.abs(value[np.isfinite(value)]).max(), np.dtype(dtype).name
            hint = "; use precision='single'" if dtype is np.float16 else ""
            raise ValueError(f"{where}: {self.name} reaches {largest:g}, too large for {name}{hint}.")
        pairs = zip(self.shape, self._stored_shape, strict=True)
        numbers = np.pad(numbers, [(0, held - given) for given, held in pairs])
        tp = type(self.value)
        flat = from_numpy(numbers.ravel(), dr.array_t(tp))
        setattr(self.owner, self.attribute, tp(flat, numbers.shape) if dr.is_tensor_v(tp) else flat)

    def write(self, value: Any, where: str) -> None:
        """Replace the numbers by ``value``, in place; see :meth:`Module.set_matrix`."""
        check_outside(where)
        numbers, current = self.fitting(value, where), self.storage
        flat = dr.copy(dr.detach(current).array)
        with unmasked(type(flat)):
            dr.scatter(flat, type(flat)(numbers), self.places(), mode=dr.ReduceMode.Permute)
        dr.eval(flat)
        if isinstance(self.value, drnn.MatrixView):
            current[:] = like(current, flat)  # in place, since other views refer to this array object
        else:
            setattr(self.owner, self.attribute, like(current, flat))

    def fitting(self, value: Any, where: str) -> np.ndarray:
        """``value`` as the array that :meth:`write` writes; raises if it does not fit."""
        new = f"the new value of {self.name}"
        try:
            array = np.asarray(on_host(value))
        except Exception:
            raise TypeError(f"{where}: {new} is {shown(value)}; real numbers are needed.") from None
        real, given = array.dtype.kind in "fiu", array.shape
        ensure(real, f"{where}: {new} holds {array.dtype}; real numbers are needed.", TypeError)
        valid = given == self.shape
        ensure(valid, f"{where}: {self.name} has shape {self.shape}, but the new value has shape {given}.")
        dtype = NUMPY_TYPES[dr.type_v(self.storage)]
        numbers = converted(array.ravel(), dtype)
        if numbers is None:
            raise ValueError(f"{where}: {new} is too large for {np.dtype(dtype).name}.")
        return np.ascontiguousarray(numbers)


def parameters(module: Any, name: str = "") -> Iterator[Parameter]:
    """All parameters of ``module``, which is called ``name``; raises as :func:`walk`."""
    return (Parameter(at, owner, attribute) for at, owner, attribute in walk(module, name) if attribute is not None)


def like(current: Any, flat: Any) -> Any:
    """``flat`` with the type and shape of the array ``current``; it tracks gradients if ``current`` does."""
    new = type(current.array)(dr.detach(flat))
    new = type(current)(new, dr.shape(current)) if dr.is_tensor_v(current) else new
    if dr.grad_enabled(current):
        dr.enable_grad(new)
    return new


def converted(value: np.ndarray, dtype: Any) -> np.ndarray | None:
    """``value`` as ``dtype``, or ``None`` if a finite number is too large for it."""
    with np.errstate(over="ignore"):
        result = value.astype(dtype, copy=False)
    return result if np.array_equal(np.isfinite(result), np.isfinite(value)) else None


def find(module: Any, name: Any, where: str) -> Parameter:
    """The parameter ``name``, as in checkpoints; ``weight`` may stand for ``weights``, and ``network.`` be left out.

    Raises ``TypeError`` or ``ValueError`` for anything else.
    """
    check_type(where, "name", name, str, "a string such as 'layers.0.weights'")
    known = {p.name: p for p in parameters(module)}
    for spelling in spellings(str.__str__(name)):  # of a plain one
        if spelling in known:
            return known[spelling]
    raise ValueError(f"{where}: there is no parameter {shown(str.__str__(name))}; the network has {listed(known)}.")


def spellings(name: str) -> tuple[str, str, str]:
    """The full names that ``name`` may stand for: itself, with ``weights`` for ``weight``, and after ``network.``."""
    plural = f"{name}s" if name.split(".")[-1] == "weight" else name
    return name, plural, f"network.{plural}"


def listed(names: Any) -> str:
    """Names for an error message."""
    names = list(names)
    some = ", ".join(map(str, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return some or "none: call alloc() or build() first"
