"""Base class of all layers."""

from __future__ import annotations

import copy
import math
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from contextlib import suppress
from itertools import islice
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np
from drjit.opt import Optimizer

from ..backend import require
from ..backend.transfer import Packing
from ..checks import check, check_same_backend, check_type, ensure, entries, is_int, shown
from ..checks.sizes import MAX_ENTRIES, check_entries, check_layers
from ..engine import evaluate
from ..jit import kinds
from ..jit.scopes import check_outside
from ..jit.views import changed, packed_attribute
from ..random.key import Key
from .arguments import arguments
from .parameters import find, listed, parameters
from .report import Report, report
from .tangents import check_bundle, no_rule
from .tree import children, walk


class Module(drnn.Module):
    """A ``drjit.nn.Module`` whose call takes a key: ``layer(x, key=None)``.

    It can be mixed with ``drjit.nn`` layers, and packed with ``drjit.nn.pack``. It is a mapping from parameter names
    such as ``"layers.0.weights"`` to arrays, which ``opt.update(net)`` copies to the optimizer and ``net.update(opt)``
    copies back. After packing, all matrices are one entry, ``"weights"``; parameters that cannot be packed (hash grids)
    keep their own entries.

    To write a layer, list its fields in ``DRJIT_STRUCT``. Parameters are arrays and layers among them, and layers in
    lists and tuples, but nothing in dictionaries. Make it default-constructible (``drjit.nn.pack`` rebuilds it), and
    implement ``__call__(self, x, key=None)`` and, if it has parameters or changes the width, ``_alloc(self, dtype,
    size, rng) -> (layer, width)``. Fields that contain it have derivatives with respect to their input if it also
    implements :meth:`jvp`.

    >>> class Scale(cn.Module):
    ...     DRJIT_STRUCT = {"factor": float}
    ...     def __init__(self, factor=1.0):
    ...         self.factor = factor
    ...     def __call__(self, x, key=None):
    ...         return x * self.factor
    ...     def jvp(self, x, tangents, key=None):
    ...         return x * self.factor, [t * self.factor for t in tangents]
    ...     def _alloc(self, dtype, size, rng):
    ...         return Scale(self.factor), size
    >>> field = cn.NeuralField(None, cn.Sequential(cn.Linear(2, 1), Scale(0.5))).build()
    """

    DRJIT_STRUCT: dict = {}

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{type(self).__name__}.__call__() is missing.")

    def alloc(self, dtype: type, size: int = -1, rng: Any = None) -> Any:  # type: ignore[override]
        """A copy with weights of tensor type ``dtype`` for inputs of ``size`` features.

        Args:
            dtype: such as ``drjit.llvm.ad.TensorXf`` or ``drjit.cuda.ad.TensorXf16``.
            size: number of input features; -1 if the first layer states its own.
            rng: ``dr.rng(seed)`` for the initial weights; a fixed seed if ``None``.

        Raises:
            TypeError: ``dtype`` is not a differentiable floating point tensor type; ``rng`` is not a generator.
            ValueError: layers whose widths don't fit together; a network that contains itself; weights that do not fit
                into memory (``coopnet.checks.sizes``).
            BackendError: the backend of ``dtype`` is missing.

        >>> net = cn.MLP(out_features=3).alloc(TensorXf, size=2, rng=dr.rng(seed=1))
        """
        where = f"{type(self).__name__}.alloc"
        tensor = isinstance(dtype, type) and issubclass(dtype, dr.ArrayBase) and dr.is_tensor_v(dtype)
        such = "a Linear layer requires a Tensor type such as drjit.llvm.ad.TensorXf"
        ensure(tensor, f"{where}: dtype is {shown(dtype)}; {such}.", TypeError)
        kind, valid = f"{dtype.__module__}.{dtype.__name__}", dr.is_float_v(dtype) and dr.is_diff_v(dtype)
        needed = "a floating point tensor type of drjit.llvm.ad or drjit.cuda.ad is needed"
        ensure(valid, f"{where}: dtype is {kind}; {needed}.", TypeError)
        valid = is_int(size, 1, MAX_ENTRIES) or is_int(size, -1, -1)
        check(valid, where, "size", size, "a positive number of input features, or -1,")
        check_type(where, "rng", rng, (dr.random.Generator, type(None)), "dr.rng(seed), or None,")
        require(dtype)
        check_network(self, where)
        net, _ = self._alloc(dtype, int(size), dr.rng(seed=0x100000000) if rng is None else rng)
        return allocated(net, where)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        r"""The output and its forward derivatives: ``(y, [J t for t in tangents])`` with the Jacobian ``J`` at ``x``.

        It consists of ordinary arithmetic, so ``dr.backward`` through it gives second derivatives.

        Args:
            x: a ``CoopVec``; encodings also take a list of arrays.
            tangents: directions of the shape and type of ``x``.
            key: as in a call; values and tangents see the same dropout masks.

        Raises:
            TypeError: the layer has no such rule.

        >>> y, (dy,) = net.jvp(drjit.nn.CoopVec(x), [drjit.nn.CoopVec(dx)])
        """
        op = self.op()
        if op is None:
            raise no_rule(self)
        check_bundle(self, x, tangents)
        kinds.require_float(x.type, f"{type(self).__name__}.jvp")
        self.output_width(len(x), x.type, key)
        y, *dys = evaluate([op], [x, *tangents], key)
        return y, dys

    def op(self) -> Any:
        """The op with which the engine runs this layer together with its neighbours; ``None`` if it runs alone."""
        return None

    def output_width(self, width: int, leaf: type, key: Key | None) -> int:
        """Output width of a layer with an :meth:`op`; raises unless it takes ``width`` values of type ``leaf``."""
        return width

    def _join(self, layers: list) -> None:
        """Called when all ``layers`` of a network, in evaluation order, have been allocated."""

    def __repr__(self) -> str:
        kept = arguments(self).items()
        plain = (f"{k}={v!r}" for k, v in kept if not isinstance(v, (drnn.Module, list, tuple)))
        return f"{type(self).__name__}({', '.join(plain)})"

    # ---- copies ---------------------------------------------------------

    def __copy__(self) -> Any:
        """Another layer that holds the same parameters."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __deepcopy__(self, memo: dict) -> Any:
        """A copy with parameters of its own, on the device, packed like the original.

        As with Dr.Jit's arrays, gradients are not copied. Results computed from the original do not depend on the copy.
        """
        check_outside(f"copy.deepcopy of a {type(self).__name__}")
        for p in parameters(self):
            if isinstance(p.value, drnn.MatrixView) and id(p.value) not in memo:
                memo[id(p.value)] = changed(p.value, buffer=copy.deepcopy(p.value.buffer, memo))
        new = memo[id(self)] = object.__new__(type(self))
        new.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        return new

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, except caches."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_segments", "_known")}

    # ---- parameters as in formulas --------------------------------------

    def matrix(self, name: str) -> np.ndarray:
        """A copy of one parameter as a plain matrix, vector or table, whether the network is packed or not.

        Args:
            name: the path in the tree of layers, as in checkpoints: ``"layers.0.weights"`` (or ``"layers.0.weight"``),
                ``"layers.0.bias"``, ``"encoding.data"``. In a field, ``"layers.0.weights"`` is short for
                ``"network.layers.0.weights"``.

        Returns:
            NumPy array of the parameters' type: matrices have the shape ``(out_features, in_features)``, biases
            ``(out_features,)``, and tables their own.

        Raises:
            TypeError, ValueError: no such parameter.

        >>> field.matrix("layers.0.weight").shape
        (64, 16)
        """
        where = f"{type(self).__name__}.matrix"
        return find(self, name, where).numpy(where).copy()

    def gradient(self, name: str) -> np.ndarray:
        r"""A copy of the gradient :math:`\partial L / \partial A` of one parameter, laid out as in :meth:`matrix`.

        It is the sum of the gradients of all calls of ``dr.backward`` so far. After ``net.update(opt)`` in half
        precision, weights have no gradient here: unless ``promote_fp16=False``, Dr.Jit's optimizers hold them in single
        precision, the network's weights are computed from those, and gradients are accumulated there (see
        :func:`coopnet.training.gradient_norm`).

        Args:
            name: as in :meth:`matrix`.

        Returns:
            NumPy array of the shape and type that :meth:`matrix` returns.

        Raises:
            TypeError, ValueError: no such parameter; one that does not track gradients.

        >>> dr.enable_grad(field["network.weights"])
        >>> dr.backward(dr.sum(dr.square(field(p)[0] - target)))
        >>> steepest = np.abs(field.gradient("layers.0.weight")).max()
        """
        where = f"{type(self).__name__}.gradient"
        parameter = find(self, name, where)
        tracks = dr.grad_enabled(parameter.storage)
        key = next((k for k, v in self.items() if v.array.index == parameter.storage.array.index), parameter.name)
        hint = f"call dr.enable_grad(net[{key!r}]), or net.update(opt) with an optimizer's"
        problem = f"{parameter.name} does not track gradients; {hint}, before the network is evaluated"
        ensure(tracks, f"{where}: {problem}.")
        return parameter.numpy(where, dr.grad).copy()

    def set_matrix(self, name: str, value: Any) -> None:
        """Replace one parameter, named as in :meth:`matrix`, by ``value``; all others keep their exact values.

        An optimizer has its own copy of the parameters: call ``opt.update(net)`` afterwards.

        Args:
            name: as in :meth:`matrix`.
            value: real numbers of the parameter's shape; NumPy array, tensor of PyTorch's, or nested lists.

        Raises:
            TypeError: no real numbers.
            ValueError: no such parameter; another shape; numbers too large for half precision.
            RuntimeError: a packed layout that is not known (layers wider than 2047 on CUDA).

        >>> field.set_matrix("layers.0.weight", 0.5 * field.matrix("layers.0.weight"))
        """
        where = f"{type(self).__name__}.set_matrix"
        find(self, name, where).write(value, where)

    def report(self) -> Report:
        """Number of parameters and bytes of every layer; print the result for a table.

        Raises:
            ValueError: the network has no parameters yet.

        >>> print(field.report())
        """
        return report(self)

    def _to(self, mover: Any) -> Any:
        """This layer on another backend, if all of its parameters belong to fields; see :func:`coopnet.to`."""
        modules = [layer for layer in children(self) if isinstance(layer, Module)]
        fields = [layer for layer in modules if type(layer)._to is not Module._to]  # they move themselves
        others = len(list(parameters(self))) - sum(len(list(parameters(field))) for field in fields)
        name = type(self).__name__
        alone = f"a {name} cannot be moved alone; put it into a field, NeuralField(None, {name}(...)).build()"
        ensure(not others, f"to: {alone}.", TypeError)
        return mover.parts_of(self) if fields else self

    def _layouts(self) -> dict[str, Packing]:
        """The layouts of the arrays that optimizers and averages hold, by name."""
        result = {}
        for name, value in self.items():
            index = value.array.index
            parts = [p for p in parameters(self) if p.storage.array.index == index]
            places = np.concatenate([p.places().numpy() for p in parts])
            result[name] = Packing(type(value.array), dr.width(value.array), places, tuple(p.name for p in parts))
        return result

    # ---- mapping of parameters ------------------------------------------

    def _search(self) -> Iterator[tuple[str, tuple[Any, str]]]:
        """The name of each parameter, and its (owner, attribute). It is not cached, since packing moves parameters."""
        for name, owner, attribute in walk(self, getattr(self, "prefix", "")):
            if attribute is None:
                if (attribute := packed_attribute(owner)) is not None:
                    yield f"{name}.weights" if name else "weights", (owner, attribute)
            elif not isinstance(getattr(owner, attribute), drnn.MatrixView):
                yield name, (owner, attribute)

    def _slots(self) -> dict[str, tuple[Any, str]]:
        """(owner, attribute) by parameter name."""
        return dict(self._search())

    def _slot(self, key: Any) -> tuple[Any, str]:
        slots = self._slots()
        if not isinstance(key, str) or key not in slots:
            has = f"the network has {listed(slots)}"
            raise KeyError(f"{type(self).__name__}: there is no parameter {shown(key)}; {has}.")
        return slots[key]

    def __getitem__(self, key: str) -> Any:
        return getattr(*self._slot(key))

    def __setitem__(self, key: str, value: Any) -> None:
        slot = self._slot(key)
        _assign(*slot, self._checked(key, *slot, value))

    def _checked(self, key: str, owner: Any, attribute: str, value: Any) -> Any:
        return _as_parameter(value, getattr(owner, attribute), f"{type(self).__name__}: parameter {shown(key)}")

    def __delitem__(self, key: str) -> None:
        raise TypeError(f"{type(self).__name__}: parameters cannot be deleted.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots())

    def __len__(self) -> int:
        return len(self._slots())

    def values(self) -> ValuesView:
        """The current parameters."""
        return _ParameterValues(self)

    def items(self) -> ItemsView:
        """The names and the current parameters."""
        return _ParameterItems(self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._slots()

    def __bool__(self) -> bool:
        return True  # a layer without parameters is an empty mapping, which would be false

    # Mappings compare their values. That would compare arrays entry by entry, and layers without parameters as equal.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def _update_matrices(self, values: Mapping) -> bool:
        """Assign values to the matrices and biases whose names are among ``values``. Returns whether any are."""
        named = [p for p in parameters(self) if p.name in values]
        for parameter in named:
            parameter.write(values[parameter.name], f"{type(self).__name__}.update")
        return bool(named)

    def update(self, other: Any = (), /, **parameters: Any) -> None:  # type: ignore[override]
        """Assign values to the parameters of the same names.

        Args:
            other: a mapping, such as an optimizer, which may also hold parameters of other networks; or pairs of name
                and value. In a mapping, matrices and biases may have their own names, as those of ``cn.to(field,
                "numpy")``.
            parameters: values by name.

        Raises:
            KeyError: a pair or keyword of unknown name; a mapping in which no name is known.
            ValueError: a value of another shape, before anything is assigned from a mapping; an optimizer without
                parameters.
            TypeError: ``other`` has another type; a value that is not an array of real numbers.

        >>> field.update(opt)
        """
        if isinstance(other, Mapping):
            slots = self._slots()  # looked up once, since new values do not move parameters
            known = [key for key in slots if key in other]
            empty = isinstance(other, Optimizer) and not len(other) and slots
            hint = "call opt.update(field) before field.update(opt)"
            ensure(not empty, f"{type(self).__name__}.update: the optimizer holds no parameters; {hint}.")
            checked = [self._checked(key, *slots[key], other[key]) for key in known]  # all, before any is assigned
            for key, value in zip(known, checked, strict=True):
                _assign(*slots[key], value)
            more = {name: other[name] for name in other if name not in slots}
            if more and not self._update_matrices(more) and not known and slots:
                given, names = ", ".join(map(shown, other)), ", ".join(map(repr, slots))
                raise KeyError(f"{type(self).__name__}.update: none of {given} is a parameter; those are {names}.")
        else:
            for key, value in _pairs(other, f"{type(self).__name__}.update"):
                self[key] = value
        for key, value in parameters.items():
            self[key] = value


# Those of the base class search the tree again for each parameter.
class _ParameterValues(ValuesView):
    _mapping: Module

    def __iter__(self) -> Iterator[Any]:
        return (getattr(*slot) for _, slot in self._mapping._search())


class _ParameterItems(ItemsView):
    _mapping: Module

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(*slot)) for name, slot in self._mapping._search())


def _pairs(other: Any, where: str) -> list:
    """``other`` as a list of pairs of name and value, or ``TypeError``."""
    listed = isinstance(other, Iterable) and not isinstance(other, (str, bytes, dr.ArrayBase, np.ndarray))
    pairs = entries(where, "the argument", other) if listed else [None]
    ok = all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs)
    ensure(ok, f"{where}: got {shown(other)}; a mapping, or pairs of name and value, are needed.", TypeError)
    return pairs


def _assign(owner: Any, attribute: str, value: Any) -> None:
    if attribute == packed_attribute(owner):
        getattr(owner, attribute)[:] = value  # in place, since the layers' views refer to this array object
    else:
        setattr(owner, attribute, value)


def _as_parameter(value: Any, current: Any, what: str) -> Any:
    """``value`` in the type of the parameter ``current``; raises unless it has its shape and holds real numbers."""
    if isinstance(value, (list, tuple, np.ndarray)):  # dr.shape() never ends for lists in themselves, and np.matrix
        with suppress(Exception):
            value = np.asarray(value)
    array = isinstance(value, (np.ndarray, dr.ArrayBase))
    check(array, what, "the new value", value, "an array of real numbers", TypeError)
    if isinstance(value, np.ndarray):
        real, kind = value.dtype.kind in "fiu", value.dtype
    else:
        real = dr.is_jit_v(value) and not (dr.is_mask_v(value) or dr.is_special_v(value))
        kind = type(value).__name__
    ensure(real, f"{what}: the new value holds {kind}; real numbers are needed.", TypeError)
    shape, needed = (tuple(dr.shape(v)) for v in (value, current))
    ensure(shape == needed, f"{what} has shape {needed}, but the new value has shape {shape}.")
    if isinstance(value, dr.ArrayBase):
        check_same_backend(f"{what} lives", current, ", but the new value", value)
    return value if type(value) is type(current) else type(current)(value)


def check_network(module: Any, where: str) -> None:
    """Raise ``ValueError`` for a network that contains itself or has too many layers."""
    leaves = sum(1 for layer in children(module) if len(list(islice(children(layer), 2))) == 1)
    check_layers(where, "the number of layers", leaves)


def allocated(module: Any, where: str) -> Any:
    """``module`` after allocation, with its dropouts numbered; raises ``ValueError`` if its parameters do not fit into
    memory."""
    params = list(parameters(module))
    entries = sum(math.prod(p.shape) for p in params)
    itemsize = max((dr.itemsize_v(p.storage) for p in params), default=2)
    on_host = any(dr.backend_v(p.storage) == dr.JitBackend.LLVM for p in params)
    check_entries(where, "parameters", (entries,), itemsize, on_host)
    layers = list(children(module))
    for layer in layers:
        if isinstance(layer, Module):
            layer._join(layers)
    return module
