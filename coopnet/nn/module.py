"""Base class of all layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..backend import require
from ..checks import entries, shown
from ..engine import evaluate
from ..jit.unpacked import Constant, Unpacked
from ..jit.views import packed
from ..limits import MAX_ENTRIES, check_entries, check_layers
from ..random.key import Key
from .parameters import check_acyclic, find, listed, logical_shape, parameters, storage_of, to_numpy, write
from .report import Report, report
from .tangents import check_bundle, no_rule


class Module(drnn.Module):
    """A ``drjit.nn.Module`` whose call takes a key: ``layer(x, key=None)``.

    It can be mixed with ``drjit.nn`` layers, packed with ``drjit.nn.pack``, and is a mapping from parameter names such
    as ``"layers.0.weights"`` to arrays, which ``opt.update(net)`` pulls and ``net.update(opt)`` pushes. After packing,
    all matrices are one entry, ``"weights"``; parameters that cannot be packed (hash grids) keep their own.

    To write a layer, list its fields in ``DRJIT_STRUCT``, make it default-constructible (``drjit.nn.pack`` rebuilds
    it), and implement ``__call__(self, x, key=None)`` and, if it has parameters or changes the width,
    ``_alloc(self, dtype, size, rng) -> (layer, width)``. Fields that contain it have derivatives with respect to their
    input if it also implements :meth:`jvp`.

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
            TypeError: ``dtype`` is no differentiable floating point tensor type; ``rng`` is no generator.
            ValueError: layers whose widths don't fit together; a network that contains itself; weights that there is
                no room for (``coopnet.limits``).
            BackendError: the backend of ``dtype`` is missing.

        >>> net = cn.MLP(out_features=3).alloc(TensorXf, size=2, rng=dr.rng(seed=1))
        """
        name = type(self).__name__
        if not (isinstance(dtype, type) and issubclass(dtype, dr.ArrayBase) and dr.is_tensor_v(dtype)):
            raise TypeError(
                f"{name}.alloc: dtype is {shown(dtype)}; a tensor type such as drjit.llvm.ad.TensorXf is needed."
            )
        if not dr.is_float_v(dtype) or not dr.is_diff_v(dtype):
            raise TypeError(
                f"{name}.alloc: dtype is {dtype.__module__}.{dtype.__name__}; a floating point tensor type of "
                f"drjit.llvm.ad or drjit.cuda.ad is needed."
            )
        if isinstance(size, bool) or not isinstance(size, int) or not (size == -1 or 0 < size <= MAX_ENTRIES):
            raise ValueError(
                f"{name}.alloc: size is {shown(size)}; a positive number of input features, or -1, is needed."
            )
        if rng is not None and not isinstance(rng, dr.random.Generator):
            raise TypeError(f"{name}.alloc: rng is a {type(rng).__name__}; dr.rng(seed), or None, is needed.")
        require(dtype)
        check_network(self, f"{name}.alloc")
        net, _ = self._alloc(dtype, size, dr.rng(seed=0x100000000) if rng is None else rng)
        return allocated(net, f"{name}.alloc")

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        r"""The output and its forward derivatives: ``(y, [J t for t in tangents])`` with the Jacobian ``J`` at ``x``.

        Made of ordinary arithmetic, so that ``dr.backward`` through it gives second derivatives.

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
        self.output_width(len(x), x.type, key)
        y, *moved = evaluate([op], [x, *tangents], key)
        return y, moved

    def op(self) -> Any:
        """What this layer is to the engine, which runs it together with its neighbours; ``None`` if it runs alone."""
        return None

    def output_width(self, width: int, leaf: type, key: Key | None) -> int:
        """Width of the output of a layer with an :meth:`op`; raises unless ``width`` values of type ``leaf`` fit it."""
        return width

    def _join(self, layers: list) -> None:
        """Called when all ``layers`` of a network, in evaluation order, have been allocated."""

    # ---- parameters as in formulas --------------------------------------

    def matrix(self, name: str) -> np.ndarray:
        """A copy of one parameter as in formulas, from a packed network as from any other.

        Args:
            name: the place in the tree, as in checkpoints: ``"layers.0.weights"`` (or ``"layers.0.weight"``),
                ``"layers.0.bias"``, ``"encoding.data"``. Of a field, ``"layers.0.weights"`` is short for
                ``"network.layers.0.weights"``.

        Returns:
            NumPy array of the type of the parameters: matrices ``(out_features, in_features)``, biases
            ``(out_features,)``, tables as they are.

        Raises:
            TypeError, ValueError: no such parameter.

        >>> field.matrix("layers.0.weight").shape
        (64, 16)
        """
        where = f"{type(self).__name__}.matrix"
        return to_numpy(*find(self, name, where), where).copy()

    def set_matrix(self, name: str, value: Any) -> None:
        """Replace one parameter, named as in :meth:`matrix`, by ``value``; others keep theirs to the bit.

        An optimizer has parameters of its own: follow with ``opt.update(net)``.

        Args:
            name: as in :meth:`matrix`.
            value: real numbers of the parameter's shape; NumPy array or nested lists.

        Raises:
            TypeError: no real numbers.
            ValueError: no such parameter; another shape; numbers too large for half precision.
            RuntimeError: a packed layout that is not known (layers wider than 2047 on CUDA).

        >>> field.set_matrix("layers.0.weight", 0.5 * field.matrix("layers.0.weight"))
        """
        where = f"{type(self).__name__}.set_matrix"
        write(*find(self, name, where), value, where)

    def report(self) -> Report:
        """Parameters and bytes of every layer; print it.

        Raises:
            ValueError: the network has no parameters yet.

        >>> print(field.report())
        """
        return report(self)

    # ---- mapping of parameters ------------------------------------------

    def _slots(self) -> dict[str, tuple[Any, str, bool]]:
        """Parameter name -> (owner, attribute, written in place?), found anew each time: packing moves parameters."""
        slots: dict[str, tuple[Any, str, bool]] = {}
        _collect(self, getattr(self, "prefix", ""), slots)
        return slots

    def _slot(self, key: Any) -> tuple[Any, str, bool]:
        slots = self._slots()
        if not isinstance(key, str) or key not in slots:
            raise KeyError(
                f"{type(self).__name__}: there is no parameter {shown(key)}; the network has {listed(slots)}."
            )
        return slots[key]

    def __getitem__(self, key: str) -> Any:
        owner, attribute, _ = self._slot(key)
        return getattr(owner, attribute)

    def __setitem__(self, key: str, value: Any) -> None:
        owner, attribute, in_place = self._slot(key)
        current = getattr(owner, attribute)
        value = _as_parameter(value, current, f"{type(self).__name__}: parameter {shown(key)}")
        if in_place:
            current[:] = value  # the layers' views point at this very array
        else:
            setattr(owner, attribute, value)

    def __delitem__(self, key: str) -> None:
        raise TypeError(f"{type(self).__name__}: parameters cannot be deleted.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots())

    def __len__(self) -> int:
        return len(self._slots())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._slots()

    def __bool__(self) -> bool:
        return True  # as a mapping without entries, a layer that has no parameters (yet) would count as none

    # mappings compare their values, which arrays do entry by entry; layers without parameters would all be equal
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def update(self, other: Any = (), /, **parameters: Any) -> None:  # type: ignore[override]
        """Push values into the parameters of the same name.

        Args:
            other: a mapping, such as an optimizer, which may hold those of other networks, too; or pairs of name and
                value.
            parameters: values by name.

        Raises:
            KeyError: a pair or keyword of unknown name.
            ValueError: a value of another shape.
            TypeError: ``other`` is something else; a value that is no array of real numbers.

        >>> field.update(opt)
        """
        if isinstance(other, Mapping):
            for key in self:
                if key in other:
                    self[key] = other[key]
        else:
            for key, value in _pairs(other, f"{type(self).__name__}.update"):
                self[key] = value
        for key, value in parameters.items():
            self[key] = value


def _pairs(other: Any, where: str) -> list[tuple[Any, Any]]:
    """``other`` as pairs of name and value, or ``TypeError``."""
    found = None
    if isinstance(other, Iterable) and not isinstance(other, (str, bytes, dr.ArrayBase, np.ndarray)):
        found = entries(where, "the argument", other)
        if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in found):
            found = None
    if found is None:
        raise TypeError(f"{where}: got {shown(other)}; a mapping, or pairs of name and value, are needed.")
    return [(key, value) for key, value in found]


