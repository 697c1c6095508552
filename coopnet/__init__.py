"""coopnet: fused neural fields on Dr.Jit.

=======================  ===========================================================
:mod:`.cli`              the ``coopnet`` command
:mod:`.command`          Ctrl-C while the command is being imported
:mod:`.commands`         one command per file
tasks, and other systems
:mod:`.image`            images as fields
:mod:`.mesh`             meshes as signed distances
:mod:`.mitsuba`          fields in Mitsuba 3
:mod:`.interop`          tiny-cuda-nn, PyTorch, source code of other languages
:mod:`.bench`            one network in coopnet and other libraries, for ``coopnet bench``
:mod:`.render`           loops around fields: tracing and marching
:mod:`.training`         ``fit``
:mod:`.io`               checkpoints
fields
:mod:`.field`            an encoding and a network as a function of coordinates
:mod:`.call`             a call of a field: checks and conversions
:mod:`.bounds`           the box of its coordinates
:mod:`.derivatives`      derivatives with respect to its input
:mod:`.audit`            its rounding errors, layer by layer
:mod:`.uncertainty`      its uncertainty
:mod:`.sparsification`   whether the uncertainty predicts errors
networks
:mod:`.nn`               layers
:mod:`.engine`           how networks are evaluated and differentiated
:mod:`.kernels`          grids, look-ups, sums by index
:mod:`.random`           keys, the generator, laws of dropout
below
:mod:`.backend`          LLVM and CUDA: finding them, and moving between them
:mod:`.jit`              all code that relies on undocumented behaviour of Dr.Jit
:mod:`.checks`           checks of arguments
:mod:`.context`          values that hold in a ``with`` block
:mod:`.reference`        reference implementations in NumPy
:mod:`.version`          the version
:mod:`.deprecation`      warnings for public names that will be removed
:mod:`.__main__`         ``python -m coopnet``
=======================  ===========================================================
"""

import importlib

from . import command

command.importing()  # before the imports below, which take long

from . import backend

backend.prepare()  # before anything makes Dr.Jit look for LLVM

from . import nn, render, training
from .backend import BackendError
from .backend.section import on_backend, with_backend
from .backend.transfer import to
from .derivatives import numerical_gradient
from .engine import deterministic, gradient_path
from .field import NeuralField
from .interop.export import export
from .interop.tcnn import from_config
from .io import load, save
from .nn import (
    GELU, MLP, SIREN, Composite, Embedding, Encoding, Exp, Fourier, Frequency, Grid, HashGrid, Heads, Identity,
    LeakyReLU, Linear, Module, OneBlob, Permutohedral, ReLU, Residual, Sequential, Sigmoid, SiLU, Sine, Sinusoidal,
    Skip, Softplus, SparseProjection, SphericalHarmonics, Squareplus, Tanh, TriangleWave, Triangular,
)  # fmt: skip
from .nn.concrete_dropout import ConcreteDropout, concrete_penalty
from .nn.drop_levels import DropLevels
from .nn.dropout import Dropout, DropPath, GaussianDropout, dropout, dropout_mask
from .nn.gradient_banks import gradient_banks
from .random.key import Key
from .random.philox import philox4x32
from .random.seeded import seeded_dropout
from .sparsification import sparsification
from .training import FitResult, fit, fit_many, integers, stratified, uniform
from .uncertainty import (
    auroc, calibrate, calibration_error, ensemble, laplace, mc_dropout, negative_log_likelihood, posthoc_dropout,
)  # fmt: skip
from .version import __version__  # noqa: F401

__all__ = [
    "BackendError", "Composite", "ConcreteDropout", "DropLevels", "Dropout", "DropPath", "Embedding", "Encoding",
    "Exp", "FitResult", "Fourier", "Frequency", "GaussianDropout", "GELU", "Grid", "HashGrid", "Heads", "Identity",
    "Key", "LeakyReLU", "Linear",
    "MLP", "Module", "NeuralField", "OneBlob", "Permutohedral", "ReLU", "Residual", "Sequential", "Sigmoid", "SiLU",
    "Sine", "Sinusoidal", "SIREN", "Skip", "Softplus", "SparseProjection", "SphericalHarmonics", "Squareplus",
    "Tanh", "TriangleWave", "Triangular", "auroc", "backend", "calibrate", "calibration_error",
    "concrete_penalty", "deterministic",
    "dropout", "dropout_mask", "ensemble", "export", "fit", "fit_many", "from_config", "gradient_banks",
    "gradient_path", "integers", "laplace", "load", "mc_dropout", "negative_log_likelihood", "nn", "numerical_gradient",
    "on_backend", "philox4x32", "posthoc_dropout", "render", "save", "seeded_dropout", "sparsification", "stratified",
    "to", "training", "uniform", "with_backend",
]  # fmt: skip


_LATER = ("image", "mesh", "mitsuba")  # need other packages; Mitsuba takes seconds to import


def __getattr__(name: str) -> object:
    if name in _LATER:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
