"""Neural fields: an encoding, a network, and conversions of inputs and outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from reprlib import recursive_repr
from typing import Any, ClassVar

import drjit as dr
import drjit.nn as drnn
import numpy as np

from .audit import Audit
from .audit import audit as run_audit
from .backend import namespace, require
from .backend.transfer import NUMPY
from .bounds import Bounds, check_count, checked, slopes, to_unit
from .call import Call, note, result_type
from .checks import (
    check_choice,
    check_flag,
    check_in_features,
    check_int,
    check_module,
    check_type,
    check_unsigned,
    ensure,
)
from .checks.sizes import MAX_ENTRIES, check_features
from .checks.warn import warn
from .derivatives import jacobian, pushforward
from .engine import Explanation, explain
from .engine.modes import modes
from .jit import kinds
from .jit.scopes import check_outside
from .nn import Encoding, Identity, Module
from .nn.arguments import block
from .nn.module import allocated, check_network
from .nn.parameters import parameters
from .nn.sequential import segments, stated_width
from .nn.tree import children
from .random.key import Key

PRECISIONS = ("half", "single")


class NeuralField(Module):
    r"""A function of coordinates, :math:`f(p) = \mathrm{network}(\mathrm{encoding}(p))`.

    Coordinates and the encoding are single precision. The network runs in half precision on CUDA and in single
    precision on LLVM. Outputs are single precision again, and so are derivatives with respect to coordinates.
    Gradients pass through the casts in between. ``docs/precision.md`` has the rules and measured errors, and
    :meth:`audit` measures the errors of a given field. The field is one mapping of all parameters, with
    ``"encoding.data"`` for a hash grid and ``"network.weights"`` for the packed matrices, so one optimizer trains both.

    Args:
        encoding: an :class:`Encoding`, another ``drjit.nn`` module, or ``None``.
        network: an :class:`MLP`, a :class:`Sequential` or another module.
        output: ``"float32"``, or ``"float16"`` to leave a half-precision network's output as it is.
        in_features: number of coordinates; -1 takes it from the encoding or the network. That is not possible if the
            encoding is one of ``drjit.nn``.
        bounds: the box ``(low, high)`` of the coordinates, each a number or one for every coordinate. The field
            maps it to the unit cube, which grids and bins need, before the encoding:
            :math:`(p - \mathrm{low}) / (\mathrm{high} - \mathrm{low})`. Derivatives are those with respect to ``p``.
            ``None`` leaves coordinates as they are.

    Raises:
        TypeError: ``encoding`` or ``network`` is not a module, or ``bounds`` not a pair.
        ValueError: ``output`` or ``in_features`` is another value; ``bounds`` that are not finite, not ``low < high``
            in single precision, or of another number of coordinates.

    >>> field = cn.NeuralField(cn.Sinusoidal(8, in_features=2), cn.MLP(out_features=3, dropout=0.1)).build()
    >>> rgb = field(p, cn.Key(seed=0))

    A hash grid over :math:`[-1.5, 1.5]^3`:

    >>> sdf = cn.NeuralField(cn.HashGrid(3), cn.MLP(out_features=1), bounds=(-1.5, 1.5)).build()
    """

    DRJIT_STRUCT = {
        "encoding": Module, "network": Module, "output": str, "precision": str, "in_features": int, "bounds": object,
        "_settings": str,
    }  # fmt: skip

    # added by coopnet.interop.tcnn.parameters, because fields must not import interop
    load_tcnn: ClassVar[Callable[..., None]]
    to_tcnn: ClassVar[Callable[..., np.ndarray]]
    std: ClassVar[Callable[..., Any]]  # and coopnet.uncertainty.std

    def __init__(
        self, encoding: Any = None, network: Any = None, output: str = "float32", in_features: int = -1,
        bounds: Any = None,
    ):  # fmt: skip
        for name, part in (("encoding", encoding), ("network", network)):
            check_module("NeuralField", name, part)
        check_choice("NeuralField", "output", output, ("float32", "float16"))
        in_features = check_features("NeuralField", "in_features", check_in_features("NeuralField", in_features))
        self.encoding, self.network, self.output, self.in_features = encoding, network, output, in_features
        self.bounds: Bounds | None = checked("NeuralField", bounds)
        if in_features > 0:
            check_count("NeuralField", self.bounds, in_features)
        self.precision: str | None = None  # set by build()
        self._description = ""  # set by pack()

    @property
    def _settings(self) -> str:
        """What dr.freeze knows two fields apart by, and calls of one under other settings of gradients.

        Settings themselves are not enough: Dr.Jit compares an object, such as True or a small int, only where it finds
        it first. Checked with Dr.Jit 1.5.0.
        """
        return sys.intern(self._description + modes())

    @_settings.setter
    def _settings(self, value: str) -> None:  # by Dr.Jit, of copies
        self._description = value.partition(modes())[0] if modes() else value

    # ---- construction ---------------------------------------------------

    def build(self, backend: Any = "auto", precision: str = "auto", seed: int = 0) -> NeuralField:
        """An allocated, packed field of this architecture, ready to train or to call.

        Its parameters are new. A copy of a trained field is :func:`coopnet.to` or ``copy.deepcopy``.

        Args:
            backend: ``"llvm"``, ``"cuda"``, or ``"auto"`` for CUDA where it works and LLVM elsewhere.
            precision: of the network: ``"half"``, ``"single"``, or ``"auto"`` for half on CUDA and single on LLVM.
            seed: of the initial parameters.

        Raises:
            BackendError: no such backend here.
            ValueError: unknown names; widths that don't fit; an unknown number of coordinates; single precision on
                CUDA, whose cooperative vectors are half precision only.

        Warns:
            RuntimeWarning: the field, or a part of it, has parameters already, and no other ``seed`` is given.

        >>> field = cn.NeuralField(cn.HashGrid(3), cn.MLP(out_features=1)).build("llvm", "half", seed=7)
        """
        where = "NeuralField.build"
        seed = check_unsigned(where, "seed", seed)
        check_outside(where)
        dtype, precision = storage(backend, precision, where)
        if seed == 0 and next(parameters(self), None) is not None:
            copied = "cn.to(field, backend, precision) or copy.deepcopy(field)"
            warn(f"{where}: the field has parameters already; this one gets new ones. For a copy, call {copied}.")
        return self.allocate(dtype, precision, seed).pack()

    def allocate(self, dtype: type, precision: str, seed: int = 0) -> NeuralField:
        """A copy with parameters of tensor type ``dtype``, not packed yet: the first half of :meth:`build`."""
        missing = "the field has no network; call NeuralField(encoding, network)"
        ensure(self.network is not None, f"NeuralField.build: {missing}.")
        check_network(self, "NeuralField.build")
        rng = dr.rng(seed=seed)
        size = self._input_size()
        check_count("NeuralField.build", self.bounds, size)
        field = NeuralField(output=self.output, in_features=size, bounds=self.bounds)
        if self.encoding is not None:
            field.encoding, size = self.encoding._alloc(dtype, size, rng)
        field.network, _ = self.network._alloc(dtype, size, rng)
        field.precision = precision
        return allocated(field, "NeuralField.build")

    def pack(self) -> NeuralField:
        """Pack the parameters of an allocated field, and return it: the second half of :meth:`build`."""
        self.encoding, self.network = _pack(self.encoding), _pack(self.network)
        self._description = repr(self)
        return self

    def _to(self, mover: Any) -> Any:
        """This field on the backend and in the precision of ``mover``; see :func:`coopnet.to`."""
        weights = list(parameters(self))
        if self.precision is None or not weights:
            return self
        if mover.backend == NUMPY:
            return {p.name: p.numpy("to").copy() for p in weights}
        dtype, precision = storage(mover.backend, mover.precision, "to")
        if mover.has(self) and (mover.precision == "auto" or precision == self.precision):
            return self
        field = self.allocate(dtype, precision)
        values = {p.name: p.numpy("to") for p in weights}
        for p in parameters(field):
            p.fill(values[p.name], "to")
        return field.pack()

    def _input_size(self) -> int:
        """Number of coordinates, as the field or its encoding states it, or computed from the network's input width."""
        stated = self.in_features if self.in_features > 0 else getattr(self.encoding, "in_features", -1)
        if stated > 0:
            return stated
        needed = stated_width([self.network])
        if needed < 1 or not isinstance(self.encoding, (Encoding, Identity, type(None))):
            raise ValueError(
                "NeuralField.build: the number of coordinates is unknown; say NeuralField(..., in_features=2), or give "
                "it to the encoding or the first layer, as in Sinusoidal(8, in_features=2)."
            )
        if self.encoding is None:
            return needed
        for size in range(1, needed + 1):
            if self.encoding.width(size) == needed and self.encoding.width(size + 1) != needed:
                return size
        raise ValueError(
            f"NeuralField.build: no number of coordinates makes {type(self.encoding).__name__} give the {needed} "
            f"features that the network takes; give the encoding in_features."
        )

    # ---- evaluation -----------------------------------------------------

    def __call__(self, p: Any, key: Key | None = None, active: Any = True) -> Any:
        """Evaluate the field at ``p``.

        Args:
            p: coordinates: a nested array (``Array2f``), a list or tuple of arrays, a ``CoopVec``, or a tensor
                ``(in_features, samples)``.
            key: enables the network's dropouts, and determines their masks.
            active: a Dr.Jit mask, one entry or one per sample, or a bool. Samples where it is false are evaluated at
                zero instead of their coordinates, return zeros, and add nothing to gradients.

        Returns:
            A nested ``ArrayXf`` for nested arrays and lists; a ``CoopVec`` or tensor if ``p`` is one.

        Raises:
            ValueError: the field is not built, ``p`` is empty or has the wrong number of coordinates, or ``active``
                another number of samples.
            TypeError: ``p`` is of another kind or backend, or in double precision, which would be rounded; ``key`` is
                no :class:`Key`, or ``active`` no mask.

        >>> y = field(p, active=hit)  # hit a Bool: the rays that hit something
        """
        call, x, _ = self._enter(p, key, active, "NeuralField")
        y, _ = pushforward(self.encoding, self.network, x, [], self._work(call.leaf), call.key)
        return call.leave(result_type(self.output, call.leaf), y)[0]

    def value_and_grad(self, p: Any, key: Key | None = None, active: Any = True) -> tuple[Any, Any]:
        r"""Value and gradient :math:`\nabla f(p)` of a field with one output.

        This costs up to ``1 + in_features`` calls, in one kernel. The gradient can be differentiated again:
        ``dr.backward`` of a loss on it gives second derivatives with respect to parameters and coordinates. If neither
        has gradients enabled, reverse mode may be used, which is faster and equally precise (``docs/derivatives.md``).
        ReLU has no second derivatives; triangle waves and hash grids have only mixed ones within a cell. For losses on
        curvature use :class:`Softplus`, :class:`Sine` or :class:`Tanh` (``docs/derivatives.md`` has the Laplacian), and
        for smoother gradients on grids :func:`numerical_gradient`.

        Args:
            p, key, active: as in a call; value and gradient see the same dropout masks.

        Returns:
            ``(field(p, key, active), gradient)``; the gradient in single precision, in the container of ``p``.

        Raises:
            ValueError, TypeError: as a call; also for a field with several outputs, and a layer without a rule for
                derivatives (see :meth:`Module.jvp`).

        >>> sdf, gradient = field.value_and_grad(p)  # p an Array3f
        >>> eikonal = dr.mean(dr.square(dr.norm(gradient) - 1))
        """
        y, rows = self._jacobian(p, key, active, "NeuralField.value_and_grad")
        several = f"the field has {len(rows)} outputs, but a gradient needs one; use jacobian()"
        ensure(len(rows) == 1, f"NeuralField.value_and_grad: {several}.")
        return y, rows[0]

    def jacobian(self, p: Any, key: Key | None = None, active: Any = True) -> list[Any]:
        r"""The Jacobian :math:`J_{ij} = \partial f_i / \partial p_j` as a list of its rows.

        Args:
            p, key, active: as in a call.

        Returns:
            A list with the gradient of every output, each in the container of ``p``: ``jacobian(p)[i][j]``. Cost and
            second derivatives are as in :meth:`value_and_grad`.

        Raises:
            ValueError, TypeError: as a call; also for a layer without a rule for derivatives.

        >>> du, dv = field.jacobian(Array2f(u, v))[0]
        """
        return self._jacobian(p, key, active, "NeuralField.jacobian")[1]

    def jvp(self, p: Any, v: Any, key: Key | None = None, active: Any = True) -> tuple[Any, Any]:
        r"""Value and derivative in direction ``v``, :math:`J(p)\,v`, at the cost of two calls.

        Args:
            p, key, active: as in a call.
            v: a direction, of the same kind and number of components as ``p``.

        Returns:
            ``(field(p, key, active), derivative)``, both in the container that a call returns; the derivative in single
            precision. It can be differentiated again: see :meth:`value_and_grad`, whose errors are raised here, too.

        >>> value, slope = field.jvp(p, direction)
        """
        call, x, (direction,) = self._enter(p, key, active, "NeuralField.jvp", v)
        direction = [d for (d,) in slopes([[d] for d in direction], self.bounds)]
        y, moved = pushforward(self.encoding, self.network, x, [direction], self._work(call.leaf), call.key)
        y, (dy,) = call.leave(result_type(self.output, call.leaf), y, *moved)
        return y, call.contained(dy)

    def _jacobian(self, p: Any, key: Key | None, active: Any, where: str) -> tuple[Any, list]:
        call, x, _ = self._enter(p, key, active, where)
        attached = any(dr.grad_enabled(v) for v in (*x, *self.values()))
        y, columns = jacobian(self.encoding, self.network, x, self._work(call.leaf), call.key, attached)
        y, columns = call.leave(result_type(self.output, call.leaf), y, *slopes(columns, self.bounds))
        return y, [kinds.rebuild([column[i] for column in columns], p) for i in range(len(columns[0]))]

    def _enter(self, p: Any, key: Any, active: Any, where: str, *directions: Any) -> tuple[Call, list, list[list]]:
        """The checked arguments of a call, the coordinates for the encoding, and the components of ``directions``.

        Arguments are checked here only.
        """
        check_built(where, self)
        call = Call(p, self.in_features, key, active, where, *directions)
        x, *components = call.enter(p, *directions)
        note(self, x, call.active)
        return call, to_unit(x, self.bounds), components

    @property
    def float32(self) -> Any:
        """The single-precision array type of a built field's backend, such as ``drjit.llvm.ad.Float``."""
        check_built("NeuralField.float32", self)
        return dr.float32_array_t(dr.leaf_t(dr.array_t(next(iter(self.values())))))

    @property
    def backend(self) -> str:
        """Where a built field lives: ``"llvm"`` or ``"cuda"``."""
        check_built("NeuralField.backend", self)
        return dr.backend_v(self.float32).name.lower()

    def _work(self, leaf: type) -> type:
        """Type in which the network computes, on the backend of ``leaf``."""
        return dr.float16_array_t(leaf) if self.precision == "half" else dr.float32_array_t(leaf)

    def explain(self, batch: int, frozen: bool = True, *, fit: bool = True, steps: int = 0) -> Explanation:
        """How the weight gradient of the network over ``batch`` samples is computed, and how much memory that takes.

        Args:
            batch: number of samples.
            frozen: inside a function frozen by ``dr.freeze``, as in :func:`coopnet.fit`?
            fit: is this function a step of :func:`coopnet.fit`? ``False`` for a function that you freeze yourself,
                in which no library can multiply.
            steps: the ``steps`` of ``fit``: short runs use ways that compile faster. 0 if that is
                not known.

        Raises:
            ValueError: ``batch`` is not a positive int below 2^32; ``steps`` is not an int from 0 on; the field is not
                built.

        >>> print(field.explain(2**20))
        """
        check_built("NeuralField.explain", self)
        batch = check_int("NeuralField.explain", "batch", batch, 1, MAX_ENTRIES, "a positive int below 2^32")
        check_flag("NeuralField.explain", "frozen", frozen)
        check_flag("NeuralField.explain", "fit", fit)
        steps = check_int("NeuralField.explain", "steps", steps, 0, MAX_ENTRIES, "an int from 0 on")
        ops = [op for segment in segments([self.network]) for op in segment.ops or []]
        return explain(ops, self.backend, batch, frozen, fit, steps)

    def audit(self, p: Any, key: Key | None = None) -> Audit:
        """Compare every layer in working precision with the float64 reference, on the batch ``p``.

        Reports errors, overflows and other non-finite values, and dead ReLU units. Layers run one by one, and
        everything is copied to the host. So use it to inspect a field, not in inner loops.

        Args:
            p, key: as in a call.

        Raises:
            ValueError, TypeError: as a call.
            RuntimeError: inside a symbolic loop or a function being frozen, where values cannot be read.

        >>> print(field.audit(p))
        """
        where = "NeuralField.audit"
        call, x, _ = self._enter(p, key, True, where)
        check_outside(where)
        assert self.precision is not None
        return run_audit(self.encoding, self.network, x, self._work(call.leaf), self.precision, call.key)

    @recursive_repr()
    def __repr__(self) -> str:
        names = ("encoding", "network", "output", "precision", *(("bounds",) if self.bounds is not None else ()))
        return block(self, (f"{name}={getattr(self, name)!r}" for name in names))