def _as_parameter(value: Any, current: Any, what: str) -> Any:
    """``value`` in the type of the parameter ``current``; raises unless it has its shape and holds real numbers."""
    if isinstance(value, (list, tuple)):  # dr.shape() follows those that contain themselves for ever
        try:
            value = np.asarray(value)
        except Exception:
            raise TypeError(f"{what}: the new value is {shown(value)}; an array of real numbers is needed.") from None
    if isinstance(value, np.ndarray):
        shape, real = value.shape, value.dtype.kind in "fiu"
    elif isinstance(value, dr.ArrayBase):
        special = dr.is_mask_v(value) or dr.is_special_v(value) or not dr.is_jit_v(value)
        shape, real = tuple(dr.shape(value)), not special
    else:
        raise TypeError(f"{what}: the new value is {shown(value)}; an array of real numbers is needed.")
    if not real:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(f"{what}: the new value holds {kind}; real numbers are needed.")
    if shape != tuple(dr.shape(current)):
        raise ValueError(f"{what} has shape {tuple(dr.shape(current))}, but the new value has shape {shape}.")
    if isinstance(value, dr.ArrayBase) and dr.backend_v(value) != dr.backend_v(current):
        raise TypeError(
            f"{what} lives on the {dr.backend_v(current).name} backend, but the new value on "
            f"{dr.backend_v(value).name}; convert it by way of NumPy."
        )
    return value if type(value) is type(current) else type(current)(value)


