"""Training: the loop, losses, optimizers and schedules.

======================  ====================================================
:mod:`.fit`             the training loop
:mod:`.arguments`       checks of its arguments
:mod:`.run`             a run: its steps, and the hooks between them
:mod:`.hooks`           the base of everything that happens between steps
:mod:`.step`            one step, which is frozen
:mod:`.unrolled`        several steps in one call
:mod:`.limits`          constants: how often things are done and checked
:mod:`.many`            many fields of one architecture
:mod:`.distributed`     several processes
parts of a step
:mod:`.sampling`        random numbers for samples
:mod:`.losses`          loss functions
:mod:`.inner_loss`      losses that the engine computes in its kernels
:mod:`.optimizers`      optimizers with weight regularization
:mod:`.extended`        accumulation of gradients, and lookahead
:mod:`.novograd`        Novograd
:mod:`.schedules`       learning rates
:mod:`.scaler`          the scale of the loss in half precision
:mod:`.gradients`       norms of gradients, and limits
:mod:`.weights`         penalties, clipping, decay, rates by layer
:mod:`.average`         moving averages of weights
other parts of a run
:mod:`.metric`          its metric, and how long to wait for a better one
:mod:`.state`           checkpoints from which it can be resumed
:mod:`.divergence`      detects that training has diverged
:mod:`.box_check`       detects samples outside of the box of the encoding
:mod:`.batch_check`     detects draws that repeat each other, and batches that Python changes
:mod:`.memory`          its memory, counted before it starts
:mod:`.progress`        progress bars
:mod:`.trees`           arrays in PyTrees
:mod:`.result`          its result
errors, signals and threads
:mod:`.recording`       errors if a step cannot be recorded, a warning if it often is
:mod:`.interrupts`      Ctrl-C within a step
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
from .sampling import by_index, integers, stratified, uniform
from .schedules import cosine, exponential
from ..jit.turns import exclusive
from .weights import (
    clip_weights, decay_masks, decay_weights, l1_penalty, l2_penalty, layer_multipliers, spectral_norms,
)  # fmt: skip

__all__ = [
    "Adam", "EMA", "FitResult", "Group", "LOSSES", "MPIGroup", "Novograd", "SGD", "TorchGroup", "by_index",
    "clip_gradient_norm", "clip_gradient_values", "clip_weights", "cosine", "cross_entropy", "decay_masks",
    "decay_weights", "exclusive", "exponential", "fit", "fit_many", "gaussian_nll", "gradient_norm", "huber",
    "integers", "l1", "l1_penalty", "l2", "l2_penalty", "layer_multipliers", "log_l1", "mape", "relative_l1",
    "relative_l2", "relative_l2_luminance", "smape", "spectral_norms", "stratified", "uniform", "variance",
]  # fmt: skip
