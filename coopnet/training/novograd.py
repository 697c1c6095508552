"""Novograd: every gradient is divided by the norm of its layer's gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import drjit as dr
from drjit.opt import LearningRate

from ..checks import check, check_above, check_flag, check_number, check_type, is_number
from ..jit.optimizers import NewOptimizer, opaque_rate
from ..nn import Module
from .extended import Extended, check_parameters
from .optimizers import decay_of, is_matrix
from .weights import layer_numbers


class Novograd(Extended, NewOptimizer):
    r"""Adam with one second moment for each layer, and momentum of the normalized gradients (Ginsburg et al. 2019), as
    in tiny-cuda-nn:

    .. math::
        v_l \leftarrow \beta_2 v_l + (1 - \beta_2) \lVert g_l \rVert^2, \quad
        m_l \leftarrow \beta_1 m_l + (1 - \beta_1) \frac{g_l}{\sqrt{v_l} + \epsilon}, \quad
        w_l \leftarrow (1 - \mathrm{lr}\, r) w_l - \mathrm{lr}\, a \operatorname{sign} w_l - \mathrm{lr}\, m_l

    In the first step both :math:`\beta` are 0, so the moments need no bias correction. A layer is one matrix,
    bias or table of a network, known after ``update(net)``, which :func:`coopnet.fit` calls. In other mappings, each
    array is a layer.

    Args:
        lr, params: as in ``drjit.opt.Adam``.
        beta_1, beta_2: :math:`\beta_1` and :math:`\beta_2`, in [0, 1).
        epsilon: :math:`\epsilon`.
        relative_decay, absolute_decay: :math:`r` and :math:`a`, for all parameters.
        accumulate, lookahead, alpha: as for :class:`Adam`.
        train_non_matrices: train parameters that are not matrices (see :class:`Adam`)? tiny-cuda-nn's Novograd does not
            train grids.

    Raises:
        TypeError: ``params`` is not a mapping.
        ValueError: a rate or strength that is negative or no number, a moment out of range, an ``epsilon`` that is not
            positive, a count that is not an int or too small.

    >>> cn.fit(field, batch, 1000, optimizer=cn.training.Novograd(1e-2))
    """

    DRJIT_STRUCT = {"lr": LearningRate, "state": dict, "layers": dict}

    def __init__(
        self, lr: Any, params: Mapping[str, Any] | None = None, *, beta_1: float = 0.9, beta_2: float = 0.999,
        epsilon: float = 1e-8, relative_decay: float = 0.0, absolute_decay: float = 0.0, accumulate: int = 1,
        lookahead: int = 0, alpha: float = 0.5, train_non_matrices: bool = True,
    ):  # fmt: skip
        for name, value in (("beta_1", beta_1), ("beta_2", beta_2)):
            check(is_number(value, 0) and value < 1, "Novograd", name, value, "a number in [0, 1)")
        self.beta_1, self.beta_2 = float(beta_1), float(beta_2)
        self.epsilon = check_above("Novograd", "epsilon", epsilon)
        self.relative_decay = check_number("Novograd", "relative_decay", relative_decay, 0)
        self.absolute_decay = check_number("Novograd", "absolute_decay", absolute_decay, 0)
        self.train_non_matrices = check_flag("Novograd", "train_non_matrices", train_non_matrices)
        #: The layer of every entry, for parameters with several layers; from 1 on, 0 for gaps.
        self.layers: dict[str, Any] = {}
        self._amounts: dict[str, int] = {}
        super().__init__(lr, params, accumulate=accumulate, lookahead=lookahead, alpha=alpha)

    def update(self, params: Mapping[str, Any] | None = None, **args: Any) -> None:  # type: ignore[override]
        """Overwrite parameters or register new ones; with a network, its layers are known, too.

        >>> cn.training.Novograd(1e-2).update(field)
        """
        needed = "a mapping from names to arrays, such as a field"
        check_type("Novograd.update", "params", params, Mapping | Module | None, needed)
        check_parameters("Novograd.update", args if isinstance(params, Module) else {**(params or {}), **args})
        if isinstance(params, Module):
            for name, (numbers, count) in layer_numbers(params).items():
                self._amounts[name] = count
                if count > 1:
                    self.layers[name] = numbers
        super().update(params, **args)

    def _first_memory(self, name: str, value: Any) -> tuple:
        flat = type(value)
        second = tuple(dr.opaque(flat, 0) for _ in range(self._amounts.get(name, 1)))
        return dr.opaque(dr.uint32_array_t(flat), 0), dr.opaque(flat, 0, dr.width(value)), second

    def _adjust(
        self, name: str, value: Any, grad: Any, lr: Any, memory: Any, step: Callable[[Any, Any], tuple[Any, Any]]
    ) -> tuple[Any, Any]:
        if not (self.train_non_matrices or is_matrix(name)):
            return value, memory
        t, m, second = memory
        leaf = dr.leaf_t(value)
        beta_1, beta_2 = (dr.select(t == 0, leaf(0), beta) for beta in (self.beta_1, self.beta_2))
        numbers, squares, new_second, scale = self.layers.get(name), dr.square(grad), [], leaf(0)
        for layer, v in enumerate(second, 1):
            of_layer = True if numbers is None else numbers == layer
            v = dr.lerp(dr.sum(dr.select(of_layer, squares, 0)), v, beta_2)
            scale = dr.select(of_layer, dr.rcp(dr.sqrt(v) + self.epsilon), scale)
            new_second.append(v)
        m = dr.lerp(grad * scale, m, beta_1)
        return value - opaque_rate(leaf, lr) * (decay_of(self, value) + m), (t + 1, m, tuple(new_second))
