"""What a field does not know.

====================  ==============================================================
:mod:`.mc_dropout`    mean and deviation over draws: of dropout, or of parameters
:mod:`.posthoc`       dropout for a field that was trained without
:mod:`.laplace`       a posterior of its parameters
what they are made of
:mod:`.data`          batches of the training
:mod:`.layers`        a trained field with other layers among its own
:mod:`.linearized`    derivatives by parameters, and the deviation that follows
====================  ==============================================================
"""

from .laplace import laplace
from .mc_dropout import has_dropout, mc_dropout
from .posthoc import posthoc_dropout

__all__ = ["has_dropout", "laplace", "mc_dropout", "posthoc_dropout"]
