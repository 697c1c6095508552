"""How a network is evaluated and differentiated on a backend."""

from .activations import FUNCTIONS
from .dispatch import evaluate
from .stages import Activation, Affine, Mask

__all__ = ["FUNCTIONS", "Activation", "Affine", "Mask", "evaluate"]
