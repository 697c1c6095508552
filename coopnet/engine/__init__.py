"""How a network is evaluated and differentiated on a backend."""

from .activations import FUNCTIONS
from .collect import Collector, collecting
from .explain import Explanation, explain
from .input_gradient import input_gradient
from .modes import deterministic, gradient_path
from .network import evaluate
from .ops import Affine, Fork, Mask, Nonlinearity, fused
from .pending import Pending, innermost, leaving
from .products import library
from .stack import Stack, StackError, stacked, stacking

__all__ = [
    "FUNCTIONS",
    "Affine",
    "Collector",
    "Explanation",
    "Fork",
    "Mask",
    "Nonlinearity",
    "Pending",
    "Stack",
    "StackError",
    "collecting",
    "deterministic",
    "evaluate",
    "explain",
    "fused",
    "gradient_path",
    "innermost",
    "leaving",
    "library",
    "input_gradient",
    "stacked",
    "stacking",
]
