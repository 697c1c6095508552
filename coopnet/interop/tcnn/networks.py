"""Networks and activations of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import nn
from ...checks import ensure
from ...checks.sizes import MAX_FEATURES
from .keys import Option, choice, read

#: Networks by their name there; the value says whether only certain widths are allowed.
NETWORKS = {"FullyFusedMLP": True, "MegakernelMLP": True, "CutlassMLP": False, "MLP": False}
#: Activations by their name there. Its Softplus and Squareplus have a sharpness of 10 (``K_ACT``).
ACTIVATIONS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "ReLU": nn.ReLU,
    "LeakyReLU": nn.LeakyReLU,
    "SiLU": nn.SiLU,
    "Exponential": nn.Exp,
    "Sine": nn.Sine,
    "Sigmoid": nn.Sigmoid,
    "Squareplus": lambda: nn.Squareplus(10.0),
    "Softplus": lambda: nn.Softplus(10.0),
    "Tanh": nn.Tanh,
}


KEYS = {
    "activation": Option("ReLU", names=ACTIVATIONS),
    "output_activation": Option("None", names=ACTIVATIONS),
    "n_neurons": Option(128, 1, MAX_FEATURES + 1),
    "n_hidden_layers": Option(5, 0, 2**10),  # one kernel holds all of them
}


def read_network(given: dict[str, Any], n_out: int) -> Any:
    name, fused = choice("network.otype", given.get("otype", "MLP"), NETWORKS)
    values = read("network", given, KEYS)
    width, depth = values["n_neurons"], values["n_hidden_layers"]
    valid = not fused or (width in (16, 32, 64, 128) and depth >= 1)
    hint = f"{name} has 16, 32, 64 or 128 neurons and a hidden layer. Use CutlassMLP for others"
    ensure(valid, f"from_config: network has n_neurons {width} and n_hidden_layers {depth}; {hint}.")
    hidden, output = values["activation"](), values["output_activation"]()
    sine = isinstance(hidden, nn.Sine)
    net = nn.MLP(-1, n_out, width, depth, hidden, output, init="siren" if sine else "xavier_uniform")
    if sine:
        net.layers[0].gain = 30.0  # sin(x) instead of sin(30 x): the first layer has the frequency
    return net
