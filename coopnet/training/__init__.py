"""Training."""

from .fit import FitResult, fit
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
from .sampling import uniform
from .schedules import cosine, exponential

__all__ = [
    "LOSSES",
    "SGD",
    "Adam",
    "FitResult",
    "cosine",
    "cross_entropy",
    "exponential",
    "fit",
    "gaussian_nll",
    "huber",
    "l1",
    "l2",
    "mape",
    "relative_l1",
    "relative_l2",
    "relative_l2_luminance",
    "smape",
    "uniform",
    "variance",
]
