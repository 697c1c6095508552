"""Training."""

from .average import EMA
from .distributed import Group, MPIGroup, TorchGroup
from .fit import fit
from .gradients import clip_gradient_norm, clip_gradient_values, gradient_norm
from .losses import (
    LOSSES, cross_entropy, gaussian_nll, huber, l1, l2, log_l1, mape, relative_l1, relative_l2, relative_l2_luminance,
    smape, variance,
)  # fmt: skip
from .many import fit_many
from .novograd import Novograd
from .optimizers import SGD, Adam
from .result import FitResult
from .sampling import by_index, uniform
from .schedules import cosine, exponential
from .turns import exclusive
from .weights import (
    clip_weights, decay_masks, decay_weights, l1_penalty, l2_penalty, layer_multipliers, spectral_norms,
)  # fmt: skip

__all__ = [
    "Adam", "EMA", "FitResult", "Group", "LOSSES", "MPIGroup", "Novograd", "SGD", "TorchGroup", "by_index",
    "clip_gradient_norm", "clip_gradient_values", "clip_weights", "cosine", "cross_entropy", "decay_masks",
    "decay_weights", "exclusive", "exponential", "fit", "fit_many", "gaussian_nll", "gradient_norm", "huber", "l1",
    "l1_penalty", "l2", "l2_penalty", "layer_multipliers", "log_l1", "mape", "relative_l1", "relative_l2",
    "relative_l2_luminance", "smape", "spectral_norms", "uniform", "variance",
]  # fmt: skip
