r"""Optimizers of ``drjit.opt`` with weight regularization.

Two kinds of regularization, as in tiny-cuda-nn: a term of the gradient, :math:`g \mathrel{+}= \lambda w`, which is
the gradient of :math:`\tfrac{\lambda}{2} |w|^2`, and for Adam a decay of the weights beside the step (*decoupled*,
Loshchilov and Hutter 2019), relative, :math:`w \mathrel{-}= \alpha_t r w`, or absolute,
:math:`w \mathrel{-}= \alpha_t a \operatorname{sign} w`, where :math:`\alpha_t` is the learning rate with Adam's
correction of the bias of its moments.

Adam adds the term to gradients of matrices, that is of parameters named ``"weights"``, such as a packed network. It has
another strength for all other parameters: most features of grids are not touched by a batch, and would go to 0. SGD
adds the term to all gradients.

All can accumulate gradients and look ahead. With ``accumulate=n``, only every n-th call of ``step`` moves the
parameters, by the mean of the last n gradients, like one step on a batch n times as large; steps that a loss scaler
skips don't count. The options of :func:`coopnet.fit` (``clip_norm``, ``weight_decay``, ``ema``) apply at every call.
With ``lookahead=k`` (Zhang et al. 2019), there are also slow weights :math:`s`: after k moves to
:math:`w`, they and the parameters become :math:`s \leftarrow s + \alpha (w - s)`. Train for a multiple of :math:`k`
moves to end there. A moving average (``EMA``) then averages the slow weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import drjit as dr
import drjit.opt as dropt

from ..checks import (
    check,
    check_above,
    check_backend,
    check_flag,
    check_int,
    check_mask,
    check_number,
    check_samples,
    check_type,
    is_flat,
    plain,
    shown,
)  # fmt: skip
from ..jit.optimizers import EntryAdam, Extension, adam_correction, memories, opaque_rate, values


class Extended(Extension):
    """Adds to Dr.Jit's optimizers an L2 term, accumulation of gradients, and lookahead.

    For the latter two, they keep a tuple for each parameter: (mean gradient so far, number of gradients in it, slow
    weights, moves since the slow weights), with ``None`` for unused entries. Counters are arrays, so that frozen
    functions can update them.
    """

    def __init__(
        self, lr: Any, params: Mapping[str, Any] | None = None, *, l2_reg: float = 0.0, accumulate: int = 1,
        lookahead: int = 0, alpha: float = 0.5, **options: Any,
    ):  # fmt: skip
        where = type(self).__name__
        if not isinstance(lr, dr.ArrayBase):
            check_number(where, "lr", lr, 0)
        check_type(where, "params", params, Mapping | None, "a mapping from names to arrays")
        check_parameters(where, params or {})
        self.accumulate, self.lookahead = (
            check_int(where, name, count, minimum, 2**32 - 1, f"an int of at least {minimum}")
            for name, count, minimum in (("accumulate", accumulate, 1), ("lookahead", lookahead, 0))
        )
        self.l2_reg, self.alpha = check_number(where, "l2_reg", l2_reg, 0), check_number(where, "alpha", alpha, 0)
        if options.get("mask_updates") and self._remembers:
            raise ValueError(f"{where}: mask_updates=True cannot be combined with accumulate or lookahead.")
        super().__init__(lr, params, **options)

    def step(self, *, eval: bool = True, grad_scale: Any = None, active: Any = None) -> None:
        """Take a gradient step; arguments as in ``drjit.opt.Optimizer.step``.

        Raises:
            ValueError: ``grad_scale`` is not finite; it or ``active`` has neither one entry nor as many as every
                parameter.
            TypeError: ``grad_scale`` is neither a number nor an array of numbers of the parameters' backend, or
                ``active`` is not a mask of that backend.

        >>> optimizer.step(grad_scale=1 / 128)
        """
        where = f"{type(self).__name__}.step"
        check_flag(where, "eval", eval)
        flat = [value.array for value in values(self).values()]
        if grad_scale is not None:
            if not isinstance(grad_scale, dr.ArrayBase):
                grad_scale = plain(grad_scale)
                check_type(where, "grad_scale", grad_scale, int | float, "a number or a Dr.Jit array of one")
                grad_scale = check_number(where, "grad_scale", grad_scale)
            else:
                tp = type(grad_scale)
                number = (dr.is_float_v(tp) or dr.is_integral_v(tp)) and not dr.is_mask_v(tp)
                valid = is_flat(tp) and dr.is_jit_v(tp) and number
                check_type(
                    where, "grad_scale", grad_scale, dr.ArrayBase if valid else (), "a number or an array of one"
                )
        for value in flat:
            if isinstance(grad_scale, dr.ArrayBase):
                check_backend(f"{where}: grad_scale is", grad_scale, value, "a parameter")
                check_samples(where, "grad_scale", dr.width(grad_scale), dr.width(value))
            if active is not None:
                active = check_mask(where, "active", active, value, "a parameter")
                check_samples(where, "active", dr.width(active), dr.width(value))
        super().step(eval=eval, grad_scale=grad_scale, active=active)

    def _l2(self, name: str) -> float:
        """The strength of the L2 term of the parameter ``name``."""
        return self.l2_reg

    def _adjust(
        self, name: str, value: Any, grad: Any, lr: Any, memory: Any, step: Callable[[Any, Any], tuple[Any, Any]]
    ) -> tuple[Any, Any]:
        l2 = self._l2(name)
        return step(dr.fma(value, l2, grad) if l2 else grad, lr)

    def slow_weights(self) -> dict[str, Any]:
        """The slow weights of all parameters, as flat arrays; none without ``lookahead``."""
        return {name: own[2] for name, (own, _) in memories(self).items()} if self.lookahead else {}

    @property
    def _remembers(self) -> bool:  # type: ignore[override]
        return self.accumulate > 1 or self.lookahead > 0

    def __setitem__(self, key: str, value: Any) -> None:
        """Assign a parameter. Its slow weights, which would pull it back, begin anew."""
        check_type(type(self).__name__, "the name of a parameter", key, str, "a string")
        check_parameters(type(self).__name__, {key: value})
        known = key in self.state
        super().__setitem__(key, value)
        if known and self.lookahead:
            *rest, ((*gathering, _, _), memory) = self.state[key]
            fresh = self._begin(dr.detach(self.state[key][0]).array)[2:]
            self.state[key] = (*rest, ((*gathering, *fresh), memory))  # type: ignore[assignment]

    def _begin(self, value: Any) -> tuple:
        flat = type(value)
        uint32 = dr.uint32_array_t(flat)
        gathering = (dr.opaque(flat, 0, dr.width(value)), uint32(0)) if self.accumulate > 1 else (None, None)
        return (*gathering, *((value * dr.opaque(flat, 1), uint32(0)) if self.lookahead else (None, None)))

    def _move(self, value: Any, grad: Any, own: Any, memory: Any, step: Callable[[Any], tuple[Any, Any]]) -> tuple:
        total, gathered, slow, moves = own
        if self.accumulate > 1:
            total, gathered = total + grad, gathered + 1
            grad = total / type(grad)(gathered)  # a resumed run may wait for another number
        new, new_memory = step(grad)
        if self.accumulate > 1:
            wait = gathered < self.accumulate
            new, new_memory = dr.select(wait, value, new), dr.select(wait, memory, new_memory)
            total, gathered = dr.select(wait, total, 0), dr.select(wait, gathered, 0)
        if self.lookahead:
            moves = moves + (dr.select(wait, 0, 1) if self.accumulate > 1 else 1)
            far = moves >= self.lookahead  # a resumed run may have a smaller number
            slow = dr.select(far, dr.lerp(slow, new, self.alpha), slow)
            new, moves = dr.select(far, slow, new), dr.select(far, 0, moves)
        return new, (total, gathered, slow, moves), new_memory


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
        accumulate: number of gradients for one move (see ``help(coopnet.training.optimizers)``).
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


def check_parameters(where: str, params: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` unless an optimizer can take all ``params``."""
    for name, value in params.items():
        array = isinstance(value, dr.ArrayBase) and dr.is_diff_v(value) and dr.is_float_v(value) and dr.width(value)
        check(array, where, f"params[{shown(name)}]", value, "a differentiable array with entries", TypeError)
