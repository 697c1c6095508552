"""What a field does not know.

====================  ==============================================================
:mod:`.mc_dropout`    mean and deviation over draws: of dropout, or of parameters
:mod:`.posthoc`       dropout for a field that was trained without
:mod:`.laplace`       a posterior of its parameters
:mod:`.displacement`  or of displacements of its coordinates
:mod:`.ensemble`      several fields as one
:mod:`.std`           the deviation of posteriors and ensembles, without a draw
how good an uncertainty is
:mod:`.scores`        likelihood, calibration, telling two kinds of samples apart
:mod:`.calibrate`     deviations that are as large as errors
what they are made of
:mod:`.data`          batches of the training
:mod:`.layers`        a trained field with other layers among its own
:mod:`.linearized`    derivatives by parameters, and the deviation that follows
====================  ==============================================================
"""

from .calibrate import calibrate
from .ensemble import ensemble
from .laplace import laplace
from .mc_dropout import draws, has_dropout, mc_dropout, warn_unseen
from .posthoc import posthoc_dropout
from .scores import auroc, calibration_error, negative_log_likelihood
from .std import has_std, std

__all__ = [
    "auroc", "calibrate", "calibration_error", "draws", "ensemble", "has_dropout", "has_std", "laplace",
    "mc_dropout", "negative_log_likelihood", "posthoc_dropout", "std", "warn_unseen",
]  # fmt: skip
