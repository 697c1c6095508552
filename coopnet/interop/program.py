"""A field as three functions of arrays in memory: its value, its pullback, and the pullback of its derivative.

It is for other libraries, which have their own arrays and automatic differentiation. Nothing is kept between two
calls: a pullback computes the values that it needs again, in its own kernel.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import drjit as dr
import numpy as np

from ..engine import ExternalProducts, deterministic, gradient_path, leaving
from ..engine.modes import forced_path, is_deterministic
from ..field import NeuralField
from ..jit.captures import text_key
from ..jit.kinds import nested
from ..jit.owned import owned
from ..jit.unpacked import Unpacked
from ..nn.concrete_dropout import ConcreteDropout
from ..nn.parameters import like
from ..nn.replaced import replaced
from ..nn.tree import children
from ..random.key import Key

#: Number of recordings of a function that are kept: there is one for each number of samples and choice of gradients.
RECORDINGS = 16
_LOCK = threading.RLock()


class Modes(NamedTuple):
    """The settings of :func:`coopnet.deterministic` and :func:`coopnet.gradient_path`, and whether the masks of each
    :class:`coopnet.ConcreteDropout` are relaxed."""

    deterministic: bool
    path: str
    relaxed: tuple[bool, ...]

    @classmethod
    def current(cls, relaxed: tuple[bool, ...]) -> Modes:
        """The present settings of this thread."""
        return cls(is_deterministic(), forced_path(), relaxed)


class Point(NamedTuple):
    """The arguments of an evaluation.

    ``x`` holds ``samples`` rows of coordinates, one after the other, in single precision; ``parameters`` are the
    entries of the field's mapping, flat, in :attr:`Program.types`; ``key`` is ``None`` or the seed, index (or ``None``)
    and step of a :class:`Key`, all of them arrays.
    """

    x: Any
    samples: int
    parameters: list[Any]
    key: tuple[Any, Any, Any] | None
    modes: Modes


class Place(NamedTuple):
    """The parameters in an entry of the field's mapping, by name, row by row and one after the other.

    ``places`` are the positions of their numbers among the ``size`` numbers of the entry; ``None`` if they are in
    order.
    """

    names: tuple[str, ...]
    places: np.ndarray | None
    size: int


class Program:
    """The functions of ``field``, a built one, whose own parameters are removed: they are arguments of every call.

    Rows are flat arrays of single precision, sample after sample. ``needs_grad`` says which gradients to return: that
    of the coordinates first, then those of the entries of the mapping. The others are ``None``. All functions are
    recorded by ``dr.freeze``, once for every number of samples. They must be called within :meth:`alone`.
    """

    def __init__(self, field: NeuralField):
        self.field = field
        self.types = {name: type(value.array) for name, value in field.items()}
        self.places = _places(field)
        self.single = dr.float32_array_t(next(iter(self.types.values())))
        self.half = field.precision == "half"
        y = field([self.single(0)] * field.in_features)
        self.out_features, self.output = len(y), type(y[0])
        learned = [layer for layer in children(field) if isinstance(layer, ConcreteDropout)]
        layers = {layer.logit.value.data.index: layer for layer in learned}
        found = [(i, layers.get(value.array.index)) for i, value in enumerate(field.values())]
        #: The layers with learned rates, by the place of the rate among the parameters.
        self.rates = {i: layer for i, layer in found if layer is not None}
        for name, value in field.items():
            field[name] = like(value, dr.zeros(type(value.array), dr.width(value.array)))  # takes no memory
        # inputs of frozen functions, which traverse a list faster than a network
        inside = [value for layer in children(field) for value in vars(layer).values()]
        self._hidden = [v for v in inside if isinstance(v, Unpacked) and v.value is not None]
        keep: dict[str, Any] = {"limit": RECORDINGS, "warn_after": 1 << 30}
        self._value, self._pulled, self._finished = (dr.freeze(f, **keep) for f in (_value, _pulled, _finished))

    # ---- public -------------------------------------------------------------

    def value(self, at: Point) -> Any:
        """The outputs, in rows; of half precision if the field's are."""
        return self._value(self, self._hidden, tuple(at), text_key(*at.modes))

    def pullback(self, at: Point, dy: Any, needs_grad: Sequence[bool]) -> list[Any]:
        r"""Gradients of :math:`\sum_n \langle \mathrm{dy}_n, f(x_n) \rangle`; ``dy`` has rows like the outputs."""
        return self._pull(at, dy, None, needs_grad)[1:]

    def pullback_of_derivative(self, at: Point, dy: Any, v: Any, needs_grad: Sequence[bool]) -> list[Any]:
        r"""The derivatives :math:`J(x_n) v_n`, in rows, and gradients of :math:`\sum_n \langle \mathrm{dy}_n, J(x_n)
        v_n \rangle`, which the pullback of a pullback needs. ``v`` has rows like ``x``.

        Raises ``TypeError`` for a layer without a rule for derivatives.
        """
        return self._pull(at, dy, v, needs_grad)

    def _pull(self, at: Point, dy: Any, v: Any, needs_grad: Sequence[bool]) -> list[Any]:
        tangent, dx, gradients, operands, external = self._pulled(
            self, self._hidden, tuple(at), dy, v, tuple(needs_grad), text_key(*needs_grad, *at.modes)
        )
        if external is not None:
            gradients = self._finished(self, self._hidden, gradients, external.multiply(operands), external)
        return [tangent, dx, *(gradients.get(name) for name in self.types)]

    @staticmethod
    @contextmanager
    def alone() -> Iterator[None]:
        """A block for calls, and for making and using their arrays. Only one thread can be in it.

        Dr.Jit 1.5 replays frozen functions with global variables of the process. The garbage collector does not run in
        it: if it freed arrays of another library during a recording, the process would abort.
        """
        with _LOCK:
            collects = gc.isenabled()
            gc.disable()
            try:
                yield
            finally:
                if collects:
                    gc.enable()

    # ---- as they are recorded -----------------------------------------------

    def trace_value(self, at: Point) -> Any:
        at = self._owned(at)
        with self._given(at):
            return _rows(self.field(_columns(at.x, at.samples, self.field.in_features), _key(at)), at.samples)

    def trace_pullback(self, at: Point, dy: Any, v: Any, needs_grad: tuple[bool, ...]) -> tuple[Any, ...]:
        at = self._owned(at)
        external = ExternalProducts.if_library(self.field)
        xs, key = _columns(at.x, at.samples, self.field.in_features), _key(at)
        parameters = {
            name: p for name, p, needed in zip(self.types, at.parameters, needs_grad[1:], strict=True) if needed
        }
        with dr.resume_grad():
            dr.enable_grad(parameters, xs if needs_grad[0] else [])
            with leaving(external), self._given(at):
                if v is None:
                    y = self.field(xs, key)
                else:
                    y = self.field.jvp(xs, _columns(v, at.samples, len(xs)), key)[1]
                if external is not None:
                    external.open = True
                dr.set_grad(y, type(y)([type(y[0])(c) for c in _columns(dy, at.samples, len(y))]))
                dr.enqueue(dr.ADMode.Backward, y)
                dr.traverse(dr.ADMode.Backward)
                tangent = None if v is None else _rows(dr.detach(y), at.samples)
                dx = _rows(nested([dr.grad(c) for c in xs]), at.samples) if needs_grad[0] else None
                gradients = {name: dr.grad(p) for name, p in parameters.items()}
                operands = [] if external is None else external.take()
        dr.disable_grad(parameters)
        dr.eval(tangent, dx, gradients, operands)
        return tangent, dx, gradients, operands, external if operands else None

    def trace_finish(self, gradients: dict[str, Any], products: list, external: ExternalProducts) -> dict[str, Any]:
        return external.completed(gradients, products)

    def _owned(self, at: Point) -> Point:
        """The same arguments, with the weights of networks, which virtual calls may read, in Dr.Jit's own memory."""
        pairs = zip(at.parameters, self.field.values(), strict=True)
        return at._replace(parameters=[p if dr.is_tensor_v(value) else owned(p) for p, value in pairs])

    @contextmanager
    def _given(self, at: Point) -> Iterator[None]:
        """A block in which the field has the parameters of ``at``, and networks use its modes."""
        relaxed = zip(self.rates.values(), at.modes.relaxed, strict=True)
        modes = deterministic(at.modes.deterministic), gradient_path(at.modes.path)
        with modes[0], modes[1], replaced([self.field], at.parameters, relaxed):
            yield


