"""Layers."""

from .activations import (
    ACTIVATIONS,
    GELU,
    Activation,
    Exp,
    Identity,
    LeakyReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Sine,
    Softplus,
    Squareplus,
    Tanh,
)
from .containers import Heads, Residual, Skip
from .encodings import Encoding, Sinusoidal, Triangular
from .hashgrid import HashGrid
from .linear import Linear
from .mlp import MLP
from .module import Module
from .sequential import Sequential

__all__ = [
    "ACTIVATIONS",
    "GELU",
    "MLP",
    "Activation",
    "Encoding",
    "Exp",
    "HashGrid",
    "Heads",
    "Identity",
    "LeakyReLU",
    "Linear",
    "Module",
    "ReLU",
    "Residual",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Sine",
    "Sinusoidal",
    "Skip",
    "Softplus",
    "Squareplus",
    "Tanh",
    "Triangular",
]
