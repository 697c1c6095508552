"""Functions of weights for training: penalties, clipping, decay, rates per layer and norms.

A packed network is one array; on the GPU it is a permutation of its matrices with gaps. Functions here work on the
matrices themselves: results do not depend on where the backend keeps their entries, nor on gaps between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check, check_above, check_flag, check_number, check_type, ensure, is_number, shown
from ..jit.masks import unmasked
from ..jit.scopes import symbolic
from ..nn import Module
from ..nn.parameters import Parameter, like, listed, parameters, spellings

# ---- penalties ----------------------------------------------------------


def l2_penalty(net: Module, biases: bool = False) -> Any:
    r"""Sum of squares of all matrix entries, :math:`\sum_l \lVert A_l \rVert_F^2`, in single precision.

    Add it to a loss as ``lam * l2_penalty(net)``; its gradient is ``2 * lam * A``, as that of PyTorch's SGD with
    ``weight_decay=2 * lam``. With an adaptive optimizer, decoupled decay is usually better: ``fit(...,
    weight_decay=...)``.

    Args:
        net: an allocated :class:`Module`.
        biases: include bias vectors? Tables of encodings are never included.

    Returns:
        A differentiable single-precision array of width 1.

    Raises:
        TypeError, ValueError: ``net`` is not a :class:`Module` or has no matrices.

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
    def part(p: Parameter) -> Any:
        values = p.entries()
        return dr.sum(of(dr.float32_array_t(type(values))(values)))

    return reduce(add, map(part, _chosen(where, net, biases)))


# ---- clipping -----------------------------------------------------------


def clip_weights(net: Module, limit: float, biases: bool = False) -> None:
    """Clip all matrix entries to ``[-limit, limit]``, in place.

    An optimizer keeps its own copy of the parameters; call ``opt.update(net)`` afterwards.

    Args:
        net: an allocated :class:`Module`.
        limit: a positive number.
        biases: clip bias vectors, too?

    Raises:
        TypeError, ValueError: ``net`` is not a :class:`Module` or has no matrices; ``limit`` is not positive.

    >>> cn.training.clip_weights(net, 0.01)
    """
    limit = check_above("clip_weights", "limit", limit)
    for name, mask in _masks("clip_weights", net, biases).items():
        value = dr.detach(net[name]).array
        net[name] = like(net[name], dr.select(mask > 0, dr.clip(value, -limit, limit), value))


# ---- rates and decay per layer ------------------------------------------


def layer_multipliers(net: Module, rates: Mapping[str, float]) -> dict[str, Any]:
    """Factors of the learning rate for every entry, from factors of layers.

    ``fit(..., multipliers=rates)`` does this automatically; the function is for training loops of your own (second
    example). There, set the rates again before every step: Dr.Jit 1.5.0 multiplies rates that are arrays, in place, by
    the size of the step.

    Args:
        net: an allocated :class:`Module`.
        rates: layer or parameter name (see :meth:`Module.matrix`) -> factor of at least 0. ``"layers.0"`` means its
            matrix and bias, ``"encoding"`` everything in it, ``"encoding.levels.3"`` one level of a grid; the longest
            name wins. Parameters without a name here get 1; 0 freezes.

    Returns:
        For every entry of the mapping ``net`` a flat single-precision array of its size; 0 in gaps.

    Raises:
        TypeError, ValueError: ``net`` is not a :class:`Module`; a name that fits no parameter; a factor that is
            negative or not a number.

    >>> cn.fit(field, batch, 1000, multipliers={"layers.0": 0.1, "encoding": 0})
    >>> factors = cn.training.layer_multipliers(field, {"layers.0": 0.1, "encoding": 0})
    >>> opt.set_learning_rate({name: 1e-2 * factor for name, factor in factors.items()})
    >>> opt.step()
    """
    return multipliers_of("layer_multipliers", net, rates)


def multipliers_of(where: str, net: Module, rates: Mapping[str, float]) -> dict[str, Any]:
    """:func:`layer_multipliers`; ``where`` opens the error messages."""
    check_type(where, "net", net, Module, "a coopnet Module")
    given, valid = type(rates).__name__, isinstance(rates, Mapping)
    ensure(valid, f"{where}: the rates are a {given}; a mapping from layer to factor is needed.", TypeError)
    names = [p.name for p in parameters(net)]
    pieces = {piece: p.name for p in parameters(net) for piece in p.pieces()}
    factors = dict.fromkeys(pieces, 1.0)
    for key in sorted(rates, key=lambda k: len(str(k))):
        factor = check_number(where, f"the factor of {shown(key)}", rates[key], least=0)
        meant = ([n for n in pieces if _within(start, n, pieces[n])] for start in spellings(str(key)))
        chosen = next(filter(None, meant), None)
        if chosen is None:
            raise ValueError(f"{where}: there is no layer or parameter {shown(key)}; the network has {listed(names)}.")
        factors |= dict.fromkeys(chosen, factor)
    return _spread(where, net, factors)


