"""Training: the loop, losses, optimizers and schedules.

======================  ====================================================
:mod:`.fit`             the training loop
:mod:`.arguments`       what it takes
:mod:`.run`             what happens between its steps
:mod:`.hooks`           what each of these is
:mod:`.step`            one step, which is frozen
:mod:`.unrolled`        several steps in one call
:mod:`.limits`          how often things are done and looked at
:mod:`.many`            many fields of one architecture
:mod:`.distributed`     several processes
what a step is made of
:mod:`.sampling`        random numbers for samples
:mod:`.losses`          loss functions
:mod:`.inner_loss`      losses that the engine computes in its kernels
:mod:`.optimizers`      optimizers with weight regularization
:mod:`.novograd`        Novograd
:mod:`.schedules`       learning rates
:mod:`.scaler`          the scale of the loss in half precision
:mod:`.gradients`       norms of gradients, and limits
:mod:`.weights`         penalties, clipping, decay, rates by layer
:mod:`.average`         moving averages of weights
what a run has besides
:mod:`.metric`          its metric, and how long to wait for a better one
:mod:`.state`           checkpoints that it goes on from
:mod:`.divergence`      noticing that it has come to nothing
:mod:`.outside`         noticing samples that its encoding cannot tell apart
:mod:`.memory`          what it takes in memory
:mod:`.progress`        progress bars
:mod:`.trees`           arrays in PyTrees
:mod:`.result`          what it reports
what must not go wrong
:mod:`.recording`       why a step could not be recorded
:mod:`.interrupts`      Ctrl-C and garbage collection within a step
:mod:`.turns`           threads that train take turns
======================  ====================================================
"""

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
from .sampling import by_index, stratified, uniform
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
    "relative_l2_luminance", "smape", "spectral_norms", "stratified", "uniform", "variance",
]  # fmt: skip
