"""Weights as the objects of training: penalties, clipping, rates per layer, norms and averages.

A packed network is one array, and on the GPU a permutation of its matrices with gaps. Everything here is about the
matrices themselves: nothing depends on where the backend keeps their entries, and gaps count for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import drjit as dr
import numpy as np
from drjit.opt import Optimizer

from ..checks import check, check_above, check_flag, check_number, check_type, ensure, is_number, shown
from ..jit.optimizers import values
from ..nn import Module
from ..nn.parameters import Parameter, like, listed, parameters, spellings

# ---- penalties ----------------------------------------------------------


def l2_penalty(net: Module, biases: bool = False) -> Any:
    r"""Sum of squares of all matrix entries, :math:`\sum_l \lVert A_l \rVert_F^2`, in single precision.

    Add it to a loss as ``lam * l2_penalty(net)``; its gradient is ``2 * lam * A``, what PyTorch's SGD does with
    ``weight_decay=2 * lam``. With an adaptive optimizer, decoupled decay is usually better: ``fit(...,
    weight_decay=...)``.

    Args:
        net: an allocated :class:`Module`.
        biases: include bias vectors? Tables of encodings are never included.

    Returns:
        A differentiable single-precision array of width 1.

    Raises:
        TypeError, ValueError: ``net`` is no :class:`Module` or has no matrices.

    >>> cn.fit(field, batch, 1000, penalty=lambda field: 1e-4 * cn.training.l2_penalty(field))
    """
    return _penalty("l2_penalty", net, biases, dr.square)


def l1_penalty(net: Module, biases: bool = False) -> Any:
    r"""Sum of absolute values of all matrix entries, :math:`\sum_l \sum_{ij} |A_{l,ij}|`, in single precision.

    Its gradient is the sign of each entry. Arguments, result and errors as in :func:`l2_penalty`.

    >>> loss = dr.mean(error, axis=None) + 1e-5 * cn.training.l1_penalty(net)
    """
    return _penalty("l1_penalty", net, biases, dr.abs)


def _penalty(where: str, net: Any, biases: bool, of: Callable[[Any], Any]) -> Any:
    total = None
    for p in _chosen(where, net, biases):
        flat = p.storage.array
        values = dr.gather(type(flat), flat, p.places(), mode=dr.ReduceMode.Permute)
        part = dr.sum(of(dr.float32_array_t(type(values))(values)))
        total = part if total is None else total + part
    return total


# ---- clipping -----------------------------------------------------------


def clip_weights(net: Module, limit: float, biases: bool = False) -> None:
    """Clip all matrix entries to ``[-limit, limit]``, in place.

    An optimizer keeps parameters of its own; pull with ``opt.update(net)`` afterwards.

    Args:
        net: an allocated :class:`Module`.
        limit: a positive number.
        biases: clip bias vectors, too?

    Raises:
        TypeError, ValueError: ``net`` is no :class:`Module` or has no matrices; ``limit`` is not positive.

    >>> cn.training.clip_weights(net, 0.01)
    """
    limit = check_above("clip_weights", "limit", limit)
    for name, mask in _masks("clip_weights", net, biases).items():
        value = dr.detach(net[name]).array
        net[name] = like(net[name], dr.select(mask > 0, dr.clip(value, -limit, limit), value))


def gradient_norm(params: Any) -> Any:
    r"""Euclidean norm of the gradients of all parameters together, :math:`\sqrt{\sum_k \lVert g_k \rVert^2}`.

    Args:
        params: a :class:`Module` or a ``drjit.opt`` optimizer: whoever holds the parameters that ``dr.backward``
            reached (the optimizer, where a network was updated from one).

    Returns:
        Single-precision array of width 1; the squares are summed in single precision, whatever the parameters are.

    Raises:
        TypeError, ValueError: ``params`` is something else, or empty.

    >>> dr.backward(loss)
    >>> norm = cn.training.gradient_norm(opt)
    """
    total: Any = None
    for value in _leaves("gradient_norm", params).values():
        grad = _grad(value)
        part = dr.sum(dr.square(dr.float32_array_t(type(grad))(grad)))
        total = part if total is None else total + part
    return dr.sqrt(total)


def clip_gradient_norm(params: Any, limit: Any) -> Any:
    r"""Scale all gradients by :math:`\min(1, \mathrm{limit} / \lVert g \rVert)` (Pascanu et al. 2013), in place.

    Call it between ``dr.backward`` and ``opt.step``. Infinite and NaN gradients are left for a loss scaler to find.
    With one, gradients are scaled: pass ``limit * scaler.scale_factor``. ``fit(..., clip_norm=...)`` does all that.

    Args:
        params: as in :func:`gradient_norm`.
        limit: a positive number, or a single-precision Dr.Jit array of width 1.

    Returns:
        The norm before clipping, as :func:`gradient_norm`.

    Raises:
        TypeError, ValueError: ``params`` is something else or empty; ``limit`` is not positive.

    >>> dr.backward(loss)
    >>> norm = cn.training.clip_gradient_norm(opt, 1.0)
    >>> opt.step()
    """
    if not isinstance(limit, dr.ArrayBase):
        limit = check_above("clip_gradient_norm", "limit", limit)
    elif dr.is_tensor_v(limit) or not (dr.is_jit_v(limit) and dr.is_float_v(limit) and dr.shape(limit) == (1,)):
        raise TypeError(f"clip_gradient_norm: limit is a {type(limit).__name__}; a number or a Float is needed.")
    norm = gradient_norm(params)
    factor = dr.select(dr.isfinite(norm) & (norm > limit), limit / norm, 1)
    for value in _leaves("clip_gradient_norm", params).values():
        grad = _grad(value)
        _set_grad(value, dr.float32_array_t(type(grad))(grad) * factor)
    return norm


def clip_gradient_values(params: Any, limit: float) -> None:
    """Clip every entry of all gradients to ``[-limit, limit]``, in place; infinite and NaN ones are left alone.

    Args and errors as in :func:`clip_gradient_norm`, with a number for ``limit``.

    >>> cn.training.clip_gradient_values(opt, 0.5)
    """
    limit = check_above("clip_gradient_values", "limit", limit)
    for value in _leaves("clip_gradient_values", params).values():
        grad = _grad(value)
        _set_grad(value, dr.select(dr.isfinite(grad), dr.clip(grad, -limit, limit), grad))


def _leaves(where: str, params: Any) -> dict[str, Any]:
    check_type(where, "params", params, (Module, Optimizer), "a coopnet Module or a drjit.opt optimizer")
    found = values(params) if isinstance(params, Optimizer) else dict(params)
    ensure(found, f"{where}: params holds no parameters.")
    return found


def _grad(value: Any) -> Any:
    return dr.grad(value).array


def _set_grad(value: Any, grad: Any) -> None:
    flat = type(value.array)(grad)
    dr.set_grad(value, type(value)(flat, dr.shape(value)) if dr.is_tensor_v(value) else flat)


# ---- rates and decay per layer ------------------------------------------


def layer_multipliers(net: Module, rates: Mapping[str, float]) -> dict[str, Any]:
    """Factors of the learning rate, entry by entry, from factors of layers.

    For ``fit(..., multipliers=...)``, which takes ``rates``, or for a training loop of one's own (second example; an
    adaptive optimizer's steps don't depend on the scale of gradients, but on its rate). There, set the rates anew
    before every step: Dr.Jit 1.5.0 multiplies those that are arrays, in place, by the size of the step.

    Args:
        net: an allocated :class:`Module`.
        rates: layer or parameter name (see :meth:`Module.matrix`) -> factor of at least 0. ``"layers.0"`` means its
            matrix and bias, ``"encoding"`` all in it; the longest name wins. What is not named gets 1; 0 freezes.

    Returns:
        For every entry of the mapping ``net`` a flat single-precision array of its size; 0 in gaps.

    Raises:
        TypeError, ValueError: ``net`` is no :class:`Module`; a name that fits no parameter; a factor that is negative
            or no number.

    >>> cn.fit(field, batch, 1000, multipliers={"layers.0": 0.1, "encoding": 0})
    >>> factors = cn.training.layer_multipliers(field, {"layers.0": 0.1, "encoding": 0})
    >>> opt.set_learning_rate({name: 1e-2 * factor for name, factor in factors.items()})
    >>> opt.step()
    """
    return _spread("layer_multipliers", net, _factors("layer_multipliers", net, rates))


def _factors(where: str, net: Any, rates: Any) -> dict[str, float]:
    """Factor of each parameter by its full name."""
    check_type(where, "net", net, Module, "a coopnet Module")
    kind = type(rates).__name__
    mapping = isinstance(rates, Mapping)
    ensure(mapping, f"{where}: the rates are a {kind}; a mapping from layer to factor is needed.", TypeError)
    names = [p.name for p in parameters(net)]
    result = dict.fromkeys(names, 1.0)
    for key in sorted(rates, key=lambda k: len(str(k))):
        factor = check_number(where, f"the factor of {shown(key)}", rates[key], least=0)
        meant = ([n for n in names if n == start or n.startswith(f"{start}.")] for start in spellings(str(key)))
        chosen = next(filter(None, meant), None)
        if chosen is None:
            raise ValueError(f"{where}: there is no layer or parameter {shown(key)}; the network has {listed(names)}.")
        result |= dict.fromkeys(chosen, factor)
    return result


def _spread(where: str, net: Any, factors: Mapping[str, float]) -> dict[str, Any]:
    """For every entry of the mapping ``net`` an array with the factor of the parameter that each number is part of."""
    slots = {id(value): slot for slot, value in net.items()}
    result: dict[str, Any] = {}
    for p in parameters(net):
        slot = slots.get(id(p.storage))
        if slot is None:
            raise ValueError(f"{where}: {p.name} is no parameter of the network's mapping; pack the whole network.")
        f32 = dr.float32_array_t(dr.leaf_t(type(p.storage)))
        if slot not in result:
            result[slot] = dr.zeros(f32, math.prod(dr.shape(p.storage)))
        dr.scatter(result[slot], f32(factors.get(p.name, 0.0)), p.places(), mode=dr.ReduceMode.Permute)
    dr.eval(result)
    return result


def decay_masks(net: Module, biases: bool = False) -> dict[str, Any]:
    """1 for what :func:`decay_weights` shrinks and 0 for the rest, for every entry of the mapping ``net``.

    Arguments and errors as there; returns flat single-precision arrays, as :func:`layer_multipliers`.

    >>> masks = cn.training.decay_masks(net)
    """
    return _masks("decay_masks", net, biases)


def _masks(where: str, net: Any, biases: bool) -> dict[str, Any]:
    return _spread(where, net, {p.name: 1.0 for p in _chosen(where, net, biases)})


def decay_weights(net: Module, amount: float, biases: bool = False) -> None:
    r"""Decoupled weight decay (Loshchilov and Hutter 2019): :math:`A \leftarrow (1 - \mathrm{amount}) A`, in place.

    ``amount`` is learning rate times decay rate. Only matrices shrink; an optimizer keeps parameters of its own, so
    pull with ``opt.update(net)`` afterwards, or use ``fit(..., weight_decay=...)``.

    Args:
        net: an allocated :class:`Module`.
        amount: a number in [0, 1].
        biases: shrink bias vectors, too?

    Raises:
        TypeError, ValueError: ``net`` is no :class:`Module` or has no matrices; ``amount`` out of range.

    >>> cn.training.decay_weights(net, 1e-3 * 0.01)
    """
    check(is_number(amount) and 0 <= amount <= 1, "decay_weights", "amount", amount, "a number in [0, 1]")
    for name, mask in decay_masks(net, biases).items():
        value = dr.detach(net[name]).array
        net[name] = like(net[name], type(mask)(value) * (1 - amount * mask))


# ---- norms --------------------------------------------------------------


def spectral_norms(net: Module) -> dict[str, float]:
    r"""Largest singular value :math:`\lVert A_l \rVert_2` of every layer's matrix, by its name.

    Their product bounds the Lipschitz constant of a network of 1-Lipschitz activations (Miyato et al. 2018). Computed
    on the host from a singular value decomposition in double precision.

    Raises:
        TypeError, ValueError: ``net`` is no :class:`Module` or has no matrices.

    >>> cn.training.spectral_norms(net)["layers.0.weights"]
    """
    where = "spectral_norms"
    matrices = {p.name: p.numpy(where).astype(np.float64) for p in _chosen(where, net, False)}
    return {name: float(np.linalg.norm(matrix, 2)) for name, matrix in matrices.items()}


# ---- averages -----------------------------------------------------------


class EMA:
    r"""Exponential moving average of all parameters of a network, :math:`a \leftarrow a + (1 - d)(w - a)`.

    Averaged weights often do better than the last ones (Polyak and Juditsky 1992). The average is single precision,
    also of half-precision weights, whose steps of :math:`(1 - d)(w - a)` would round away; it starts as the weights
    themselves. An EMA is a PyTree, so that ``update`` may run in a ``dr.freeze``d function.

    Args:
        net: an allocated :class:`Module`.
        decay: :math:`d`, in [0, 1); it averages over about :math:`1 / (1 - d)` updates.

    Raises:
        TypeError, ValueError: ``net`` is no :class:`Module` or has no parameters; ``decay`` out of range.

    >>> ema = cn.training.EMA(field, decay=0.999)
    >>> cn.fit(field, batch, 1000, ema=ema)
    >>> with ema.applied(field):
    ...     cn.save("averaged.safetensors", field)
    """

    DRJIT_STRUCT = {"average": dict, "decay": float}

    def __init__(self, net: Module | None = None, decay: float = 0.999):
        check(is_number(decay) and 0 <= decay < 1, "EMA", "decay", decay, "a number in [0, 1)")
        self.decay = float(decay)
        self.average: dict[str, Any] = {}
        if net is None:  # only while Dr.Jit rebuilds the tree
            return
        check_type("EMA", "net", net, Module, "a coopnet Module")
        for name, value in _leaves("EMA", net).items():
            flat = dr.detach(value).array
            # the sum makes an array of its own, which updates cannot share with the network
            self.average[name] = dr.float32_array_t(type(flat))(flat) + 0
        dr.eval(self.average)

    def update(self, params: Any) -> None:
        """Take the present values of ``params`` in: the network, or an optimizer that trains it (exact where it keeps
        half-precision weights in single precision).

        Raises ``ValueError`` if names or sizes are others than at the start.

        >>> ema.update(opt)
        """
        values = _leaves("EMA.update", params)
        for name, average in self.average.items():
            if name not in values or math.prod(dr.shape(values[name])) != dr.width(average):
                raise ValueError(f"EMA.update: the parameters have no {name!r} of {dr.width(average)} entries.")
            value = type(average)(dr.detach(values[name]).array)
            self.average[name] = average + (value - average) * (1 - self.decay)
        dr.schedule(self.average)

    def apply(self, net: Module) -> None:
        """Write the average into ``net``, rounded to the type of its parameters.

        Raises ``TypeError`` or ``ValueError`` for a network that is not the one that was averaged.

        >>> ema.apply(net)
        """
        check_averaged("EMA.apply", net, self.average)
        for name, average in self.average.items():
            net[name] = like(net[name], average)

    @contextmanager
    def applied(self, net: Module) -> Iterator[Module]:
        """A ``with`` block in which ``net`` has the average for weights; it gets its own back at the end.

        Raises as :meth:`apply`.

        >>> with ema.applied(net):
        ...     averaged = net.matrix("layers.0.weights")
        """
        check_averaged("EMA.applied", net, self.average)
        before = {name: dr.copy(dr.detach(value).array) for name, value in net.items()}
        self.apply(net)
        try:
            yield net
        finally:
            for name, value in before.items():
                net[name] = like(net[name], value)


def check_averaged(where: str, net: Any, average: Mapping[str, Any]) -> None:
    """Raise unless ``net`` has the parameters that ``average`` is one of."""
    check_type(where, "net", net, Module, "a coopnet Module")
    own = {name: math.prod(dr.shape(value)) for name, value in net.items()}
    same = own == {name: dr.width(value) for name, value in average.items()}
    ensure(same, f"{where}: the network has other parameters than the one that was averaged.")


# ---- arguments ----------------------------------------------------------


def _chosen(where: str, net: Any, biases: bool) -> list[Parameter]:
    """The matrices of ``net``, and its biases if wanted."""
    check_type(where, "net", net, Module, "a coopnet Module")
    check_flag(where, "biases", biases)
    found = [p for p in parameters(net) if p.is_matrix or (biases and p.attribute == "bias")]
    ensure(found, f"{where}: the network has no matrices; call alloc() or build() first.")
    return found
