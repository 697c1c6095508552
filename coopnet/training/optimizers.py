r"""Optimizers of ``drjit.opt`` with weight regularization.

Two kinds of regularization, as in tiny-cuda-nn: a term of the gradient, :math:`g \mathrel{+}= \lambda w`, which is
the gradient of :math:`\tfrac{\lambda}{2} |w|^2`, and for Adam a decay of the weights beside the step (*decoupled*,
Loshchilov and Hutter 2019), relative, :math:`w \mathrel{-}= \alpha_t r w`, or absolute,
:math:`w \mathrel{-}= \alpha_t a \operatorname{sign} w`, where :math:`\alpha_t` is the learning rate with Adam's
correction of the bias of its moments.

Adam adds the term to gradients of matrices only, that is of parameters named ``"weights"``, such as a packed network:
features of grids, most of which no sample of a batch touches, would all go to 0. SGD adds it to all gradients.

Both can gather gradients and look ahead. With ``accumulate=n``, only every n-th call of ``step`` moves the parameters,
by the mean of the last n gradients, like one step on a batch n times as large; steps that a loss scaler skips don't
count. What :func:`coopnet.fit` does beside the optimizer (``clip_norm``, ``weight_decay``, ``ema``) it does at every
call. With ``lookahead=k`` (Zhang et al. 2019), slow weights follow: after k moves from them to :math:`w`, they and the
parameters become :math:`s \leftarrow s + \alpha (w - s)`. Train for a multiple of :math:`k` moves to end there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import drjit as dr
import drjit.opt as dropt

from ..checks import check, check_flag, check_type, is_int, is_number, shown
from ..jit.optimizers import Extension, SparseAdam, adam_correction, counts_entries, values


class _Extended(Extension):
    """What Adam and SGD have in common beyond Dr.Jit's: an L2 term, gathering gradients, and looking ahead.

    For the latter two, they remember (mean gradient so far, gradients in it, slow weights, moves away from them) of a
    parameter, with ``None`` for what is not used. Counters are arrays, so that frozen functions carry them.
    """

    #: Is the L2 term for parameters named ``"weights"`` only?
    matrices_only = False

    def __init__(
        self, lr: Any, params: Mapping[str, Any] | None = None, *, l2_reg: float = 0.0, accumulate: int = 1,
        lookahead: int = 0, alpha: float = 0.5, **options: Any,
    ):  # fmt: skip
        where = type(self).__name__
        if not isinstance(lr, dr.ArrayBase):
            _strength(where, "lr", lr)
        check_type(where, "params", params, Mapping | None, "a mapping from names to arrays")
        for name, value in (params or {}).items():
            array = isinstance(value, dr.ArrayBase) and dr.is_diff_v(value) and dr.is_float_v(value)
            check(array, where, f"params[{shown(name)}]", value, "a differentiable array", TypeError)
        for name, count, least in (("accumulate", accumulate, 1), ("lookahead", lookahead, 0)):
            check(is_int(count, least, 2**32 - 1), where, name, count, f"an int of at least {least}")
        self.accumulate, self.lookahead = accumulate, lookahead
        self.l2_reg, self.alpha = _strength(where, "l2_reg", l2_reg), _strength(where, "alpha", alpha)
        if options.get("mask_updates") and self._remembers:
            raise ValueError(f"{where}: mask_updates=True goes with neither accumulate nor lookahead.")
        super().__init__(lr, params, **options)

    def step(self, *, eval: bool = True, grad_scale: Any = None, active: Any = None) -> None:
        """Take a gradient step; arguments as in ``drjit.opt.Optimizer.step``."""
        check_flag(f"{type(self).__name__}.step", "eval", eval)
        if self.l2_reg:
            for name, value in values(self).items():
                if not self.matrices_only or is_matrix(name):
                    # the step multiplies gradients by grad_scale, which undoes the scale of the loss
                    term = dr.detach(value) * self.l2_reg
                    dr.set_grad(value, dr.grad(value) + (term if grad_scale is None else term / grad_scale))
        super().step(eval=eval, grad_scale=grad_scale, active=active)

    @property
    def _remembers(self) -> bool:  # type: ignore[override]
        return self.accumulate > 1 or self.lookahead > 0

    def _begin(self, value: Any) -> tuple:
        flat = type(value)
        uint32 = dr.uint32_array_t(flat)
        gathering = (dr.opaque(flat, 0, dr.width(value)), uint32(0)) if self.accumulate > 1 else (None, None)
        return (*gathering, *((value + 0, uint32(0)) if self.lookahead else (None, None)))

    def _move(self, value: Any, grad: Any, own: Any, memory: Any, step: Callable[[Any], tuple[Any, Any]]) -> tuple:
        mean, gathered, slow, moves = own
        if self.accumulate > 1:
            mean, gathered = mean + grad / self.accumulate, gathered + 1
            grad = mean
        new, new_memory = step(grad)
        if self.accumulate > 1:
            wait = gathered < self.accumulate
            new, new_memory = dr.select(wait, value, new), dr.select(wait, memory, new_memory)
            mean, gathered = dr.select(wait, mean, 0), dr.select(wait, gathered, 0)
        if self.lookahead:
            moves = moves + (dr.select(wait, 0, 1) if self.accumulate > 1 else 1)
            far = moves == self.lookahead
            slow = dr.select(far, dr.lerp(slow, new, self.alpha), slow)
            new, moves = dr.select(far, slow, new), dr.select(far, 0, moves)
        return new, (mean, gathered, slow, moves), new_memory


class Adam(_Extended, SparseAdam):
    """``drjit.opt.Adam`` with regularization, and for parameters of which a batch touches few entries.

    Args:
        lr, params, options: as in ``drjit.opt.Adam``.
        l2_reg: :math:`\\lambda`, for matrices.
        relative_decay, absolute_decay: :math:`r` and :math:`a`, for all parameters.
        accumulate: number of gradients that make a move (see ``help(coopnet.training.optimizers)``).
        lookahead: number :math:`k` of moves between two of the slow weights; 0 for none.
        alpha: :math:`\\alpha`, the part of the way that the slow weights go.
        skip_zero_grad: leave entries of grids and embeddings (of all parameters but matrices) alone in steps in which
            their gradient is exactly zero: no momentum moves them, and each has a count of steps of its own for the
            correction of its moments, as in tiny-cuda-nn.

    Raises:
        TypeError: ``params`` is no mapping.
        ValueError: a rate or strength that is negative or no number, a count that is no int or too small,
            ``mask_updates`` with one of the counts or ``skip_zero_grad``, and that with ``uniform`` or ``amsgrad``.

    >>> cn.fit(field, batch, 1000, optimizer=cn.training.Adam(1e-2, l2_reg=1e-6))
    """

    matrices_only = True
    skip_zero_grad = False

    def __init__(
        self, lr: Any, params: Mapping[str, Any] | None = None, *, l2_reg: float = 0.0, relative_decay: float = 0.0,
        absolute_decay: float = 0.0, accumulate: int = 1, lookahead: int = 0, alpha: float = 0.5,
        skip_zero_grad: bool = False, **options: Any,
    ):  # fmt: skip
        self.skip_zero_grad = check_flag("Adam", "skip_zero_grad", skip_zero_grad)
        for name in ("mask_updates", "uniform", "amsgrad"):
            if skip_zero_grad and options.get(name):
                raise ValueError(f"Adam: {name}=True does not go with skip_zero_grad.")
        self.relative_decay = _strength("Adam", "relative_decay", relative_decay)
        self.absolute_decay = _strength("Adam", "absolute_decay", absolute_decay)
        options |= {"l2_reg": l2_reg, "accumulate": accumulate, "lookahead": lookahead, "alpha": alpha}
        super().__init__(lr, params, **options)

    def _counts(self, name: str) -> bool:
        return self.skip_zero_grad and not is_matrix(name)

    def _decay(self, value: Any, grad: Any, lr: Any, memory: Any) -> Any:
        if not (self.relative_decay or self.absolute_decay):
            return None
        leaf = dr.leaf_t(value)
        rate = leaf(lr) if isinstance(lr, dr.ArrayBase) else dr.opaque(leaf, lr)
        lost = value * self.relative_decay + dr.sign(value) * self.absolute_decay
        taken = rate * adam_correction(self, leaf, memory) * lost
        return dr.select(grad == 0, 0, taken) if counts_entries(memory) else taken


class SGD(_Extended, dropt.SGD):
    """``drjit.opt.SGD`` with regularization.

    Args:
        lr, params, options: as in ``drjit.opt.SGD``.
        l2_reg: :math:`\\lambda`, for all parameters.
        accumulate, lookahead, alpha: as for :class:`Adam`.

    Raises:
        ValueError: as for :class:`Adam`.

    >>> cn.fit(field, batch, 1000, optimizer=cn.training.SGD(1e-1, l2_reg=1e-6))
    """


def is_matrix(name: str) -> bool:
    """Is this the name of a packed network, rather than of a grid or table?"""
    return name.rsplit(".", 1)[-1] == "weights"


def _strength(where: str, name: str, value: Any) -> float:
    check(is_number(value, 0), where, name, value, "a finite number of at least 0")
    return float(value)
