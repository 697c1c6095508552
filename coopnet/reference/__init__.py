r"""Ground truth: every operation of the library in plain NumPy, in double precision.

Written separately from the library, from the formulas, so that the two check each other; clarity comes before
speed. Arrays have the shape ``(features, samples)``: a column is one sample. Functions named ``*_vjp`` take
the gradient ``dy`` of a scalar loss with respect to the output and return the gradients with respect to the
inputs. ``OPS`` maps every public name to its twin here.

Sources: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox); Srivastava et al. 2014
(dropout); Glorot and Bengio 2010 (initialization); Mildenhall et al. 2020 and Müller et al. 2021, 2022
(sinusoidal, triangular and hash-grid encodings); Welford 1962 (running variance); Hart 1996 (sphere tracing); Max 1995
(emission and absorption along rays).

======================  ===========================================================================
:mod:`.layers`          linear layers, activations, projections, embeddings
:mod:`.networks`        layers put together, and their derivatives
:mod:`.encodings`       encodings without parameters
:mod:`.grids`           grids and lattices
:mod:`.random`          Philox, the laws of dropout, other systems' masks
:mod:`.training`        losses, Adam, measures
:mod:`.cameras`         rays through pixels
:mod:`.surfaces`        rays and signed distances
:mod:`.marching`        emission and absorption along rays
:mod:`.reflections`     features of directions, sampling lobes
:mod:`.radiance_cache`  inputs and endings of a radiance cache
:mod:`.sparsification`  errors without the most uncertain samples
:mod:`.uncertainty`     rates of dropout for trained fields, posteriors, ensembles, calibration
======================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .cameras import *
from .encodings import *
from .grids import *
from .layers import *
from .marching import *
from .networks import *
from .radiance_cache import *
from .random import *
from .reflections import *
from .sparsification import *
from .surfaces import *
from .training import *
from .uncertainty import *

#: Public name of an operation -> the function here that it must agree with.
OPS: dict[str, Callable[..., Any]] = {
    **{f.__name__: f for f in (philox4x32, dropout, mc_dropout, seeded_dropout, numerical_gradient, sparsification)},
    **{f.__name__: f for f in (posthoc_dropout, laplace, ensemble, calibrate, calibration_error)},
    **{f.__name__: f for f in (negative_log_likelihood, auroc, integers, stratified)},
    "dropout_mask": keep_mask, "Dropout": dropout, "DropPath": drop_path, "GaussianDropout": gaussian_dropout,
    "ConcreteDropout": concrete_dropout, "concrete_penalty": concrete_penalty, "DropLevels": drop_levels,
    "Linear": linear, "Embedding": embedding, "SparseProjection": sparse_projection,
    **{name: ACTIVATIONS[name.lower()][0] for name in ("ReLU", "Tanh", "Sigmoid", "GELU", "SiLU", "Exp")},
    "LeakyReLU": leaky_relu, "Softplus": softplus, "Squareplus": squareplus, "Sine": sine,
    "Identity": identity, "Sinusoidal": sinusoidal, "Triangular": triangular, "Frequency": frequency,
    "TriangleWave": triangle_wave, "OneBlob": one_blob, "SphericalHarmonics": spherical_harmonics, "Fourier": fourier,
    "Composite": composite, "Pad": pad, "Grid": hash_grid, "HashGrid": hash_grid, "Permutohedral": permutohedral,
    "MLP": mlp, "SIREN": siren, "Sequential": sequential, "Residual": residual, "Skip": skip, "Heads": heads,
    "NeuralField": neural_field, "ray_march": ray_march, "Cameras": camera_rays,
    "sphere_trace": sphere_trace, "soft_visibility": soft_visibility,
}  # fmt: skip
