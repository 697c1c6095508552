r"""An L2 term, accumulation of gradients, and lookahead, for every optimizer.

With ``accumulate=n``, only every n-th call of ``step`` moves the parameters, by the mean of the last n gradients, like
one step on a batch n times as large; steps that a loss scaler skips don't count. The options of :func:`coopnet.fit`
(``clip_norm``, ``weight_decay``, ``ema``) apply at every call. With ``lookahead=k`` (Zhang et al. 2019), there are also
slow weights :math:`s`: after k moves to :math:`w`, they and the parameters become
:math:`s \leftarrow s + \alpha (w - s)`. Train for a multiple of :math:`k` moves to end there. A moving average
(``EMA``) then averages the slow weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import drjit as dr

from ..checks import (
    check,
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
from ..jit.optimizers import Extension, memories, values


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


def check_parameters(where: str, params: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` unless an optimizer can take all ``params``."""
    for name, value in params.items():
        array = isinstance(value, dr.ArrayBase) and dr.is_diff_v(value) and dr.is_float_v(value) and dr.width(value)
        check(array, where, f"params[{shown(name)}]", value, "a differentiable array with entries", TypeError)
