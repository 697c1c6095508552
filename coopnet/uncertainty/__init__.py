"""The uncertainty of a field.

====================  ==============================================================
:mod:`.mc_dropout`    mean and deviation over draws: of dropout, or of parameters
:mod:`.posthoc`       dropout for a field that was trained without any
:mod:`.laplace`       a posterior of its parameters
:mod:`.displacement`  a posterior of displacements of its coordinates
:mod:`.ensemble`      several fields as one field
:mod:`.std`           the deviation of posteriors and ensembles, without drawing
how good an uncertainty is
:mod:`.scores`        likelihood, calibration error, AUROC
:mod:`.calibrate`     scales deviations to the size of the errors
parts of these
:mod:`.data`          training batches that posteriors are computed on
:mod:`.layers`        inserts layers into a trained field
:mod:`.linearized`    derivatives of outputs, and deviations by linearization
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
