"""Layers."""

from .activations import (
    ACTIVATIONS, GELU, Activation, Exp, Identity, LeakyReLU, ReLU, Sigmoid, SiLU, Sine, Softplus, Squareplus, Tanh,
)  # fmt: skip
from .composite import Composite
from .containers import Heads, Residual, Skip
from .embedding import Embedding
from .encoding import Encoding
from .fourier import Fourier
from .frequency import Frequency, Sinusoidal, TriangleWave, Triangular
from .grid import Grid
from .hashgrid import HashGrid
from .linear import Linear
from .mlp import MLP
from .module import Module
from .oneblob import OneBlob
from .pad import Pad
from .permutohedral import Permutohedral
from .projection import SparseProjection
from .sequential import Sequential
from .siren import SIREN
from .sphericalharmonics import SphericalHarmonics

__all__ = [
    "Activation", "ACTIVATIONS", "Composite", "Embedding", "Encoding", "Exp", "Fourier", "Frequency", "GELU", "Grid",
    "HashGrid", "Heads", "Identity", "LeakyReLU", "Linear", "MLP", "Module", "OneBlob", "Pad", "Permutohedral",
    "ReLU", "Residual", "Sequential", "Sigmoid", "SiLU", "Sine", "Sinusoidal", "SIREN", "Skip", "Softplus",
    "SparseProjection", "SphericalHarmonics", "Squareplus", "Tanh", "TriangleWave", "Triangular",
]  # fmt: skip
