r"""Optimizers of ``drjit.opt`` with weight regularization.

Two kinds of regularization, as in tiny-cuda-nn: a term of the gradient, :math:`g \mathrel{+}= \lambda w`, which is
the gradient of :math:`\tfrac{\lambda}{2} |w|^2`, and for Adam a decay of the weights beside the step (*decoupled*,
Loshchilov and Hutter 2019), relative, :math:`w \mathrel{-}= \alpha_t r w`, or absolute,
:math:`w \mathrel{-}= \alpha_t a \operatorname{sign} w`, where :math:`\alpha_t` is the learning rate with Adam's
correction of the bias of its moments.

Adam adds the term to gradients of matrices, that is of parameters named ``"weights"``, such as a packed network. It has
another strength for all other parameters: most features of grids are not touched by a batch, and would go to 0. SGD
adds the term to all gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import drjit as dr
import drjit.opt as dropt

from ..checks import check_above, check_flag, check_number
from ..jit.optimizers import EntryAdam, adam_correction, opaque_rate
from .extended import Extended


class Adam(Extended, EntryAdam):
    r"""``drjit.opt.Adam`` with regularization and limits, also for grids and tables, of which a batch touches few
    entries.

    *Matrices* are parameters named ``"weights"``, such as a packed network; others are features of grids and tables.
    A step does the same as in tiny-cuda-nn, in the same order: entries without a gradient are skipped, the L2 term is
    added, gradients are limited, moments and rates are updated, weights decay, move, and are limited.

    Args:
        lr, params, options: as in ``drjit.opt.Adam``.
        l2_reg: :math:`\lambda` of matrices.
        non_matrix_l2_reg: :math:`\lambda` of other parameters. With ``skip_zero_grad``, of entries with a gradient.
        relative_decay, absolute_decay: :math:`r` and :math:`a`, for all parameters.
        accumulate: number of gradients for one move (see ``help(coopnet.training.extended)``).
        lookahead: number :math:`k` of moves between two updates of the slow weights; 0 for no slow weights.
        alpha: :math:`\alpha`, the share of the way that the slow weights move.
        skip_zero_grad: in steps in which the gradient of an entry is exactly zero, leave the entry unchanged. This
            holds for all parameters except matrices, such as grids and embeddings. Momentum does not move the entry,
            and it has its own count of steps to correct its moments, as in tiny-cuda-nn.
        non_matrix_lr_factor: multiplies the learning rate of all parameters except matrices.
        train_matrices, train_non_matrices: train them?
        gradient_limit: clip every entry of a gradient, with its L2 term, to at most this size; ``None`` for no limit.
        weight_limit: clip every entry of a parameter that has moved to at most this size; ``None`` for no limit.
        adabound: keep the rates of all entries, :math:`\alpha_t / (\sqrt{v_t} + \epsilon)`, within :math:`[0.1 -
            0.1 / (s + 1), 0.1 + 0.1 / s]`, where :math:`s = (1 - \beta_2) t` in step :math:`t` (Luo et al. 2019,
            *AdaBound*). The bounds don't depend on ``lr``, but a rate of exactly 0 moves nothing.

    Raises:
        TypeError: ``params`` is not a mapping.
        ValueError: a rate, factor, strength or limit that is negative or no number, a limit of 0, a count that is no
            int or too small, ``mask_updates`` with one of the counts, and ``mask_updates``, ``uniform`` or ``amsgrad``
            with ``skip_zero_grad`` or ``adabound``.

    >>> cn.fit(field, batch, 1000, optimizer=cn.training.Adam(1e-2, l2_reg=1e-6))
    """

    def __init__(
        self, lr: Any, params: Mapping[str, Any] | None = None, *, l2_reg: float = 0.0, non_matrix_l2_reg: float = 0.0,
        relative_decay: float = 0.0, absolute_decay: float = 0.0, accumulate: int = 1, lookahead: int = 0,
        alpha: float = 0.5, skip_zero_grad: bool = False, non_matrix_lr_factor: float = 1.0,
        train_matrices: bool = True, train_non_matrices: bool = True, gradient_limit: float | None = None,
        weight_limit: float | None = None, adabound: bool = False, **options: Any,
    ):  # fmt: skip
        self.skip_zero_grad = check_flag("Adam", "skip_zero_grad", skip_zero_grad)
        self.adabound = check_flag("Adam", "adabound", adabound)
        for option in ("skip_zero_grad", "adabound"):
            for name in ("mask_updates", "uniform", "amsgrad"):
                if getattr(self, option) and options.get(name):
                    raise ValueError(f"Adam: {name}=True cannot be combined with {option}.")
        self.non_matrix_l2_reg = check_number("Adam", "non_matrix_l2_reg", non_matrix_l2_reg, 0)
        self.relative_decay = check_number("Adam", "relative_decay", relative_decay, 0)
        self.absolute_decay = check_number("Adam", "absolute_decay", absolute_decay, 0)
        self.non_matrix_lr_factor = check_number("Adam", "non_matrix_lr_factor", non_matrix_lr_factor, 0)
        self.train_matrices = check_flag("Adam", "train_matrices", train_matrices)
        self.train_non_matrices = check_flag("Adam", "train_non_matrices", train_non_matrices)
        self.gradient_limit = None if gradient_limit is None else check_above("Adam", "gradient_limit", gradient_limit)
        self.weight_limit = None if weight_limit is None else check_above("Adam", "weight_limit", weight_limit)
        options |= {"l2_reg": l2_reg, "accumulate": accumulate, "lookahead": lookahead, "alpha": alpha}
        super().__init__(lr, params, **options)

    def _counts(self, name: str) -> bool:
        return self.skip_zero_grad and not is_matrix(name)

    def _corrects(self) -> bool:
        return self.adabound or self.relative_decay > 0 or self.absolute_decay > 0

    def _l2(self, name: str) -> float:
        return self.l2_reg if is_matrix(name) else self.non_matrix_l2_reg

    def _adjust(
        self, name: str, value: Any, grad: Any, lr: Any, memory: Any, step: Callable[[Any, Any], tuple[Any, Any]]
    ) -> tuple[Any, Any]:
        if not (self.train_matrices if is_matrix(name) else self.train_non_matrices):
            return value, memory
        if not is_matrix(name) and self.non_matrix_lr_factor != 1:
            lr = lr * self.non_matrix_lr_factor
        lost = self._decay(value, lr, memory)  # before the step, which may multiply the rate

        def limited(grad: Any, lr: Any) -> tuple[Any, Any]:
            limit = self.gradient_limit
            return step(grad if limit is None else dr.clip(grad, -limit, limit), lr)

        new, new_memory = super()._adjust(name, value, grad, lr, memory, limited)
        new = new if lost is None else new - lost
        if self.weight_limit is not None:
            bounded = dr.clip(new, -self.weight_limit, self.weight_limit)
            # entries with a rate of their own that is 0 are not to change
            new = dr.select(lr == 0, value, bounded) if isinstance(lr, dr.ArrayBase) else bounded
        if self._counts(name):
            still, taken = grad == 0, new_memory[3]  # steps of the parameter, not of its entries
            new = dr.select(still, value, new)
            new_memory = (*dr.select(still, memory[:3], new_memory[:3]), taken)
        return new, new_memory

    def _decay(self, value: Any, lr: Any, memory: Any) -> Any:
        """The decay that the next step subtracts from a parameter."""
        if not (self.relative_decay or self.absolute_decay):
            return None
        leaf = dr.leaf_t(value)
        return opaque_rate(leaf, lr) * adam_correction(self, leaf, memory) * decay_of(self, value)


class SGD(Extended, dropt.SGD):
    """``drjit.opt.SGD`` with regularization.

    Args:
        lr, params, options: as in ``drjit.opt.SGD``.
        l2_reg: :math:`\\lambda`, for all parameters.
        accumulate, lookahead, alpha: as for :class:`Adam`.

    Raises:
        ValueError: as for :class:`Adam`.

    >>> cn.fit(field, batch, 1000, optimizer=cn.training.SGD(1e-1, l2_reg=1e-6))
    """


def decay_of(optimizer: Any, value: Any) -> Any:
    """The decay of a parameter, by a learning rate of 1."""
    return value * optimizer.relative_decay + dr.sign(value) * optimizer.absolute_decay


def is_matrix(name: str) -> bool:
    """Is ``name`` that of a packed network, rather than of a grid or table?"""
    return name.rsplit(".", 1)[-1] == "weights"
