"""Fields as modules of PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import drjit as dr
import numpy as np

from ..backend import require
from ..checks import check_type, check_unsigned, ensure
from ..field import NeuralField, check_built, storage
from ..io import architecture
from ..jit.native.core import cuda_device, cuda_stream
from ..jit.scopes import check_outside
from ..nn.parameters import parameters
from ..random.key import Key, check_key
from ..uncertainty import draws
from .calls import Calls
from .program import Modes, Point, Program

try:
    import torch
except ImportError:
    raise ImportError("coopnet.interop.torch needs PyTorch; run pip install torch.") from None

_WHERE = "torch.Module"
#: In half precision, largest sum over all samples of their largest cotangents, where they enter the network.
LARGEST = 1024.0


class Module(torch.nn.Module):
    r"""A field as a ``torch.nn.Module``: :math:`(n, \mathrm{in}) \to (n, \mathrm{out})`, differentiable twice.

    It holds copies of the field's parameters, in single precision and as in formulas: matrices ``(out, in)`` row by
    row, independent of the hardware's layout. Their names, in ``named_parameters()`` and ``state_dict()``, are
    those of coopnet's checkpoints, such as ``network.layers.0.weights`` and ``encoding.data``. Each matrix and table is
    a parameter of its own, so that parameter groups, penalties and ``torch.nn.init`` find them. :meth:`field` returns a
    field with their present values.

    ``y = module(x)`` takes tensors ``(..., in)`` of any floating point type and any number of samples, 0 included, on
    the device of the parameters, which ``module.to(device)`` moves: the CPU (coopnet's backend LLVM) or the GPU that
    Dr.Jit uses (CUDA). It computes like a field, with the network in half precision on CUDA, and returns ``float32``,
    or ``float16`` for fields with ``output="float16"``; ``torch.autocast`` does not change that. If the network is in
    half precision, cotangents are scaled in the backward pass, and a ``GradScaler`` works, too.

    ``backward()`` gives gradients of parameters and inputs. With ``create_graph=True`` it also gives those of losses on
    gradients with respect to inputs, such as eikonal losses. Derivatives of the gradients of *parameters*, and
    third derivatives, raise ``RuntimeError``. :func:`coopnet.deterministic` and :func:`coopnet.gradient_path` around
    the forward pass also hold for its backward pass.

    **Dropout.** A module begins in training mode. There, calls are counted, and call number :math:`i` draws the masks
    of ``Key(seed, step=i)``, where the rows of ``x`` are numbered from 0. So masks depend on seed and number only, not
    on PyTorch's generators. The number of the next call is the buffer ``step``, which ``state_dict()`` keeps. In
    evaluation mode there is no dropout. ``module(x, key)`` uses the masks of ``key`` in either mode, and is not
    counted. If ``torch.utils.checkpoint`` computes a call again, it has the same masks, and is not counted: the call is
    recognized by its input. If several calls had the same input, a ``RuntimeError`` says that keys are needed.

    Args:
        field: a built :class:`coopnet.NeuralField` with parameters; neither kept nor changed.
        seed: of the dropouts, an int in [0, 2^64).

    Raises:
        TypeError: ``field`` is not a field.
        ValueError: the field is not built or has no parameters; ``seed`` is out of range.

    >>> module = Module(cn.NeuralField(cn.Frequency(6, in_features=2), cn.MLP(out_features=3)).build("llvm"))
    >>> optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    >>> torch.nn.functional.mse_loss(module(torch.rand(1000, 2)), torch.rand(1000, 3)).backward()
    >>> optimizer.step()
    """

    step: torch.Tensor

    def __init__(self, field: NeuralField, seed: int = 0):
        super().__init__()
        check_built(_WHERE, field)
        ensure(len(field), f"{_WHERE}: the field has no parameters, nothing that PyTorch could train.")
        self.seed = check_unsigned(_WHERE, "seed", seed)
        self._programs, self._calls = _Programs(field), Calls(draws(field))
        self.in_features, self.out_features = field.in_features, self._programs.own.out_features
        device = f"cuda:{cuda_device()}" if self._programs.backend == "cuda" else "cpu"
        self._shapes = {p.name: p.shape for p in parameters(field)}
        for p in parameters(field):
            _register(self, p.name, torch.tensor(p.numpy(_WHERE), dtype=torch.float32, device=device))
        self._names = tuple(self._shapes)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=device))

    def forward(self, x: torch.Tensor, key: Key | None = None) -> torch.Tensor:
        """The field at ``x``.

        Args:
            x: a floating point tensor ``(..., in_features)`` on the device of the parameters.
            key: a :class:`coopnet.Key` for the masks of dropouts; if it has an index, one number for each row of ``x``.

        Returns:
            A tensor ``(..., out_features)``.

        Raises:
            TypeError: ``x`` is not a floating point tensor; ``key`` is not a key.
            ValueError: ``x`` has another number of coordinates, or is on another device than the parameters, or that is
                no device of coopnet's.
            BackendError: coopnet cannot use that device here.
            RuntimeError: called while Dr.Jit records a frozen function or loop.
        """
        values = self._values()
        self._check(x, key, values[0].device)
        program = self._programs.on(values[0].device)
        counted = None
        if key is None and self.training:
            counted = self._calls.counted(x, self.step)
        named = dict(zip(self._names, values, strict=True))
        packed = [self._programs.packed(program, slot, named) for slot in program.places]
        relaxed = tuple(torch.is_grad_enabled() and packed[i].requires_grad for i in program.rates)
        call = _Call(program, key, self.seed, counted, self._calls, Modes.current(relaxed))
        y = _Value.apply(call, x.to(torch.float32).reshape(-1, self.in_features), *packed)
        return y.reshape(*x.shape[:-1], self.out_features)

    def field(self) -> NeuralField:
        """A new built field with the present parameters, on the backend of their device: for Dr.Jit, Mitsuba, files.

        Its precision is that of the field from which the module was made, if that had the same backend, and otherwise
        the default of this backend. Half precision rounds.

        Raises:
            ValueError: the device is none of coopnet's; a parameter is too large for half precision.
            BackendError: coopnet cannot use that device here.

        >>> cn.save("field.safetensors", module.field())
        """
        values = dict(zip(self._names, self._values(), strict=True))
        field = self._programs.build(values[self._names[0]].device)
        for p in parameters(field):
            p.write(values[p.name].detach().to("cpu", torch.float32).numpy(), f"{_WHERE}.field")
        return field

    def __repr__(self) -> str:
        return f"Module({self._programs.own.field!r}, seed={self.seed})"

    def _values(self) -> tuple[torch.Tensor, ...]:
        """The parameters in the order of their names; parametrizations may compute them from others."""
        attributes = attrgetter(*self._names)(self)
        values = attributes if len(self._names) > 1 else (attributes,)
        for value, (name, shape) in zip(values, self._shapes.items(), strict=True):
            # kernels that were recorded for these shapes would read beyond the end
            if not isinstance(value, torch.Tensor) or value.shape != shape or value.device != values[0].device:
                problem = (
                    f"has shape {tuple(value.shape)} on {value.device}"
                    if isinstance(value, torch.Tensor)
                    else "is none"
                )
                needed = f"shape {shape} is needed, on the device of the others"
                raise ValueError(f"{_WHERE}: the parameter {name} {problem}; {needed}.")
        return values

    def _check(self, x: Any, key: Any, home: torch.device) -> None:
        check_type(_WHERE, "x", x, torch.Tensor, "a tensor")
        check_key(_WHERE, key)
        if not x.is_floating_point():
            raise TypeError(f"{_WHERE}: x holds {x.dtype}; a floating point type is needed.")
        if x.device != home:
            advice = f"call module.to({str(x.device)!r}), or x.to({str(home)!r})"
            raise ValueError(f"{_WHERE}: x is on {x.device}, but the parameters are on {home}; {advice}.")
        if x.ndim < 1 or x.shape[-1] != self.in_features:
            needed = f"(..., {self.in_features}) is needed"
            raise ValueError(f"{_WHERE}: x has shape {tuple(x.shape)}; {needed}.")
        rows = x.numel() // self.in_features
        for name in ("index", "step", "seed") if key is not None else ():
            part = getattr(key, name)
            entries = dr.width(part) if isinstance(part, dr.ArrayBase) else np.size(part)
            if entries not in (1, rows):
                raise ValueError(
                    f"{_WHERE}: the {name} of key has {entries} entries for {rows} rows of x; 1 or {rows}."
                )
        check_outside(_WHERE)


def _register(module: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    """Make ``value`` the parameter called ``name``, dots included."""
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        module = getattr(module, part)
    module.register_parameter(last, torch.nn.Parameter(value))


class _Programs:
    """An architecture on all backends on which it was used. It holds no weights: copies of a module share it."""

    def __init__(self, field: NeuralField):
        self.backend, self.precision = field.backend, str(field.precision)
        self.own = Program(_built(field, self.backend, self.precision))
        self._found = {self.backend: self.own}
        self._indices: dict[tuple, torch.Tensor] = {}

    def __deepcopy__(self, memo: dict) -> _Programs:
        return self

    def __reduce__(self) -> tuple:
        return _restored, (architecture.describe(self.own.field), self.backend, self.precision)

    def build(self, device: torch.device) -> NeuralField:
        """A field for tensors on ``device``, with parameters of its own."""
        backend = _backend(device)
        return _built(self.own.field, backend, self.precision if backend == self.backend else "auto")

    def on(self, device: torch.device) -> Program:
        """The functions for tensors on ``device``."""
        backend = _backend(device)
        if backend not in self._found:
            self._found[backend] = Program(self.build(device))
        return self._found[backend]

    def packed(self, program: Program, slot: str, values: dict[str, torch.Tensor]) -> torch.Tensor:
        """An entry of a field's mapping made of parameters, in single precision."""
        names, places, size = program.places[slot]
        parts = [values[name].to(torch.float32).reshape(-1) for name in names]
        flat = torch.cat(parts) if len(parts) > 1 else parts[0]  # a table stays where it is
        if places is None:
            return flat
        index = self._indices.get((slot, flat.device))
        if index is None:
            with torch.inference_mode(False):  # later calls may be differentiated
                index = self._indices[slot, flat.device] = torch.from_numpy(places).to(flat.device)
        return flat.new_zeros(size).index_copy(0, index, flat)


def _backend(device: torch.device) -> str:
    """The backend for tensors on ``device``; raises ``ValueError`` if there is none."""
    if device.type == "cpu":
        return "llvm"
    problem = f"{_WHERE}: the parameters are on {device}"
    ensure(device.type == "cuda", f"{problem}; accepted devices are cpu, cuda.")
    require("cuda")
    used = cuda_device()
    ensure(device.index == used, f"{problem}, but Dr.Jit uses the GPU number {used}; call module.to('cuda:{used}').")
    return "cuda"


def _restored(description: dict, backend: str, precision: str) -> _Programs:
    return _Programs(architecture.construct(description).build(backend, precision))


def _built(field: NeuralField, backend: str, precision: str) -> NeuralField:
    """Another field of the architecture of ``field``."""
    return field.allocate(*storage(backend, precision, _WHERE)).pack()


# ---- Differentiation ----------------------------------------------------------------------------------------


class _Value(torch.autograd.Function):
    """The field, ``x`` in rows and the outputs flat; its backward pass is a function that can be differentiated, too.

    Functions return no views, since these could not be changed in place.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, x: torch.Tensor, *packed: torch.Tensor) -> torch.Tensor:
        ctx.call = call
        ctx.save_for_backward(x, *packed)
        ctx.set_materialize_grads(False)
        return call.value(x, packed)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> tuple:  # type: ignore[override]
        needs_grad = _needs_grad(ctx)
        if dy is None or not any(needs_grad):
            return (None,) * (1 + len(needs_grad))
        x, *packed = ctx.saved_tensors  # once: torch.utils.checkpoint computes them again
        ctx.call.calls.over(ctx.call.counted)
        dx, *gradients = _Pullback.apply(ctx.call, needs_grad, dy, x, *packed)
        return None, _in_rows(dx, x), *gradients


class _Pullback(torch.autograd.Function):
    r"""Gradients of :math:`\langle dy, f(x) \rangle`. Those of :math:`\langle v, dx \rangle = \langle dy, J v \rangle`
    follow from the derivative of the field in direction ``v``."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, needs_grad: list, dy: torch.Tensor, x: torch.Tensor, *packed: torch.Tensor
    ) -> tuple:
        ctx.call = call
        ctx.save_for_backward(dy, x, *packed)
        ctx.set_materialize_grads(False)
        return call.pullback(needs_grad, dy, x, packed)

    @staticmethod
    def backward(ctx: Any, v: torch.Tensor | None, *others: torch.Tensor | None) -> tuple:  # type: ignore[override]
        if any(other is not None for other in others):
            problem = "the gradient of a gradient with respect to parameters is not available"
            raise RuntimeError(f"{_WHERE}: {problem}; losses on gradients with respect to inputs are.")
        needs_grad = _needs_grad(ctx)
        if v is None:
            return (None,) * (2 + len(needs_grad))
        saved_dy, x, *packed = ctx.saved_tensors
        dy, dx, *gradients = _SecondPullback.apply(ctx.call, needs_grad, v, saved_dy, x, *packed)
        return None, None, dy, _in_rows(dx, x), *gradients


