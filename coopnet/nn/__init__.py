"""Layers."""

from .activations import ACTIVATIONS, Activation, Exp, Identity, LeakyReLU, ReLU, Sigmoid, SiLU, Sine, Softplus, Tanh
from .encodings import Encoding, Sinusoidal, Triangular
from .hashgrid import HashGrid
from .linear import Linear
from .mlp import MLP
from .module import Module
from .sequential import Sequential

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "Activation",
    "Encoding",
    "Exp",
    "HashGrid",
    "Identity",
    "LeakyReLU",
    "Linear",
    "Module",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Sine",
    "Sinusoidal",
    "Softplus",
    "Tanh",
    "Triangular",
]
