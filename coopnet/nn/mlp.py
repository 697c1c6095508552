"""Multilayer perceptron."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import drjit as dr

from ..checks import check_choice, check_flag, check_in_features, check_int, ensure
from ..checks.sizes import check_features, check_layers
from ..random.law import MaskLaw, check_probability
from .activations import Sine
from .activations import activation as as_activation
from .dropout import Dropout
from .linear import INITS, Linear
from .sequential import Sequential


class MLP(Sequential):
    r"""Multilayer perceptron: ``depth`` hidden layers of ``width`` units, then a linear output layer.

    .. math::
        h_0 = x, \quad h_{l+1} = \mathrm{dropout}(\sigma(A_l h_l + b_l)), \quad y = \sigma_\mathrm{out}(A_L h_L + b_L)

    Args:
        in_features: width of the input; -1 takes it from ``alloc`` or the encoding before.
        out_features: width of the output.
        width: units of each hidden layer.
        depth: number of hidden layers; 0 is a single linear layer.
        activation, output_activation: a name (``"relu"``, ``"leaky_relu"``, ``"tanh"``, ``"sigmoid"``, ``"softplus"``,
            ``"squareplus"``, ``"gelu"``, ``"silu"`` or ``"swish"``, ``"sine"``, ``"exp"``, ``"identity"``), an
            :class:`Activation` layer, or ``None``.
        dropout: drop probability after each hidden activation, 0 for none; or a dropout layer without a stream number,
            such as ``cn.Dropout(0.1, bits=8, rounds=7)``.
        bias: add the vectors :math:`b`?
        init: initial weights, see :class:`Linear`. ``"siren"`` gives the first layer ``"siren_first"`` and divides the
            others by the frequency ``omega`` of the :class:`Sine` before them, as in Sitzmann et al. 2020.
        zero_last: start the output layer at 0, so that a :class:`Residual` around the network starts as the identity.

    Raises:
        TypeError, ValueError: arguments out of range or of another type, unknown names.

    >>> net = cn.MLP(16, 3, width=64, depth=3, dropout=0.1)
    """

    def __init__(
        self, in_features: int = -1, out_features: int = -1, width: int = 64, depth: int = 3, activation: Any = "relu",
        output_activation: Any = None, dropout: float | Dropout = 0.0, bias: bool = False, init: str = "xavier_uniform",
        zero_last: bool = False,
    ):  # fmt: skip
        width = check_features("MLP", "width", check_int("MLP", "width", width, 1))
        depth = check_int("MLP", "depth", depth, 0)
        in_features, out_features = (
            check_features("MLP", name, check_in_features("MLP", value, name))
            for name, value in (("in_features", in_features), ("out_features", out_features))
        )
        dropout_layer = dropout if isinstance(dropout, Dropout) else None
        shared = "which all hidden layers would share; leave it None, and the network numbers them"
        ensure(
            dropout_layer is None or dropout_layer.stream is None,
            f"MLP: dropout has the stream {dropout_layer and dropout_layer.stream}, {shared}.",
        )
        if not isinstance(dropout, (Dropout, dr.ArrayBase)):
            check_probability(dropout, "MLP", "dropout")
        law = MaskLaw(dropout, where="MLP") if dropout_layer is None else dropout_layer.law
        law.check_entries()
        check_flag("MLP", "bias", bias)
        check_flag("MLP", "zero_last", zero_last)
        check_choice("MLP", "init", init, tuple(INITS))
        hidden = as_activation(activation, "MLP")
        output = as_activation(output_activation, "MLP", "output_activation")
        each = 1 + (hidden is not None) + law.drops
        check_layers("MLP", "depth", depth, depth * each + 1 + (output is not None))
        gain = 1 / hidden.omega if init == "siren" and isinstance(hidden, Sine) and hidden.omega else 1.0
        layers: list[Any] = []
        for i, (n_in, n_out) in enumerate(itertools.pairwise([in_features, *[width] * depth, out_features])):
            start = (init, gain) if i else ("siren_first" if init == "siren" else init, 1.0)
            if i < depth:
                layers += [Linear(n_in, n_out, bias, *start), as_activation(activation, "MLP")]
                layers += [Dropout(dropout) if dropout_layer is None else copy.copy(dropout_layer)] if law.drops else []
            else:
                layers += [Linear(n_in, n_out, bias, *(("zero", 1.0) if zero_last else start)), output]
        super().__init__(*(layer for layer in layers if layer is not None))