def _places(field: NeuralField) -> dict[str, Place]:
    """The parameters in each entry of the mapping of ``field``."""
    places = {}
    for slot, packing in field._layouts().items():
        as_it_is = np.array_equal(packing.places, np.arange(packing.width))
        places[slot] = Place(packing.names, None if as_it_is else packing.places.astype(np.int64), packing.width)
    return places


def _columns(rows: Any, samples: int, count: int) -> list[Any]:
    """The ``count`` components of all samples."""
    lane = dr.arange(dr.uint32_array_t(type(rows)), samples)
    return [dr.gather(type(rows), rows, lane * count + i) for i in range(count)]


def _rows(components: Any, samples: int) -> Any:
    """The inverse of :func:`_columns`."""
    leaf = type(components[0])
    rows, lane = dr.empty(leaf, samples * len(components)), dr.arange(dr.uint32_array_t(leaf), samples)
    dr.scatter(rows, components, lane, mode=dr.ReduceMode.Permute)
    return rows


def _key(at: Point) -> Key | None:
    if at.key is None:
        return None
    seed, index, step = at.key
    return Key(seed, index, dr.uint32_array_t(type(at.x))(step))


# Frozen functions traverse the global variables that they refer to, at every call. These refer to one only, a class.


def _value(program: Any, hidden: list, at: tuple, key: str) -> Any:
    return program.trace_value(Point(*at))


def _pulled(program: Any, hidden: list, at: tuple, dy: Any, v: Any, needs_grad: tuple, key: str) -> Any:
    return program.trace_pullback(Point(*at), dy, v, needs_grad)


def _finished(program: Any, hidden: list, *args: Any) -> Any:
    return program.trace_finish(*args)
