"""Training."""

from .fit import fit
from .losses import (
    LOSSES,
    cross_entropy,
    gaussian_nll,
    huber,
    l1,
    l2,
    mape,
    relative_l1,
    relative_l2,
    relative_l2_luminance,
    smape,
    variance,
)
from .optimizers import SGD, Adam
from .result import FitResult
from .sampling import uniform
from .schedules import cosine, exponential
from .turns import exclusive
from .weights import (
    EMA,
    clip_gradient_norm,
    clip_gradient_values,
    clip_weights,
    decay_masks,
    decay_weights,
    gradient_norm,
    l1_penalty,
    l2_penalty,
    layer_multipliers,
    spectral_norms,
)

__all__ = [
    "EMA",
    "FitResult",
    "clip_gradient_norm",
    "clip_gradient_values",
    "clip_weights",
    "cosine",
    "decay_masks",
    "decay_weights",
    "exclusive",
    "exponential",
    "fit",
    "gradient_norm",
    "huber",
    "l1",
    "l1_penalty",
    "l2",
    "l2_penalty",
    "layer_multipliers",
    "spectral_norms",
    "uniform",
    "LOSSES",
    "SGD",
    "Adam",
    "cross_entropy",
    "gaussian_nll",
    "mape",
    "relative_l1",
    "relative_l2",
    "relative_l2_luminance",
    "smape",
    "variance",
]