def _collect(owner: Any, prefix: str, slots: dict, above: tuple = ()) -> None:
    check_acyclic(owner, above)
    above = (*above, owner)

    def name(part: str) -> str:
        return f"{prefix}.{part}" if prefix else part

    if (attribute := packed(owner)) is not None:
        slots[name("weights")] = (owner, attribute, True)
    for field in getattr(type(owner), "DRJIT_STRUCT", None) or ():
        value = getattr(owner, field, None)
        if isinstance(value, Unpacked):
            if value.value is not None and not isinstance(value, Constant):
                slots[name("data")] = (value.value, "data", False)
        elif isinstance(value, dr.ArrayBase):
            slots[name(field)] = (owner, field, False)
        elif isinstance(value, (tuple, list)):
            for i, item in enumerate(value):
                if isinstance(item, drnn.Module):
                    _collect(item, name(f"{field}.{i}"), slots, above)
        elif isinstance(value, drnn.Module):
            _collect(value, name(field), slots, above)


def children(module: Any, above: tuple = ()) -> Iterator[Any]:
    """All layers inside ``module``, itself first, in evaluation order.

    Raises ``ValueError`` for one that contains itself.
    """
    check_acyclic(module, above)
    yield module
    for layer in _inside(module):
        yield from children(layer, (*above, module))


def _inside(module: Any) -> Iterator[Any]:
    """The layers that ``module`` itself holds."""
    for field in getattr(type(module), "DRJIT_STRUCT", None) or ():
        value = getattr(module, field, None)
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, drnn.Module):
                yield item


def check_network(module: Any, where: str) -> None:
    """Raise ``ValueError`` for a network that contains itself or has too many layers."""
    check_layers(where, "the number of layers", sum(1 for m in children(module) if next(_inside(m), None) is None))


def allocated(module: Any, where: str) -> Any:
    """``module``, freshly allocated: dropouts numbered; raises ``ValueError`` if all its parameters have no room."""
    entries, itemsize, on_host = 0, 2, False
    for _, owner, attribute in parameters(module):
        stored = storage_of(owner, attribute)
        entries += int(np.prod(logical_shape(owner, attribute)))
        itemsize = max(itemsize, dr.itemsize_v(stored))
        on_host |= dr.backend_v(stored) == dr.JitBackend.LLVM
    check_entries(where, "parameters", (entries,), itemsize, on_host)
    layers = list(children(module))
    for layer in layers:
        if isinstance(layer, Module):
            layer._join(layers)
    return module
