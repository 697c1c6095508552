r"""Optimizers of ``drjit.opt`` with weight regularization.

Two kinds of regularization, as in tiny-cuda-nn: a term of the gradient, :math:`g \mathrel{+}= \lambda w`, which is
the gradient of :math:`\tfrac{\lambda}{2} |w|^2`, and for Adam a decay of the weights beside the step (*decoupled*,
Loshchilov and Hutter 2019), relative, :math:`w \mathrel{-}= \alpha_t r w`, or absolute,
:math:`w \mathrel{-}= \alpha_t a \operatorname{sign} w`, where :math:`\alpha_t` is the learning rate with Adam's
correction of the bias of its moments.

Adam adds the term to gradients of matrices only, that is of parameters named ``"weights"``, such as a packed network:
features of grids, most of which no sample of a batch touches, would all go to 0. SGD adds it to all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import drjit as dr
import drjit.opt as dropt


class Adam(dropt.Adam):
    """``drjit.opt.Adam`` with regularization.

    Args:
        lr, params, options: as in ``drjit.opt.Adam``.
        l2_reg: :math:`\\lambda`, for matrices.
        relative_decay, absolute_decay: :math:`r` and :math:`a`, for all parameters.

    Raises:
        ValueError: a strength that is negative or no number.

    >>> cn.fit(field, batch, 1000, optimizer=cn.training.Adam(1e-2, l2_reg=1e-6))
    """

    def __init__(
        self,
        lr: Any,
        params: Mapping[str, Any] | None = None,
        *,
        l2_reg: float = 0.0,
        relative_decay: float = 0.0,
        absolute_decay: float = 0.0,
        **options: Any,
    ):
        self.l2_reg = _strength("Adam", "l2_reg", l2_reg)
        self.relative_decay = _strength("Adam", "relative_decay", relative_decay)
        self.absolute_decay = _strength("Adam", "absolute_decay", absolute_decay)
        super().__init__(lr, params, **options)

    def step(self, *, eval: bool = True, grad_scale: Any = None, active: Any = None) -> None:
        """Take a gradient step; arguments as in ``drjit.opt.Optimizer.step``."""
        _add_l2(self.state, self.l2_reg, grad_scale, matrices_only=True)
        super().step(eval=eval, grad_scale=grad_scale, active=active)

    def _step(self, cache: Any, value: Any, grad: Any, lr: Any, extra: Any, /) -> tuple[Any, Any]:
        leaf = dr.leaf_t(grad)
        # Dr.Jit 1.5.0 multiplies a rate that is an array in place by the correction, so a copy is taken before
        rate = leaf(lr) if isinstance(lr, dr.ArrayBase) else dr.opaque(leaf, lr)
        new_value, new_extra = super()._step(cache, value, grad, lr, extra)
        if self.relative_decay or self.absolute_decay:
            high = dr.float64_array_t(leaf)
            t = new_extra[0]
            rate = rate * leaf(dr.sqrt(1 - high(self.beta_2) ** t) / (1 - high(self.beta_1) ** t))
            lost = value * self.relative_decay + dr.sign(value) * self.absolute_decay
            new_value = new_value - rate * lost
        return new_value, new_extra


class SGD(dropt.SGD):
    """``drjit.opt.SGD`` with regularization.

    Args:
        lr, params, options: as in ``drjit.opt.SGD``.
        l2_reg: :math:`\\lambda`, for all parameters.

    Raises:
        ValueError: a strength that is negative or no number.

    >>> cn.fit(field, batch, 1000, optimizer=cn.training.SGD(1e-1, l2_reg=1e-6))
    """

    def __init__(self, lr: Any, params: Mapping[str, Any] | None = None, *, l2_reg: float = 0.0, **options: Any):
        self.l2_reg = _strength("SGD", "l2_reg", l2_reg)
        super().__init__(lr, params, **options)

    def step(self, *, eval: bool = True, grad_scale: Any = None, active: Any = None) -> None:
        """Take a gradient step; arguments as in ``drjit.opt.Optimizer.step``."""
        _add_l2(self.state, self.l2_reg, grad_scale, matrices_only=False)
        super().step(eval=eval, grad_scale=grad_scale, active=active)


def _add_l2(state: dict, strength: float, grad_scale: Any, matrices_only: bool) -> None:
    if not strength:
        return
    for name, (value, *_) in state.items():
        if not matrices_only or name.rsplit(".", 1)[-1] == "weights":
            # the step multiplies gradients by grad_scale, which undoes the scale of the loss
            term = dr.detach(value) * strength
            dr.set_grad(value, dr.grad(value) + (term if grad_scale is None else term / grad_scale))


def _strength(where: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{where}: {name} is {value!r}; a finite number of at least 0 is needed.")
    return float(value)
