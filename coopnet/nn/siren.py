"""Sinusoidal representation networks."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr

from ..checks import check_above, check_in_features, check_positive
from ..checks.sizes import check_features, check_layers
from .activations import Sine
from .linear import Linear, uniform
from .sequential import Sequential


class SIREN(Sequential):
    r"""Multilayer perceptron of sines with the initial weights of Sitzmann et al. (2020), section 3.2.

    .. math:: h_1 = \sin(\omega_0 (A_0 x + b_0)), \quad h_{l+1} = \sin(\omega (A_l h_l + b_l)), \quad
        y = A_L h_L + b_L

    The weights of the first layer start uniform in :math:`\pm 1/n`, those of the others in
    :math:`\pm \sqrt{6/n} / \omega`, where :math:`n` is the width of the layer's input; biases start uniform in
    :math:`\pm 1/\sqrt n`, as in the authors' code. For inputs in [-1, 1] the arguments of all sines then have the same
    distribution at every depth. The network takes coordinates without an encoding: leave that of the field ``None``.

    After allocation, and in checkpoints, it is a plain :class:`Sequential` of :class:`Linear` and :class:`Sine` layers.

    Args:
        in_features: width of the input; -1 takes it from ``alloc``.
        out_features: width of the output.
        width: units of each hidden layer.
        depth: number of hidden layers, at least 1.
        omega_0: frequency :math:`\omega_0` of the first layer.
        omega: frequency :math:`\omega` of the other hidden layers.

    Raises:
        ValueError: arguments out of range.

    >>> field = cn.NeuralField(None, cn.SIREN(2, 3, width=64, depth=3)).build()
    """

    def __init__(
        self, in_features: int = -1, out_features: int = 1, width: int = 64, depth: int = 3, omega_0: float = 30.0,
        omega: float = 30.0,
    ):  # fmt: skip
        in_features = check_features("SIREN", "in_features", check_in_features("SIREN", in_features))
        out_features, width = (
            check_features("SIREN", name, check_positive("SIREN", name, value))
            for name, value in (("out_features", out_features), ("width", width))
        )
        depth = check_positive("SIREN", "depth", depth)
        check_layers("SIREN", "depth", depth, 2 * depth + 1)
        omega_0 = check_above("SIREN", "omega_0", omega_0)
        self.omega = check_above("SIREN", "omega", omega)
        layers: list[Any] = [Linear(in_features, width), Sine(omega_0)]
        for _ in range(depth - 1):
            layers += [Linear(width, width), Sine(omega)]
        super().__init__(*layers, Linear(width, out_features))

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:  # type: ignore[override]
        net, size = super()._alloc(dtype, size, rng)
        leaf = dr.float32_array_t(dr.array_t(dtype))
        for i, layer in enumerate(net.layers[::2]):
            n_in, n_out, _ = layer.config
            bound = 1 / n_in if i == 0 else math.sqrt(6 / n_in) / self.omega
            layer._set_weights(dtype, uniform(leaf, n_out * n_in, bound, rng), n_out, n_in)
            layer.bias = dtype(dr.array_t(dtype)(uniform(leaf, n_out, 1 / math.sqrt(n_in), rng)), (n_out,))
        return net, size
