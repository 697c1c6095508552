"""coopnet: fused neural fields on Dr.Jit."""

from . import command

command.importing()  # before what takes long

from . import backend  # noqa: E402

backend.prepare()  # before anything makes Dr.Jit look for LLVM

from . import nn, training  # noqa: E402
from .backend import BackendError  # noqa: E402
from .derivatives import numerical_gradient  # noqa: E402
from .engine import deterministic, gradient_path  # noqa: E402
from .field import NeuralField  # noqa: E402
from .interop.tcnn import from_config  # noqa: E402
from .io import load, save  # noqa: E402
from .nn import (  # noqa: E402
    GELU,
    MLP,
    SIREN,
    Composite,
    Embedding,
    Encoding,
    Exp,
    Fourier,
    Frequency,
    Grid,
    HashGrid,
    Heads,
    Identity,
    LeakyReLU,
    Linear,
    Module,
    OneBlob,
    Permutohedral,
    ReLU,
    Residual,
    Sequential,
    Sigmoid,
    SiLU,
    Sine,
    Sinusoidal,
    Skip,
    Softplus,
    SparseProjection,
    SphericalHarmonics,
    Squareplus,
    Tanh,
    TriangleWave,
    Triangular,
)
from .nn.dropout import Dropout, DropPath, GaussianDropout, dropout, dropout_mask  # noqa: E402
from .random.key import Key  # noqa: E402
from .random.philox import philox4x32  # noqa: E402
from .random.seeded import seeded_dropout  # noqa: E402
from .training import FitResult, fit, uniform  # noqa: E402
from .uncertainty import mc_dropout  # noqa: E402

__version__ = "0.1.0"

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
    "GELU",
    "MLP",
    "BackendError",
    "DropPath",
    "Dropout",
    "Embedding",
    "Encoding",
    "Exp",
    "FitResult",
    "GaussianDropout",
    "HashGrid",
    "Heads",
    "Identity",
    "Key",
    "LeakyReLU",
    "Linear",
    "Module",
    "NeuralField",
    "ReLU",
    "Residual",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Sine",
    "Sinusoidal",
    "Skip",
    "Softplus",
    "SparseProjection",
    "Squareplus",
    "Tanh",
    "Triangular",
    "backend",
    "deterministic",
    "dropout",
    "dropout_mask",
    "fit",
    "from_config",
    "gradient_path",
    "load",
    "mc_dropout",
    "nn",
    "numerical_gradient",
    "philox4x32",
    "save",
    "seeded_dropout",
    "training",
    "uniform",
]
