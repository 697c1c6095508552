"""How a network is evaluated and differentiated on a backend."""

from .activations import FUNCTIONS
from .explain import Explanation, explain
from .modes import deterministic, gradient_path
from .network import evaluate
from .ops import Activation, Affine, Fork, Mask, fused

__all__ = [
    "FUNCTIONS",
    "Activation",
    "Affine",
    "Explanation",
    "Fork",
    "Mask",
    "deterministic",
    "evaluate",
    "explain",
    "fused",
    "gradient_path",
]
