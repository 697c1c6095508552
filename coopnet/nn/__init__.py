"""Layers, one kind per file.

==========================  ===================================================
:mod:`.module`              the base class
:mod:`.linear`              matrices
:mod:`.activations`         activations
:mod:`.dropout`             dropout
:mod:`.concrete_dropout`    dropout whose rate is learned
:mod:`.drop_levels`         dropout of whole levels of a grid
several in one
:mod:`.sequential`          layers one after the other
:mod:`.mlp`                 multilayer perceptrons
:mod:`.siren`               multilayer perceptrons of sines
:mod:`.containers`          residual and skip connections, heads
:mod:`.composite`           encodings side by side
:mod:`.members`             several fields as one
:mod:`.pad`                 constants before and after features
encodings
:mod:`.encoding`            the base class
:mod:`.frequency`           waves of doubling frequency
:mod:`.fourier`             random Fourier features
:mod:`.oneblob`             one-blob
:mod:`.sphericalharmonics`  spherical harmonics
:mod:`.lattice`             the base of grids
:mod:`.grid`                grids as in tiny-cuda-nn
:mod:`.hashgrid`            hash grids
:mod:`.permutohedral`       permutohedral lattices
:mod:`.embedding`           tables of latent codes
:mod:`.projection`          sparse random projections
:mod:`.drawn`               grids and linear layers whose parameters a key draws
:mod:`.displaced`           coordinates that a key displaces
information about a network
:mod:`.tree`                traversal of its layers
:mod:`.parameters`          its parameters, by name
:mod:`.replaced`            others in their place for a while
:mod:`.arguments`           the constructor's arguments of a layer
:mod:`.report`              its size, layer by layer
:mod:`.tangents`            forward derivatives of layers that the engine does not know
:mod:`.gradient_banks`      gradients of ``dr.backward`` inside loops
==========================  ===================================================
"""

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
