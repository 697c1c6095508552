"""How a network is evaluated and differentiated on a backend.

============================  ==================================================================================
what a network is
:mod:`.ops`                   operations on bundles (a vector and its tangents), and their tapes
:mod:`.affine`                the operations with weights
:mod:`.elementwise`           activations and dropout
:mod:`.activations`           formulas of activations and of their derivatives
:mod:`.branches`              residual and skip connections, heads
how it is run
:mod:`.evaluate`              the entry point: values, tangents, gradient with respect to the input
:mod:`.situation`             the facts on which the choice of a strategy may depend
:mod:`.strategies`            the tables that choose a strategy
:mod:`.limits`                measured constants
:mod:`.explain`               which strategy would be chosen, and why
:mod:`.modes`                 ``deterministic()``, ``gradient_path()``, contexts of a thread
:mod:`.stall`                 the warning about sums in half precision
strategies to compute gradients
:mod:`.network_op`            with respect to the input alone, on a CPU; the base class of the others
:mod:`.banks`                 in the kernel, added up in several buffers
:mod:`.inner_loss`            in the kernel, with the loss between forward and backward pass
:mod:`.loop_banks`            for ``dr.backward`` within a loop
:mod:`.lane_sums`             within lanes of a CPU's kernel, over samples of their own
:mod:`.spill`                 as products of rows that the backward pass writes
:mod:`.store`                 as products of rows that the forward pass writes
:mod:`.stack`                 for fields side by side, each lane with its own parameters
how matrices are multiplied
:mod:`.multipliers`           with vectors in a kernel, or with those of all samples between kernels
:mod:`.products`              over samples, by libraries or Dr.Jit
:mod:`.external_products`     by the caller of a frozen function
vectors in memory
:mod:`.row_vectors`           vectors of all samples in rows
:mod:`.activation_cache`      activations that are kept for the backward pass
:mod:`.memory`                how many bytes a batch takes, and how many are kept at a time
:mod:`.chunks`                batches in chunks of one size
============================  ==================================================================================
"""

from .activations import FUNCTIONS
from .affine import Affine
from .branches import Branching
from .elementwise import LearnedMask, Mask, Nonlinearity, fused
from .evaluate import evaluate, input_gradient
from .explain import Explanation, explain
from .external_products import ExternalProducts, innermost, leaving
from .inner_loss import InnerLoss, loss_inside
from .loop_banks import LoopBanks, collecting
from .modes import deterministic, gradient_path
from .products import library
from .stack import Stack, StackError, stacked, stacking

__all__ = [
    "FUNCTIONS",
    "Affine",
    "Branching",
    "Explanation",
    "ExternalProducts",
    "InnerLoss",
    "LearnedMask",
    "LoopBanks",
    "Mask",
    "Nonlinearity",
    "Stack",
    "StackError",
    "collecting",
    "deterministic",
    "evaluate",
    "explain",
    "fused",
    "gradient_path",
    "innermost",
    "input_gradient",
    "leaving",
    "library",
    "loss_inside",
    "stacked",
    "stacking",
]
