"""Moving arrays, fields and other objects from one backend to another, and to NumPy."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import drjit as dr
import drjit.nn as drnn
import numpy as np
from drjit.opt import Optimizer

from ..checks import check_choice, ensure, entries
from ..jit import backend_copies
from ..jit.scopes import check_outside
from ..jit.unpacked import traversable
from .usable import BackendError, namespace, require

NUMPY = "numpy"
#: Dr.Jit's flat types by NumPy's kind and bytes of an entry.
_TWINS = {
    "b1": "Bool", "i1": "Int8", "u1": "UInt8", "i4": "Int", "u4": "UInt", "i8": "Int64", "u8": "UInt64",
    "f2": "Float16", "f4": "Float", "f8": "Float64",
}  # fmt: skip


def to(tree: Any, backend: Any, precision: str = "auto") -> Any:
    """``tree`` with everything in it on ``backend``.

    These are moved: Dr.Jit's arrays, nested arrays, matrices, tensors and textures; NumPy arrays, to flat arrays if
    they have one dimension and otherwise to tensors; :class:`Key`, :class:`NeuralField`, ``drjit.opt`` optimizers,
    :class:`coopnet.training.EMA`, occupancy grids; and lists, tuples, dictionaries, dataclasses and objects with a
    ``DRJIT_STRUCT`` that hold any of them. Other values stay as they are. Arrays that are on ``backend`` already are
    not copied; if all are, ``tree`` itself is returned. Every other array is copied once, even if it occurs several
    times.

    If arrays track gradients, so do their copies, except in NumPy: ``dr.backward`` and ``dr.forward`` pass through the
    move. ``dr.forward_to`` and ``dr.backward_to`` work on one backend only, and raise ``RuntimeError``. Moved fields
    and optimizers have new parameters.

    Fields get the target's precision (half on CUDA, single on LLVM) and its layout of packed weights. Optimizers and
    averages follow their field, so move them together, in one tree. Parameters that an optimizer holds in single
    precision stay in single precision.

    Args:
        tree: as above.
        backend: ``"llvm"``, ``"cuda"``, ``"auto"``, or ``"numpy"``. In NumPy, a field becomes a dictionary of its
            parameters by name, as in checkpoints, and a texture its texels; optimizers cannot be moved there.
        precision: of fields, as in :meth:`NeuralField.build`. ``"auto"`` does not change fields that are there already.

    Raises:
        BackendError: ``backend`` is not usable here, or has no memory left.
        TypeError: something that cannot be moved: cooperative vectors, layers outside of fields, Mitsuba's objects.
        ValueError: unknown names; an optimizer or average of packed weights without their field; weights too large
            for half precision; arrays of 2^32 entries or more; a tree hundreds deep.
        RuntimeError: called while Dr.Jit records a frozen function or a loop.

    >>> field, opt, ema = cn.to((field, opt, ema), "cuda")
    >>> image = cn.to(image, "numpy")
    """
    check_choice("to", "precision", precision, ("auto", "half", "single"))
    name = NUMPY if isinstance(backend, str) and backend == NUMPY else require(backend)
    check_outside("to")
    mover = Mover(name, precision)
    try:
        nodes = list(_walk(tree, {}))
        mover.cross(nodes)
        for node in nodes:
            if hasattr(node, "_layouts"):  # before those that follow their layouts
                mover.moved(node)
        return mover.moved(tree)
    except RecursionError:
        raise _too_deep() from None
    except (RuntimeError, MemoryError) as error:
        if "out of memory" not in str(error) and not isinstance(error, MemoryError):
            raise
        hint = "free arrays and call dr.flush_malloc_cache(), or move less at a time"
        raise BackendError(f"to: no memory left on the {name} backend; {hint}.") from error


def home(tree: Any, elsewhere: str) -> tuple[str | None, str]:
    """Where results of a call on the backend ``elsewhere`` go: a backend or ``None``, and the precision of fields.

    It is the backend of the first Dr.Jit object in ``tree`` that is not on ``elsewhere``; NumPy if only NumPy arrays
    are not; ``None`` if ``tree`` has nothing to move. The precision is that of the fields there, or ``"auto"`` if they
    have several or there are none.
    """
    try:
        nodes = list(_walk(tree, {}))
    except RecursionError:
        raise _too_deep() from None
    places = [place for place in map(_place, nodes) if place not in (None, elsewhere)]
    backend = next((place for place in places if place != NUMPY), places[0] if places else None)
    there = {node.precision for node in nodes if hasattr(node, "precision") and _place(node) == backend}
    return backend, there.pop() if len(there) == 1 else "auto"


def back(tree: Any, place: str, precision: str) -> Any:
    """``tree``, moved to ``place``; to NumPy, only arrays and textures are moved."""
    if place != NUMPY:
        return to(tree, place, precision)
    try:
        return _Arrays(NUMPY, "auto").moved(tree)
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> ValueError:
    return ValueError("to: the tree holds lists or objects within others, hundreds deep; flatten it.")


class Packing(NamedTuple):
    """How a flat parameter of a field is stored: its type, number of entries, and parts.

    ``places`` are the positions of the parts' entries, one part after the other; ``names`` are the parts' names.
    """

    dtype: type
    width: int
    places: np.ndarray
    names: tuple[str, ...]


class Mover:
    """Moves objects to ``backend``. A class can define how it is moved by a method ``_to(mover)``."""

    def __init__(self, backend: str, precision: str):
        self.backend, self.precision = backend, precision
        self._done: dict[int, tuple[Any, Any]] = {}  # by id: (original, kept so that its id stays its own; moved)
        self._crossed: dict[tuple[int, int], tuple[Any, Any]] = {}  # by variable number: the same
        self._networks: list[tuple[Any, Any]] = []  # originals, and moved ones
        self._layouts_of: dict[int, dict[str, Packing]] = {}  # by id of a network

    def has(self, value: Any) -> bool:
        """Is ``value`` on ``backend`` already?"""
        return _place(value) == self.backend

    def cross(self, nodes: list[Any]) -> None:
        """Move all arrays among ``nodes`` that track gradients together, so that they are differentiated together."""
        if self.backend == NUMPY:
            return
        tracked: dict[str | None, dict[tuple[int, int], Any]] = {}
        for node in nodes:
            if isinstance(node, dr.ArrayBase) or _is_texture(node):
                for flat in _flats(node.tensor() if _is_texture(node) else node):
                    if dr.is_jit_v(flat) and dr.grad_enabled(flat) and not self.has(flat):
                        tracked.setdefault(_place(flat), {})[flat.index, flat.index_ad] = flat
        for values in tracked.values():
            moved = backend_copies.differentiable_copies(
                [*values.values()], [self.twin(type(flat)) for flat in values.values()]
            )
            self._crossed |= {key: (flat, new) for (key, flat), new in zip(values.items(), moved, strict=True)}

    def moved(self, value: Any) -> Any:
        """``value`` after moving; itself if there was nothing to move."""
        if id(value) not in self._done:
            self._done[id(value)] = value, _UNDERWAY
            self._done[id(value)] = value, self._move(value)
        new = self._done[id(value)][1]
        ensure(new is not _UNDERWAY, f"to: a {type(value).__name__} contains itself.")
        return new

    def _move(self, value: Any) -> Any:
        if isinstance(value, type):
            return value
        there = self.has(value)
        if there and not hasattr(value, "_to") and not isinstance(value, Optimizer):
            return value
        if isinstance(value, np.ndarray):
            return self._from_numpy(value)
        if isinstance(value, dr.ArrayBase):
            return self._array(value)
        if isinstance(value, Optimizer):
            return value if there and not self._networks else self._optimizer(value)
        if _is_texture(value):
            return self._texture(value)
        if hasattr(value, "_to"):
            new = value._to(self)
            if new is not value and hasattr(value, "_layouts") and hasattr(new, "_layouts"):
                self._networks.append((value, new))
            return new
        if isinstance(value, drnn.CoopVec):
            raise TypeError("to: a CoopVec lives within a kernel; move its components, list(x).")
        if isinstance(value, drnn.MatrixView):
            raise TypeError("to: a packed matrix cannot be moved alone; move the NeuralField that has it.")
        foreign = type(value).__module__.startswith("mitsuba")
        if _parts(value) is not None and not foreign:
            return self.parts_of(value)
        if foreign or (traversable(value) and not callable(value)):
            raise TypeError(f"to: a {type(value).__name__} cannot be moved; move the arrays that it is made of.")
        return value

    def parts_of(self, value: Any) -> Any:
        """A copy of the container ``value`` with moved contents; ``value`` itself if nothing in it was moved."""
        parts = _parts(value) or {}
        new = {key: self.moved(part) for key, part in parts.items()}
        if all(new[key] is part for key, part in parts.items()):
            return value
        if isinstance(value, tuple):
            return type(value)(*new.values()) if hasattr(value, "_fields") else tuple.__new__(type(value), new.values())
        if type(value).__module__.startswith("drjit."):  # Dr.Jit has a class for each backend
            ensure(self.backend != NUMPY, f"to: NumPy has no {type(value).__name__}.", TypeError)
            duplicate = self.twin(type(value))()
        else:
            duplicate = copy.copy(value)
        for key, part in new.items():
            if isinstance(value, (list, dict)):
                duplicate[key] = part
            else:
                object.__setattr__(duplicate, key, part)  # dataclasses may be frozen
        return duplicate

    # ---- arrays ---------------------------------------------------------

    def _from_numpy(self, value: np.ndarray) -> Any:
        flat = getattr(namespace(self.backend), _TWINS.get(value.dtype.newbyteorder("=").str[1:], ""), None)
        if flat is None or isinstance(value, np.ma.MaskedArray):
            kind = "a masked NumPy array" if flat is not None else f"a NumPy array of {value.dtype}"
            raise TypeError(f"to: {kind}; Dr.Jit has arrays of bools, integers and floating point numbers.")
        if value.size >= 2**32:
            hint = "Dr.Jit's arrays have fewer than 2^32; move parts of it"
            raise ValueError(f"to: a NumPy array of shape {value.shape} has {value.size} entries; {hint}.")
        plain = np.ascontiguousarray(np.asarray(value), value.dtype.newbyteorder("="))
        array = self._flat(plain.reshape(-1), flat)
        return array if value.ndim < 2 else dr.tensor_t(flat)(array, value.shape)

    def _array(self, value: Any) -> Any:
        if self.backend == NUMPY:
            return np.array(dr.detach(value).numpy())
        if not dr.is_jit_v(value):
            return value
        twin = self.twin(type(value))
        if dr.is_tensor_v(value):
            return twin(self._flat(value.array, dr.array_t(twin)), dr.shape(value))
        if dr.depth_v(value) == 1:
            return self._flat(value, twin)
        if not dr.width(value):
            return twin()
        parts = [self._array(value[i]) for i in range(len(value))]
        if dr.size_v(twin) < 0:
            return twin(parts)
        new = dr.zeros(twin)
        for i, part in enumerate(parts):
            new[i] = part
        return new

    def _flat(self, value: Any, tp: type) -> Any:
        """A flat array as a ``tp``, with its derivatives."""
        if isinstance(value, dr.ArrayBase) and dr.grad_enabled(value):
            key = value.index, value.index_ad
            if key not in self._crossed:  # not in the tree itself: made when it was read, as by a property
                self._crossed[key] = value, backend_copies.differentiable_copies([value], [tp])[0]
            return self._crossed[key][1]
        return backend_copies.copied(value, tp)

    def twin(self, tp: type) -> type:
        """The type on ``backend`` that corresponds to ``tp``, a type of Dr.Jit or derived from one."""
        base = next((t for t in tp.__mro__ if t.__module__.startswith("drjit.")), None)
        ending = ".ad" if base is not None and base.__module__.endswith(".ad") else ""
        module = importlib.import_module(f"drjit.{self.backend}{ending}")
        if base is None or not hasattr(module, base.__name__):
            raise TypeError(f"to: a {tp.__name__} cannot be moved; convert it to a Dr.Jit array.")
        return getattr(module, base.__name__)

    def _texture(self, value: Any) -> Any:
        texels = self.moved(value.tensor())
        if self.backend == NUMPY:
            return texels
        options = {name: getattr(value, name)() for name in ("use_accel", "filter_mode", "wrap_mode")}
        return self.twin(type(value))(texels, **options)

    # ---- packed weights -------------------------------------------------

    def _packing(self, name: str, value: Any) -> tuple[Packing, Packing] | None:
        """The layouts of the parameter ``name`` before and after the move of the network to which ``value`` belongs.

        ``None`` if no such network was moved.
        """
        packings: list[tuple[Packing, Packing]] = []
        for old, new in self._networks:
            weights = old.get(name)
            if (
                weights is not None
                and dr.width(weights.array) == dr.width(value)
                and _place(weights.array) == _place(value)
            ):
                pair = self._layout(old)[name], self._layout(new)[name]
                first = packings[0] if packings else pair
                same = all(np.array_equal(a.places, b.places) for a, b in zip(pair, first, strict=True))
                both = f"several fields have {name!r} of {dr.width(value)} entries, in different layouts"
                ensure(same, f"to: {both}; move each with its own optimizer and average.")
                packings.append(pair)
        return packings[0] if packings else None

    def _layout(self, network: Any) -> dict[str, Packing]:
        """The layout of a network, cached."""
        if id(network) not in self._layouts_of:
            self._layouts_of[id(network)] = network._layouts()
        return self._layouts_of[id(network)]

    def follow(self, name: str, value: Any, single: bool = False) -> Any:
        """``value``, a flat array in the layout of a field's parameter ``name``, in the layout of the moved field.

        Floating point numbers are in the precision of the parameter, or in single precision with ``single``.
        """
        known = self._packing(name, value)
        if known is None:
            if self.has(value):
                return value
            if _packed(name):
                alone = f"{name!r} is in the packed layout of its backend, and its field is not part of this call"
                hint = "to((field, optimizer), ...); arrays that are not packed weights need another name"
                raise ValueError(f"to: {alone}; pass both, {hint}.")
            return self._array(dr.detach(value))
        old, new = known
        numbers = dr.detach(value).numpy()
        laid = np.zeros(new.width, numbers.dtype)
        laid[new.places] = numbers[old.places]
        if not dr.is_float_v(value):
            return self._flat(laid, self.twin(type(value)))
        half = dr.itemsize_v(new.dtype) == 2 and not single
        tp = dr.float16_array_t(new.dtype) if half else dr.float32_array_t(new.dtype)
        return self._flat(laid.astype(np.float16 if half else np.float32), tp)

    def _optimizer(self, value: Any) -> Any:
        if self.backend == NUMPY:
            raise TypeError(
                f"to: {type(value).__name__} works on Dr.Jit's arrays; optimizers cannot be moved to NumPy."
            )
        new = copy.copy(value)
        for name, attribute in vars(value).items():
            if name != "state":
                setattr(new, name, self._named(attribute) if isinstance(attribute, dict) else self.moved(attribute))
        new.state = {}
        for name, (parameter, promoted, rate, memory) in value.state.items():
            known = self._packing(name, parameter) if dr.depth_v(parameter) == 1 else None
            if known is None and not (_packed(name) and dr.depth_v(parameter) == 1 and not dr.is_tensor_v(parameter)):
                moved, rest = self._array(dr.detach(parameter)), self.moved(memory)
            else:
                if known is not None:
                    promoted = value.promote_fp16 and dr.itemsize_v(known[1].dtype) == 2
                moved = self.follow(name, parameter, promoted)
                rest = self._like(name, memory, dr.width(parameter), promoted)
            dr.enable_grad(moved)
            new.state[name] = moved, promoted, self.moved(rate), rest
        return new

    def _like(self, name: str, memory: Any, width: int, single: bool) -> Any:
        """An optimizer's memory for a parameter, moved. Arrays with ``width`` entries have the parameter's layout."""
        if isinstance(memory, tuple):
            return tuple(self._like(name, part, width, single) for part in memory)
        flat = isinstance(memory, dr.ArrayBase) and dr.depth_v(memory) == 1
        return self.follow(name, memory, single) if flat and dr.width(memory) == width else self.moved(memory)

    def _named(self, given: dict[Any, Any]) -> dict[Any, Any]:
        """A moved dictionary of an optimizer that has an entry for each parameter, besides its state."""
        flat = {name for name, v in given.items() if isinstance(v, dr.ArrayBase) and dr.depth_v(v) == 1}
        known = {name for name in flat if self._packing(name, given[name]) is not None}
        return {name: self.follow(name, v) if name in known else self.moved(v) for name, v in given.items()}


class _Arrays(Mover):
    """Moves arrays and textures only."""

    def _move(self, value: Any) -> Any:
        return value if hasattr(value, "_to") or isinstance(value, Optimizer) else super()._move(value)


#: Placeholder for an object that is being moved.
_UNDERWAY = object()


def _packed(name: str) -> bool:
    """Is ``name`` that of packed weights, not of a grid or table?"""
    return name.rsplit(".", 1)[-1] == "weights"


def _parts(value: Any) -> dict[Any, Any] | None:
    """The contents of the container ``value``, by index, key or attribute; ``None`` if it is not a container."""
    if isinstance(value, type):
        return None
    if isinstance(value, (list, tuple)):
        return dict(enumerate(entries("to", "a list in tree", value)))
    if isinstance(value, dict):
        return value
    names: Any = getattr(value, "DRJIT_STRUCT", None)
    if names is None and dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    return None if names is None else {name: getattr(value, name) for name in names if hasattr(value, name)}


def _walk(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """``value`` and all objects in it, each once, without the contents of networks."""
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept, so that no new object gets its id
    yield value
    if hasattr(value, "_layouts"):
        return
    for part in (_parts(value) or {}).values():
        yield from _walk(part, seen)


def _flats(value: Any) -> list[Any]:
    """The flat arrays in a Dr.Jit array."""
    if dr.is_tensor_v(value):
        return [value.array]
    if dr.depth_v(value) == 1:
        return [value]
    return [flat for i in range(len(value)) for flat in _flats(value[i])] if dr.width(value) else []


def _is_texture(value: Any) -> bool:
    return hasattr(value, "IsTexture") and not isinstance(value, type)


def _place(value: Any) -> str | None:
    """The backend of an array, texture, network or optimizer, or ``"numpy"``; ``None`` for other objects."""
    if isinstance(value, type):
        return None
    if isinstance(value, np.ndarray):
        return NUMPY
    if hasattr(value, "_layouts") or isinstance(value, Optimizer):
        return next((_place(array) for array in dict(value.items()).values()), None)
    if _is_texture(value):
        return next(t.__module__.split(".")[1] for t in type(value).__mro__ if t.__module__.startswith("drjit."))
    jit = isinstance(value, dr.ArrayBase) and dr.is_jit_v(value)
    return dr.backend_v(value).name.lower() if jit else None
