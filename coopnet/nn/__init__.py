"""Layers."""

from .activations import ACTIVATIONS, Activation, Exp, Identity, LeakyReLU, ReLU, Sigmoid, SiLU, Sine, Softplus, Tanh
from .composite import Composite
from .encodings import Encoding, Sinusoidal, Triangular
from .fourier import Fourier
from .frequency import Frequency, TriangleWave
from .grid import Grid
from .hashgrid import HashGrid
from .linear import Linear
from .mlp import MLP
from .module import Module
from .oneblob import OneBlob
from .permutohedral import Permutohedral
from .sequential import Sequential
from .siren import SIREN
from .sphericalharmonics import SphericalHarmonics

__all__ = [
    "Composite",
    "Fourier",
    "Frequency",
    "Grid",
    "OneBlob",
    "Permutohedral",
    "SIREN",
    "SphericalHarmonics",
    "TriangleWave",
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