def check_built(where: str, field: Any, name: str = "field", cure: str = "call field = field.build()") -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``field``, the argument ``name``, is a built field."""
    check_type(where, name, field, NeuralField, f"a NeuralField{_hint(field)}")
    ensure(field.precision, f"{where}: {'the field' if name == 'field' else name} is not built yet; {cure}.")


def _hint(value: Any) -> str:
    """What to pass instead of an object that holds a field: a module of PyTorch, a configuration, a decoder."""
    held = getattr(value, "field", None)
    if isinstance(held, NeuralField):
        return f", such as its attribute field{'' if held.precision else '.build()'},"
    if callable(held):
        return ", such as the result of its method field(),"
    return ", such as the result of field()," if getattr(value, "__name__", None) == "field" else ""


def storage(backend: Any, precision: str, where: str) -> tuple[type, str]:
    """Tensor type and precision of a network on ``backend``; ``where`` opens the error messages.

    Raises:
        BackendError: no such backend here.
        ValueError: unknown names, or a precision that the backend does not have.
    """
    check_choice(where, "precision", precision, ("auto", *PRECISIONS))
    backend = require(backend)
    if precision == "auto":
        precision = "half" if backend == "cuda" else "single"
    if backend == "cuda" and precision == "single":
        raise ValueError(
            f"{where}: precision 'single' is not possible on CUDA, whose cooperative vectors multiply half-precision "
            f"matrices only; use 'half', or the LLVM backend."
        )
    ns = namespace(backend)
    return (ns.TensorXf16 if precision == "half" else ns.TensorXf), precision


def _pack(part: Any) -> Any:
    if part is None or not any(isinstance(m, drnn.Linear) for m in children(part)):
        return part  # nothing to pack
    return drnn.pack(part, layout="training")
