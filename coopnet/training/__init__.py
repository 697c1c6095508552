"""Training."""

from .fit import FitResult, fit
from .losses import huber, l1, l2
from .sampling import uniform
from .schedules import cosine, exponential

__all__ = ["FitResult", "cosine", "exponential", "fit", "huber", "l1", "l2", "uniform"]
