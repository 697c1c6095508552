"""Norm and limits of the gradients of all parameters of a network."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any

import drjit as dr
from drjit.opt import Optimizer

from ..checks import check_above, check_type, ensure
from ..jit.optimizers import values
from ..nn import Module
from ..nn.parameters import like


def gradient_norm(params: Any) -> Any:
    r"""Euclidean norm of the gradients of all parameters together, :math:`\sqrt{\sum_k \lVert g_k \rVert^2}`.

    Args:
        params: the :class:`Module` or ``drjit.opt`` optimizer whose parameters have the gradients. If the network was
            updated from an optimizer, that is the optimizer.

    Returns:
        Single-precision array of width 1; the squares are summed in single precision, whatever the parameters are.

    Raises:
        TypeError, ValueError: ``params`` has another type, or is empty.

    >>> dr.backward(loss)
    >>> norm = cn.training.gradient_norm(opt)
    """
    return dr.sqrt(reduce(add, (dr.sum(dr.square(_single(grad))) for _, grad in gradients("gradient_norm", params))))


def clip_gradient_norm(params: Any, limit: Any) -> Any:
    r"""Scale all gradients by :math:`\min(1, \mathrm{limit} / \lVert g \rVert)` (Pascanu et al. 2013), in place.

    Call it between ``dr.backward`` and ``opt.step``. Infinite and NaN gradients are left for a loss scaler to find.
    With a loss scaler, gradients are scaled, so pass ``limit * scaler.scale_factor``. ``fit(..., clip_norm=...)`` does
    all that.

    Args:
        params: as in :func:`gradient_norm`.
        limit: a positive number, or a single-precision Dr.Jit array of width 1.

    Returns:
        The norm before clipping, as :func:`gradient_norm`.

    Raises:
        TypeError, ValueError: ``params`` has another type or is empty; ``limit`` is not positive.

    >>> dr.backward(loss)
    >>> norm = cn.training.clip_gradient_norm(opt, 1.0)
    >>> opt.step()
    """
    if not isinstance(limit, dr.ArrayBase):
        limit = check_above("clip_gradient_norm", "limit", limit)
    elif dr.is_tensor_v(limit) or not (dr.is_jit_v(limit) and dr.is_float_v(limit) and dr.shape(limit) == (1,)):
        raise TypeError(f"clip_gradient_norm: limit is a {type(limit).__name__}; a number or a Float is needed.")
    norm = gradient_norm(params)
    factor = clip_factor(norm, limit)
    for value, grad in gradients("clip_gradient_norm", params):
        set_gradient(value, _single(grad) * factor)
    return norm


def clip_factor(norm: Any, limit: Any) -> Any:
    """The factor of gradients of this ``norm``. Those with an infinite or NaN entry are not changed."""
    return dr.select(dr.isfinite(norm) & (norm > limit), limit / norm, 1)


def clip_gradient_values(params: Any, limit: float) -> None:
    """Clip every entry of all gradients to ``[-limit, limit]``, in place; infinite and NaN ones are not changed.

    Args and errors as in :func:`clip_gradient_norm`, with a number for ``limit``.

    >>> cn.training.clip_gradient_values(opt, 0.5)
    """
    limit = check_above("clip_gradient_values", "limit", limit)
    for value, grad in gradients("clip_gradient_values", params):
        set_gradient(value, dr.select(dr.isfinite(grad), dr.clip(grad, -limit, limit), grad))


def gradients(where: str, params: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of every array of :func:`parameter_arrays` and its flat gradient. The gradients are scheduled, to be
    evaluated together.
    """
    pairs = [(value, dr.grad(value).array) for value in parameter_arrays(where, params).values()]
    dr.schedule(pairs)
    return iter(pairs)


def parameter_arrays(where: str, params: Any) -> dict[str, Any]:
    """The arrays of a network or optimizer by name; raises if ``params`` has another type, or has none."""
    check_type(where, "params", params, (Module, Optimizer), "a coopnet Module or a drjit.opt optimizer")
    parameters = values(params) if isinstance(params, Optimizer) else dict(params)
    ensure(parameters, f"{where}: params holds no parameters.")
    return parameters


def _single(value: Any) -> Any:
    return dr.float32_array_t(type(value))(value)


def set_gradient(value: Any, gradient: Any) -> None:
    """Give a parameter of any shape and type a flat gradient."""
    dr.set_grad(value, like(dr.detach(value), gradient))
