"""How a network is evaluated and differentiated on a backend.

============================  ==================================================================================
what a network is
:mod:`.ops`                   operations on bundles, lists of them, and their tapes
:mod:`.affine`                the ones with weights
:mod:`.elementwise`           activations and dropout
:mod:`.activations`           formulas of activations and of their derivatives
:mod:`.branches`              residual and skip connections, heads
what is done with it
:mod:`.evaluate`              the way in, for values, tangents and the gradient by the input
:mod:`.situation`             all that a choice of a way may look at
:mod:`.strategies`            the tables that choose
:mod:`.limits`                measured constants
:mod:`.explain`               what would be chosen, in words
:mod:`.modes`                 ``deterministic()``, ``gradient_path()``; what is only traced
ways of weight gradients
:mod:`.network_op`            what they have in common
:mod:`.banks`                 in the kernel; in loops
:mod:`.inner_loss`            in the kernel, with the loss between the ways forward and back
:mod:`.loop_banks`            for ``dr.backward`` within a loop
:mod:`.spill`                 as products, of what the way back writes
:mod:`.store`                 as products, of what the way forward writes
:mod:`.stack`                 for lanes with parameters of their own
how matrices are multiplied
:mod:`.multipliers`           by the vectors of a kernel, or by those of all samples between kernels
:mod:`.products`              over samples, by libraries or Dr.Jit
:mod:`.external_products`     by the caller of a frozen function
vectors in memory
:mod:`.row_vectors`           vectors of all samples in rows
:mod:`.activation_cache`      those that are kept for the way back
:mod:`.chunks`                batches in parts
============================  ==================================================================================
"""

from .activations import FUNCTIONS
from .affine import Affine
from .branches import Branching
from .elementwise import Mask, Nonlinearity, fused
from .evaluate import evaluate, input_gradient
from .explain import Explanation, explain
from .external_products import ExternalProducts, innermost, leaving
from .inner_loss import InnerLoss, loss_inside
from .loop_banks import LoopBanks, collecting
from .modes import deterministic, gradient_path, only_traced
from .products import library
from .stack import Stack, StackError, stacked, stacking

__all__ = [
    "FUNCTIONS",
    "Affine",
    "Branching",
    "Explanation",
    "ExternalProducts",
    "InnerLoss",
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
    "only_traced",
    "stacked",
    "stacking",
]