def _within(start: str, *names: str) -> bool:
    """Is any of ``names`` equal to ``start``, or the name of a part of it?"""
    return any(name == start or name.startswith(f"{start}.") for name in names)


def _spread(where: str, net: Any, factors: Mapping[str, float]) -> dict[str, Any]:
    """For every array of the mapping ``net``, an array with the factor of the matrix, bias or table of each number."""
    slots = {id(value): slot for slot, value in net.items()}
    result: dict[str, Any] = {}
    for p in parameters(net):
        slot = slots.get(id(p.storage))
        if slot is None:
            raise ValueError(f"{where}: {p.name} is not a parameter of the network's mapping; pack the whole network.")
        f32 = dr.float32_array_t(dr.leaf_t(type(p.storage)))
        if slot not in result:
            result[slot] = dr.zeros(f32, math.prod(dr.shape(p.storage)))
        with unmasked(f32):
            for name, places in p.pieces().items():
                dr.scatter(result[slot], f32(factors.get(name, 0.0)), places, mode=dr.ReduceMode.Permute)
    dr.eval(result)
    return result


def layer_numbers(net: Module) -> dict[str, tuple[Any, int]]:
    """For every array of the mapping ``net`` with parameters: a flat ``UInt32`` with the number of the matrix, bias or
    table of each entry, from 1 on and 0 for gaps; and how many there are."""
    slots: dict[int, list[str]] = {}
    for p in parameters(net):
        slots.setdefault(id(p.storage), []).append(p.name)
    numbers = {name: float(i) for names in slots.values() for i, name in enumerate(names, 1)}
    spread = _spread("layer_numbers", net, numbers)
    arrays = {slot: dr.uint32_array_t(type(value))(value) for slot, value in spread.items()}
    dr.eval(arrays)
    counts = {slot: len(slots[id(value)]) for slot, value in net.items() if slot in arrays}
    return {slot: (value, counts[slot]) for slot, value in arrays.items()}


def decay_masks(net: Module, biases: bool = False) -> dict[str, Any]:
    """For every array of the mapping ``net``: 1 for entries that :func:`decay_weights` shrinks and 0 for the rest.

    Arguments and errors as there; returns flat single-precision arrays, as :func:`layer_multipliers`.

    >>> masks = cn.training.decay_masks(net)
    """
    return _masks("decay_masks", net, biases)


def decay_weights(net: Module, amount: float, biases: bool = False) -> None:
    r"""Decoupled weight decay (Loshchilov and Hutter 2019): :math:`A \leftarrow (1 - \mathrm{amount}) A`, in place.

    ``amount`` is learning rate times decay rate. Only matrices shrink. An optimizer keeps its own copy of the
    parameters, so call ``opt.update(net)`` afterwards, or use ``fit(..., weight_decay=...)``.

    Args:
        net: an allocated :class:`Module`.
        amount: a number in [0, 1].
        biases: shrink bias vectors, too?

    Raises:
        TypeError, ValueError: ``net`` is not a :class:`Module` or has no matrices; ``amount`` out of range.

    >>> cn.training.decay_weights(net, 1e-3 * 0.01)
    """
    check(is_number(amount) and 0 <= amount <= 1, "decay_weights", "amount", amount, "a number in [0, 1]")
    amount = float(amount)
    for name, mask in _masks("decay_weights", net, biases).items():
        value = dr.detach(net[name]).array
        net[name] = like(net[name], type(mask)(value) * (1 - amount * mask))


# ---- norms --------------------------------------------------------------


def spectral_norms(net: Module) -> dict[str, float]:
    r"""Largest singular value :math:`\lVert A_l \rVert_2` of every layer's matrix, by its name.

    Their product bounds the Lipschitz constant of a network of 1-Lipschitz activations (Miyato et al. 2018). Computed
    on the host from a singular value decomposition in double precision.

    Raises:
        TypeError, ValueError: ``net`` is not a :class:`Module` or has no matrices.

    >>> cn.training.spectral_norms(net)["layers.0.weights"]
    """
    matrices = _chosen("spectral_norms", net, False)
    return {p.name: float(np.linalg.norm(p.numpy("spectral_norms").astype(np.float64), 2)) for p in matrices}


# ---- which weights ------------------------------------------------------


def _masks(where: str, net: Any, biases: bool) -> dict[str, Any]:
    """For every array of the mapping ``net``: 1 for chosen entries and 0 for the rest."""
    return _spread(where, net, {p.name: 1.0 for p in _chosen(where, net, biases)})


def _chosen(where: str, net: Any, biases: bool) -> list[Parameter]:
    """The matrices of ``net``; with ``biases``, its bias vectors, too."""
    check_type(where, "net", net, Module, "a coopnet Module")
    check_flag(where, "biases", biases)
    inside = "called inside a symbolic loop, conditional or call, where parameters cannot be read or written"
    ensure(not symbolic(), f"{where}: {inside}; call it outside of it.", RuntimeError)
    chosen = [p for p in parameters(net) if p.is_matrix or (biases and p.attribute == "bias")]
    ensure(chosen, f"{where}: the network has no matrices; call alloc() or build() first.")
    return chosen
