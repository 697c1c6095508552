"""How a network is evaluated and differentiated on a backend."""

from .activations import FUNCTIONS
from .dispatch import evaluate, evaluate_jet
from .explain import Explanation, explain
from .lanes import Gate, only
from .layout import Layout
from .modes import deterministic, gradient_path
from .stages import Activation, Affine, Fork, Mask, Noise

__all__ = [
    "FUNCTIONS",
    "Activation",
    "Affine",
    "Explanation",
    "Fork",
    "Gate",
    "Layout",
    "Mask",
    "Noise",
    "deterministic",
    "evaluate",
    "evaluate_jet",
    "explain",
    "gradient_path",
    "only",
]