def _in_rows(flat: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
    return None if flat is None else flat.view(x.shape)


class _SecondPullback(torch.autograd.Function):
    """The gradients of the second order. There is no third order: differentiating again raises an error."""

    @staticmethod
    def forward(ctx: Any, call: _Call, needs_grad: list, *tensors: torch.Tensor) -> tuple:
        ctx.set_materialize_grads(False)
        return call.pullback_of_derivative(needs_grad, *tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple:
        if all(g is None for g in grads):
            return (None,) * len(ctx.needs_input_grad)
        advice = "take differences of first ones instead"
        raise RuntimeError(f"{_WHERE}: third derivatives, as of losses on second ones, are not available; {advice}.")


def _needs_grad(ctx: Any) -> list[bool]:
    """Which tensors' gradients are needed and requested: ``torch.autograd.grad`` may request only a few."""
    nodes = [node for node, _ in ctx.next_functions]  # of the tensors, which are the last arguments
    return [n and _requested(node) for n, node in zip(ctx.needs_input_grad[-len(nodes) :], nodes, strict=True)]


def _requested(node: Any) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except (AttributeError, RuntimeError):  # unknown to this PyTorch; a leaf that torch.autograd.grad() is asked for
        return True


class _Call:
    """The data that all passes of one call share. Between passes, only tensors are kept."""

    def __init__(
        self, program: Program, key: Key | None, seed: int, counted: torch.Tensor | None, calls: Calls, modes: Modes
    ):
        self.program, self.seed, self.counted, self.calls, self.modes = program, seed, counted, calls, modes
        self.key = copy.deepcopy(key)  # whose arrays could change before the backward pass

    def value(self, x: torch.Tensor, packed: Sequence[torch.Tensor]) -> torch.Tensor:
        """The outputs."""
        if len(x) == 0:
            return x.new_zeros(0, dtype=_dtype(self.program.output))
        with Program.alone():
            at = self._point(x, packed)
            (y,) = _in_order(x.device, lambda: [self.program.value(at)])
        return y

    def pullback(self, needs_grad: list, dy: torch.Tensor, x: torch.Tensor, packed: Sequence[torch.Tensor]) -> tuple:
        """Gradients of ``(dy * y).sum()`` with respect to ``x, *packed``, ``None`` unless wanted."""
        return self._pull(needs_grad, dy, None, x, packed)[1:]

    def pullback_of_derivative(
        self, needs_grad: list, v: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, *packed: torch.Tensor
    ) -> tuple:
        """Gradients of ``(dy * Jv).sum()`` with respect to ``dy, x, *packed``, ``None`` unless wanted."""
        dv, *gradients = self._pull(needs_grad[1:], dy, v, x, packed)
        return dv if needs_grad[0] else None, *gradients

    def _pull(
        self,
        needs_grad: list,
        dy: torch.Tensor,
        v: torch.Tensor | None,
        x: torch.Tensor,
        packed: Sequence[torch.Tensor],
    ) -> tuple:
        if len(x) == 0:
            zeros = (t.new_zeros(t.numel()) if w else None for w, t in zip(needs_grad, (x, *packed), strict=True))
            return torch.zeros_like(dy), *zeros
        # In half precision, cotangents and tangents are scaled to a moderate size. Results are linear in dy and v.
        rows, scale, v_scale = dy.to(torch.float32), None, None
        if self.program.half:
            rows, scale = _moderate(rows, len(x), LARGEST)
            if v is not None:
                v, v_scale = _moderate(v, len(x))
                scale = scale * v_scale
        _backend(x.device)  # PyTorch's threads of this pass may be on another GPU
        with Program.alone():
            at, cotangents = self._point(x, packed), _array(rows, self.program.single)
            if v is None:
                dv, *gradients = _in_order(x.device, lambda: [None, *self.program.pullback(at, cotangents, needs_grad)])
            else:
                along = _array(v, self.program.single)
                dv, *gradients = _in_order(
                    x.device, lambda: self.program.pullback_of_derivative(at, cotangents, along, needs_grad)
                )
        if dv is not None:
            dv = dv.to(torch.float32)
            dv = (dv if v_scale is None else dv / v_scale).to(dy.dtype)
        gradients = [g if g is None or scale is None else g.to(torch.float32) / scale for g in gradients]
        return dv, *gradients

    def _point(self, x: torch.Tensor, packed: Sequence[torch.Tensor]) -> Point:
        types = self.program.types.values()
        arrays = [_array(t, tp) for t, tp in zip(packed, types, strict=True)]
        return Point(_array(x, self.program.single), len(x), arrays, self._key(), self.modes)

    def _key(self) -> tuple | None:
        uint32 = dr.uint32_array_t(self.program.single)
        if self.counted is not None:
            step = _array(self.counted, dr.int64_array_t(uint32))
            return dr.opaque(dr.uint64_array_t(uint32), self.seed), None, step
        if self.key is None:
            return None
        key = self.key.traced(uint32)
        return key.seed, key.index, key.step


def _moderate(values: torch.Tensor, rows: int, most: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """``values`` times a power of two, and that power: the largest is then at most 1, and the sum of the largest of all
    ``rows`` at most ``most``, if that is given.

    The sum counts, and not the largest times the number of rows, so that one large value does not push all others below
    the range of half precision.
    """
    size = values.abs().view(rows, -1).amax(-1)
    top = size.amax()
    exponent = torch.frexp(top).exponent.clamp(-100, 100).to(torch.float32)
    if most is not None:
        total = (size / top.clamp_min(torch.finfo(torch.float32).tiny)).sum()
        exponent = exponent - torch.floor(torch.log2((most / total).clamp(max=1.0)))
    scale = torch.exp2(-exponent)
    return values * scale, scale


# ---- Memory -------------------------------------------------------------------------------------------------


def _in_order(device: torch.device, compute: Callable[[], Sequence[Any]]) -> list:
    """Results of Dr.Jit, flat arrays or ``None``, as tensors in the same memory.

    They are computed after all earlier work of PyTorch and before all later work. On the CPU, both libraries finish
    before others see their results. On a GPU Dr.Jit has a stream of its own: each stream waits for the other, and the
    host does not wait. If PyTorch's stream is not its default one, the tensors are copies: Dr.Jit may reuse memory that
    PyTorch releases, and would not wait for a stream that is not the default one.
    """
    if device.type == "cuda":
        here, there = torch.cuda.current_stream(device), torch.cuda.ExternalStream(cuda_stream(), device)
        there.wait_stream(here)
    arrays = compute()
    dr.eval(arrays)
    tensors = [None if a is None else torch.from_dlpack(a) for a in arrays]
    if device.type == "cuda":
        here.wait_stream(there)
        if here != torch.cuda.default_stream(device):
            tensors = [None if t is None else t.clone() for t in tensors]
            there.wait_stream(here)
    return tensors


def _array(tensor: torch.Tensor, tp: type) -> Any:
    """A tensor as a flat array, in the same memory if that is contiguous and aligned as kernels need it."""
    flat = tensor.detach().to(_dtype(tp)).contiguous().view(-1)
    return tp(flat if flat.data_ptr() % 64 == 0 else flat.clone())


def _dtype(tp: type) -> torch.dtype:
    return _DTYPES[dr.type_v(tp)]


_DTYPES = {
    dr.VarType.Float16: torch.float16,
    dr.VarType.Float32: torch.float32,
    dr.VarType.Int64: torch.int64,
}
