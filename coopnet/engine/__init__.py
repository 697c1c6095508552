"""How a network is evaluated and differentiated on a backend."""

from ..jit.lanes import Gate, only
from ..jit.layout import Layout
from .activations import FUNCTIONS
from .evaluate import evaluate, evaluate_jet
from .explain import Explanation, explain
from .modes import deterministic, gradient_path
from .ops import Activation, Affine, Fork, Mask

__all__ = [
    "FUNCTIONS",
    "Activation",
    "Affine",
    "Explanation",
    "Fork",
    "Gate",
    "Layout",
    "Mask",
    "deterministic",
    "evaluate",
    "evaluate_jet",
    "explain",
    "gradient_path",
    "only",
]
